"""Attention in SQL, plain and causal, beside PyTorch's own and its eager form, and NumPy."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import einsql
from benchmarks.matrices import check, pytorch, random
from benchmarks.measure import Run, measure
from benchmarks.report import Finding, Section, factor, times
from einsql.core import buffer_pool

WIDTH = 64
SQL = """
WITH x AS (SELECT h, s, t, SUM(q.val * k.val) / 8 AS val
           FROM q JOIN k USING (h, d) {where} GROUP BY h, s, t),
m AS (SELECT h, s, MAX(val) AS val FROM x GROUP BY h, s),
e AS (SELECT h, s, t, EXP(x.val - m.val) AS val FROM x JOIN m USING (h, s)),
z AS (SELECT h, s, SUM(val) AS val FROM e GROUP BY h, s),
p AS (SELECT h, s, t, e.val / z.val AS val FROM e JOIN z USING (h, s))
SELECT h, s, d, SUM(p.val * v.val) AS val FROM p JOIN v USING (h, t) GROUP BY h, s, d
"""
CAUSAL = "WHERE t <= s"
OWN, EAGER = "torch's own", "torch eager"
AIMS = {OWN: 1.0, EAGER: 3.0}
MOST_MEMORY = 0.1
"""Share of the score matrix that may be taken beside the result."""


@dataclass(frozen=True)
class Case:
    """Heads × rows of queries × keys."""

    name: str
    heads: int
    rows: int
    terms: int
    where: str = ""
    peers: tuple[str, ...] = (OWN, EAGER)

    @property
    def scores(self) -> int:
        """Bytes of the score matrix."""
        return 4 * self.heads * self.rows * self.terms


def heads() -> Section:
    """16 heads × 1024 × 64, with and without a causal mask."""
    cases = (
        Case("plain", 16, 1024, 1024),
        Case("causal", 16, 1024, 1024, CAUSAL),
    )
    return _section(f"Attention, 16 heads × 1024 × {WIDTH}", cases)


def long() -> Section:
    """Rows too long to be kept, and one row over a million keys."""
    cases = (
        Case("2 × 16,384 × 16,384", 2, 2**14, 2**14, peers=(OWN,)),
        Case("the same, causal", 2, 2**14, 2**14, CAUSAL, peers=(OWN,)),
        Case("1 × 1 × 1,048,576", 1, 1, 2**20, peers=(OWN,)),
    )
    return _section(f"Attention, heads × rows × keys, depth {WIDTH}", cases)


def _section(title: str, cases: Sequence[Case]) -> Section:
    title += ", float32: another's time / einsql's"
    torch = pytorch()
    if torch is None:
        return Section(title, (), "PyTorch is not installed")
    return Section(title, tuple(f for case in cases for f in _findings(torch, case)))


def _connected(case: Case) -> tuple[einsql.Connection, list[np.ndarray]]:
    con = einsql.connect()
    extents = {"s": case.rows, "t": case.terms}
    arrays = [random(case.heads, extents[x], WIDTH, seed=n) for n, x in enumerate("stt")]
    for name, rows, array in zip("qkv", "stt", arrays, strict=True):
        con.register(name, array, dims=("h", rows, "d"))
    return con, arrays


def _findings(torch: Any, case: Case) -> list[Finding]:
    con, arrays = _connected(case)
    sql = SQL.format(where=case.where)
    q, k, v = (torch.from_numpy(a)[None] for a in arrays)
    above = torch.ones(case.rows, case.terms, dtype=torch.bool).triu(1) if case.where else None

    def eager() -> Any:
        scores = q @ k.transpose(-1, -2) / 8
        if above is not None:
            scores = scores.masked_fill(above, float("-inf"))
        return torch.softmax(scores, -1) @ v

    def own() -> Any:
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(q, k, v, is_causal=bool(case.where))

    check(con.execute(sql).fetch_numpy(), own()[0].numpy())
    contestants: dict[str, Run] = {OWN: own, EAGER: eager}
    taken = measure(
        {
            "einsql": lambda: con.execute(sql).fetch_numpy(),
            **{peer: contestants[peer] for peer in case.peers},
        },
        rounds=5 if case.scores > 2**28 else 11,
        seconds=6.0,
    )
    medians = times({name: taken.median(name) for name in taken.seconds})
    found = []
    for peer in case.peers:
        ratio, aim = taken.ratio(peer, "einsql"), AIMS[peer]
        found.append(
            Finding(
                f"{case.name} vs {peer}", factor(ratio), f"≥ {aim}×", ratio.value >= aim, medians
            )
        )
    if case.rows > 1:  # one row of scores is no matrix
        share = _memory(case) / case.scores
        found.append(
            Finding(
                f"{case.name}: memory beside the result / score matrix",
                f"{share:.4f}",
                f"≤ {MOST_MEMORY}",
                share <= MOST_MEMORY,
            )
        )
    return found


def _memory(case: Case) -> int:
    """Most bytes taken at once beside the result, found in a process of its own."""
    code = f"from benchmarks.attention import Case, peak; print(peak({case!r}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(ran.stdout)


def peak(case: Case) -> int:
    """Most bytes that a run takes at once beside its result."""
    con, _ = _connected(case)
    sql = SQL.format(where=case.where)
    first = con.execute(sql).fetch_numpy()  # plans are made and kernels compiled here
    buffer_pool.keep(0)  # what the first run left for the next one counts too
    tracemalloc.start()  # the first result is kept, so that the second takes memory of its own
    second = con.execute(sql).fetch_numpy()
    most: int = tracemalloc.get_traced_memory()[1] - second.nbytes
    del first
    return most
