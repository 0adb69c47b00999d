"""Values that overflow, vanish or are no numbers, and the ways in which aggregates meet them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

import einsql

INF, NAN = math.inf, math.nan
MOST, LEAST = 2**63 - 1, -(2**63)
INTEGERS = {
    "small": [-2, -2, -1],
    "exact": [2**53 + 1, 2**53 + 1, 2**53],
    "halfway": [2**53 + 1, 2**53 + 3],
    "greatest": [MOST, MOST, MOST - 1, MOST - 1024, 3],
    "least": [LEAST, LEAST, -1],
    "apart": [MOST, LEAST, MOST, 2],
}
DOUBLES = {
    "large": [1e308, 1e308],
    "largest": [1.7976931348623157e308] * 5,
    "lowest": [-1.7976931348623157e308] * 7,
    "equal": [1e300] * 5,
    "neighbours": [1e300, math.nextafter(1e300, INF)],
    "sum beyond": [1e308, 1e308, 3e307],
    "square beyond": [1e160, 2e160],
    "infinite": [INF, INF],
    "one infinite": [-INF, 1.0],
    "no number": [NAN, 1.0],
    "subnormal": [5e-324, 1e-323, 5e-324],
    "zero": [-0.0, -0.0],
    "one": [1e308],
    "usual": [0.25, -1.5, 3.0, 1e-3],
}
FLOATS = {
    "spread": [1e20, 1e20, 3e20],
    "large": [3e38, 3e38],
    "largest": [3.4028234663852886e38] * 5,
    "apart": [3e38, -3e38],
    "infinite": [INF, 1.0],
    "no number": [NAN, 2.0],
    "subnormal": [1e-45, 3e-45],
    "equal": [0.1] * 7,
    "zero": [-0.0, -0.0],
}
HALVES = {"largest": [65504.0, 65504.0, -65504.0], "small": [6e-8, 1.2e-7, 1.0]}

LENGTH = 7
"""Elements of a group where all groups are alike: their values again and again."""
WAYS = {
    "rows": "SELECT g, {0} FROM alike GROUP BY g",
    "columns": "SELECT g, {0} FROM turned GROUP BY g",
    "filtered": "SELECT g, {0} FROM padded WHERE i < n GROUP BY g",
    "values": "SELECT g // 2 AS g, {0} FROM "
    "(SELECT i, alike.val, k.val AS g FROM alike JOIN k ON alike.g = k.g) GROUP BY g",
    "windows": "SELECT g, {1} FROM alike WHERE i >= 0",
    "stored": "SELECT g, {0} FROM stored GROUP BY g",
    "correlated": "SELECT k.g, {2} FROM k",
}
"""Queries of aggregates of each group, by what the groups are."""
STRATEGIES = ("eindecomp", "exact", "equal", "data:i")
Groups = Mapping[str, Sequence[float]]


def prepared(
    con: einsql.Connection, groups: Groups, make: Callable[[list[list[float]]], np.ndarray]
) -> None:
    """Makes the tensors that `WAYS` read.

    Args:
        con: Where.
        groups: Values by name; the first group is number 0.
        make: Makes an array of a type of rows of numbers.
    """
    alike = [[values[n % len(values)] for n in range(LENGTH)] for values in groups.values()]
    padded = [[*values, *[1] * LENGTH][:LENGTH] for values in groups.values()]
    con.execute("SET sites = 1")
    con.register("alike", make(alike), dims=("g", "i"))
    con.register("turned", make([list(row) for row in zip(*alike, strict=True)]), dims=("i", "g"))
    con.register("filled", make(padded), dims=("g", "i"))
    con.register("n", np.array([len(v) for v in groups.values()]), dims=("g",))
    con.register("k", 2 * np.arange(len(groups)), dims=("g",))
    con.execute(
        "CREATE OR REPLACE VIEW padded AS "
        "SELECT g, i, filled.val, n.val AS n FROM filled JOIN n USING (g); "
        "CREATE OR REPLACE TENSOR stored AS SELECT g, i, val FROM padded WHERE i < n"
    )


def answers(
    con: einsql.Connection, way: str, aggregates: Sequence[str]
) -> dict[int, tuple[object, ...]]:
    """What aggregates of a column `val` answer for each group, which may occur several times."""
    windows = [f"{a} OVER (PARTITION BY g)" for a in aggregates]
    inner = [f"(SELECT {a} FROM alike WHERE alike.g = k.g)" for a in aggregates]
    texts = (", ".join(t) for t in (aggregates, windows, inner))
    found: dict[int, tuple[object, ...]] = {}
    for g, *row in con.execute(WAYS[way].format(*texts)).fetchall():
        assert repr(found.setdefault(g, tuple(row))) == repr(tuple(row))
    return found


def members(groups: Groups, way: str) -> list[list[float]]:
    """The values of each group in some way."""
    whole = way not in ("filtered", "stored")
    return [
        [values[n % len(values)] for n in range(LENGTH)] if whole else list(values)
        for values in groups.values()
    ]


def agrees(mine: object, other: object) -> bool:
    """True for equal results, floats to a few of their last bits; where one is 0 both are."""
    if mine is None or other is None:
        return mine is other
    a, b = float(mine), float(other)  # type: ignore[arg-type]  # what aggregates give
    if math.isnan(b):
        return math.isnan(a)
    return math.isclose(a, b, rel_tol=1e-12)
