"""UNNEST of lists and of aggregates with several numbers, which gives keys on tensors."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql

VALUES = np.random.default_rng(12).permutation(40).reshape(4, 10) / 4

BEST = """
CREATE AGGREGATE best3(x DOUBLE) STATE (v DOUBLE[3] INIT 'inf') LIFT ([x, 'inf', 'inf'])
MERGE ([least(a.v[1], b.v[1]),
        least(greatest(a.v[1], b.v[1]), a.v[2], b.v[2]),
        least(greatest(a.v[1], b.v[2]), greatest(a.v[2], b.v[1]), a.v[3], b.v[3])])
FINISH ({})"""


@pytest.fixture(scope="module", params=[1, 3])
def con(request: pytest.FixtureRequest) -> Iterator[einsql.Connection]:
    with einsql.connect(config={"sites": request.param, "fallback": "off"}) as connection:
        connection.register("w", VALUES, dims=("i", "j"))
        connection.execute(BEST.format("v"))
        named = BEST.format("v AS least, [v[3] - v[1], v[1]] AS others, v[1] AS one")
        connection.execute(named.replace("best3", "best"))
        yield connection


SORTED = np.sort(VALUES, axis=1)[:, :3]


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ("UNNEST(best3(val)) AS v", [(i, v) for i in range(4) for v in SORTED[i]]),
        (
            "GENERATE_SUBSCRIPTS(best3(val), 1) AS k, UNNEST((best3(val))) AS v",
            [(i, k + 1, SORTED[i, k]) for i in range(4) for k in range(3)],
        ),
        ("best3(val)[2], best3(val)[1] + 1", [(i, s[1], s[0] + 1) for i, s in enumerate(SORTED)]),
        (
            "UNNEST(best(val).others) AS v, best(val).one",
            [(i, v, s[0]) for i, s in enumerate(SORTED) for v in (s[2] - s[0], s[0])],
        ),
        (
            "UNNEST([SUM(val), NULL, best(val).least[2]]) AS v",
            [(i, v) for i in range(4) for v in (VALUES[i].sum(), None, SORTED[i, 1])],
        ),
    ],
)
def test_groups(
    con: einsql.Connection, items: str, expected: list[tuple[float | None, ...]]
) -> None:
    assert con.execute(f"SELECT i, {items} FROM w GROUP BY i").fetchall() == expected


def test_a_window_reduces_rows_before_they_are_repeated(con: einsql.Connection) -> None:
    rows = con.execute(
        "SELECT i, j, UNNEST([1, 2, 3]) AS n, UNNEST(best3(val) OVER (PARTITION BY i)) AS v FROM w "
        "WHERE j < 2"
    ).fetchall()
    both = np.sort(VALUES[:, :2], axis=1)
    assert rows == [
        (i, j, n + 1, (*both[i], np.inf)[n]) for i in range(4) for j in range(2) for n in range(3)
    ]


def test_the_position_is_a_key(con: einsql.Connection) -> None:
    ranks = (
        "SELECT i, GENERATE_SUBSCRIPTS(best3(val), 1) AS k, UNNEST(best3(val)) AS v FROM w "
        "GROUP BY i"
    )
    sums = con.execute(f"SELECT k, SUM(v) FROM ({ranks}) GROUP BY k").fetchall()
    assert sums == [(k + 1, SORTED[:, k].sum()) for k in range(3)]
    assert np.array_equal(con.execute(ranks).fetch_numpy(), SORTED)


def test_lists_of_rows_are_those_of_duckdb() -> None:
    sql = (
        "SELECT i, GENERATE_SUBSCRIPTS([val, i, 1], 1) AS k, UNNEST([val, i, 1]) AS v, "
        "UNNEST([j, NULL, 5]) AS n FROM w WHERE j > 7 ORDER BY ALL"
    )
    places = ", ".join(f"({i}, {j}, {VALUES[i, j]}::DOUBLE)" for i, j in np.ndindex(4, 10))
    oracle = duckdb.connect()
    oracle.execute(f"CREATE TABLE w AS SELECT * FROM (VALUES {places}) t(i, j, val)")
    with einsql.connect() as con:
        con.register("w", VALUES, dims=("i", "j"))
        assert con.execute(sql).fetchall() == oracle.execute(sql).fetchall()


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT i, best3(val) FROM w GROUP BY i", "a list of 3 numbers"),
        ("SELECT i, best3(val)[4] FROM w GROUP BY i", "a list of 3 numbers"),
        ("SELECT UNNEST(best3(val)), UNNEST([1, 2]) FROM w", "different lengths"),
        ("SELECT UNNEST(val) FROM w", "anything but a list"),
        ("SELECT UNNEST(best3(val)) + 1 FROM w", "UNNEST"),
    ],
)
def test_errors(con: einsql.Connection, sql: str, reason: str) -> None:
    with pytest.raises(einsql.Error) as refusal:
        con.execute(sql)
    assert reason in refusal.value.reason
    assert refusal.value.position is not None
