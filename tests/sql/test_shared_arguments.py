"""Nested macros that repeat their arguments; the oracle is DuckDB over a WITH for each level."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

import einsql

DATA = [(0, 1, 0.5), (0, 2, -3.0), (1, 0, 7.25), (1, 2, 0.0)]
BODIES = {
    "twice": "x + x",
    "halved": "CASE WHEN x > 0 THEN x * 0.5e0 ELSE x + 1 END",
    "mixed": "x * 0.25e0 + x * 0.5e0 + coalesce(x, 3) * 0.125e0",
}
LEVELS = 12

Both = tuple[einsql.Connection, duckdb.DuckDBPyConnection]


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    ours, oracle = einsql.connect(), duckdb.connect()
    ours.execute("SET fallback = off")
    ours.execute("CREATE TENSOR s (i DIM(3), j DIM(3), val DOUBLE)")
    oracle.execute("CREATE TABLE s (i BIGINT, j BIGINT, val DOUBLE)")
    for con in (ours, oracle):
        con.executemany("INSERT INTO s VALUES (?, ?, ?)", DATA)
    for name, body in BODIES.items():
        ours.execute(f"CREATE MACRO {name}(x) AS {body}")
    yield ours, oracle
    ours.close()
    oracle.close()


def nested(macro: str, argument: str, levels: int = LEVELS) -> str:
    """A call of a macro over itself."""
    return f"{macro}(" * levels + argument + ")" * levels


def by_levels(macro: str, argument: str) -> str:
    """A table `levels` of s with the column y, the value of the nested calls."""
    parts = [f"y0 AS (SELECT *, {argument} AS x FROM s)"]
    body = BODIES[macro]
    parts += [
        f"y{n} AS (SELECT * REPLACE ({body} AS x) FROM y{n - 1})" for n in range(1, LEVELS + 1)
    ]
    return f"WITH {', '.join(parts)}, levels AS (SELECT * RENAME (x AS y) FROM y{LEVELS})"


@pytest.mark.parametrize("macro", BODIES)
@pytest.mark.parametrize(
    ("argument", "columns", "rest"),
    [
        ("val", "i, j, {}", "FROM {}"),
        ("NULLIF(val - j, 5.25)", "i, j, {}", "FROM {}"),
        ("val - 100 * i", "i, SUM({}), MAX({})", "FROM {} GROUP BY i"),
        ("val + j", "i, j, {} - MAX({}) OVER (PARTITION BY i)", "FROM {} WHERE {} < 500"),
        ("i - j * 0.5e0", "i, j, {}", "FROM {} GROUP BY i, j"),
        ("NULLIF(NULLIF(val - i, -4), 5.25)", "i, COUNT({}), MIN({})", "FROM {} GROUP BY i"),
    ],
)
def test_nested_macros(both: Both, macro: str, argument: str, columns: str, rest: str) -> None:
    con, oracle = both
    call = nested(macro, argument)
    mine = f"SELECT {columns.replace('{}', call)} {rest.replace('FROM {}', 'FROM s')}"
    theirs = f"SELECT {columns.replace('{}', 'y')} {rest.replace('FROM {}', 'FROM levels')}"
    if rest.endswith("j"):
        theirs = theirs.replace("i, j, y", "i, j, ANY_VALUE(y)")
    rows = con.execute(mine.replace("{}", call)).fetchall()
    wanted = oracle.execute(f"{by_levels(macro, argument)} {theirs.replace('{}', 'y')}").fetchall()
    assert sorted(rows, key=str) == sorted(wanted, key=str)
    assert rows


def test_arguments_in_a_correlated_subquery(both: Both) -> None:
    con, _ = both
    call = nested("twice", "t.val + s.j")
    rows = con.execute(
        f"SELECT j, (SELECT SUM({call}) FROM s t WHERE t.i = s.j) AS v FROM s"
    ).fetchall()
    sums = {0: (0.5 - 3.0) * 2**LEVELS, 1: (7.25 + 0 + 2) * 2**LEVELS, 2: None}
    assert dict(rows) == sums


def test_an_aggregate_of_outer_columns_is_refused(both: Both) -> None:
    con, _ = both
    call = nested("twice", "s.val")
    with pytest.raises(einsql.NotSupportedError, match="outer SELECT"):
        con.execute(f"SELECT i, (SELECT SUM({call}) FROM s t WHERE t.j = s.i) AS v FROM s")


@pytest.mark.parametrize("relation", ["s", "texts"])
def test_table_macros_that_repeat_a_call(relation: str) -> None:
    with einsql.connect() as con:
        con.execute("CREATE TENSOR s (i DIM(3), val DOUBLE)")
        con.execute("INSERT INTO s VALUES (0, 1), (1, 2), (2, 4)")
        con.execute("CREATE TABLE texts AS SELECT i, val, 'a' AS name FROM s")
        body = "SELECT a.i, a.val + b.val AS val FROM {0} AS a JOIN {0} AS b USING (i)"
        con.execute(f"CREATE MACRO t1(x) AS TABLE {body.format('x')}")
        levels = 16 if relation == "s" else 3
        for n in range(2, levels + 1):
            con.execute(f"CREATE MACRO t{n}(x) AS TABLE {body.format(f't{n - 1}(x)')}")
        rows = con.execute(f"SELECT i, val FROM t{levels}({relation}) ORDER BY i").fetchall()
        assert rows == [(0, 2.0**levels), (1, 2.0 ** (levels + 1)), (2, 2.0 ** (levels + 2))]


def test_what_macros_add_in_duckdb_is_limited() -> None:
    with einsql.connect() as con:
        con.execute("CREATE TABLE texts AS SELECT 1.0 AS x, 'a' AS name")
        con.execute("CREATE MACRO twice(x, k := 1) AS x * k + x")
        few = f"SELECT name, {nested('twice', 'x', 8)} AS v FROM texts"
        assert con.execute(few).fetchall() == [("a", 256)]
        many = f"SELECT name, {nested('twice', 'x', 30)} AS v FROM texts"
        with pytest.raises(einsql.ProgrammingError, match="what DuckDB runs") as caught:
            con.execute(many)
        assert caught.value.position == many.index("twice")
