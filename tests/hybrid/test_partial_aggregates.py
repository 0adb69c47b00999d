"""Aggregates of tensors that DuckDB joins with tables of texts: the tensor is aggregated first."""

from __future__ import annotations

import random
from collections.abc import Iterator

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import sample

TITLES = [(0, "a", 1), (1, "b", 1), (1, "c", 2), (2, "a", None), (4, None, 3), (9, "z", 4)]
KINDS = {"x": "DOUBLE", "n": "INTEGER", "f": "FLOAT", "big": "BIGINT"}


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[einsql.Connection, duckdb.DuckDBPyConnection]]:
    chance = np.random.default_rng(0)
    places = np.argwhere(chance.random((5, 4)) < 0.6)
    with einsql.connect() as ours, duckdb.connect() as theirs:
        rows = [(int(i), int(j), int(chance.integers(-8, 8))) for i, j in places]
        for con in (ours, theirs):
            con.execute("CREATE TABLE titles (id BIGINT, title VARCHAR, grade INTEGER)")
            con.executemany("INSERT INTO titles VALUES (?, ?, ?)", TITLES)
            con.execute("CREATE TABLE source (i BIGINT, j BIGINT, val BIGINT)")
            con.executemany("INSERT INTO source VALUES (?, ?, ?)", rows)
        for name, kind in KINDS.items():
            query = f"SELECT i, j, CAST(val AS {kind}) / 1 AS val FROM source"
            if kind in ("INTEGER", "BIGINT"):
                query = f"SELECT i, j, CAST(val AS {kind}) AS val FROM source"
            if kind == "FLOAT":
                query = "SELECT i, j, CAST(val AS FLOAT) AS val FROM source"
            ours.execute(f"CREATE TENSOR {name} AS {query}")
            theirs.execute(f"CREATE TABLE {name} AS {query}")
        yield ours, theirs


def partial(con: einsql.Connection, sql: str) -> bool:
    """Whether a fragment of the statement has partial aggregates."""
    return any("__einsql_p1" in str(row) for row in con.execute(f"EXPLAIN {sql}").fetchall())


CALLS = [
    "SUM({r}.val)", "AVG({r}.val)", "MIN({r}.val)", "MAX({r}.val * 2 - {r}.i)", "COUNT(*)",
    "COUNT({r}.val)", "SUM({r}.val * {r}.val)", "COUNT(NULLIF({r}.val, 2))",
    "AVG(NULLIF({r}.val, 2))", "MIN(t.grade)", "SUM({r}.val) + 2 * COUNT(*)",
    "SUM(SUM({r}.val)) OVER ()", "MAX({r}.j)",
]  # fmt: skip
FROMS = [
    "{n} r JOIN titles t ON r.i = t.id", "titles AS t JOIN {n} AS r ON t.id = r.i",
    "{n} r, titles t", "{n} r LEFT JOIN titles t ON r.i = t.id AND t.grade > 1",
    "{n} r JOIN titles t ON r.i < t.id JOIN titles s ON s.id = t.id",
    "titles t LEFT JOIN {n} r ON r.i = t.id", "{n} r JOIN titles t ON r.i = t.id AND r.val > 0",
]  # fmt: skip
WHERES = [
    "", "WHERE r.i = t.id", "WHERE r.val > 0 AND r.i = t.id",
    "WHERE r.j BETWEEN 1 AND 2 AND r.i = t.id",
    "WHERE r.i = t.id AND (r.val > 0 OR t.grade = 2)",
    "WHERE r.i = t.id AND r.j = 1 AND t.title > 'a'",
    "WHERE r.val > 100",
]  # fmt: skip
GROUPS = [
    "", "GROUP BY t.title", "GROUP BY t.title, r.i", "GROUP BY ALL", "GROUP BY ROLLUP (t.title)",
    "GROUP BY t.grade, r.j", "GROUP BY t.title HAVING SUM(r.val) > 0 AND COUNT(*) > 1",
]  # fmt: skip


def test_results_are_those_of_duckdb(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection],
) -> None:
    ours, theirs = both
    chance, split = random.Random(1), 0
    for _ in range(sample(40, 150)):
        group = chance.choice(GROUPS)
        calls = [c.format(r="r") for c in chance.sample(CALLS, 3)]
        keys = {"GROUP BY ALL": ["t.title"], "": []}.get(group, ["t.title"])
        if "t.grade" in group:
            keys = ["t.grade", "r.j"]
        items = ", ".join([*keys, *calls[:-1], f"{calls[-1]} AS val"])
        from_ = chance.choice(FROMS).format(n=chance.choice(list(KINDS)))
        sql = f"SELECT {items} FROM {from_} {chance.choice(WHERES)} {group} ORDER BY ALL"
        wanted = theirs.sql(sql).to_arrow_table()
        result = ours.execute(sql)
        rows = result.fetch_arrow_table()
        assert rows.column_names == wanted.column_names, sql
        assert rows.to_pylist() == wanted.to_pylist(), sql
        if partial(ours, sql):
            assert [c.type for c in rows.columns] == [c.type for c in wanted.columns], sql
            split += 1
    assert split == sample(12, 38)


