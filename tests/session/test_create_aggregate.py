"""`Connection.create_aggregate`: clauses of SQL and Python functions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import einsql

VALUES = np.random.default_rng(4).integers(-40, 40, (3, 17)) / 8


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as connection:
        connection.register("w", VALUES, dims=("i", "j"))
        yield connection


def column(con: einsql.Connection, call: str) -> list[Any]:
    return [v for _, v in con.execute(f"SELECT i, {call} FROM w GROUP BY i ORDER BY i").fetchall()]


def test_clauses_of_sql(con: einsql.Connection) -> None:
    con.create_aggregate(
        "log_sum",
        parameters={"x": "DOUBLE"},
        state={"m": ("DOUBLE", "-inf"), "s": (float, 0.0)},
        lift="x, 1",
        merge=["greatest(a.m, b.m)", "a.s + b.s"],
        rescale={"s": "s * exp(old.m - new.m)"},
        finish="m + ln(s)",
    )
    expected = np.log(np.exp(VALUES).sum(1))
    assert column(con, "log_sum(val)") == pytest.approx(list(expected), rel=1e-12)
    con.create_aggregate(
        "extent",
        parameters={"x": ""},
        state={"low": ("DOUBLE", math.inf), "high": ("DOUBLE", -math.inf)},
        lift={"high": "x", "low": "x"},
        merge={"low": "least(a.low, b.low)", "high": "greatest(a.high, b.high)"},
        finish={"low": "low", "width": "high - low"},
    )
    assert column(con, "extent(val).width") == list(np.ptp(VALUES, axis=1))
    con.create_aggregate(
        "first_value_of",
        parameters={"x": "DOUBLE"},
        state={"v": ("DOUBLE", 0), "some": (bool, False)},
        lift="x, TRUE",
        merge="CASE WHEN a.some THEN a.v ELSE b.v END, a.some OR b.some",
        finish="v",
        ordered_by="j",
    )
    assert column(con, "first_value_of(val) FILTER (WHERE j > 4)") == list(VALUES[:, 5])


def welford(con: einsql.Connection) -> None:
    con.create_aggregate(
        "welford",
        state={"n": ("DOUBLE", 0), "mean": ("DOUBLE", 0), "m2": ("DOUBLE", 0)},
        lift=lambda x: (1, x, 0),
        merge=lambda a, b: {
            "n": a.n + b.n,
            "mean": a.mean + (b.mean - a.mean) * b.n / max(a.n + b.n, 1),
            "m2": a.m2
            + b.m2
            + (b.mean - a.mean) * (b.mean - a.mean) * a.n * b.n / max(a.n + b.n, 1),
        },
        finish=lambda s: {"variance": s.m2 / (s.n - 1), "deviation": math.sqrt(s.m2 / (s.n - 1))},
    )


def test_python_functions_are_recorded(con: einsql.Connection) -> None:
    welford(con)
    assert column(con, "welford(val).variance") == pytest.approx(list(VALUES.var(1, ddof=1)))
    assert column(con, "welford(val).deviation") == pytest.approx(list(VALUES.std(1, ddof=1)))
    plan = str(con.explain("SELECT i, welford(val).variance FROM w GROUP BY i", analyze=True))
    assert "no kernel" not in plan


def test_arrays_and_orders(con: einsql.Connection) -> None:
    def product(a: Any, b: Any) -> tuple[list[Any], Any]:
        (p, q, r, s), (t, u, v, w) = a.m, b.m
        entries = [p * t + q * v, p * u + q * w, r * t + s * v, r * u + s * w]
        return [
            np.where(a.some, np.where(b.some, e, x), y)
            for e, x, y in zip(entries, a.m, b.m, strict=True)
        ], a.some | b.some

    con.create_aggregate(
        "turns",
        parameters=["DOUBLE"],
        state={"m": ("DOUBLE[4]", 0), "some": (bool, False)},
        lift=lambda x: ([x, 1.0, 0.0, 1.0], True),
        merge=product,
        finish=lambda s: s.m[1],
        ordered_by=["j"],
    )
    expected = []
    for row in VALUES:
        entry = np.eye(2)
        for x in row[:5]:
            entry = entry @ np.array([[x, 1.0], [0.0, 1.0]])
        expected.append(entry[0, 1])
    assert column(con, "turns(val) FILTER (WHERE j < 5)") == pytest.approx(expected)


def test_lift_and_finish_may_decide(con: einsql.Connection) -> None:
    def steps(n: int) -> int:
        return steps(n // 2 if n % 2 == 0 else 3 * n + 1) + 1 if n > 1 else 0

    def verdict(s: Any) -> float:
        return 1.0 if s.n > 100 else 0.0

    con.create_aggregate(
        "collatz", state={"n": (int, 0)}, lift=steps, merge=lambda a, b: a.n + b.n,
        finish=verdict, parameters=[int],
    )  # fmt: skip
    sums = [sum(steps(i + j) for j in range(17)) for i in range(3)]
    assert column(con, "collatz(i + j)") == [float(s > 100) for s in sums]


def test_the_aggregate_belongs_to_the_connection(con: einsql.Connection) -> None:
    welford(con)
    with pytest.raises(einsql.ProgrammingError, match='There is an aggregate "welford" already'):
        welford(con)
    con.remove_aggregate("welford")
    with pytest.raises(einsql.Error, match="welford"):
        column(con, "welford(val).variance")
    con.execute(
        "CREATE AGGREGATE total(x) STATE (s DOUBLE INIT 0) LIFT (x) MERGE (a.s + b.s) FINISH (s)"
    )
    for name in ("welford", "total", "w"):
        with pytest.raises(einsql.ProgrammingError, match=rf'no aggregate "{name}" of create_agg'):
            con.remove_aggregate(name)


SUM: dict[str, Any] = {
    "parameters": {"x": "DOUBLE"},
    "state": {"s": ("DOUBLE", 0)},
    "lift": "x",
    "merge": "a.s + b.s",
    "finish": "s",
}


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"merge": "a.s - b.s"}, "INIT ⊕ a is not a"),
        ({"merge": lambda a, b: a.s - b.s}, "INIT ⊕ a is not a"),
        ({"merge": lambda a, b: a.s if a.s > b.s else b.s}, "is a Python function"),
        ({"merge": lambda a, b: (a.s, b.s)}, "2 values for 1 field"),
        ({"merge": {"t": "a.s + b.s"}}, "has the fields t, and the state has s"),
        ({"merge": 5}, "is a text of SQL, texts, or a Python function"),
        ({"state": {"s": "DOUBLE"}}, "a type and the value without rows"),
        ({"state": {"s": ("VARCHAR", 0)}}, "no type VARCHAR"),
        ({"state": {"s": ("DOUBLE", "zero")}}, "cannot be zero"),
        ({"state": {}}, "a dictionary of fields"),
        ({"parameters": None}, "needs the names and types of its parameters"),
        ({"ordered_by": 5}, "takes a name or a list of names"),
        ({"ordered_by": "s; DROP"}, ""),
    ],
)
def test_wrong_arguments(con: einsql.Connection, changed: dict[str, Any], reason: str) -> None:
    if not reason:
        con.create_aggregate("f", **SUM | changed)
        with pytest.raises(einsql.Error, match='"s; drop"'):
            column(con, "f(val)")
        return
    with pytest.raises(einsql.Error) as refusal:
        con.create_aggregate("f", **SUM | changed)
    assert reason in refusal.value.reason
    con.create_aggregate("f", **SUM)
    assert column(con, "f(val)") == list(VALUES.sum(1))
