"""A matrix product in SQL beside NumPy's `@`."""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.matrices import MATMUL, check, connected, fetched, random
from benchmarks.measure import measure
from benchmarks.report import Finding, Section, factor, times
from einsql.core.bfloat16 import narrow

AIM = 0.95
SHORT_AIM = 0.9


def large() -> Section:
    """2048² and 4096² float32."""
    return Section(
        "Large matrix products, float32: NumPy's time / einsql's time",
        (_large(2048, 15, 8.0), _large(4096, 9, 12.0)),
    )


def _large(n: int, rounds: int, seconds: float) -> Finding:
    a, b = random(n, n), random(n, n, seed=1)
    con = connected({"a": a, "b": b})
    check(con.execute(MATMUL).fetch_numpy(), a @ b)
    taken = measure(
        {"einsql": lambda: con.execute(MATMUL).fetch_numpy(), "numpy": lambda: a @ b},
        rounds=rounds,
        seconds=seconds,
    )
    found = taken.ratio("numpy", "einsql")
    return Finding(
        f"{n}² vs A @ B",
        factor(found),
        f"≥ {AIM}×",
        found.value >= AIM,
        times({name: taken.median(name) for name in taken.seconds}),
    )


def short() -> Section:
    """The same of two bytes an element, which is computed as FLOAT."""
    return Section(
        "Matrix products of HALF and BFLOAT16: FLOAT's time / theirs",
        (_short(512, 40, 4.0), _short(2048, 15, 6.0), _short(4096, 7, 12.0)),
    )


def _short(n: int, rounds: int, seconds: float) -> Finding:
    a, b = random(n, n), random(n, n, seed=1)
    sessions = {
        "FLOAT": connected({"a": a, "b": b}),
        "HALF": connected({"a": a.astype(np.float16), "b": b.astype(np.float16)}),
        "BFLOAT16": connected({"a": narrow(a), "b": narrow(b)}),
    }
    for name in ("HALF", "BFLOAT16"):
        x, y = (fetched(sessions[name], f"SELECT i, j, val FROM {t}") for t in "ab")
        check(fetched(sessions[name], MATMUL), x.astype(np.float32) @ y.astype(np.float32))
    taken = measure(
        {name: partial(fetched, con, MATMUL) for name, con in sessions.items()},
        rounds=rounds,
        seconds=seconds,
    )
    found = min(
        (taken.ratio("FLOAT", name) for name in ("HALF", "BFLOAT16")), key=lambda e: e.value
    )
    return Finding(
        f"{n}², the slower of the two",
        factor(found),
        f"≥ {SHORT_AIM}×",
        found.value >= SHORT_AIM,
        times({name: taken.median(name) for name in taken.seconds}),
    )
