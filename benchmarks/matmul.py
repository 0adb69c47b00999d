"""A matrix product in SQL beside NumPy's `@`."""

from __future__ import annotations

from benchmarks.matrices import MATMUL, check, connected, random
from benchmarks.measure import measure
from benchmarks.report import Finding, Section, factor, times

AIM = 0.95


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
