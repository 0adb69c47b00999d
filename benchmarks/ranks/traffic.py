"""Bytes that strategies send for the skewed chain, from EXPLAIN."""

from __future__ import annotations

import json

import einsql
from benchmarks.evaluation.experiments.chains import PAIRWISE
from benchmarks.ranks.workloads import WORKLOADS

STRATEGIES = ("equal", "eindecomp")


def planned(workload: str, sites: int) -> dict[str, dict[str, int]]:
    """Bytes sent by how the inputs lie, one copy of each, and by strategy."""
    layouts = {
        "rows": dict.fromkeys("abcde", (sites, 1)),
        "columns": dict.fromkeys("abcde", (1, sites)),
        "blocks": dict.fromkeys("abcde", (sites // 2, 2)),
        "the summed key": {n: (1, sites) if n in "acd" else (sites, 1) for n in "abcde"},
    }
    return {
        how: {s: _sent(workload, sites, cuts, s) for s in STRATEGIES}
        for how, cuts in layouts.items()
    }


def _sent(workload: str, sites: int, cuts: dict[str, tuple[int, int]], strategy: str) -> int:
    with einsql.connect(config={"strategy": strategy}) as con:
        for name, (rows, columns) in WORKLOADS[workload].shapes.items():
            parts = "PARTITION BY (i {}, j {})".format(*cuts[name])
            # With a default every element is present, and none is stored.
            keys = f"i DIM({rows}), j DIM({columns})"
            con.execute(f"CREATE TENSOR {name} ({keys}, val FLOAT) {parts} DEFAULT 0")
        plan = con.execute(f"EXPLAIN (SITES {sites}, FORMAT json) {PAIRWISE}").fetchall()[0][0]
    sent: int = json.loads(plan)["total"]["bytes_sent"]
    return sent
