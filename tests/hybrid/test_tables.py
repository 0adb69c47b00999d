"""Tables beside tensors: one namespace, one transaction, and each made of the other."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    made = einsql.connect()
    made.register("x", np.arange(12.0).reshape(3, 4), ("i", "j"))
    made.execute("CREATE TABLE t (r INTEGER, c INTEGER, v FLOAT, n VARCHAR)")
    made.execute("INSERT INTO t VALUES (0, 0, 1.5, 'a'), (2, 1, 2.5, 'b')")
    yield made
    made.close()


def rows(con: einsql.Connection, sql: str, given: Any = None) -> list[Any]:
    return con.execute(sql, given).fetchall()


def test_tables_become_tensors(con: einsql.Connection) -> None:
    assert con.execute("CREATE TENSOR a AS SELECT r AS i, c AS j, v AS val FROM t").rowcount == 2
    assert rows(con, "SELECT * FROM a") == [(0, 0, 1.5), (2, 1, 2.5)]
    assert con.execute("DESCRIBE a").fetchall()[:2] == [
        ("i", "BIGINT", "3", "", "", ""), ("j", "BIGINT", "2", "", "", ""),
    ]  # fmt: skip
    con.execute(
        "CREATE TENSOR b (i DIM(4), j DIM(2), val DOUBLE) DEFAULT 0 AS SELECT r, c, v FROM t"
    )
    assert rows(con, "SELECT i, SUM(val) AS s FROM b GROUP BY i") == [
        (0, 1.5), (1, 0.0), (2, 2.5), (3, 0.0),
    ]  # fmt: skip
    con.execute("CREATE TENSOR h AS SELECT r::HUGEINT AS i, r AS k FROM t ORDER BY n")
    assert rows(con, "SELECT * FROM h") == [(0, 0), (2, 2)]
    con.execute("CREATE TENSOR d (i DIM(3), j DIM(4), val FLOAT) AS SELECT i, j, val FROM x")
    assert rows(con, "SELECT SUM(val) FROM d") == [(66.0,)]


@pytest.mark.parametrize(
    ("sql", "error", "reason"),
    [
        ("SELECT r, c, n FROM t", einsql.NotSupportedError, "no type VARCHAR, which n has"),
        ("SELECT r - 1 AS i, v FROM t", einsql.IntegrityError, "key i has the value -1"),
        ("SELECT 0 AS i, v FROM t", einsql.IntegrityError, r"key \(i = 0\) is inserted twice"),
        ("SELECT r, if(r = 0, v, NULL) AS v FROM t", einsql.DataError, "1 values of v are NULL"),
        ("SELECT nullif(r, 0) AS i, v FROM t", einsql.DataError, "1 values of i are NULL"),
        ("SELECT r, v::DECIMAL(4, 1) AS d FROM t", einsql.NotSupportedError, r"DECIMAL\(4,1\)"),
        ("SELECT nosuch FROM t", einsql.ProgrammingError, '"nosuch" not found'),
    ],
)
def test_what_no_tensor_can_be_is_refused_by_name(
    con: einsql.Connection, sql: str, error: type[einsql.Error], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        con.execute(f"CREATE TENSOR bad AS {sql}")
    assert con.store.get("bad") is None


def test_rows_change_tensors(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(4), val FLOAT) DEFAULT 1")
    con.execute("UPDATE w SET val = w.val + t.v FROM t WHERE t.r = w.i AND t.n < ?", ["b"])
    assert rows(con, "SELECT val FROM w WHERE i = 0") == [(2.5,)]
    con.execute("CREATE TENSOR p AS SELECT r AS i, v FROM t")
    con.execute("INSERT INTO p SELECT r - 1, v FROM t WHERE n = 'b'")
    assert con.execute("DELETE FROM p WHERE i IN (SELECT r FROM t WHERE n = 'a')").rowcount == 1
    assert rows(con, "SELECT * FROM p") == [(1, 2.5), (2, 2.5)]
    with pytest.raises(einsql.IntegrityError, match="several rows of FROM"):
        con.execute("UPDATE w SET val = t.v FROM t WHERE w.i = 0 AND t.n > ''")
    with pytest.raises(einsql.IntegrityError, match="exists in p"):
        con.execute("INSERT INTO p SELECT r, v FROM t WHERE n = 'b'")


def test_one_namespace(con: einsql.Connection) -> None:
    con.execute("CREATE VIEW v AS SELECT i FROM x")
    for sql in (
        "CREATE TABLE X (a INTEGER)", "CREATE TENSOR T (i DIM(2), val FLOAT)",
        "CREATE TABLE v AS SELECT 1 AS a", "CREATE VIEW t AS SELECT i FROM x",
    ):  # fmt: skip
        with pytest.raises(einsql.ProgrammingError, match="There is a"):
            con.execute(sql)
    assert [row[0] for row in rows(con, "SHOW TABLES")] == ["t", "x"]
    assert rows(con, "DESCRIBE t")[3][:2] == ("n", "VARCHAR")


def test_transactions_hold_for_both(con: einsql.Connection) -> None:
    con.execute("BEGIN; INSERT INTO t VALUES (1, 1, 1, 'c'); CREATE TENSOR w AS SELECT * FROM x")
    con.rollback()
    assert con.store.get("w") is None
    assert rows(con, "SELECT COUNT(*) FROM t") == [(2,)]
    con.execute("BEGIN; INSERT INTO t VALUES (1, 1, 1, 'c'); CREATE TENSOR w AS SELECT * FROM x")
    with pytest.raises(einsql.DataError, match="Could not convert"):
        con.execute("SELECT n::INTEGER FROM t")
    with pytest.raises(einsql.OperationalError, match="aborted"):
        con.commit()
    assert con.store.get("w") is None
    assert rows(con, "SELECT COUNT(*) FROM t") == [(2,)]


def test_nothing_stays_in_duckdb(con: einsql.Connection) -> None:
    con.execute("CREATE VIEW v AS SELECT 'a' || val AS a FROM x")
    con.execute("CREATE MACRO twice(a) AS a || a")
    assert rows(con, "SELECT twice(a) FROM v ORDER BY 1 LIMIT 1") == [("a0.0a0.0",)]
    with pytest.raises(einsql.DataError):
        con.execute("SELECT twice(a)::INTEGER FROM v")
    for of in ("views", "functions"):
        assert con.duck.execute(f"SELECT * FROM duckdb_{of}() WHERE NOT internal") == []


def test_functions_that_duckdb_lacks(con: einsql.Connection) -> None:
    sql = "SELECT erf(length(n)), sigmoid(length(n)), square(length(n)) FROM t LIMIT 1"
    assert rows(con, sql) == [(pytest.approx(0.8427007929), pytest.approx(0.7310585786), 1.0)]
    assert rows(con, "SELECT logsumexp(v + 1000) FROM t") == [(pytest.approx(1002.8132617),)]


def test_a_function_that_was_rolled_back_is_given_again(tmp_path: Path) -> None:
    sql = "SELECT erf(length(n)) FROM t LIMIT 1"
    path = str(tmp_path / "t.db")
    with einsql.connect(path) as con, einsql.connect(path) as other:
        con.execute("CREATE TABLE t AS SELECT 'a' AS n")
        with pytest.raises(einsql.DataError):
            con.execute("SELECT erf(n::INTEGER) FROM t")
        assert rows(con, sql) == [(pytest.approx(0.8427007929),)]
        con.execute("BEGIN")
        assert rows(con, sql) == rows(other, sql)
        con.execute("ROLLBACK")
        assert rows(con, sql) == rows(other, sql)


@pytest.mark.parametrize("sql", ["SELECT '\udc80' AS s", "SELECT i FROM x WHERE '\udc80' = 'a'"])
def test_half_a_character_is_refused_where_it_stands(con: einsql.Connection, sql: str) -> None:
    with pytest.raises(einsql.ProgrammingError, match="surrogate") as caught:
        con.execute(sql)
    assert caught.value.position == sql.index("\udc80")
    with pytest.raises(einsql.ProgrammingError, match="surrogate"):
        con.execute("SELECT ? FROM t", ["\udc80"])


def test_names_in_reach(con: einsql.Connection) -> None:
    local = np.arange(6.0).reshape(2, 3)
    sql = "SELECT 'v' || s AS v FROM EINSUM('ij->i', local) e(i, s) ORDER BY v"
    assert con.execute(sql).fetchall() == [("v12.0",), ("v3.0",)]
    sql = "SELECT d0, 'v' || val AS v FROM local ORDER BY val DESC LIMIT 1"
    assert con.execute(sql).fetchall() == [(1, "v5.0")]
    con.execute("CREATE TABLE local AS SELECT 'a table' AS d0")
    assert con.execute("SELECT d0 FROM local").fetchall() == [("a table",)]
    con.execute("DROP TABLE local")
    del local
    with pytest.raises(einsql.ProgrammingError, match='no tensor "local"'):
        con.execute("SELECT 'v' || s AS v FROM EINSUM('ij->i', local) e(i, s)")


@pytest.mark.parametrize(
    ("sql", "shown"),
    [
        ("CREATE TABLE s AS SELECT i, SUM(val) AS s FROM x GROUP BY i", "over 1 fragment"),
        ("CREATE TABLE s AS SELECT i, val FROM x ORDER BY val", "over 1 fragment"),
        ("MERGE INTO t USING (SELECT i FROM x GROUP BY i) v ON v.i = t.r WHEN MATCHED THEN DELETE",
         "over 1 fragment"),
        ("MERGE INTO t USING x ON x.i = t.r WHEN MATCHED AND j = 0 THEN DELETE", "reading x"),
    ],
)  # fmt: skip
def test_explain_of_duckdbs_statements_shows_what_runs(
    con: einsql.Connection, sql: str, shown: str
) -> None:
    assert shown in str(con.explain(sql))
    assert rows(con, "SELECT COUNT(*) FROM t") == [(2,)]
    assert con.execute(sql).rowcount in (2, 3, 12)


def test_explain_shows_the_line(con: einsql.Connection) -> None:
    sql = "SELECT t.n, s.s FROM t JOIN (SELECT i, SUM(val) AS s FROM x GROUP BY i) s ON s.i = t.r"
    plan = con.explain(f"{sql} ORDER BY s.s")
    report = plan.to_dict()
    assert [f["sql"] for f in report["fragments"]] == ["SELECT i, SUM(val) AS s FROM x GROUP BY i"]
    assert report["fragments"][0]["columns"] == ["i", "s"]
    assert "__einsql_1) s ON" in report["duckdb"]["sql"]
    assert "ORDER BY is outside the tensor fragment" in report["why"]
    assert "SUM(x.val)" in str(plan)
    con.execute("SET fallback = off")
    with pytest.raises(einsql.NotSupportedError, match="ORDER BY is outside"):
        con.execute(f"{sql} ORDER BY s.s")


def test_results_of_duckdb(con: einsql.Connection) -> None:
    cursor = con.execute("SELECT n, nullif(r, 0) AS r, v FROM t ORDER BY v DESC")
    assert (cursor.rowcount, cursor.shape) == (2, None)
    assert [d[:2] for d in cursor.description or ()] == [
        ("n", "VARCHAR"), ("r", "INTEGER"), ("v", "FLOAT"),
    ]  # fmt: skip
    found = cursor.fetch_numpy()
    assert found["n"].tolist() == ["b", "a"]
    assert found["r"].tolist() == [2, None]
    assert cursor.fetch_arrow_table().column_names == ["n", "r", "v"]
    assert cursor.fetchone() == ("b", 2, 2.5)
    assert cursor.fetchall() == [("a", None, 1.5)]


def test_mistakes_stand_where_they_were_written(con: einsql.Connection) -> None:
    sql = "SELECT s.i, nosuch || 'a' FROM (SELECT i, SUM(val) AS s FROM x GROUP BY i) s"
    with pytest.raises(einsql.ProgrammingError, match='"nosuch" not found') as caught:
        con.execute(sql)
    assert caught.value.position == sql.index("nosuch")
    with pytest.raises(einsql.ProgrammingError, match='no tensor "nope"'):
        con.execute("SELECT upper(a) FROM nope")


def test_close_stops_another_threads_statement(tmp_path: Path) -> None:
    path = str(tmp_path / "t.db")
    con = einsql.connect(path)
    con.execute("CREATE TABLE t AS SELECT range AS k FROM range(2000)")
    timer = threading.Timer(0.3, con.close)
    timer.start()
    with pytest.raises(einsql.InterruptedError):
        con.execute("SELECT MAX(a.k || b.k || c.k || d.k) FROM t a, t b, t c, t d")
    timer.join()
    with pytest.raises(einsql.InterfaceError, match="closed"):
        con.execute("SELECT 1 ORDER BY 1")
    einsql.connect(path, read_only=True).close()


def test_threads_take_turns_on_a_connection(con: einsql.Connection) -> None:
    wrong: list[object] = []

    def work(n: int) -> None:
        for _ in range(10):
            try:
                found = rows(con, "SELECT ? || r FROM t ORDER BY 1", [n])
                table = con.execute("SELECT n FROM t ORDER BY n").fetch_arrow_table()
                total = rows(con, "SELECT SUM(val), (SELECT MAX(n) FROM t) AS n FROM x")
                if found != [(f"{n}0",), (f"{n}2",)] or len(table) != 2 or total != [(66.0, "b")]:
                    wrong.append(found)
            except Exception as error:
                wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_interrupt_reaches_duckdb(con: einsql.Connection) -> None:
    timer = threading.Timer(0.3, con.interrupt)
    timer.start()
    with pytest.raises(einsql.InterruptedError):
        con.execute("SELECT MAX('a' || a.range) FROM range(1000000) a, range(1000000) b")
    timer.join()
    assert rows(con, "SELECT MAX(n) FROM t") == [("b",)]


def test_a_cursor_counts_its_rows_after_its_connection_is_closed() -> None:
    with einsql.connect() as con:
        cursor = con.execute("SELECT upper(n) FROM (VALUES ('a'), ('b')) AS t(n)")
    assert cursor.rowcount == 2
    with pytest.raises(einsql.InterfaceError, match="closed"):
        cursor.fetchall()


def test_files_of_text_are_tables(con: einsql.Connection, tmp_path: Path) -> None:
    (tmp_path / "people.csv").write_text("id,name\n1,ann\n2,bob\n")
    query = f"SELECT id, upper(name) FROM '{tmp_path}/people.csv' WHERE name LIKE 'b%'"
    assert con.execute(query).fetchall() == [(2, "BOB")]
    assert rows(con, f"SELECT * FROM '{tmp_path}/people.csv' ORDER BY id DESC") == [
        (2, "bob"), (1, "ann"),
    ]  # fmt: skip


def test_a_table_cannot_be_renamed_to_a_tensor(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE other (a INTEGER)")
    with pytest.raises(einsql.ProgrammingError, match='tensor "x" already'):
        con.execute("ALTER TABLE other RENAME TO x")
    con.execute("ALTER TABLE other RENAME a TO x; ALTER TABLE other RENAME TO another")
    assert rows(con, "SELECT x FROM another") == []


@pytest.mark.parametrize("suffix", ["npy", "arrow", "mtx"])
def test_files_of_tensors_are_read_beside_text(
    con: einsql.Connection, tmp_path: Path, suffix: str
) -> None:
    path = f"{tmp_path}/x.{suffix}"
    con.execute(f"COPY x TO '{path}'")
    query = f"SELECT 'row ' || f.i FROM '{path}' AS f(i, j) WHERE f.j = 0 ORDER BY 1"
    assert rows(con, query) == [("row 0",), ("row 1",), ("row 2",)]


def test_prepared_statements_read_tables_alone(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR w (i DIM(4), val FLOAT) DEFAULT 1; CREATE VIEW v AS SELECT * FROM t")
    con.execute("CREATE MACRO twice(a) AS a || a")
    for sql in (
        "SELECT n, val FROM t, w", "SELECT * FROM v", "SELECT MAX(val) FROM w", "FROM x",
        "INSERT INTO t SELECT i, i, val, 'c' FROM w", "FROM x", "SELECT erf(v) FROM t",
        "SELECT (SELECT SUM(val) FROM x), n FROM t", "WITH q AS (SELECT * FROM w) FROM q, t",
    ):  # fmt: skip
        with pytest.raises(einsql.NotSupportedError, match="PREPARE") as caught:
            con.execute(f"PREPARE p AS {sql}")
        assert "parameters" in str(caught.value)
    con.execute("PREPARE p AS SELECT n FROM t WHERE r = 7")
    con.execute("INSERT INTO t VALUES (7, 0, 1, 'late')")
    assert rows(con, "EXECUTE p") == [("late",)]


@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
def test_a_failure_in_duckdb_aborts_tensors_too(con: einsql.Connection, end: str) -> None:
    con.execute("CREATE TENSOR w (i DIM(4), val FLOAT) DEFAULT 1")
    total = "SELECT SUM(val) FROM w"
    con.execute("BEGIN; UPDATE w SET val = 2; INSERT INTO t VALUES (1, 1, 1, 'c')")
    assert rows(con, total) == [(8.0,)]
    with pytest.raises(einsql.ProgrammingError, match="nosuch"):
        con.execute("SELECT nosuch FROM t")
    assert rows(con, total) == [(8.0,)]
    with pytest.raises(einsql.DataError):
        con.execute("SELECT n::INTEGER FROM t")
    for sql in (total, "UPDATE w SET val = 3", "SELECT COUNT(*) FROM t", "SHOW TENSORS", "BEGIN"):
        with pytest.raises(einsql.OperationalError, match=r"aborted|is running already"):
            con.execute(sql)
    if end == "COMMIT":
        with pytest.raises(einsql.OperationalError, match="rolled the transaction back"):
            con.execute(end)
        with pytest.raises(einsql.OperationalError, match="No transaction is running"):
            con.execute("ROLLBACK")
    else:
        con.execute(end)
    assert rows(con, total) == [(4.0,)]
    assert rows(con, "SELECT COUNT(*) FROM t ORDER BY 1") == [(2,)]
    con.execute("BEGIN; UPDATE w SET val = 2; COMMIT")
    assert rows(con, total) == [(8.0,)]


def test_views_of_views_in_any_order(con: einsql.Connection) -> None:
    con.execute("""
        CREATE VIEW a AS SELECT i, n FROM x JOIN t ON i = r;
        CREATE VIEW b AS SELECT * FROM a ORDER BY i;
        CREATE VIEW c AS SELECT b.n || a.n AS n FROM b, a;
        CREATE MACRO rows_of() AS TABLE SELECT * FROM c;
        CREATE MACRO count_of(k) AS (SELECT COUNT(*) FROM b WHERE i = k);
        CREATE VIEW d AS SELECT count_of(r) AS k FROM t;
    """)
    for sql, count in (
        ("SELECT COUNT(*) FROM b, a", 64), ("SELECT COUNT(*) FROM a, b", 64),
        ("SELECT COUNT(*) FROM c, b, a", 4096), ("SELECT COUNT(*) FROM a, b, c", 4096),
        ("SELECT COUNT(*) FROM rows_of() ORDER BY 1", 64), ("SELECT SUM(count_of(r)) FROM t", 8),
        ("SELECT SUM(k) FROM d, t", 16),
    ):  # fmt: skip
        assert rows(con, sql) == [(count,)], sql


def test_results_are_refused_by_einsql_alone(con: einsql.Connection) -> None:
    with pytest.raises(einsql.InterfaceError, match="n is VARCHAR, which cannot hold 0"):
        con.execute("SELECT NULLIF(n, 'a') AS n FROM t").fetch_numpy(fill=0)
    con.execute("BEGIN")
    cursor = con.execute("SELECT n, DATE '2026-11-30' AS day FROM t ORDER BY n")
    with pytest.raises(einsql.DataError):
        con.execute("SELECT n::INTEGER FROM t")
    for fetch in (cursor.fetchall, cursor.fetch_arrow_table, cursor.fetch_numpy):
        with pytest.raises(einsql.OperationalError, match="ROLLBACK"):
            fetch()
    con.execute("ROLLBACK")
    assert [n for n, _ in cursor.fetchall()] == ["a", "b"]


def test_rows_held_in_arrow_are_those_of_duckdb(con: einsql.Connection) -> None:
    types = "BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT FLOAT"
    columns = [f"NULLIF(n % 2, {null})::{kind} AS {kind}_{null}"
               for kind in types.split() for null in (0, 2)]  # fmt: skip
    columns += ["n / 0.0 AS d", "NULLIF(n, 1) / 4 AS e", "'a' || chr(n::INT) || 'é' AS s"]
    columns += ["NULLIF(repeat('b', n::INT), '') AS t", "n AS n", "n AS n"]
    duck = duckdb.connect()
    for rows_read in (0, 1, 5):
        text = f"SELECT {', '.join(columns)} FROM range({rows_read}) r(n) ORDER BY n"
        ours, want = con.execute(f"{text} --x"), duck.sql(text)
        assert len(ours.fetchall()) == ours.rowcount == rows_read
        assert repr(con.execute(text).fetchall()) == repr(want.fetchall())
        assert repr(con.execute(text).fetchmany(2)) == repr(want.limit(2).fetchall())
        for a, b in zip(ours.fetch_arrow_table().columns, want.to_arrow_table().columns,
                        strict=True):  # fmt: skip
            assert (a.type, repr(a.to_pylist())) == (b.type, repr(b.to_pylist()))
        assert con.execute(text).fetch_df().equals(want.df())
        arrays = con.execute(text).fetchnumpy()
        for name, array in want.fetchnumpy().items():
            assert (type(arrays[name]), arrays[name].dtype) == (type(array), array.dtype), name
            np.testing.assert_array_equal(arrays[name], array)


def test_texts_in_arrow_that_are_no_unicode(con: einsql.Connection) -> None:
    offsets, texts = np.array([0, 2, 4], np.int32), b"a\xffbc"
    given = pa.Array.from_buffers(
        pa.string(), 2, [None, *(pa.py_buffer(part) for part in (offsets, texts))]
    )
    wrong = pa.table({"r": [1, 2], "n": given})  # noqa: F841 - FROM names it
    with pytest.raises(einsql.ProgrammingError, match="Invalid unicode"):
        con.execute("SELECT n, r FROM wrong ORDER BY r").fetchall()


def test_names_of_columns_are_duckdbs(con: einsql.Connection) -> None:
    duck = duckdb.connect()
    for made in (con, duck):
        made.execute("CREATE TABLE k AS SELECT i, i * 2 AS val FROM range(3) r(i)")
    con.execute("DROP TABLE k; CREATE TENSOR k (i DIM(3), val BIGINT) DEFAULT 0")
    con.execute("UPDATE k SET val = i * 2")
    for sql in (
        "SELECT (SELECT SUM(val) FROM k) || 'a', 1 + (SELECT\n max(val) FROM k WHERE i < 2)",
        "SELECT i, SUM(SUM(val)) OVER (ORDER BY i), COUNT(*) FROM k GROUP BY i ORDER BY i",
        "SELECT (SELECT COUNT(*) FROM k) AS n, upper('a')",
    ):
        found, want = con.execute(sql), duck.sql(sql)
        assert [d[0] for d in found.description or ()] == want.columns
        assert found.fetchall() == want.fetchall()


def test_what_is_for_tables_names_what_is_for_tensors(
    con: einsql.Connection, tmp_path: Path
) -> None:
    con.execute(
        "CREATE TENSOR k (i DIM(3), val BIGINT) DEFAULT 0; CREATE VIEW w AS SELECT i FROM k"
    )
    np.save(tmp_path / "f.npy", np.ones(3))
    path = tmp_path / "f.npy"
    for sql, hint in {
        "TRUNCATE k": "DELETE FROM", "TRUNCATE TABLE k": "DELETE FROM",
        "DROP TABLE k": "DROP TENSOR", "DROP TABLE IF EXISTS k": "DROP TENSOR",
        "DROP TABLE w": "DROP VIEW", f"DESCRIBE '{path}'": "DESCRIBE SELECT",
        f"SUMMARIZE '{path}'": "SUMMARIZE SELECT",
    }.items():  # fmt: skip
        with pytest.raises(einsql.NotSupportedError) as caught:
            con.execute(sql)
        assert hint in caught.value.hint
    with pytest.raises(einsql.ProgrammingError, match="There is a tensor"):
        con.execute("CREATE TABLE IF NOT EXISTS k AS SELECT 1 AS a")


def test_a_column_named_val_is_no_key(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE marks AS SELECT 1 AS k, 3 AS label, 1.5::DOUBLE AS w")
    con.execute("CREATE TENSOR d AS SELECT k AS i, label AS val, w FROM marks")
    assert con.execute("DESCRIBE d").fetchall()[1][:3] == ("val", "INTEGER", "")
    assert con.execute("SELECT * FROM d").fetchall() == [(1, 3, 1.5)]


def test_parameters_beyond_bigint_are_duckdbs(con: einsql.Connection) -> None:
    big = 2**70
    assert con.execute("SELECT ? + 1 AS a", [big]).fetchall() == [(big + 1,)]
    con.execute("CREATE TABLE held AS SELECT CAST(? AS HUGEINT) AS a", [-big])
    assert con.execute("SELECT a FROM held").fetchall() == [(-big,)]
    con.execute("SET fallback = off")
    with pytest.raises(einsql.NotSupportedError, match="beyond BIGINT"):
        con.execute("SELECT ? AS a", [big])


def test_rows_of_returning_are_rows_whatever_their_columns_are_called(
    con: einsql.Connection,
) -> None:
    sql = """INSERT INTO t VALUES (7, 7, 1, 'z') RETURNING r AS "Count" """
    assert rows(con, sql) == [(7,)]
    assert rows(con, """UPDATE t SET c = 8 WHERE r = 7 RETURNING c AS "Count" """) == [(8,)]
    assert rows(con, """PIVOT t ON n USING count(*) AS "Success" """)
    assert con.execute("DELETE FROM t WHERE r = 7").rowcount == 1


def test_an_aborted_transaction_computes_nothing(con: einsql.Connection) -> None:
    eye = np.eye(2)
    con.einsum("ij,jk->ik", [eye, eye])
    con.execute("BEGIN; INSERT INTO t VALUES (1, 1, 1, 'c')")
    with pytest.raises(einsql.DataError):
        con.execute("SELECT n::INTEGER FROM t")
    with pytest.raises(einsql.OperationalError, match="transaction is aborted"):
        con.einsum("ij,jk->ik", [eye, eye])
    con.rollback()
    assert con.einsum("ij,jk->ik", [eye, eye]).tolist() == eye.tolist()


NINES = "9" * 20
WIDE = [
    f"SELECT i FROM x WHERE i < {NINES} ORDER BY 1", f"SELECT i + {NINES} AS a FROM x WHERE j = 0",
    f"SELECT SUM(i) + -{NINES} AS a FROM x", "SELECT -9223372036854775809 AS a",
    f"SELECT {'9' * 5000} AS a", f"SELECT -{'9' * 5000} AS a",
]  # fmt: skip


@pytest.mark.parametrize("sql", WIDE)
def test_integers_beyond_bigint_are_duckdbs(con: einsql.Connection, sql: str) -> None:
    plain = duckdb.connect()
    plain.execute("CREATE TABLE x AS SELECT i, j, i * 4.0 + j AS val FROM range(3) AS a(i), "
                  "range(4) AS b(j)")  # fmt: skip
    found, expected = con.execute(sql), plain.execute(sql)
    assert sorted(found.fetchall()) == sorted(expected.fetchall())
    con.execute("SET fallback = off")
    with pytest.raises(einsql.NotSupportedError, match=r"BIGINT|ORDER BY"):
        con.execute(sql)
    con.execute("SET fallback = on; CREATE TENSOR w (i DIM(3), val BIGINT) DEFAULT 0")
    for change in (f"INSERT INTO w VALUES (0, {NINES})", f"UPDATE w SET val = {NINES}"):
        with pytest.raises(einsql.Error, match=r"BIGINT|out of range"):
            con.execute(change)


@pytest.mark.parametrize("order", ["?", "? DESC, i", "i, ?", "(?)"])
def test_order_by_takes_no_parameter(con: einsql.Connection, order: str) -> None:
    for sql in (f"SELECT i, val FROM x ORDER BY {order}", f"SELECT r AS i FROM t ORDER BY {order}"):
        with pytest.raises(einsql.ProgrammingError, match="ORDER BY") as caught:
            con.execute(sql, [1])
        assert caught.value.position == sql.index("?")
        assert "is part of the text" in caught.value.hint
    assert rows(con, "SELECT i FROM x WHERE j = 0 ORDER BY i * ?", [-1]) == [(2,), (1,), (0,)]


CHANGES = [
    ("INSERT INTO told VALUES (1, 2)", "INSERT"),
    ("INSERT INTO told SELECT i, SUM(val) FROM x GROUP BY i", "__einsql_1"),
    ("UPDATE told SET s = 2 WHERE i = 0", "UPDATE"),
    ("DELETE FROM told USING (SELECT i, SUM(val) AS s FROM x GROUP BY i) g WHERE g.i = told.i",
     "__einsql_1"),
    ("WITH g AS (SELECT 1 AS i) INSERT INTO told SELECT i, 1 FROM g", "INSERT"),
    ("CREATE TABLE more AS SELECT i, SUM(val) AS s FROM x GROUP BY i", "__einsql_1"),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "shown"), CHANGES)
def test_explain_of_a_change_of_a_table_changes_nothing(sql: str, shown: str) -> None:
    with einsql.connect() as con:
        con.register("x", np.arange(6.0).reshape(2, 3), dims=("i", "j"))
        con.execute("CREATE TABLE told AS SELECT 0 AS i, 1.5::DOUBLE AS s")
        told = "\n".join(row[0] for row in con.execute(f"EXPLAIN {sql}").fetchall())
        assert shown in told
        assert "DuckDB's plan:" in told
        assert "duckdb" in con.explain(sql).to_dict()
        with pytest.raises(einsql.NotSupportedError, match="would store it"):
            con.execute(f"EXPLAIN ANALYZE {sql}")
        assert con.execute("SELECT * FROM told").fetchall() == [(0, 1.5)]
        with pytest.raises(einsql.Error):
            con.execute("SELECT * FROM more")
        con.execute("SET fallback = off")
        with pytest.raises(einsql.NotSupportedError):
            con.execute(f"EXPLAIN {sql}")


@pytest.mark.parametrize(
    ("sql", "at", "hint"),
    [
        ("SELECT x.i FROM x r2", "x.i", 'alias r2 replaces the name "x" in FROM: write r2.i'),
        (
            'SELECT x.i FROM x "r 2"',
            "x.i",
            'The alias "r 2" replaces the name "x" in FROM: write "r 2".i',
        ),
        ("SELECT X.* FROM x AS r2", "X.*", r"write r2\.\*"),
        ("SELECT r.i FROM x r JOIN x q ON x.i = q.i", "x.i", r"write r\.i or q\.i"),
        ("SELECT x.i FROM (SELECT i FROM x) r2", "x.i", "Known tables: r2"),
        ("UPDATE w r2 SET val = w.val + 1", "w.val", r"write r2\.val"),
        ("DELETE FROM w AS r2 WHERE w.i = 0", "w.i", r"write r2\.i"),
        ("SELECT t.n FROM t AS r2", "t.n", "alias r2 replaces"),
        ("SELECT x.i, r3.n FROM x r2, t r3", "x.i", "alias r2 replaces"),
        ("SELECT (SELECT x.i FROM t) FROM x r2", "x.i", "alias r2 replaces"),
        ("SELECT main.t.n FROM t r2", "main", "alias r2 replaces"),
    ],
)
def test_aliases_replace_names(con: einsql.Connection, sql: str, at: str, hint: str) -> None:
    con.execute("CREATE TENSOR w (i DIM(2), val DOUBLE)")
    with pytest.raises(einsql.ProgrammingError, match=r"no table|not found") as caught:
        con.execute(sql)
    assert caught.value.position == sql.index(at)
    assert re.search(hint, caught.value.hint), caught.value.hint


@pytest.mark.parametrize("what", ["TABLE m", "COLUMN m.val", "VIEW v", "MACRO f", "MACRO TABLE g"])
def test_comments_on_objects_of_einsql(con: einsql.Connection, what: str) -> None:
    con.execute("CREATE TENSOR m (i DIM(2), val DOUBLE)")
    con.execute("CREATE VIEW v AS SELECT * FROM m")
    con.execute("CREATE MACRO f(a) AS a + 1")
    con.execute("CREATE MACRO g(a) AS TABLE SELECT * FROM a")
    con.execute("COMMENT ON TABLE t IS 'rows'")
    con.execute("COMMENT ON COLUMN main.t.r IS 'keys'")
    with pytest.raises(einsql.NotSupportedError, match="no comments") as caught:
        con.execute(f"COMMENT ON {what} IS 'new'")
    assert caught.value.position == len("COMMENT ON ") + what.rindex(" ") + 1
