"""Tables, tensors and views have names of their own, whoever makes them and however."""

from __future__ import annotations

import duckdb
import pytest

import einsql
from tests.support.samples import spread


@pytest.mark.parametrize(
    "sql",
    spread([
        "CREATE TABLE IF NOT EXISTS W (a INT)", "CREATE TABLE main.w (a INT)",
        'CREATE TABLE "model".main.w AS SELECT 1 AS a', "CREATE OR REPLACE TABLE w (a INT)",
        "CREATE TEMP TABLE w (a INT)", "CREATE TABLE model.w (a INT)", "ALTER TABLE t RENAME TO w",
        "ALTER TABLE IF EXISTS main.t RENAME TO w", "CREATE VIEW w AS SELECT 1 AS a",
        "CREATE OR REPLACE VIEW t AS SELECT 1 AS a", "CREATE TENSOR t (i DIM(2), val FLOAT)",
        "CREATE TEMP TENSOR t (i DIM(2), val FLOAT)",
    ], 5),
)  # fmt: skip
def test_a_name_is_taken_once(path: str, sql: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TABLE t (k INT)")
        con.execute("CREATE TENSOR w (i DIM(2), val DOUBLE) DEFAULT 1")
        with pytest.raises(einsql.Error, match="There is "):
            con.execute(sql)
        assert [r[0] for r in con.execute("SHOW TABLES").fetchall()] == ["t", "w"]
        con.execute("CREATE SCHEMA s; CREATE TABLE s.w AS SELECT 5 AS a")
        assert con.execute("SELECT a, val FROM s.w, w WHERE i = 0").fetchall() == [(5, 1.0)]


def test_the_first_to_commit_has_the_name(path: str) -> None:
    with einsql.connect(path) as one, einsql.connect(path) as other:
        for first, second in ((one, other), (other, one)):
            one.execute("BEGIN")
            other.execute("BEGIN")
            one.execute("CREATE TABLE n AS SELECT 1 AS a")
            other.execute("CREATE TENSOR n (i DIM(2), val DOUBLE) DEFAULT 0")
            first.execute("COMMIT")
            with pytest.raises(einsql.OperationalError, match='"n" would be the name'):
                second.execute("COMMIT")
            assert one.execute("SELECT * FROM n").fetchall() == (
                [(1,)] if first is one else [(0, 0.0), (1, 0.0)]
            )
            one.execute("DROP TABLE n" if first is one else "DROP TENSOR n")
        one.execute("CREATE TABLE n AS SELECT 1 AS a")
        one.execute("BEGIN; CREATE TENSOR c AS SELECT a AS i, a FROM n; DROP TABLE n")
        one.execute("CREATE TENSOR n AS SELECT * FROM c; COMMIT")
        assert other.execute("SELECT * FROM n").fetchall() == [(1, 1)]


def test_main_is_where_tensors_are(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR w (i DIM(2), val DOUBLE) DEFAULT 3; CREATE TABLE t (k INT)")
        for name in ("main.w", "MODEL.main.W", '"model".w'):
            assert con.execute(f"SELECT SUM(val) FROM {name}").fetchall() == [(6.0,)]
            with pytest.raises(einsql.NotSupportedError, match="without a schema"):
                con.execute(f"DELETE FROM {name}")
        sql = "SELECT m.* FROM main.w m, w WHERE m.i = w.i AND m.val = main.w.val ORDER BY 1"
        assert con.execute(sql).fetchall() == [(0, 3.0), (1, 3.0)]
        sql = "WITH w AS (SELECT 'a' AS a) SELECT a, i FROM w, main.w ORDER BY i"
        assert con.execute(sql).fetchall() == [("a", 0), ("a", 1)]
        assert con.execute("SELECT COUNT(*) FROM main.t ORDER BY 1").fetchall() == [(0,)]


def test_a_table_that_duckdb_made_beside_a_tensor_can_be_saved(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR w (i DIM(2), val DOUBLE) DEFAULT 3")
    with duckdb.connect(path) as plain:
        plain.execute("CREATE TABLE w AS SELECT 'lost' AS a")
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM w").fetchall() == [(6.0,)]
        con.execute("CREATE TABLE saved AS SELECT * FROM model.main.w; DROP TABLE model.main.w")
        assert con.execute("SELECT a, i FROM saved, w ORDER BY i LIMIT 1").fetchall() == [
            ("lost", 0)
        ]


def test_what_is_temporary_hides_what_lasts(path: str) -> None:
    with einsql.connect(path) as con, einsql.connect(path) as other:
        con.execute("CREATE TENSOR w (i DIM(2), val DOUBLE) DEFAULT 1; CREATE VIEW v AS FROM w")
        con.execute("CREATE MACRO m(a) AS a + 1")
        con.execute("CREATE TEMP TENSOR w (i DIM(1), val DOUBLE) DEFAULT 7; UPDATE w SET val = 8")
        con.execute("CREATE TEMP VIEW v AS SELECT val + 1 AS val FROM w")
        con.execute("CREATE TEMP MACRO m(a) AS a + 10")
        for kind in ("TENSOR w (i DIM(1), val DOUBLE)", "VIEW v AS SELECT 1 AS a"):
            with pytest.raises(einsql.ProgrammingError, match="already"):
                con.execute(f"CREATE TEMP {kind}")
        assert con.execute("SELECT m(val) FROM v").fetchall() == [(19.0,)]
        assert other.execute("SELECT m(val) FROM v").fetchall() == [(2.0,), (2.0,)]
        con.execute("BEGIN; DROP VIEW v; DROP TENSOR w; DROP MACRO m")
        assert con.execute("SELECT m(val) FROM v").fetchall() == [(2.0,), (2.0,)]
        con.execute("ROLLBACK")
        assert con.execute("SELECT m(val) FROM v").fetchall() == [(19.0,)]
    with einsql.connect(path) as con:
        assert con.execute("SELECT m(val) FROM v").fetchall() == [(2.0,), (2.0,)]


@pytest.mark.parametrize("where", ["memory", "file"])
def test_tables_that_are_copied_have_names_of_their_own(path: str, where: str) -> None:
    with einsql.connect(path if where == "file" else ":memory:") as con:
        con.execute("CREATE TENSOR w (i DIM(2), val DOUBLE) DEFAULT 3")
        con.execute("ATTACH ':memory:' AS o; CREATE TABLE o.w AS SELECT 1 AS a")
        copy = f"COPY FROM DATABASE o TO {con.duck.database}"
        with pytest.raises(einsql.OperationalError, match='"w" would be the name of a table and'):
            con.execute(copy)
        con.execute(f"BEGIN; {copy}")
        with pytest.raises(einsql.OperationalError, match='"w" would be the name of a table and'):
            con.execute("COMMIT")
        con.execute(f"DROP TENSOR w; {copy}")
        assert con.execute("SELECT a FROM w").fetchall() == [(1,)]
