"""Values beside aggregates that GROUP BY determines; in DuckDB they are written ANY_VALUE."""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import spread

SHAPES = {"x": (4, 5), "w": (5, 3), "b": (3,), "tok": (4,), "e": (3, 5)}
DIMS = {"x": "td", "w": "do", "b": "o", "tok": "t", "e": "wd"}


@pytest.fixture
def both() -> Iterator[tuple[einsql.Connection, duckdb.DuckDBPyConnection]]:
    """The same integers as tensors of DOUBLE and as element rows."""
    ours, oracle = einsql.connect(), duckdb.connect()
    numbers = np.random.default_rng(5)
    for name, shape in SHAPES.items():
        array = numbers.integers(0, 3, shape).astype(np.int32 if name == "tok" else np.float64)
        ours.register(name, array, dims=tuple(DIMS[name]))
        kind = "INTEGER" if name == "tok" else "DOUBLE"
        keys = ", ".join(f"{d} BIGINT" for d in DIMS[name])
        oracle.execute(f"CREATE TABLE {name} ({keys}, val {kind})")
        for key in np.ndindex(shape):
            row = ", ".join(map(str, (*key, array[key])))
            oracle.execute(f"INSERT INTO {name} VALUES ({row})")
    yield ours, oracle
    ours.close()
    oracle.close()


LAYER = "FROM x JOIN w USING (d) JOIN b USING (o)"
QUERIES = [
    f"SELECT x.t, w.o, SUM(w.val * x.val) + [b.val] AS v {LAYER} GROUP BY x.t, w.o",
    f"SELECT x.t, o, GREATEST(SUM(w.val * x.val) - [b.val], 3) AS v {LAYER} GROUP BY x.t, o",
    f"SELECT x.t, w.o, [b.val], COUNT(*) AS n {LAYER} WHERE x.val > 1 GROUP BY x.t, w.o",
    f"SELECT x.t, w.o, 1 AS n {LAYER} GROUP BY x.t, w.o HAVING SUM(w.val) > [b.val] + 3",
    "SELECT i, j, [val], SUM(val) AS v FROM x AS x(i, j) GROUP BY i, j",
    "SELECT x.t + 1 AS h, SUM(x.val) + [b.val] AS v FROM x, b WHERE b.o = x.t GROUP BY x.t + 1",
    "SELECT x.t // 2 AS h, SUM(x.val) + [b.val] AS v FROM x, b WHERE b.o = x.t // 2 "
    "GROUP BY x.t // 2",
    # a gather: the token of t chooses the row of e
    "SELECT x.t, e.d, SUM(x.val) + [e.val] AS v FROM x, tok, e "
    "WHERE tok.t = x.t AND e.w = tok.val GROUP BY x.t, e.d",
    # one row, and one that is absent or NULL
    "SELECT x.t, SUM(x.val) + [s.v] AS v FROM x, (SELECT MAX(val) AS v FROM b) s GROUP BY x.t",
    "SELECT x.t, SUM(x.val) + [s.v] AS v FROM x, (SELECT o, NULLIF(val, 1) AS v FROM b WHERE "
    "val > 0) s WHERE s.o = x.t GROUP BY x.t",
    f"SELECT x.t, w.o, SUM(SUM(w.val) + [b.val]) OVER (PARTITION BY x.t) AS v {LAYER} "
    "GROUP BY x.t, w.o",
    "SELECT (SELECT SUM(q.v) FROM (SELECT o, SUM(w.val) + [b.val] AS v FROM w JOIN b USING (o) "
    "GROUP BY o) q WHERE q.o = x.t) AS v, x.t, x.d FROM x",
]
BY_DUCKDB = [
    f"SELECT x.t, w.o, SUM(w.val * x.val) + [b.val] AS v {LAYER} GROUP BY x.t, w.o "
    "ORDER BY [b.val], v, 1 LIMIT 5",
    f"SELECT x.t, w.o, printf('%d', (SUM(w.val * x.val) + [b.val])::INT) AS v {LAYER} "
    "GROUP BY x.t, w.o",
    # DuckDB runs the aggregate
    f"SELECT x.t, w.o, list(w.val ORDER BY w.val DESC) AS l, [b.val] + 1 AS v {LAYER} "
    "GROUP BY x.t, w.o",
    f"WITH b AS (SELECT o + 0 AS o, val FROM b) SELECT w.o, string_agg(w.val::INT, '' ORDER BY "
    f"w.d) || [b.val] AS v {LAYER} GROUP BY w.o",
]


