"""Small statements that are repeated: what einsql adds to the operations themselves."""

from __future__ import annotations

import numpy as np

import einsql
from benchmarks.matrices import MATMUL, Array, check, connected, random
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


LENGTH, LEVELS = 16, 50


def steps() -> Section:
    """A chain of operations so short that only what lies between them takes time."""
    x = random(LENGTH)
    levels = "".join(
        f"x{n + 1} AS (SELECT x.i, x.val / (1 + m.val) AS val "
        f"FROM x{n} AS x, (SELECT MAX(val) AS val FROM x{n}) AS m),\n"
        for n in range(LEVELS)
    )
    sql = f"WITH {levels}last AS (SELECT i, val FROM x{LEVELS}) SELECT * FROM last"
    con = einsql.connect()
    con.register("x0", x, dims=("i",))

    def in_numpy() -> Array:
        y = x
        for _ in range(LEVELS):
            y = y / (1 + y.max())
        return y

    check(con.execute(sql).fetch_numpy(), in_numpy())
    count = len(str(con.explain(sql)).partition("-- steps\n")[2].splitlines())
    taken = measure(
        {"einsql": lambda: con.execute(sql).fetch_numpy(), "numpy": in_numpy},
        rounds=200,
        seconds=3.0,
        calls={"einsql": 5, "numpy": 5},
    )
    each = ", ".join(f"{n} {taken.median(n) / count * 1e6:.1f} µs" for n in ("einsql", "numpy"))
    return Section(
        f"Small steps: {count} of {LENGTH} numbers and less in a statement that is repeated",
        (
            Finding(
                f"all {count} vs numpy",
                microseconds(taken.difference("einsql", "numpy")),
                times=times({n: taken.median(n) for n in ("einsql", "numpy")}),
            ),
            Finding("each", each),
        ),
    )
