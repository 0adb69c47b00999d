"""LLaMA-7B played on clusters: `python -m benchmarks.simulation [--record]`.

The network of `benchmarks.llama`, cut by several strategies and for a thousand sites in nodes
of one and of eight, with as many links as that leaves room for; what the simulation says, and
how long it takes itself.
"""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.llama import prepared, timed
from benchmarks.report import machine as described
from benchmarks.report import write_between
from einsql.core.machine import Machine, Topology
from einsql.core.units import duration
from einsql.ir.einsum.graph import Node
from einsql.ir.spmd.program import Program
from einsql.optimizer.decomposition import Floats, Seconds, decompose
from einsql.optimizer.lowering.graph_program import site_program
from einsql.optimizer.simulation.prediction import predict
from einsql.optimizer.simulation.rounds import DIRECT, TREES_AND_RINGS
from einsql.optimizer.simulation.simulation import Simulation, simulate

DOCUMENT = Path(__file__).parent.parent / "docs" / "explanation" / "simulation.md"
SITES = 1024
MACHINE = Machine(memory_bandwidth=1.5e12, call_overhead=5e-6).with_flops(19.5e12)
NODE = Topology(
    network=12.5e9, latency=2e-6, node_network=3e11, node_latency=5e-7, node_memory=640e9
)
CLUSTERS = tuple(replace(NODE, node_sites=s, links=n) for s, n in ((1, 1), (8, 1), (8, 4), (8, 8)))
STRATEGIES = ("megatron", "eindecomp", "eindecomp in seconds")


@dataclass(frozen=True)
class Played:
    """A plan on a cluster.

    Attributes:
        predicted: Seconds of lockstep sites.
        simulation: What happens.
        rings: The same with trees and rings.
        taken: Seconds of CPU that the simulation takes.
    """

    predicted: float
    simulation: Simulation
    rings: Simulation
    taken: float


def played(root: Node, strategy: str, cluster: Topology, known: dict[str, Program]) -> Played:
    """One plan on one cluster; plans that do not depend on it are made once."""
    name, _, seconds = strategy.partition(" in ")
    share = replace(MACHINE, network=cluster.site_network, latency=cluster.latency)
    program = known.get(strategy)
    if program is None:
        objective = Seconds(share, SITES) if seconds else Floats()
        cut = decompose(root, sites=SITES, strategy=name, objective=objective)
        program = site_program(root, cut=cut)
        if not seconds:
            known[strategy] = program
    simulation, taken = timed(lambda: simulate(program, MACHINE, cluster, DIRECT), 2)
    rings = simulate(program, MACHINE, cluster, TREES_AND_RINGS)
    return Played(sum(predict(program, share).seconds), simulation, rings, taken)


def as_markdown(runs: dict[tuple[Topology, str], Played]) -> str:
    """Tables under the date and the machine."""
    head = "| nodes | " + " | ".join(STRATEGIES) + " |\n|" + " --- |" + " ---: |" * len(STRATEGIES)

    def table(cell: Callable[[Played], str]) -> list[str]:
        rows = []
        for c in CLUSTERS:
            nodes = f"{SITES // c.node_sites:,} × {c.node_sites} sites, {c.links} × 100 Gbit/s"
            cells = (cell(runs[c, s]) for s in STRATEGIES)
            rows.append(f"| {nodes} | " + " | ".join(cells) + " |")
        return [head, *rows, ""]

    def run(p: Played) -> str:
        s = p.simulation
        busy = s.computing.mean() / s.seconds
        return f"{duration(s.seconds)}, {busy:.0%} ({duration(p.predicted)})"

    slowest = max(p.taken for p in runs.values())
    return "\n".join([
        f"Made on {datetime.date.today().isoformat()}; a simulation takes {slowest:.2f} s of CPU "
        "at most.",
        "",
        *(f"- {line}" for line in described()),
        "",
        "### Time of the run, how much of it an average site computes, and (lockstep sites)",
        "",
        *table(run),
        "### Time with trees and rings",
        "",
        *table(lambda p: duration(p.rings.seconds)),
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--record", action="store_true", help=f"write {DOCUMENT.name} too")
    options = parser.parse_args()
    root, _ = prepared(options.layers, 1)
    known: dict[str, Program] = {}
    runs: dict[tuple[Topology, str], Played] = {}
    for cluster in CLUSTERS:
        for strategy in STRATEGIES:
            print(f"\r{strategy}, {cluster.links} links    ", end="", file=sys.stderr, flush=True)
            runs[cluster, strategy] = played(root, strategy, cluster, known)
    print(file=sys.stderr)
    text = as_markdown(runs)
    print(text)
    if options.record:
        write_between(DOCUMENT, "results", text.rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
