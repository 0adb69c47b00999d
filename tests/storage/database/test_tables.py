"""Tables, tensors and views of both in one file."""

from __future__ import annotations

import pytest

import einsql

JOINED = (
    "SELECT name, SUM(val) AS s FROM x JOIN labels ON x.i = labels.row GROUP BY name ORDER BY name"
)


def test_tables_tensors_and_views_of_both_come_back(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute(f"""
            CREATE TABLE labels (row INT, name VARCHAR);
            INSERT INTO labels VALUES (0, 'a'), (1, 'b');
            CREATE TENSOR x (i DIM(2), j DIM(2), val FLOAT) DEFAULT 1;
            CREATE VIEW v AS {JOINED};
            BEGIN; UPDATE x SET val = 2; UPDATE labels SET name = name || '!'; COMMIT;
            CREATE TENSOR y AS SELECT row AS i, length(name) AS val FROM labels;
            BEGIN; UPDATE x SET val = 3; DROP TABLE labels; ROLLBACK;
        """)
        with pytest.raises(einsql.ProgrammingError, match='a table "labels" already'):
            con.execute("CREATE TENSOR labels (i DIM(2), val FLOAT)")
        with pytest.raises(einsql.ProgrammingError, match='a tensor "x" already'):
            con.execute("CREATE TABLE x (i INT)")
    with einsql.connect(path, read_only=True) as con:
        assert con.execute("FROM v").fetchall() == [("a!", 4.0), ("b!", 4.0)]
        assert con.execute("SELECT * FROM y").fetchall() == [(0, 2), (1, 2)]
        assert [r[0] for r in con.execute("SHOW TABLES").fetchall()] == ["labels", "x", "y"]
        with pytest.raises(einsql.Error, match="read-only"):
            con.execute("INSERT INTO labels VALUES (2, 'c')")


def test_one_statement_sees_tables_and_tensors_of_one_commit(path: str) -> None:
    with einsql.connect(path) as one, einsql.connect(path) as other:
        one.execute("""
            CREATE TABLE labels AS SELECT 0 AS row, 'a' AS name;
            CREATE TENSOR x (i DIM(1), j DIM(1), val FLOAT) DEFAULT 1;
        """)
        assert other.execute(JOINED).fetchall() == [("a", 1.0)]
        other.execute("BEGIN")
        one.execute("BEGIN; UPDATE x SET val = 2; UPDATE labels SET name = 'b'; COMMIT")
        assert other.execute(JOINED).fetchall() == [("a", 1.0)]
        other.execute("COMMIT")
        assert other.execute(JOINED).fetchall() == [("b", 2.0)]
