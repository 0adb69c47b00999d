"""Python variables in FROM: DataFrames and Arrow tables, compared with DuckDB, and their rules."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from tests.support.samples import spread

pd: Any = pytest.importorskip("pandas")


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as opened:
        yield opened


QUERIES = (
    "SELECT name, SUM(weight) AS s FROM df GROUP BY name ORDER BY name",
    "SELECT a.name, b.k FROM df a JOIN other b ON a.k = b.k AND a.weight < b.w ORDER BY ALL",
    "SELECT * FROM DF AS x(p, q) ORDER BY q",
    "WITH df AS (SELECT 1 AS one) SELECT * FROM df",
    "SELECT (SELECT MAX(w) FROM other) AS m, k FROM df WHERE k IN (SELECT k FROM other) ORDER BY k",
    "FROM other",
    "DESCRIBE df",
    "PIVOT df ON name USING SUM(weight) GROUP BY k ORDER BY k",
    'SELECT COUNT(*) FROM "select"',
)


@pytest.mark.parametrize("sql", spread(QUERIES, 5))
def test_tables_among_variables_are_those_of_duckdb(sql: str, con: einsql.Connection) -> None:
    df = pd.DataFrame({"k": [0, 1, 2], "name": ["a", "b", "a"], "weight": [1.0, None, 3.0]})
    other = pa.table({"k": [0, 1, 1], "w": [2.5, 0.5, 1.5]})
    globals()["select"] = other  # a global variable, and a word of SQL
    duck = duckdb.connect()
    for name, rows in (("df", df), ("other", other), ("select", other)):
        duck.register(name, rows)
    assert con.execute(sql).fetchall() == duck.sql(sql).fetchall()
    del globals()["select"]
    assert con.execute("SHOW TABLES").fetchall() == []


def test_a_table_is_read_when_the_statement_runs(con: einsql.Connection) -> None:
    pl: Any = pytest.importorskip("polars")
    answers = []
    for df in (
        pd.DataFrame({"v": [1, 2]}),
        pd.DataFrame({"v": [5, 2]}),
        pd.DataFrame({"x": ["text"], "v": [0.5]}),
        pl.DataFrame({"v": [True, False]}),
        pl.LazyFrame({"v": [7]}),
        pa.table({"v": [8]}).to_reader(),
        np.array([9.0]),
    ):
        answers.append(con.execute("SELECT * FROM df ORDER BY ALL").fetchall())
        del df
    expected = [[(1,), (2,)], [(2,), (5,)], [("text", 0.5)], [(False,), (True,)], [(7,)], [(8,)]]
    assert answers == [*expected, [(0, 9.0)]]


def test_tables_and_arrays_are_operands_of_one_statement(con: einsql.Connection) -> None:
    edges = pd.DataFrame({"i": [0, 0, 1], "j": [0, 1, 1], "val": [1.0, 2.0, 3.0]})
    x = np.array([10.0, 100.0])
    sql = "SELECT e.i, SUM(e.val * x.val) AS s FROM edges e JOIN x AS x(j) USING (j) GROUP BY e.i"
    assert sorted(con.execute(sql).fetchall()) == [(0, 210.0), (1, 300.0)]
    con.execute("CREATE TENSOR edges AS SELECT i, j, val FROM edges WHERE val > 1")
    assert con.execute("SELECT i, j, val FROM edges").fetchall() == [(0, 1, 2.0), (1, 1, 3.0)]
    assert con.notices[-1].startswith('"edges" is read from the database, which hides')
    con.execute("CREATE TENSOR w (i DIM(2), val DOUBLE)")
    con.execute("INSERT INTO w SELECT i, SUM(x.val) FROM x AS x(i) GROUP BY i")
    del edges, x


def test_transactions_and_errors_leave_no_view(con: einsql.Connection) -> None:
    df = pd.DataFrame({"v": [1, 2]})
    con.execute("CREATE TABLE t AS FROM df")
    con.execute("BEGIN")
    con.execute("INSERT INTO t FROM df")
    with pytest.raises(einsql.Error, match="vv"):
        con.execute("SELECT vv FROM df")
    con.rollback()
    assert con.execute("SELECT COUNT(*) FROM t, df").fetchone() == (4,)
    assert [row[0] for row in con.execute("SHOW TABLES").fetchall()] == ["t"]
    for sql in ("INSERT INTO df VALUES (3)", "UPDATE df SET v = 3", "DELETE FROM df"):
        with pytest.raises(einsql.ProgrammingError, match="variables of Python and cannot be"):
            con.execute(sql)
    del df


def test_settings_hide_variables(con: einsql.Connection) -> None:
    df, x = pd.DataFrame({"v": [1]}), np.ones(2)
    con.execute("SET python_enable_replacements = false")
    for name in ("df", "x"):
        with pytest.raises(einsql.ProgrammingError, match=f'no tensor "{name}"'):
            con.execute(f"SELECT * FROM {name}")
    con.execute("SET python_enable_replacements = true")
    assert con.execute("SELECT v, val FROM df, x").fetchall() == [(1, 1.0), (1, 1.0)]
    con.execute("SET enable_external_access = false")
    with pytest.raises(einsql.ProgrammingError, match='no tensor "df"'):
        con.execute("SELECT * FROM df")
    del df, x


def test_what_is_stored_names_no_variable(tmp_path: Path, con: einsql.Connection) -> None:
    df, x = pd.DataFrame({"v": [1]}), np.ones(2)
    with pytest.raises(einsql.NotSupportedError, match="PREPARE would keep"):
        con.execute("PREPARE p AS FROM df")
    con.execute("CREATE VIEW seen AS SELECT v, val FROM df, x")  # in memory, as in DuckDB
    assert len(con.execute("FROM seen").fetchall()) == 2
    with einsql.connect(str(tmp_path / "v.db")) as file:
        for query, name in (("SELECT * FROM df", "df"), ("SELECT SUM(val) AS s FROM x", "x")):
            for definition in (f"VIEW v AS {query}", f"MACRO m() AS TABLE {query}"):
                with pytest.raises(einsql.ProgrammingError, match=f'cannot read "{name}", a var'):
                    file.execute(f"CREATE {definition}")
                file.execute(f"CREATE TEMP {definition}")
                file.execute(f"DROP {' '.join(definition.split()[:2]).removesuffix('()')}")
        file.execute("CREATE TENSOR y (i DIM(2), val DOUBLE) DEFAULT 3")
        file.execute("CREATE VIEW kept AS SELECT i, val FROM y")
        file.execute("DROP TENSOR y")
        y = np.ones(2)
        with pytest.raises(einsql.ProgrammingError, match='no tensor "y"'):
            file.execute("SELECT * FROM kept")
        assert file.execute("SELECT COUNT(*) FROM y").fetchone() == (2,)
    del df, x, y


NAMING = {
    "s()": "AS (SELECT SUM(val) FROM late)",
    "s(t := 1.5)": "AS t + (SELECT SUM(val) FROM late)",
    "t()": "AS TABLE SELECT * FROM late",
    "u()": "AS TABLE SELECT *, 'a' AS u FROM late",
    "named()": "AS TABLE SELECT * FROM passed(late)",
    "queried()": "AS TABLE SELECT * FROM passed((SELECT * FROM late))",
    "mapped()": "AS TABLE SELECT * FROM abs(late)",
    "summed()": "AS TABLE SELECT * FROM EINSUM('i->i', late)",
    "inside()": "AS TABLE WITH q AS (SELECT val FROM t()) SELECT SUM(val) AS val FROM q",
}
"""Bodies of macros that read a table that exists for some callers only."""


@pytest.mark.parametrize("head", NAMING)
def test_stored_macros_read_no_variable_of_a_later_caller(tmp_path: Path, head: str) -> None:
    name, body = head.split("(")[0], NAMING[head]
    with einsql.connect(str(tmp_path / "m.db")) as con:
        con.execute("CREATE MACRO passed(p) AS TABLE SELECT * FROM p")
        con.execute(f"CREATE MACRO t() {NAMING['t()']}")
        con.execute(f"CREATE OR REPLACE MACRO {head} {body}")
    with einsql.connect(str(tmp_path / "m.db")) as con:
        query = f"SELECT * FROM {name}()" if "TABLE" in body else f"SELECT {name}()"
        rows = pd.DataFrame({"i": [0, 1], "val": [1.0, 1.0]})
        for variable in (np.ones(2), rows):
            late = variable
            for wanted in (query, query.replace("SELECT ", "SELECT 'a', ")):
                with pytest.raises(einsql.ProgrammingError, match=r'no table "late", .* variables'):
                    con.execute(wanted)
            assert len(con.execute("SELECT * FROM passed(late)").fetchall()) == 2
        with pytest.raises(einsql.ProgrammingError, match='cannot read "late"'):
            con.execute(f"CREATE MACRO other{head[len(name) :]} {NAMING['named()']}")
        del late
        con.execute("CREATE TENSOR late (i DIM(2), val DOUBLE) DEFAULT 3")
        assert con.execute(query).fetchall()


def test_a_column_with_the_name_of_a_variable(tmp_path: Path) -> None:
    v = np.ones(2)
    with einsql.connect(str(tmp_path / "m.db")) as con:
        con.execute("CREATE TENSOR x (i DIM(2), v DOUBLE) DEFAULT -3")
        con.execute("CREATE MACRO m() AS TABLE SELECT SUM(abs(v)) AS s FROM x")
        assert con.execute("SELECT * FROM m()").fetchall() == [(6.0,)]
    del v


@pytest.mark.parametrize(
    "sql", ["SELECT a, b FROM df", "SELECT df.b FROM df", "SELECT b FROM df z"]
)
def test_a_column_that_a_variable_has_lost(con: einsql.Connection, sql: str) -> None:
    df = pd.DataFrame({"a": [1], "b": [2], "c": [3]})
    relation, other = con.sql(sql), con.from_df(df).filter("b > 1")
    assert con.execute(sql).fetchall()
    del df["b"]
    for run in (partial(con.execute, sql), relation.fetchall):
        with pytest.raises(einsql.ProgrammingError, match=r'column .*"b"') as caught:
            run()
        assert caught.value.hint == "The variable df has the columns a, c."
        assert caught.value.position in range(len(sql))
    with pytest.raises(einsql.ProgrammingError, match='column "b" not found') as caught:
        other.fetchall()
    assert caught.value.hint == "Its table has the columns a, c."