@pytest.mark.parametrize(
    ("items", "from_", "is_split"),
    [
        ("t.title, AVG(val)", "x JOIN titles t ON i = id", True),
        ("title, AVG(val) AS val", "x, titles WHERE i = id", True),
        ("t.title, SUM(r.val * t.grade)", "x r JOIN titles t ON i = id", False),
        ("t.title, SUM(DISTINCT r.val)", "x r JOIN titles t ON i = id", False),
        ("t.title, SUM(r.val) FILTER (r.j > 1)", "x r JOIN titles t ON i = id", False),
        ("r.val, COUNT(*)", "x r JOIN titles t ON i = id", False),
        ("t.title, STRING_AGG(t.title), SUM(r.val)", "x r JOIN titles t ON i = id", False),
        ("t.title, SUM(r.val)", "x r RIGHT JOIN titles t ON i = id", False),
        ("t.title, SUM(r.val)", "big r JOIN titles t ON i = id", False),
        ("t.title, SUM(r.val)", "x r JOIN titles t ON i = id AND j = grade", False),
        ("t.title, MAX(r.val, 2)", "x r JOIN titles t ON i = id", False),
        ("t.title, MIN(t.grade, 2), SUM(r.val)", "x r JOIN titles t ON i = id", False),
        ("t.title, COUNT(), SUM(r.val)", "x r JOIN titles t ON i = id", False),
        ("t.title, {'a': SUM(r.val)}", "x r JOIN titles t ON i = id", False),
        ("t.title, [SUM(r.val), COUNT(*)]", "x r JOIN titles t ON i = id", False),
        ("t.title, SUM(r.val) || 'x'", "x r JOIN titles t ON i = id", False),
        ("t.title, SUM(r.val) || 'x' AS s", "x r JOIN titles t ON i = id", True),
    ],
)
def test_statements_whose_tensor_is_aggregated_first(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection],
    items: str,
    from_: str,
    is_split: bool,
) -> None:
    ours, theirs = both
    sql = f"SELECT {items} FROM {from_} GROUP BY 1"
    assert partial(ours, sql) == is_split
    rows = ours.execute(sql)
    assert rows.columns == theirs.sql(sql).columns
    assert sorted(map(str, rows.fetchall())) == sorted(map(str, theirs.sql(sql).fetchall()))


def test_parameters_and_errors(both: tuple[einsql.Connection, duckdb.DuckDBPyConnection]) -> None:
    ours, theirs = both
    sql = (
        "SELECT t.title, SUM(r.val * ?) AS s FROM n r JOIN titles t ON r.i = t.id AND t.grade > ? "
        "WHERE r.j < ? GROUP BY t.title ORDER BY t.title LIMIT ?"
    )
    for parameters in ([2, 0, 3, 5], [3, 1, 2, 1]):
        wanted = theirs.execute(sql, parameters).fetchall()
        assert ours.execute(sql, parameters).fetchall() == wanted
    with pytest.raises(einsql.Error) as raised:
        ours.execute("SELECT t.nope, SUM(r.val) FROM x r JOIN titles t ON r.i = t.id GROUP BY 1")
    assert raised.value.position == 7


@pytest.mark.parametrize("call", ["SUM(r.val * r.val)", "MAX(r.val::TINYINT)", "MAX(9 // r.val)"])
def test_elements_that_the_join_excludes_raise_nothing(call: str) -> None:
    sql = f"SELECT t.title, {call} AS s FROM x r JOIN titles t ON r.i = t.id GROUP BY 1"
    with einsql.connect() as con:
        con.execute("CREATE TABLE titles AS SELECT 0 AS id, 'a' AS title")
        values = "(0, 0, 1), (1, 0, 99999), (1, 1, 0)"
        con.execute(f"CREATE TABLE source AS FROM (VALUES {values}) s(i, j, val)")
        con.execute("CREATE TENSOR x AS SELECT i, j, val FROM source")
        assert con.execute(sql).fetchall() == [("a", 9 if "//" in call else 1)]


def test_a_subquery_of_an_expression_keeps_its_text_as_name(
    both: tuple[einsql.Connection, duckdb.DuckDBPyConnection],
) -> None:
    ours, theirs = both
    for sql in (
        "SELECT 1 + (SELECT SUM(r.val) FROM x r JOIN titles t ON r.i = t.id WHERE t.title > '')",
        "SELECT id, (SELECT SUM(r.val) FROM x r JOIN titles t ON r.i = t.id "
        "WHERE t.title = u.title) FROM titles u ORDER BY ALL",
        "SELECT s FROM (SELECT SUM(r.val) AS s FROM x r JOIN titles t ON r.i = t.id "
        "WHERE t.title > '')",
        "WITH c AS (SELECT SUM(r.val) AS s FROM x r JOIN titles t ON r.i = t.id "
        "WHERE t.title > '') FROM c",
    ):
        rows, wanted = ours.execute(sql), theirs.sql(sql)
        assert rows.columns == wanted.columns
        assert rows.fetchall() == wanted.fetchall()
        assert partial(ours, sql) == ("AS s" in sql)


def test_a_column_with_the_name_of_a_partial_aggregate() -> None:
    with einsql.connect() as con:
        con.execute("CREATE TENSOR m (i DIM(2), j DIM(2), val DOUBLE) DEFAULT 1")
        con.execute("CREATE TABLE names AS SELECT 1 AS i, 'a' AS name, 5 AS __einsql_p1")
        sql = "SELECT name, SUM(m.val) FROM m JOIN names ON m.i = names.i GROUP BY name"
        assert con.execute(sql).fetchall() == [("a", 2.0)]
