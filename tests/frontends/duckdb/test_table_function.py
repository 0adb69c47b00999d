"""The table function einsql('…') of a user's DuckDB connection, beside DuckDB's own answer."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from einsql.frontends.duckdb import Attached, table_function
from einsql.frontends.duckdb.scans import Query
from einsql.planner.plan import Plan

RUNS = int(os.environ.get("EINSQL_RUNS", "16"))
SUMS = "einsql('SELECT i, SUM(val) AS s FROM x GROUP BY i')"
PRODUCT = (
    "einsql('SELECT a.i, b.i AS k, SUM(a.val * b.val) AS s, "
    "SUM(a.val + b.val) AS t FROM x a JOIN x b USING (j) GROUP BY a.i, b.i')"
)


def connected() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    made.execute("""
        CREATE TABLE x AS SELECT i, j, (i * 7 + j * 3) % 10 + 0.5::DOUBLE AS val
            FROM range(4) a(i), range(5) b(j) ORDER BY hash(i, j);
        CREATE TABLE outside AS SELECT i, i % 2 = 0 AS even FROM range(6) r(i)""")
    return made


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with connected() as made:
        yield made


@pytest.fixture
def edb(con: duckdb.DuckDBPyConnection) -> Iterator[Attached]:
    with einsql.attach(con) as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[duckdb.DuckDBPyConnection]:
    """An attached connection for tests that leave its tables as they are."""
    with connected() as made, einsql.attach(made):
        made.execute(f"""
            CREATE TABLE twice AS FROM (VALUES (1, 1.5), (1, 2.5)) t(i, val);
            CREATE TABLE gaps AS FROM (VALUES (0, 1.5), (1, NULL)) t(i, val);
            CREATE TABLE dropped(i INT, even BOOLEAN);
            CREATE VIEW broken AS FROM dropped;
            DROP TABLE dropped;
            CREATE TABLE whole AS SELECT a.i, b.i AS k, sum(a.val * b.val) AS s,
                sum(a.val + b.val) AS t FROM x a JOIN x b USING (j) GROUP BY a.i, b.i;
            CREATE VIEW viewed AS FROM {PRODUCT};
            PREPARE one AS SELECT k, s FROM {PRODUCT} WHERE i = $1""")
        yield made


def rows(con: duckdb.DuckDBPyConnection, sql: str, *given: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = con.execute(sql, *given).fetchall()
    return found


def sums(con: duckdb.DuckDBPyConnection) -> list[tuple[Any, ...]]:
    return rows(con, "SELECT i, sum(val) AS s FROM x GROUP BY i ORDER BY i")


# ---- where a call may stand

STATEMENTS = {
    "the relation interface": "FROM {} ORDER BY i",
    "a condition on keys": "FROM {} WHERE i BETWEEN 1 AND 2 AND s > 20 ORDER BY i",
    "one column": "SELECT s FROM {} WHERE i = 3",
    "no column": "SELECT count(*) FROM {}",
    "a join": "SELECT o.even, max(s) FROM outside o LEFT JOIN {} USING (i) GROUP BY 1 ORDER BY 1",
    "two calls": "SELECT i, a.s + b.s FROM {} a JOIN {} b USING (i) ORDER BY i",
    "a union": "SELECT count(*), sum(s) FROM (FROM {} UNION ALL FROM {})",
    "a subquery": "SELECT i FROM outside WHERE i NOT IN (SELECT i FROM {}) ORDER BY i",
    "a correlated subquery":
        "SELECT i, (SELECT count(*) FROM {} s WHERE s.i = o.i) FROM outside o ORDER BY i",
    "a lateral subquery": "SELECT o.i, m FROM outside o, "
        "LATERAL (SELECT max(s) AS m FROM {} s WHERE s.i > o.i) ORDER BY 1",
    "EXISTS": "SELECT o.i FROM outside o WHERE EXISTS (FROM {} s WHERE s.i = o.i) ORDER BY i",
    "WITH RECURSIVE": "WITH RECURSIVE t(n) AS "
        "(SELECT 1 UNION ALL SELECT n + 1 FROM t JOIN {} s ON s.i = n) FROM t",
    "a window": "SELECT i, sum(s) OVER (ORDER BY i) FROM {} ORDER BY i",
}  # fmt: skip
TABLE = "(SELECT i, sum(val) AS s FROM x GROUP BY i)"


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("statement", STATEMENTS.values(), ids=STATEMENTS.keys())
def test_a_call_stands_where_a_table_does(
    shared: duckdb.DuckDBPyConnection, statement: str, threads: int
) -> None:
    shared.execute(f"SET threads = {threads}")
    ours, theirs = (statement.replace("{}", text) for text in (SUMS, TABLE))
    assert rows(shared, ours) == rows(shared, theirs)


@pytest.mark.usefixtures("edb")
def test_views_macros_and_prepared_statements_read_tables_anew(
    con: duckdb.DuckDBPyConnection,
) -> None:
    con.execute(f"""
        CREATE VIEW v AS FROM {SUMS};
        CREATE MACRO above(n) AS TABLE FROM {SUMS} WHERE s > n;
        CREATE MACRO times(n) AS TABLE
            FROM einsql('SELECT i, SUM(val) * ' || n || ' AS s FROM x GROUP BY i');
        PREPARE one AS SELECT s FROM {SUMS} WHERE i = $1;
        PREPARE less AS
            FROM einsql('SELECT i, SUM(val) AS s FROM x WHERE i < ' || $1 || ' GROUP BY i')""")
    for change in ("SELECT 1", "UPDATE x SET val = val + i", "DELETE FROM x WHERE i = 2"):
        con.execute(change)
        known = sums(con)
        assert rows(con, "FROM v ORDER BY i") == known
        assert rows(con, "FROM above(20) ORDER BY i") == [r for r in known if r[1] > 20]
        assert rows(con, "FROM times(2) ORDER BY i") == [(i, 2 * s) for i, s in known]
        for i, s in known:
            assert rows(con, f"EXECUTE one({i})") == [(s,)]
        assert rows(con, "EXECUTE less(2)") == [r for r in known if r[0] < 2]
    text = "SELECT i, SUM(val) AS s FROM x GROUP BY i"
    assert rows(con, "FROM einsql(?) WHERE i = ?", [text, 3]) == sums(con)[-1:]
    con.execute("ALTER TABLE x RENAME val TO weight")
    for later in ("FROM v", "EXECUTE one(1)"):
        with pytest.raises(duckdb.InvalidInputException, match='no column "val"'):
            con.execute(later)


@pytest.mark.usefixtures("edb")
def test_parameters_stand_in_the_query(con: duckdb.DuckDBPyConnection) -> None:
    inner = "SELECT i, j, val * $rate AS v FROM x WHERE val > $least"
    above = f"einsql('{inner}', {{'rate': %s, 'least': %s}})"
    known = "(SELECT i, j, val * %s AS v FROM x WHERE val > %s)"
    con.execute(f"PREPARE above AS SELECT v FROM {above % ('$1', '$2')} WHERE i = $3 ORDER BY v")
    for values in ((2, 3.5, 1), (0.5, 1, 2)):
        expected = rows(con, f"SELECT v FROM {known % values[:2]} WHERE i = {values[2]} ORDER BY v")
        assert rows(con, f"EXECUTE above{values}") == expected
        client = f"SELECT v FROM {above % ('?', '?')} WHERE i = ? ORDER BY v"
        assert rows(con, client, list(values)) == expected
    mixed = "FROM einsql('SELECT SUM(val) + ? AS s FROM x WHERE i < ?', [0.25, 2])"
    assert rows(con, mixed) == rows(con, "SELECT sum(val) + 0.25 FROM x WHERE i < 2")


@pytest.mark.usefixtures("edb")
def test_relations_run_when_they_are_fetched(con: duckdb.DuckDBPyConnection) -> None:
    relation = con.sql(f"FROM {SUMS}")
    assert relation.columns == ["i", "s"]
    assert [str(t) for t in relation.types] == ["BIGINT", "DOUBLE"]
    con.execute("DELETE FROM x WHERE i > 0")
    assert relation.filter("i < 3").fetchall() == sums(con)
    con.execute(f"INSERT INTO x SELECT i + 1, 0, s FROM {SUMS}")
    assert relation.order("i").fetchall() == sums(con)


@pytest.mark.usefixtures("edb")
def test_tiles_repeated_names_and_large_results(con: duckdb.DuckDBPyConnection) -> None:
    tiles = "einsql('SELECT i, j, tile FROM TILES(x, 2, 5)')"
    found = rows(con, f"SELECT tensor_sum(list(tensor_einsum('ij->', tile))).data[1] FROM {tiles}")
    assert found == rows(con, "SELECT sum(val) FROM x")
    twice = "einsql('SELECT a.i, a.val, b.i, b.val FROM x a JOIN x b USING (i, j)')"
    assert con.sql(f"SELECT * FROM {twice}").columns == ["i", "val", "i_1", "val_1"]
    n = 300_000
    large = f"einsql('SELECT i, i * 2 AS v FROM range({n}) AS r(i) -- all')"
    assert rows(con, f"SELECT count(*), sum(v) FROM {large}") == [(n, n * (n - 1))]


# ---- what a query reads


@pytest.mark.usefixtures("edb")
def test_uncommitted_rows_and_temp_tables_are_seen(con: duckdb.DuckDBPyConnection) -> None:
    con.begin()
    con.execute("CREATE TEMP TABLE own AS FROM x WHERE i < 2; DELETE FROM own WHERE j = 0; "
                "CREATE TABLE made AS FROM own; INSERT INTO x VALUES (9, 9, 9.0)")  # fmt: skip
    for table in ("own", "made", "x"):
        ours = f"FROM einsql('SELECT i, SUM(val) AS s FROM {table} GROUP BY i') ORDER BY i"
        assert rows(con, ours) == rows(
            con, f"SELECT i, sum(val) FROM {table} GROUP BY i ORDER BY i"
        )
    con.rollback()
    assert rows(con, f"FROM {SUMS} ORDER BY i") == sums(con)
    with pytest.raises(duckdb.InvalidInputException, match='no tensor "own"'):
        con.execute("FROM einsql('SELECT SUM(val) AS s FROM own')")


def test_names_are_tensors_then_tables_then_variables(
    con: duckdb.DuckDBPyConnection, edb: Attached
) -> None:
    def total(name: str = "known", known: object = None) -> list[tuple[Any, ...]]:
        # DuckDB looks at the frame that calls it, and so does einsql.
        return con.execute(f"FROM einsql('SELECT SUM(val) AS s FROM {name}')").fetchall()

    assert total(known=np.full((2, 2), 1.0)) == [(4.0,)]
    assert total(known=pa.table({"i": [0, 1], "val": [1.5, 2.0]})) == [(3.5,)]
    con.register("known", pa.table({"i": [0, 1], "val": [1.0, 5.0]}))  # a view
    assert total(known=np.full((2, 2), 1.0)) == [(6.0,)]
    con.unregister("known")
    con.execute("CREATE TEMP TABLE known AS SELECT 1 AS i, 7.0 AS val")
    assert total(known=np.full((2, 2), 1.0)) == [(7.0,)]
    edb.register("known", np.full(3, 3.0))
    assert total() == [(9.0,)]
    edb.session.execute("CREATE VIEW seen AS SELECT SUM(x.val) * 2 AS val FROM x")
    assert total("seen") == rows(con, "SELECT sum(val) * 2 FROM x")
    con.execute("CREATE SCHEMA other; CREATE TABLE other.x AS SELECT 3 AS i, 0.5 AS val; USE other")
    assert total("x") == [(0.5,)]


@pytest.mark.usefixtures("edb")
def test_an_empty_table_has_no_elements(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("DELETE FROM x")
    assert rows(con, f"FROM {SUMS}") == []
    assert rows(con, "FROM einsql('SELECT SUM(val) AS s, COUNT(*) AS n FROM x')") == [(None, 0)]


WRONG = {
    "FROM einsql('SELECT nothing FROM x')": 'There is no column "nothing"',
    "FROM einsql('SELECT i FROM x GROUP')": "Syntax error",
    "FROM einsql('SELECT 1 AS a; SELECT 2 AS b')": "takes one query, not 2",
    "FROM einsql('DROP TENSOR x')": "holds a query",
    "FROM einsql('SELECT SUM(val) * ? AS s FROM x')": "Parameters do not reach",
    "FROM einsql('SELECT SUM(val) * ? AS s FROM x', [1, 2])": "2 were given",
    "FROM einsql('SELECT SUM(val) * $n AS s FROM x', {'m': 1})": "$n has no value",
    "FROM einsql('SELECT SUM(val) AS s FROM nowhere')": 'no tensor "nowhere"',
    "FROM einsql('SELECT SUM(even) AS s FROM broken')": "DuckDB cannot read broken",
    "FROM einsql('SELECT SUM(val) AS s FROM twice')": "twice has several rows for i = 1",
    "FROM einsql('SELECT SUM(val) AS s FROM gaps')": "val of gaps is NULL in 1 of 2 rows",
    "FROM einsql('SELECT i, CAST(val * 1000 AS TINYINT) AS v FROM x')": "out of range",
    "SELECT einsql('SELECT 1 AS a')": "einsql",
}


@pytest.mark.parametrize("sql", WRONG)
def test_mistakes_are_told(shared: duckdb.DuckDBPyConnection, sql: str) -> None:
    with pytest.raises(duckdb.Error) as told:
        shared.execute(sql)
    assert WRONG[sql] in str(told.value)


# ---- what is computed


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[str, ...], int]]:
    """The columns and the number of elements of each result that is computed."""
    seen: list[tuple[tuple[str, ...], int]] = []
    compute = Plan.result

    def noted(plan: Plan, *given: Any) -> Any:
        result = compute(plan, *given)
        seen.append((tuple(c.name for c in result.columns), result.schema.size))
        return result

    monkeypatch.setattr(Plan, "result", noted)
    return seen


PUSHED: dict[str, tuple[tuple[str, ...], int]] = {
    "FROM {}": (("i", "k", "s", "t"), 16),
    "FROM {} WHERE i = 2": (("i", "k", "s", "t"), 4),
    "SELECT k, s FROM {} WHERE i = 2 AND k > 1": (("i", "k", "s"), 2),
    "SELECT t FROM {} WHERE k BETWEEN 1 AND 2": (("k", "t"), 8),
    "SELECT s FROM {} ORDER BY s": (("s",), 16),
    "SELECT s FROM {} WHERE i > 9223372036854775807": (("i", "s"), 16),
    "EXECUTE one(2)": (("i", "k", "s"), 4),
    "SELECT s FROM viewed WHERE i = 3": (("i", "s"), 4),
}  # fmt: skip


@pytest.mark.parametrize("sql", PUSHED)
def test_columns_and_conditions_are_pushed_into_the_query(
    shared: duckdb.DuckDBPyConnection, computed: list[tuple[tuple[str, ...], int]], sql: str
) -> None:
    found = rows(shared, sql.replace("{}", PRODUCT))
    assert computed == [PUSHED[sql]]
    known = sql.replace("{}", "whole").replace("viewed", "whole")
    known = known.replace("EXECUTE one(2)", "SELECT k, s FROM whole WHERE i = 2")
    assert sorted(found) == sorted(rows(shared, known))


# ---- connections


def test_a_view_in_a_file_needs_einsql(tmp_path: Path) -> None:
    path = tmp_path / "own.duckdb"
    with duckdb.connect(path) as made, einsql.attach(made):
        made.execute(f"CREATE TABLE x AS SELECT 1 AS i, 2.5 AS val; CREATE VIEW v AS FROM {SUMS}")
    with duckdb.connect(path) as again:
        with pytest.raises(duckdb.CatalogException, match="einsql does not exist"):
            again.execute("FROM v")
        assert rows(again, "SELECT count(*) FROM x") == [(1,)]
        with einsql.attach(again):
            assert rows(again, "FROM v") == [(1, 2.5)]


def test_each_connection_has_its_own(con: duckdb.DuckDBPyConnection, edb: Attached) -> None:
    edb.register("w", np.arange(3.0))
    ours = "FROM einsql('SELECT SUM(val) AS s FROM w')"
    with con.cursor() as cursor:
        with pytest.raises(duckdb.CatalogException, match="einsql does not exist"):
            cursor.execute(ours)
        with einsql.attach(cursor) as other:
            other.register("w", np.ones(5))
            assert rows(cursor, ours) == [(5.0,)]
            assert rows(con, ours) == [(3.0,)]
    with einsql.attach(con) as second:
        second.register("w", np.ones(7))
        assert rows(con, ours) == [(7.0,)]
    assert rows(con, ours) == [(3.0,)]
    edb.close()
    with pytest.raises(duckdb.CatalogException, match="einsql does not exist"):
        con.execute(ours)
    assert (
        rows(con, "SELECT function_name FROM duckdb_functions() WHERE function_name ~ 'einsql'")
        == []
    )


def test_functions_of_the_users_are_kept(con: duckdb.DuckDBPyConnection) -> None:
    for name in ("typeof", "list", "list_aggregate", "list_transform", "json_serialize_plan",
                 "current_setting"):  # fmt: skip
        con.execute(f"CREATE MACRO {name}(a, b := 1) AS 0")
    con.execute("CREATE MACRO query(a) AS TABLE SELECT 0")
    with einsql.attach(con):
        assert rows(con, f"FROM {SUMS} ORDER BY i") == sums(con)
    con.execute("CREATE TEMP MACRO einsql(a) AS TABLE SELECT a")
    with pytest.raises(einsql.ProgrammingError, match="temp has a table_macro named einsql"):
        einsql.attach(con)
    assert rows(con, "FROM einsql(3)") == [(3,)]


def test_a_query_is_released_with_its_statement(
    con: duckdb.DuckDBPyConnection, edb: Attached, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Query]] = []
    scan = Query.reader

    def noted(query: Query, *given: Any) -> Any:
        made.append(weakref.ref(query))
        return scan(query, *given)

    monkeypatch.setattr(Query, "reader", noted)
    edb.register("w", np.ones(4), dims=("i",))
    con.execute("FROM einsql('SELECT SUM(x.val * w.val) AS s FROM x JOIN w USING (i)')").fetchall()
    con.execute("SELECT 1").fetchall()
    gc.collect()
    assert [query() for query in made] == [None]


@pytest.mark.usefixtures("edb")
@pytest.mark.parametrize("setting", ["enable_external_access", "python_enable_replacements"])
def test_tables_are_read_where_variables_and_files_are_not(
    con: duckdb.DuckDBPyConnection, setting: str
) -> None:
    con.execute(f"SET {setting} = false")
    assert rows(con, f"FROM {SUMS} ORDER BY i") == sums(con)
    weight = np.ones(3)
    with pytest.raises(duckdb.InvalidInputException, match='no tensor "weight"'):
        con.execute("FROM einsql('SELECT SUM(val) AS s FROM weight')")
    del weight
    with pytest.raises(duckdb.InvalidInputException, match="is not opened"):
        con.execute("FROM einsql('SELECT SUM(val) AS s FROM ''w.npy''')")


def test_a_connection_keeps_what_is_attached_and_is_not_kept() -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE x AS SELECT 0 AS i, 2.5::DOUBLE AS val")
    einsql.attach(con)
    gc.collect()
    assert rows(con, "FROM einsql('SELECT SUM(val) AS s FROM x')") == [(2.5,)]
    attached = einsql.attach(con)
    attached.close()
    assert rows(con, "FROM einsql('SELECT 1 AS a')") == [(1,)]
    known = weakref.ref(con)
    del con, attached
    gc.collect()
    assert known() is None


def test_other_versions_of_duckdb_have_the_earlier_form(
    con: duckdb.DuckDBPyConnection, edb: Attached, monkeypatch: pytest.MonkeyPatch
) -> None:
    edb.close()
    monkeypatch.setattr(table_function, "VERSIONS", ())
    with einsql.attach(con) as earlier:
        relation = earlier.sql(f"FROM {SUMS} ORDER BY i")
        assert relation is not None
        assert relation.fetchall() == sums(con)
        for text in (f"CREATE VIEW v AS FROM {SUMS}", f"PREPARE p AS FROM {SUMS}",
                     f"CREATE TEMP MACRO m() AS TABLE FROM {SUMS}"):  # fmt: skip
            with pytest.raises(einsql.NotSupportedError, match="cannot stand in a"):
                earlier.sql(text)
    with einsql.attach(con) as _, pytest.raises(duckdb.CatalogException, match="einsql"):
        con.execute(f"FROM {SUMS}")


def test_statements_of_the_attachment_may_define_views(
    con: duckdb.DuckDBPyConnection, edb: Attached
) -> None:
    edb.execute(f"CREATE VIEW v AS FROM {SUMS}; CREATE TABLE kept AS FROM {SUMS}")
    assert rows(con, "FROM v ORDER BY i") == rows(con, "FROM kept ORDER BY i") == sums(con)


# ---- threads, interrupts and many runs


def test_random_statements_in_threads(con: duckdb.DuckDBPyConnection, edb: Attached) -> None:
    """`EINSQL_RUNS` queries of uncommitted rows; one of five is interrupted."""
    edb.close()
    failures: list[BaseException] = []

    def run(seed: int) -> None:
        try:
            with con.cursor() as own, einsql.attach(own):
                random_statements(own, np.random.default_rng(seed), RUNS // 8)
        except BaseException as error:
            failures.append(error)

    with einsql.attach(con):
        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_an_interrupt_stops_the_query_of_einsql(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE TABLE wide AS SELECT i, i / 7 AS val FROM range(20000) r(i)")
    inner = "SELECT SUM(SIN(a.val * b.val) * COS(c.val)) AS s FROM wide a, wide b, wide c"
    with einsql.attach(con) as edb:
        relation = edb.sql(f"FROM einsql('{inner}')")  # an hour of work
        assert relation is not None
        done = threading.Event()

        def interrupt() -> None:
            while not done.wait(0.2):
                edb.interrupt()

        thread = threading.Thread(target=interrupt)
        thread.start()
        # While kernels are compiled DuckDB binds, and reports the error of the stream.
        stopped = (duckdb.InterruptException, duckdb.InvalidInputException)
        try:
            with pytest.raises(stopped, match=r"(?i)interrupt"):
                relation.fetchall()
        finally:
            done.set()
            thread.join()
        assert con.execute("SELECT 1").fetchall() == [(1,)]


def random_statements(
    con: duckdb.DuckDBPyConnection, random: np.random.Generator, runs: int
) -> None:
    con.execute("CREATE TEMP TABLE own(i INT, j INT, val INT)")
    con.execute("""
        PREPARE again AS SELECT sum(s), count(*)
            FROM einsql('SELECT i, SUM(val) AS s FROM own GROUP BY i') WHERE i >= $1""")
    for _ in range(runs):
        size, least = int(random.integers(0, 3000)), int(random.integers(0, 8))
        con.begin()
        con.execute("DELETE FROM own; INSERT INTO own SELECT i % 10, i // 10, hash(i) % 100 "
                    f"FROM range({size}) r(i)")  # fmt: skip
        expected = con.execute(
            f"SELECT sum(val), count(DISTINCT i) FROM own WHERE i >= {least}"
        ).fetchall()
        timer = threading.Timer(float(random.random()) * 0.02, con.interrupt)
        interrupted = random.random() < 0.2
        if interrupted:
            timer.start()
        try:
            assert con.execute(f"EXECUTE again({least})").fetchall() == expected
            inner = f"SELECT i, SUM(val) AS s FROM own WHERE i >= {least} GROUP BY i"
            found = con.execute(f"SELECT sum(s), count(*) FROM einsql('{inner}')").fetchall()
            assert found == expected
        except duckdb.InterruptException:
            assert interrupted
        finally:
            if interrupted:
                timer.cancel()
                timer.join()
            con.rollback()
