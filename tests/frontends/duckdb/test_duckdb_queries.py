"""FROM einsql('…') over a user's own DuckDB tables, beside DuckDB's own answer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from einsql.frontends.duckdb import Attached
from einsql.frontends.duckdb.calls import find_calls, replaced
from einsql.frontends.duckdb.rows import Rows
from einsql.frontends.duckdb.session import Session
from tests.support.samples import spread


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as made:
        made.execute("""
            CREATE TABLE x AS SELECT i, j, (i * 7 + j * 3) % 10 + 0.5::DOUBLE AS val
                FROM range(4) a(i), range(5) b(j) ORDER BY hash(i, j);
            CREATE VIEW odd AS SELECT * FROM x WHERE (i + j) % 2 = 1;
            CREATE TABLE labels AS SELECT i, 'row ' || i AS name FROM range(4) r(i)""")
        yield made


@pytest.fixture
def edb(con: duckdb.DuckDBPyConnection) -> Iterator[Attached]:
    with einsql.attach(con) as made:
        yield made


def rows(edb: Attached, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    relation = edb.sql(sql, **options)
    assert relation is not None
    found: list[tuple[Any, ...]] = relation.fetchall()
    return found


QUERIES = {
    "a dense table": "SELECT a.i, b.i AS k, SUM(a.val * b.val) AS s "
    "FROM x a JOIN x b USING (j) GROUP BY ALL",
    "a view with absent keys": "SELECT i, SUM(val) AS s, COUNT(*) AS n FROM odd GROUP BY i",
    "a table and a view": "SELECT x.i, x.j, x.val - odd.val AS d FROM x JOIN odd USING (i, j)",
    "a name in quotes": 'SELECT "i", MAX("val") AS m FROM "X" GROUP BY "i"',
    "a WITH of a table's name": "WITH labels AS (SELECT i, j, val FROM x) "
    "SELECT i, SUM(val) AS s FROM labels GROUP BY i",
}  # fmt: skip


@pytest.mark.parametrize("sql", QUERIES.values(), ids=QUERIES.keys())
def test_tables_are_tensors(edb: Attached, con: duckdb.DuckDBPyConnection, sql: str) -> None:
    ordered = "ORDER BY ALL"
    assert rows(edb, f"FROM einsql('{sql}') {ordered}") == con.sql(f"{sql} {ordered}").fetchall()


def test_a_statement_joins_both(edb: Attached) -> None:
    found = rows(
        edb,
        """
        -- einsql('not this')
        SELECT name, a.s, 'einsql(''nor this'')' AS text
        FROM labels JOIN einsql($q$SELECT i, SUM(val) AS s FROM x GROUP BY i$q$) AS a USING (i),
             EinSQL ( 'SELECT MAX(val) AS m FROM x WHERE val < 99 -- ''quoted''' ) /* b */ AS b
        WHERE a.s > b.m * ? ORDER BY i LIMIT 1""",
        params=[2],
    )
    assert found == [("row 0", 22.5, "einsql('nor this')")]


def test_execute_runs_several_statements(edb: Attached, con: duckdb.DuckDBPyConnection) -> None:
    edb.execute("""
        CREATE TABLE sums AS FROM einsql('SELECT i, SUM(val) AS s FROM x GROUP BY i');
        INSERT INTO sums FROM einsql('SELECT i + 10 AS i, MIN(val) AS s FROM x GROUP BY i')""")
    expected = con.sql("SELECT i, sum(val) FROM x GROUP BY i UNION ALL SELECT i + 10, min(val) "
                       "FROM x GROUP BY i ORDER BY 1").fetchall()  # fmt: skip
    assert con.sql("FROM sums ORDER BY i").fetchall() == expected
    cursor = edb.execute("SELECT s + ? FROM einsql('SELECT SUM(val) AS s FROM x')", [1])
    assert cursor.fetchall() == con.sql("SELECT sum(val) + 1 FROM x").fetchall()


@pytest.mark.parametrize("method", ["sql", "execute"])
def test_a_statement_reads_what_those_before_it_leave(
    edb: Attached, con: duckdb.DuckDBPyConnection, method: str
) -> None:
    sums = "einsql('SELECT SUM(val) AS s FROM x')"
    text = f"CREATE TABLE kept AS FROM {sums}; UPDATE x SET val = 2; SELECT s, ? FROM {sums} -- ;"
    (before,) = con.sql("SELECT sum(val) FROM x").fetchall()
    found = getattr(edb, method)(text, **{"sql": {"params": [1]}}.get(method, {"parameters": [1]}))
    assert found.fetchall() == [(40.0, 1)]
    assert con.sql("FROM kept").fetchall() == [before]


def test_parameters_and_closed_connections_are_told(con: duckdb.DuckDBPyConnection) -> None:
    edb = einsql.attach(con)
    for mark in ("?", "$1"):
        with pytest.raises(einsql.ProgrammingError, match="Parameters do not reach") as told:
            edb.sql(f"FROM einsql('SELECT SUM(val) * {mark} AS s FROM x')", params=[2])
        assert told.value.position == len("SELECT SUM(val) * ")
    con.close()
    for call in (
        partial(edb.sql, "FROM x"), partial(edb.sql, "FROM einsql('SELECT SUM(val) AS s FROM x')"),
        partial(edb.execute, "FROM x"), partial(edb.tensor, "w", "FROM x"),
        partial(einsql.attach, con),
    ):  # fmt: skip
        with pytest.raises(einsql.InterfaceError, match="connection is closed"):
            call()
    edb.close()


def test_callers_variables_are_found(edb: Attached) -> None:
    def within(own: np.ndarray, more: pa.Table) -> list[tuple[Any, ...]]:
        return rows(edb, """
            SELECT s, w FROM einsql('SELECT k, SUM(own.val * more.w) AS s
                                     FROM own AS own(i, k) JOIN more USING (k) GROUP BY k')
            JOIN more USING (k) ORDER BY k""")  # fmt: skip

    with pytest.raises(duckdb.CatalogException, match="more"):
        rows(edb, "FROM more")
    # `rows` stands between: DuckDB looks at the frame that calls it, and so does einsql.
    with pytest.raises(einsql.ProgrammingError, match='no tensor "own"'):
        within(np.zeros((1, 1)), pa.table({}))
    own = np.arange(8.0).reshape(2, 4)
    more = pa.table({"k": [0, 1, 2, 3], "w": [1.0, 2.0, 3.0, 4.0]})
    relation = edb.sql("""
        SELECT s, w FROM einsql('SELECT k, SUM(own.val * more.w) AS s
                                 FROM own AS own(i, k) JOIN more USING (k) GROUP BY k')
        JOIN more USING (k) ORDER BY k""")
    assert relation is not None
    expected = (own.sum(axis=0) * np.arange(1, 5)).tolist()
    assert relation.fetchall() == list(zip(expected, more["w"].to_pylist(), strict=True))


def test_a_table_precedes_a_variable(edb: Attached) -> None:
    x = np.zeros((2, 2))
    sql = "FROM einsql('SELECT COUNT(*) AS n FROM x')"
    for expected in (20, 4, 20):
        if expected == 4:
            edb.register("x", x, dims=("i", "j"))
        relation = edb.sql(sql)
        assert relation is not None
        assert relation.fetchall() == [(expected,)]
        if expected == 4:
            edb.unregister("x")


def test_tables_are_read_in_the_users_transaction(
    edb: Attached, con: duckdb.DuckDBPyConnection
) -> None:
    sql = "FROM einsql('SELECT COUNT(*) AS n FROM x')"
    con.begin()
    con.execute("DELETE FROM x WHERE i = 0")
    before = edb.sql(sql)
    assert rows(edb, sql) == [(15,)]
    con.rollback()
    assert rows(edb, sql) == [(20,)]
    assert before is not None
    assert before.fetchall() == [(15,)]  # as it was when the relation was made


def test_tiles_and_functions_meet(edb: Attached, con: duckdb.DuckDBPyConnection) -> None:
    found = rows(edb, """
        SELECT tensor_sum(list(tensor_einsum('ij,ij->', tile, tile))).data[1]
        FROM einsql('SELECT i, j, tile FROM TILES(x, 3, 2)')""")  # fmt: skip
    assert found == con.sql("SELECT sum(val * val) FROM x").fetchall()


# ---- when things are computed, and how long they are kept


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Rows]]:
    kept: list[weakref.ref[Rows]] = []
    bind = Session.rows

    def noted(session: Session, text: str, frame: Any) -> Rows:
        found = bind(session, text, frame)
        kept.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Session, "rows", noted)
    return kept


def test_nothing_is_computed_before_a_scan_and_once_after(
    edb: Attached, made: list[weakref.ref[Rows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[object] = []
    compute = Rows._result_now

    def noted(own: Rows) -> object:
        runs.append(own)
        return compute(own)

    monkeypatch.setattr(Rows, "_result_now", noted)
    call = "einsql('SELECT i, SUM(val) AS s FROM x GROUP BY i')"
    relation = edb.sql(f"FROM {call} JOIN {call} AS b USING (i)")
    assert relation is not None
    assert relation.columns == ["i", "s", "s"]
    assert "ARROW" in relation.explain()
    assert not runs
    first, second = relation.fetchall(), relation.filter("i >= 0").fetchall()
    assert sorted(first) == sorted(second)
    assert len(runs) == len(made) == 1  # the same text twice, scanned four times
    runs.clear()
    del relation, first, second
    gc.collect()
    assert made[0]() is None


def test_results_outlive_the_attachment(con: duckdb.DuckDBPyConnection) -> None:
    with einsql.attach(con) as edb:
        relation = edb.sql("FROM einsql('SELECT SUM(val) AS s FROM x')")
    assert relation is not None
    assert relation.fetchall() == con.sql("SELECT sum(val) FROM x").fetchall()
    with pytest.raises(einsql.InterfaceError, match="closed"):
        edb.sql("SELECT 1")


def test_large_results_come_in_batches(edb: Attached) -> None:
    n = 300_000
    call = f"einsql('SELECT i, i * 2 AS v FROM range({n}) AS r(i)')"
    found = rows(edb, f"SELECT count(*), sum(i), sum(v) FROM {call}")
    assert found == [(n, n * (n - 1) // 2, n * (n - 1))]


# ---- tensors by name


def test_tensors_are_read_by_query(edb: Attached, con: duckdb.DuckDBPyConnection) -> None:
    edb.tensor("w", "SELECT val AS v, j, i FROM x WHERE i > 0", dims=("i", "j"), shape=(6, 5))
    con.execute("DELETE FROM x")
    assert rows(edb, "FROM einsql('SELECT COUNT(*) AS n, SUM(v) AS s FROM w')")[0][0] == 15
    assert edb.session.execute("SELECT * FROM w").shape == (6, 5)
    edb.tensor("w", "SELECT i, hash(i) % 5 AS a, i / 2 AS b FROM range(3) r(i)", dims=["i"])
    assert edb.session.execute("SELECT a, b FROM w").fetchall() == con.sql(
        "SELECT hash(i) % 5, i / 2 FROM range(3) r(i)").fetchall()  # fmt: skip


def test_a_wide_matrix_with_few_elements_is_sparse(
    edb: Attached, con: duckdb.DuckDBPyConnection
) -> None:
    con.execute("CREATE TABLE edge AS SELECT (i * 7919) % 1000003 AS src, (i * 104729) % 999983 AS "
                "dst, i::FLOAT AS w FROM range(1000) r(i)")  # fmt: skip
    sql = "SELECT dst, SUM(w) AS s FROM edge GROUP BY dst ORDER BY dst LIMIT 3"
    inner = "SELECT dst, SUM(w) AS s FROM edge GROUP BY dst"
    found = rows(edb, f"FROM einsql('{inner}') ORDER BY dst LIMIT 3")
    assert found == con.sql(sql).fetchall()


WRONG = {
    "SELECT SUM(v) AS s FROM twice": "twice has several rows for i = 1, j = 2, and",
    "SELECT SUM(v) AS s FROM gaps": "v of gaps is NULL in 1 of 2 rows",
    "SELECT SUM(v) AS s FROM nokey": "i of nokey is NULL in 1 of 1 rows",
    "SELECT SUM(v) AS s FROM minus": "i of minus takes the value -3",
    "SELECT i FROM labels": "Column name of labels is VARCHAR, which no tensor holds",
    "SELECT 1 AS x FROM names": "names is not a tensor",
    "SELECT SUM(v) AS s FROM wide": "does not fit its type",
    "SELECT SUM(v) AS s FROM twice_sparse": "twice_sparse has several rows for i = 5, j = 9999999",
    "SELECT 1 AS x FROM nowhere": 'There is no tensor "nowhere"',
    "SELECT nothing FROM x": 'There is no column "nothing"',
    "SELECT 1 AS x; SELECT 2 AS y": "einsql takes one query, not 2",
    "DROP TENSOR x": "holds a query",
    "SELECT i FROM x GROUP": "Syntax error",
    "SELECT i, val FROM x ORDER BY val": "DuckDB may do that, outside of einsql",
}


@pytest.mark.parametrize("inner", spread(WRONG, 6))
def test_wrong_tables_and_queries_are_told(
    edb: Attached, con: duckdb.DuckDBPyConnection, inner: str
) -> None:
    con.execute("""
        CREATE TABLE twice AS FROM (VALUES (0, 2, 1.5), (1, 2, 2.5), (1, 2, 2.5)) t(i, j, v);
        CREATE TABLE gaps AS FROM (VALUES (0, 1.5), (1, NULL)) t(i, v);
        CREATE TABLE nokey AS SELECT NULL::INT AS i, 1.5 AS v;
        CREATE TABLE minus AS SELECT -3 AS i, 1.5 AS v;
        CREATE TABLE names AS SELECT 'a' AS name, 1 AS v;
        CREATE TABLE wide AS SELECT 1 AS i, 9223372036854775808::HUGEINT AS v;
        CREATE TABLE twice_sparse AS
            FROM (VALUES (5, 9999999, 1), (0, 0, 1), (5, 9999999, 2)) t(i, j, v)
        """)  # fmt: skip
    with pytest.raises(einsql.Error) as told:
        edb.sql(f"FROM einsql('{inner}')")
    assert WRONG[inner] in str(told.value)


CALLS_WRONG = {
    "SELECT einsql('SELECT 1 AS x')": "stands in FROM",
    "FROM einsql('SELECT 1 AS x', 2)": "takes one text",
    "FROM einsql(?)": "a text in quotes",
    "FROM einsql(E'SELECT 1 AS x')": "a text in quotes",
}


@pytest.mark.parametrize("sql", CALLS_WRONG)
def test_calls_in_wrong_places_are_told(edb: Attached, sql: str) -> None:
    with pytest.raises(einsql.Error, match=CALLS_WRONG[sql]):
        edb.sql(sql)


UNTOUCHED = (
    "SELECT 'FROM einsql(''a'')'",
    "SELECT 1 AS \"einsql('a')\"",
    "SELECT 1 -- FROM einsql('a')",
    "/* FROM einsql('a') */ SELECT $$FROM einsql('a')$$",
    "SELECT 1 AS einsql",
    "FROM s.einsql('a')",
    "FROM my_einsql('a')",
)


@pytest.mark.parametrize("sql", UNTOUCHED)
def test_quotes_and_comments_hold_no_calls(sql: str) -> None:
    assert replaced(sql, find_calls(sql)) == sql


def test_failures_while_computing_reach_the_caller(edb: Attached) -> None:
    relation = edb.sql("FROM einsql('SELECT i, j, CAST(val * 1000 AS TINYINT) AS v FROM x')")
    assert relation is not None
    with pytest.raises(duckdb.InvalidInputException, match="out of range"):
        relation.fetchall()


@pytest.mark.parametrize("setting", ["enable_external_access", "python_enable_replacements"])
def test_what_duckdb_may_not_read_einsql_may_not(
    edb: Attached, con: duckdb.DuckDBPyConnection, setting: str
) -> None:
    con.execute(f"SET {setting} = false")
    with pytest.raises(einsql.OperationalError, match=f"{setting} is off"):
        edb.sql("FROM einsql('SELECT COUNT(*) AS n FROM ''w.npy''')")
    assert rows(edb, "SELECT tensor_add([1], [2]).data[1]") == [(3.0,)]


def test_mistakes_of_python_are_told(edb: Attached) -> None:
    wrong: Any = 3
    for call in (
        partial(edb.sql, wrong),
        partial(edb.tensor, "w", "FROM x", dims="ij"),
        partial(edb.tensor, "w", "FROM x", shape=(3,)),
        partial(edb.tensor, "w", "FROM x", dims=("i", "nothing")),
        partial(edb.tensor, "w", "CREATE TABLE made AS FROM x"),
        partial(edb.unregister, "w"),
    ):
        with pytest.raises(einsql.Error):
            call()
