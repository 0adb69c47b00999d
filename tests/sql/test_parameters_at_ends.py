"""Parameters at the ends of what a type holds: the rows or the error that the literals give."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest

import einsql
from tests.support.samples import spread

MOST = 2**63 - 1
USUAL = [(1, 3), (2, 5), (3, 1)]
"""Values that a plan is made for first."""

STATEMENTS: list[tuple[str, list[tuple[object, ...]]]] = [
    ("SELECT SUM(val) AS s FROM n WHERE i >= ? AND i < ? + 3", [(7, MOST), (-MOST - 1, 2)]),
    ("SELECT SUM(val) AS s FROM n WHERE i >= ? AND i < 8 // ?", [(0, 0), (-1, -1)]),
    ("SELECT SUM(val) AS s FROM n WHERE i BETWEEN 0 // ? AND ?", [(0, 0), (0, MOST)]),
    ("SELECT i, val FROM n WHERE i = -? + ?", [(-MOST - 1, 3), (1, MOST)]),
    ("SELECT i, val FROM n WHERE i = ? + ?", [(MOST, 3), (-MOST - 1, -1)]),
    ("SELECT i, val FROM n WHERE i = ? % ?", [(-MOST - 1, -1), (-MOST - 1, 7), (1, 0)]),
    ("SELECT i, val + ?::INTEGER % ?::INTEGER AS v FROM n", [(-(2**31), -1), (-(2**31), 7)]),
    ("SELECT i, val FROM n WHERE i <= CAST(? AS INTEGER) AND i < ?", [(2.5, 8), (1e300, 8)]),
    ("SELECT i, val FROM n WHERE i > (? > 1)::INTEGER AND i < ?", [(0.5, 4), (3, 4)]),
    ("SELECT i, val FROM n WHERE i >= CEIL(?)::INTEGER AND i <= ?", [(0.5, 4), (7.5, 8)]),
]


def spelled(value: object) -> str:
    """A number as a literal of the type that a parameter of it has."""
    if isinstance(value, float):
        return f"({value!r}::DOUBLE)"
    return f"({value})" if value != -MOST - 1 else "(-9223372036854775807 - 1)"


def outcome(con: einsql.Connection, sql: str, given: Sequence[object] = ()) -> object:
    """The rows of a statement, or the first line of its error without names of parameters."""
    try:
        return con.execute(sql, given or None).fetchall()
    except einsql.DataError as error:
        return re.sub(r" in .*|: .*", "", str(error).split("\n")[0])


@pytest.mark.parametrize("sites", [1, 2, 3])
@pytest.mark.parametrize(
    ("sql", "many"), spread(STATEMENTS, 4), ids=[s[0][:60] for s in spread(STATEMENTS, 4)]
)
def test_ends_are_those_of_literals(sql: str, many: list[tuple[object, ...]], sites: int) -> None:
    con = einsql.connect()
    con.register("n", np.arange(9.0), ("i",))
    con.execute(f"SET sites = {sites}")
    for given in [*USUAL, *many, *USUAL]:
        literal = sql.replace("?", "{}").format(*map(spelled, given))
        assert outcome(con, sql, given) == outcome(con, literal), given


def test_a_key_is_bounded_by_a_value_that_is_cast() -> None:
    con = einsql.connect()
    con.register("n", np.arange(9.0), ("i",))
    mean = "SELECT SUM(val) FROM n WHERE i <= CAST((SELECT AVG(val) FROM n) AS INTEGER)"
    assert con.execute(mean).fetchall() == [(10.0,)]
    largest = "SELECT SUM(n.val) FROM n, (SELECT MAX(val) AS m FROM n) q WHERE i < q.m::BIGINT"
    assert con.execute(largest).fetchall() == [(28.0,)]
    con.execute("CREATE TENSOR m AS SELECT i, val FROM n")
    changed = con.execute("UPDATE m SET val = 0 WHERE i <= CAST(? AS INTEGER)", [6.5])
    assert changed.rowcount == 7


def test_a_layer_of_a_cache_up_to_a_position_is_read_without_flags() -> None:
    con = einsql.connect()
    con.register("cache", np.ones((3, 8, 4)), ("layer", "t", "d"))
    con.register("q", np.ones(4), ("d",))
    sql = """WITH k AS (SELECT t, d, val FROM cache WHERE layer = {} AND t <= ?1),
             s AS (SELECT k.t, SUM(q.val * k.val) AS val FROM q JOIN k USING (d) GROUP BY k.t)
             SELECT MAX(val) AS val FROM s"""
    for layer in ("?2", "1"):
        given = [5, 1] if layer == "?2" else [5]
        plan = con.execute("EXPLAIN " + sql.format(layer), given).fetchall()
        assert not any("present" in line or "valid" in line for (line,) in plan)
        assert con.execute(sql.format(layer), given).fetchall() == [(4.0,)]
