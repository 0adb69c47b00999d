"""Attention in SQL, plain and causal, beside PyTorch's own and its eager form, and NumPy."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np

import einsql
from benchmarks.matrices import check, random
from benchmarks.measure import measure
from benchmarks.report import Finding, Section, factor, times

HEADS, LENGTH, WIDTH = 16, 1024, 64
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
AIMS = {"torch's own": 1.0, "torch eager": 3.0}
MOST_MEMORY = 0.1
"""Share of the score matrix that may be taken beside the result."""


def heads() -> Section:
    """16 heads × 1024 × 64, with and without a causal mask."""
    title = f"Attention, {HEADS} heads × {LENGTH} × {WIDTH}, float32: another's time / einsql's"
    try:
        import torch
    except ImportError:
        return Section(title, (), "PyTorch is not installed")
    return Section(title, tuple(f for where in ("", CAUSAL) for f in _findings(torch, where)))


def _connected() -> tuple[einsql.Connection, list[np.ndarray]]:
    con = einsql.connect()
    arrays = [random(HEADS, LENGTH, WIDTH, seed=n) for n in range(3)]
    for name, rows, array in zip("qkv", "stt", arrays, strict=True):
        con.register(name, array, dims=("h", rows, "d"))
    return con, arrays


def _findings(torch: Any, where: str) -> list[Finding]:
    con, arrays = _connected()
    sql = SQL.format(where=where)
    q, k, v = (torch.from_numpy(a)[None] for a in arrays)
    above = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)

    def eager() -> Any:
        scores = q @ k.transpose(-1, -2) / 8
        if where:
            scores = scores.masked_fill(above, float("-inf"))
        return torch.softmax(scores, -1) @ v

    def own() -> Any:
        attention = torch.nn.functional.scaled_dot_product_attention
        return attention(q, k, v, is_causal=bool(where))

    check(con.execute(sql).fetch_numpy(), own()[0].numpy())
    taken = measure(
        {
            "einsql": lambda: con.execute(sql).fetch_numpy(),
            "torch's own": own,
            "torch eager": eager,
        },
        rounds=11,
        seconds=6.0,
    )
    medians = times({name: taken.median(name) for name in taken.seconds})
    name = "causal" if where else "plain"
    found = []
    for peer, aim in AIMS.items():
        ratio = taken.ratio(peer, "einsql")
        found.append(
            Finding(f"{name} vs {peer}", factor(ratio), f"≥ {aim}×", ratio.value >= aim, medians)
        )
    share = _memory(where) / (HEADS * LENGTH * LENGTH * 4)
    found.append(
        Finding(
            f"{name}: memory beside the result / score matrix",
            f"{share:.3f}",
            f"≤ {MOST_MEMORY}",
            share <= MOST_MEMORY,
        )
    )
    return found


def _memory(where: str) -> int:
    """Most bytes taken at once beside the result, found in a process of its own."""
    code = f"from benchmarks.attention import peak; print(peak({where!r}))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(ran.stdout)


def peak(where: str) -> int:
    """Most bytes that a run takes at once beside its result."""
    con, _ = _connected()
    sql = SQL.format(where=where)
    con.execute(sql).fetch_numpy()  # plans are made and kernels compiled here
    tracemalloc.start()
    result = con.execute(sql).fetch_numpy()
    return tracemalloc.get_traced_memory()[1] - result.nbytes
