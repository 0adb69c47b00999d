"""LLaMA-7B's first token cut over sites: `python -m benchmarks.llama [--record]`.

The network is one SQL statement over declared tensors that hold nothing, for only its
plan is of interest: what strategies move (EinDecomp §9, experiment 3), and how long
planning takes, stage by stage.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from benchmarks.report import machine
from einsql.ir.einsum.graph import Node
from einsql.optimizer import optimize
from einsql.optimizer.decomposition import decompose
from einsql.optimizer.lowering.graph_program import site_program
from einsql.planner.queries import query_binder
from einsql.sql.parser.parser import parse
from einsql.sql.parser.syntax import Query
from tests.support.networks import connected, transformer

DOCUMENT = Path(__file__).parent.parent / "docs" / "explanation" / "llama.md"
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"
SITES = (2, 4, 8, 64, 1024)
STRATEGIES = ("eindecomp", "megatron", "sequence", "attention")
SHAPE = {"b": 4, "s": 4096, "a": 4096, "h": 32, "d": 128, "f": 11008}

T = TypeVar("T")


@dataclass(frozen=True)
class Plan:
    """A plan's predictions and what it took to make it.

    Attributes:
        floats: Floats moved, as EinDecomp counts them.
        nbytes: Bytes sent between sites once the calls are placed.
        cutting: Seconds of decomposition.
        placing: Seconds of placement.
    """

    floats: float
    nbytes: int
    cutting: float
    placing: float


def timed(run: Callable[[], T], rounds: int) -> tuple[T, float]:
    """A result and the least CPU time of some rounds, in seconds; planning has one thread."""
    taken = []
    for _ in range(rounds):
        gc.collect()
        start = time.process_time()
        result = run()
        taken.append(time.process_time() - start)
    return result, min(taken)


def prepared(layers: int, rounds: int) -> tuple[Node, dict[str, float]]:
    """The optimised graph, and the seconds of each stage before it is cut."""
    tensors, sql = transformer(layers, **SHAPE)  # type: ignore[arg-type]  # SHAPE has no names
    con = connected(tensors)
    (statement, _), reading = timed(lambda: parse(sql), rounds)
    assert isinstance(statement, Query)
    bound, binding = timed(lambda: query_binder(con.context).bind(statement.tree), rounds)
    optimized, rewriting = timed(lambda: optimize(bound.node), rounds)
    return optimized.root, {"parse": reading, "bind": binding, "optimise": rewriting}


def planned(root: Node, sites: int, strategy: str, rounds: int) -> Plan:
    """One plan."""
    cut, cutting = timed(lambda: decompose(root, sites=sites, strategy=strategy), rounds)
    placed, placing = timed(lambda: site_program(root, cut=cut), rounds)
    return Plan(cut.floats, placed.bytes_sent, cutting, placing)


def as_markdown(layers: int, stages: dict[str, float], plans: dict[tuple[int, str], Plan]) -> str:
    """Tables under the date and the machine."""
    head = "| sites | " + " | ".join(STRATEGIES) + " |\n|" + " ---: |" * (1 + len(STRATEGIES))

    def table(cell: Callable[[int, str], str]) -> list[str]:
        rows = (f"| {p} | " + " | ".join(cell(p, s) for s in STRATEGIES) + " |" for p in SITES)
        return [head, *rows, ""]

    def floats(p: int, strategy: str) -> str:
        best = plans[p, "eindecomp"].floats
        found = plans[p, strategy].floats
        return f"{found:.4g}" + ("" if strategy == "eindecomp" else f" ({found / best:.2f}×)")

    ahead = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in stages.items())
    return "\n".join([
        f"Made on {datetime.date.today().isoformat()}; {layers} layers.",
        "",
        *(f"- {line}" for line in machine()),
        "",
        "### Floats moved, as EinDecomp counts them",
        "",
        *table(floats),
        "### Gigabytes sent between sites, once the calls are placed",
        "",
        *table(lambda p, s: f"{plans[p, s].nbytes / 1e9:.4g}"),
        "### Seconds of CPU to cut + to place and compile to a program",
        "",
        *table(lambda p, s: f"{plans[p, s].cutting:.2f} + {plans[p, s].placing:.2f}"),
        f"Before that, once: {ahead}.",
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.llama", description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="of which the fastest counts")
    parser.add_argument("--record", action="store_true", help=f"write {DOCUMENT.name} too")
    options = parser.parse_args()
    root, stages = prepared(options.layers, options.rounds)
    plans: dict[tuple[int, str], Plan] = {}
    for sites in SITES:
        for strategy in STRATEGIES:
            print(f"\r{sites} sites, {strategy}        ", end="", file=sys.stderr, flush=True)
            plans[sites, strategy] = planned(root, sites, strategy, options.rounds)
    print(file=sys.stderr)
    text = as_markdown(options.layers, stages, plans)
    print(text)
    if options.record:
        before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(_BEGIN)
        after = rest.partition(_END)[2]
        DOCUMENT.write_text(f"{before}{_BEGIN}\n\n{text}\n\n{_END}{after}", encoding="utf-8")
    worse = [
        p for p in SITES for s in STRATEGIES if plans[p, "eindecomp"].floats > plans[p, s].floats
    ]
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
