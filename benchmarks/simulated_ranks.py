"""Simulated runs beside runs on MPI ranks: `python -m benchmarks.simulated_ranks [--record]`.

After CALIBRATE, seconds of the simulation against the median of runs of the same plan, and
the bytes that each rank sends and receives, which are predicted to the last one. Ranks use a
thread each, so that as many ranks as there are cores leave each other alone.
"""

from __future__ import annotations

import argparse
import datetime
import os
import sys
import time
from dataclasses import dataclass
from statistics import median

import numpy as np

import einsql
from benchmarks.report import duration, write_between
from benchmarks.report import machine as described
from benchmarks.simulation import DOCUMENT
from tests.support.networks import FFNN, ffnn, transformer

RUNS = 9
RANKS = (1, 2, 4, 8)

Tensors = dict[str, dict[str, int]]
"""Extents of every key of every tensor."""

PRODUCT = """
SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k
"""
CHAIN = """
WITH ab AS (SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k),
de AS (SELECT l, k, SUM(d.val * e.val) AS val FROM d JOIN e USING (m) GROUP BY l, k),
cde AS (SELECT i, k, SUM(c.val * de.val) AS val FROM c JOIN de USING (l) GROUP BY i, k)
SELECT i, k, ab.val + cde.val AS val FROM ab JOIN cde USING (i, k)
"""
SOFTMAX = """
WITH e AS (SELECT i, j, EXP(a.val - MAX(a.val) OVER (PARTITION BY i)) AS val FROM a)
SELECT i, j, val / SUM(val) OVER (PARTITION BY i) AS val FROM e
"""


@dataclass(frozen=True)
class Case:
    """A statement with its tensors; values are normal, those of weights with deviation 0.05."""

    what: str
    tensors: Tensors
    sql: str
    weights: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Compared:
    """A statement on ranks.

    Attributes:
        simulated: Seconds of the simulation.
        measured: Seconds of runs.
        exact: Whether each rank sent and received as many bytes as predicted.
        moved: Bytes sent by all ranks.
    """

    simulated: float
    measured: list[float]
    exact: bool
    moved: int

    @property
    def cell(self) -> str:
        """The median of the runs, and how the simulation compares to it."""
        m = median(self.measured)
        return f"{duration(m)}, {self.simulated / m:.2f}"


def cases() -> list[Case]:
    """What is run: contractions, a training step, a network, and element-wise work."""
    square = {n: dict.fromkeys(keys, 2048) for n, keys in
              (("a", "ij"), ("b", "jk"), ("c", "il"), ("d", "lm"), ("e", "mk"))}  # fmt: skip
    large: Tensors = {"a": {"i": 4096, "j": 4096}, "b": {"j": 4096, "k": 4096}}
    layers, network = transformer(2, b=4, s=256, a=512, h=8, d=64, f=1376)
    return [
        Case("product of 4096²", large, PRODUCT),
        Case("chain of 2048²", square, CHAIN),
        Case("FFNN step 1024×1600×4096×10", ffnn(1024, 1600, 4096, 10), FFNN),
        Case("two layers of a transformer", layers, network, frozenset(layers) - {"x"}),
        Case("softmax of 4096²", {"a": large["a"]}, SOFTMAX),
    ]


def compared(con: einsql.Connection, case: Case) -> Compared:
    """Simulates a statement and runs it."""
    rng = np.random.default_rng(0)
    for name, extents in case.tensors.items():
        values = rng.standard_normal(tuple(extents.values()), dtype=np.float32)
        if name in case.weights:
            values *= np.float32(0.05)
        con.register("one", values, dims=tuple(extents))
        con.execute(f"CREATE TENSOR {name} AS SELECT {', '.join(extents)}, val FROM one")
        con.unregister("one")
    taken = []
    for _ in range(RUNS + 2):
        start = time.perf_counter()
        cursor = con.execute(case.sql)
        taken.append(time.perf_counter() - start)
        del cursor  # its tiles at the ranks are free for the next run
    plan = con.explain(case.sql, simulate=True).to_dict()
    run = con.explain(case.sql, analyze=True).to_dict()
    keys = "bytes_sent", "bytes_received"
    told, done = ([[s[k] for k in keys] for s in found] for found in
                  (plan["simulation"]["per_site"], run["per_site"]))  # fmt: skip
    for name in case.tensors:
        con.execute(f"DROP TENSOR {name}")
    moved = sum(sent for sent, _ in done)
    return Compared(plan["simulation"]["seconds"], taken[2:], told == done, moved)


def as_markdown(found: dict[int, dict[str, Compared]]) -> str:
    """A table under the date and the machine."""
    cores = len(os.sched_getaffinity(0))
    exact = all(c.exact for of in found.values() for c in of.values())
    ranks = [f"{n} rank{'s' * (n > 1)}" + ", on fewer cores" * (n > cores) for n in found]
    rows = [
        f"| {case} | " + " | ".join(of[case].cell for of in found.values()) + " |"
        for case in next(iter(found.values()))
    ]
    return "\n".join([
        f"Measured on {datetime.date.today().isoformat()}: the median of {RUNS} runs, and what "
        "part of it the simulation says.",
        f"Bytes that each rank sends and receives: {'all' if exact else 'NOT all'} as predicted.",
        "",
        *(f"- {line}" for line in described()),
        "",
        f"| FLOAT | {' | '.join(ranks)} |",
        "| --- |" + " ---: |" * len(ranks),
        *rows,
    ])  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulated_ranks", description=__doc__
    )
    parser.add_argument("ranks", nargs="*", type=int, default=RANKS, help="1, 2, 4 and 8 if none")
    parser.add_argument("--record", action="store_true", help=f"write {DOCUMENT.name} too")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # the ranks inherit it
    found: dict[int, dict[str, Compared]] = {}
    for n in options.ranks:
        con = einsql.connect(config={"mpi": n})
        con.execute("CALIBRATE")
        found[n] = {}
        for case in cases():
            found[n][case.what] = made = compared(con, case)
            verdict = "as predicted" if made.exact else "NOT as predicted"
            print(f"{n} ranks: {case.what}: {made.cell}; {made.moved:,} B, {verdict}", flush=True)
        con.close()
    text = as_markdown(found)
    print(text)
    if options.record:
        write_between(DOCUMENT, "ranks", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
