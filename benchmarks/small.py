"""A small statement that is repeated: what einsql adds to the product itself."""

from __future__ import annotations

import numpy as np

from benchmarks.matrices import MATMUL, check, connected, random
from benchmarks.measure import measure
from benchmarks.report import Finding, Section, microseconds, times

N = 64
TO_EINSUM, TO_OPERATOR = 60e-6, 40e-6


def repeated() -> Section:
    """The 64² product, its plan kept from the first time."""
    a, b = random(N, N), random(N, N, seed=1)
    con = connected({"a": a, "b": b})
    check(con.execute(MATMUL).fetch_numpy(), a @ b)
    taken = measure(
        {
            "einsql": lambda: con.execute(MATMUL).fetch_numpy(),
            "numpy.einsum": lambda: np.einsum("ij,jk->ik", a, b),
            "numpy @": lambda: a @ b,
        },
        rounds=200,
        seconds=3.0,
        calls={"einsql": 20, "numpy.einsum": 20, "numpy @": 20},
    )
    return Section(
        f"A repeated {N}² product, float32: einsql's time − the other's time",
        tuple(
            Finding(
                f"{N}² vs {name}",
                microseconds(found := taken.difference("einsql", name)),
                f"≤ +{aim * 1e6:.0f} µs",
                found.value <= aim,
                times({x: taken.median(x) for x in ("einsql", name)}),
            )
            for name, aim in (("numpy.einsum", TO_EINSUM), ("numpy @", TO_OPERATOR))
        ),
    )