@pytest.mark.parametrize("query", spread([*QUERIES, *BY_DUCKDB], 8))
def test_values_that_group_by_determines(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection], query: str
) -> None:
    ours, oracle = both
    ours.execute(f"SET fallback = {'off' if query in QUERIES else 'on'}")
    got = ours.execute(re.sub(r"[][]", "", query)).fetchall()
    wanted = oracle.execute(re.sub(r"\[(.*?)\]", r"ANY_VALUE(\1)", query)).fetchall()
    assert sorted(map(str, got)) == sorted(map(str, wanted))
    assert got


def test_cuts_gradients_and_parameters(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection],
) -> None:
    con, _ = both
    layer = f"SELECT x.t, w.o, SUM(w.val * x.val) + b.val AS val {LAYER} GROUP BY x.t, w.o"
    whole = con.execute(layer).fetch_numpy()
    windowed = con.execute(layer.replace("GROUP", "WHERE w.o BETWEEN ? AND ? GROUP"), [1, 2])
    np.testing.assert_array_equal(windowed.fetch_numpy(), whole[:, 1:])
    con.execute(f"CREATE VIEW layer AS {layer}")
    con.execute("CREATE VIEW loss AS SELECT SUM(val * val) AS val FROM layer")
    slope = con.execute("SELECT o, val FROM GRADIENT(loss, b)").fetch_numpy()
    np.testing.assert_array_equal(slope, 2 * whole.sum(0))
    con.execute("SET sites = 4")
    np.testing.assert_array_equal(con.execute(layer).fetch_numpy(), whole)


@pytest.mark.parametrize(
    ("query", "reason", "hint"),
    [
        ("SELECT t, SUM(val) + val AS v FROM x GROUP BY t",
         'Column "val" must be in GROUP BY', ": x.d is not in GROUP BY"),
        ("SELECT x.t, SUM(x.val) + b.val AS v FROM x, b GROUP BY x.t",
         'Column "val" must be in GROUP BY', ": b.o is not in GROUP BY"),
        ("SELECT SUM(x.val) + b.val AS v FROM x, b",
         'Column "val" must be in GROUP BY', "or MIN(val)"),
    ],
)  # fmt: skip
def test_other_values_are_refused(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection], query: str, reason: str, hint: str
) -> None:
    with pytest.raises(einsql.ProgrammingError, match=reason) as refusal:
        both[0].execute(query)
    assert hint in refusal.value.hint


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("SELECT x.i, v, {} FROM {} GROUP BY x.i", [(0, 10.0, "0,1"), (1, 20.0, "2,3")]),
        ("SELECT v * 2 w, {}, x.i FROM {} GROUP BY x.i", [(20.0, "0,1", 0), (40.0, "2,3", 1)]),
        ("SELECT {} FROM {} GROUP BY x.i HAVING v > 10", [("2,3",)]),
        ("SELECT x.i + j AS k, {} FROM {} GROUP BY x.i + j", [(0, "0"), (1, "1,2"), (2, "3")]),
    ],
)
def test_columns_without_a_table_beside_aggregates_of_duckdb(
    query: str, wanted: list[tuple[object, ...]]
) -> None:
    with einsql.connect() as con:
        con.register("x", np.arange(4, dtype=np.int32).reshape(2, 2), dims=("i", "j"))
        con.register("b", np.array([10.0, 20.0]), dims=("i",))
        text = "STRING_AGG(x.val::VARCHAR, ',' ORDER BY x.val)"
        sql = query.format(text, "x JOIN b AS b(k, v) ON x.i = k")
        assert con.execute(f"{sql} ORDER BY ALL").fetchall() == wanted
        for wrong in ("val", "j"):
            with pytest.raises(einsql.ProgrammingError, match="GROUP BY"):
                con.execute(f"SELECT i, {wrong}, {text} FROM x GROUP BY i")


def test_a_key_that_is_a_text_of_a_table_keeps_the_dependency() -> None:
    sql = "FROM b JOIN titles t ON t.id = b.i GROUP BY"
    with einsql.connect() as con:
        con.register("b", np.array([10.0, 20.0]), dims=("i",))
        con.execute(
            "CREATE TABLE titles AS FROM (VALUES (0, 'a'), (1, 'b'), (1, 'c')) t(id, title)"
        )
        rows = con.execute(f"SELECT t.title, b.val {sql} b.i, t.title ORDER BY ALL").fetchall()
        assert rows == [("a", 10.0), ("b", 20.0), ("c", 20.0)]
        with pytest.raises(einsql.ProgrammingError, match="GROUP BY"):
            con.execute(f"SELECT t.title, b.val {sql} t.title")
