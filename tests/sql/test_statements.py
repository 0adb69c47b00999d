"""Statements other than SELECT: every clause is obeyed or refused, none is overlooked."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import einsql
from einsql.sql.parser.tokens import tokenize
from tests.support.samples import sample, spread


def _connect() -> einsql.Connection:
    con = einsql.connect(config={"jit": "never"})
    con.register("x", np.arange(12, dtype=np.float32).reshape(3, 4), ("i", "j"))
    con.execute("""
        CREATE TENSOR a (i DIM(3), v INTEGER, w DOUBLE) DEFAULT 0;
        CREATE TENSOR b (i DIM(3), val DOUBLE);
        INSERT INTO b VALUES (0, 10), (1, 20);
        CREATE TENSOR s (val DOUBLE);
        CREATE TENSOR shifted AS SELECT i + 2 AS i, MIN(val) AS val FROM x GROUP BY i;
        CREATE VIEW seen AS SELECT i, val FROM b;
        CREATE MACRO inc(p) AS p + 1;
        CREATE MACRO total(p) AS (SELECT SUM(b.val) FROM b WHERE b.i = p);
        CREATE MACRO row_sums(t) AS TABLE SELECT i, SUM(val) AS val FROM t GROUP BY i;
        CREATE MACRO forever(p) AS forever(p) + 1;
        CREATE MACRO ping(p) AS (SELECT MAX(val) + pong(p) FROM b);
        CREATE MACRO pong(p) AS ping(p);
        CREATE MACRO deeper(t) AS TABLE SELECT * FROM deeper(t);
        CREATE MACRO doubled(p) AS p + p;
        CREATE MACRO free(p) AS (SELECT SUM(b.val) FROM b WHERE j = p)
    """)
    return con


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> einsql.Connection:
    monkeypatch.chdir(tmp_path)
    return _connect()


REFUSED = [
    # clauses of INSERT, UPDATE and DELETE
    ("UPDATE a SET v = 1 ORDER BY i", "ORDER BY", "i"),
    ("UPDATE a SET v = 1 LIMIT 1", "LIMIT", ""),
    ("UPDATE a, b SET v = 1", "several tables", "b"),
    ("UPDATE a JOIN b USING (i) SET v = 1", "several tables", "b"),
    ("UPDATE a SET v = 1 RETURNING *", "RETURNING", ""),
    ("UPDATE a TABLESAMPLE (10%) SET v = 1", "SAMPLE", ""),
    ("UPDATE a AS q(m, n) SET v = 1", "column list", "m"),
    ("UPDATE ONLY a SET v = 1", "ONLY", ""),
    ("UPDATE a SET b.v = 1", "cannot SET b.v", "v = 1|b.v"),
    ("UPDATE a AS q SET a.v = 1", "cannot SET a.v", ""),
    ("UPDATE foo.a SET v = 1", "no schemas", "a|foo"),
    ("UPDATE a SET v = 1, V = 2", "V is SET twice", "V"),
    ("UPDATE a", "needs SET", "a"),
    ("UPDATE a WHERE i = 1", "needs SET", "a"),
    ("UPDATE a SET (v, w) = (1, 2)", "SET needs column = expression", ""),
    ("UPDATE a SET v = DEFAULT", "DEFAULT", ""),
    ("DELETE FROM b ORDER BY i", "ORDER BY", ""),
    ("DELETE FROM b LIMIT 1", "LIMIT", ""),
    ("DELETE FROM b, a", "several tables", ""),
    ("DELETE FROM b USING a WHERE a.i = b.i", "USING", ""),
    ("DELETE b FROM b", "before FROM", ""),
    ("DELETE FROM b RETURNING *", "RETURNING", ""),
    ("DELETE FROM foo.b", "no schemas", ""),
    ("INSERT INTO b VALUES (2, 5) ON CONFLICT DO NOTHING", "ON CONFLICT", ""),
    ("INSERT INTO b VALUES (2, 5) RETURNING *", "RETURNING", ""),
    ("INSERT OR IGNORE INTO b VALUES (2, 5)", "INSERT OR IGNORE", ""),
    ("INSERT OVERWRITE b SELECT 2, 5", "OVERWRITE", ""),
    ("INSERT INTO b DEFAULT VALUES", "DEFAULT VALUES", ""),
    ("INSERT INTO b IF EXISTS SELECT 2, 5", "IF EXISTS", ""),
    ("INSERT INTO b PARTITION (i = 1) SELECT 2, 5", "PARTITION", ""),
    ("INSERT INTO foo.b VALUES (2, 5)", "no schemas", ""),
    ("INSERT INTO b (i, i) VALUES (2, 5)", 'names "i" twice', "i, i|i)"),
    ("INSERT INTO b (i INT, val INT) VALUES (2, 5)", "Expected column names", ""),
    ("INSERT INTO b VALUES (2, 5) AS t", "alias", ""),
    ("INSERT INTO b BY NAME SELECT 2 AS i, 3 AS val, 4 AS zz", 'no column "zz"', ""),
    ("INSERT INTO b BY NAME SELECT 2 AS i", "leaves out val", ""),
    ("INSERT INTO b (i, val) BY NAME SELECT 2 AS i, 3 AS val", "column list|Syntax error", ""),
    ("INSERT INTO b BY NAME VALUES (2, 3)", "BY NAME", ""),
    ("WITH RECURSIVE c AS (SELECT 1) INSERT INTO b SELECT * FROM c", "RECURSIVE", ""),
    # targets that are no stored tensor
    ("UPDATE seen SET val = 1", "is a view", "seen"),
    ("INSERT INTO seen VALUES (2, 5)", "is a view", "seen"),
    ("DELETE FROM seen", "is a view", "seen"),
    ("UPDATE x SET val = 1", "registered array", "x"),
    ("UPDATE nope SET val = 1", "no tensor", "nope"),
    ("WITH c AS (SELECT 1 AS i) DELETE FROM c", "no tensor", "c"),
    # cells of VALUES
    ("INSERT INTO b VALUES (2, (SELECT MAX(val) FROM x))", "subquery in VALUES", ""),
    ("INSERT INTO b VALUES (2, total(1))", "subquery in VALUES", ""),
    ("INSERT INTO b VALUES (2, i)", 'no column "i"', "i"),
    ("INSERT INTO b VALUES (2, SUM(3))", "is not allowed in VALUES", "SUM"),
    ("INSERT INTO b VALUES (2, SUM(3) OVER ())", "is not allowed in VALUES", ""),
    ("INSERT INTO b VALUES (2, DEFAULT)", "DEFAULT", ""),
    ("INSERT OR REPLACE INTO b VALUES (0, 1), (0, 2)", "inserted twice", ""),
    ("INSERT OR REPLACE INTO b SELECT 0 * i, val FROM x WHERE j = 0", "inserted twice", ""),
    ("INSERT INTO s VALUES (1), (2)", "takes one row", ""),
    # CREATE
    ("CREATE TENSOR t (i DIM(3), v INT) DEFAULT", "Expected the default", ""),
    ("CREATE TENSOR t (i DIM(3), v INT) DEFAULT 1 DEFAULT 2", "twice", "DEFAULT 2"),
    ("CREATE TENSOR t (i DIM(3), v INT) PARTITION BY (i 0)", "at least 1", "0"),
    ("CREATE TENSOR t (i DIM(3), v INT) PARTITION BY (j 2)", 'no key "j"', ""),
    ("CREATE TENSOR t (i DIM(3), v INT) PARTITION BY (i 2, i 3)", "twice", ""),
    ('CREATE TENSOR "" (i DIM(3), v INT)', "zero-length", '""'),
    ('CREATE TENSOR t ("" DIM(3), v INT)', "zero-length", '""'),
    ('CREATE TENSOR t AS SELECT i, val AS "" FROM b', "zero-length", '""'),
    ('CREATE VIEW "" AS SELECT 1', "zero-length", '""'),
    ('CREATE MACRO ""(p) AS p', "zero-length", '""'),
    ('CREATE TENSOR "f()" (i DIM(3), v INT)', "cannot be a name", '"f()"'),
    ("CREATE TENSOR = (i DIM(3), v INT)", "Expected a tensor name", "="),
    ("CREATE TENSOR t (i DIM(2000000), j DIM(2000000), v INT)", "more than a tensor", ""),
    ("CREATE VIEW u(m, n, o) AS SELECT i, val FROM b", "3 column names for 2", ""),
    ("CREATE VIEW u(m, M) AS SELECT i, val FROM b", "twice", "M"),
    ("CREATE VIEW u(m n) AS SELECT i FROM b", "Expected", "n"),
    ("CREATE VIEW u AS SELECT i + ? AS k FROM b", "parameter", "?"),
    ("CREATE VIEW u AS SELECT i + $1 AS k FROM b", "parameter", "$1"),
    ("CREATE OR REPLACE VIEW seen AS SELECT * FROM seen", "refers to itself", ""),
    # CREATE MACRO
    ("CREATE MACRO f(p) AS", "Expected the macro's body", ""),
    ("CREATE MACRO f(p) AS TABLE", "Expected", ""),
    ("CREATE MACRO f(p) AS p + 1 FROM b", "one expression", ""),
    ("CREATE MACRO f(p) AS p, p", "one expression", ""),
    ("CREATE MACRO f(p) AS p, (p, q) AS p + q", "Syntax error", ""),
    ("CREATE MACRO f(p) AS p AS q", "one expression", ""),
    ("CREATE MACRO f(p) AS DISTINCT p", "one expression", ""),
    ("CREATE MACRO f(p) AS *", "one expression", ""),
    ("CREATE MACRO f(p q) AS p", "There is no type q", "q"),
    ("CREATE MACRO f(p,) AS p", "Expected a parameter", ")"),
    ("CREATE MACRO f(p, P) AS p", "twice", "P"),
    ("CREATE MACRO f(p := 1, q) AS p", "default", ""),
    ("CREATE MACRO f(p) AS p + val", 'no parameter "val"', "val"),
    ("CREATE MACRO f(p) AS p + ?", "parameter", "?"),
    ("CREATE MACRO f(p) AS TABLE SELECT $1 FROM p", "parameter", "$1"),
    ("CREATE MACRO abs(p) AS p + 1", "is a function", "abs"),
    ("CREATE MACRO SUM(p) AS p + 1", "is a function", "SUM"),
    ("CREATE MACRO greatest(p, q) AS p", "is a function", ""),
    ("CREATE MACRO log2(p) AS p", "is a function", ""),
    ("CREATE MACRO erf(p) AS p", "is a function", ""),
    ("CREATE MACRO logsumexp(p) AS p", "is a function", ""),
    ("CREATE MACRO normalize(p) AS p", "is a function", ""),
    ("CREATE MACRO einsum(p) AS TABLE SELECT * FROM p", "is a function", ""),
    ("CREATE MACRO range(p) AS TABLE SELECT * FROM p", "is a function", ""),
    # calls of macros
    ("SELECT inc() FROM b", "takes 1 argument, not 0", "inc"),
    ("SELECT inc(1, 2) FROM b", "takes 1 argument, not 2", "inc"),
    ("SELECT inc(other := 2) FROM b", "none of that name", ""),
    ("SELECT inc(*) FROM b", "takes values", ""),
    ("SELECT inc(DISTINCT val) FROM b", "takes values", ""),
    ("SELECT inc(val) FILTER (WHERE i > 0) FROM b", "FILTER", "inc"),
    ("SELECT inc(val) OVER () FROM b", "OVER", "inc"),
    ("SELECT 1 + inc(zz) FROM b", 'no column "zz"', "zz"),
    ("SELECT 1 + inc(TRUE) FROM b", "does not accept", "inc"),
    ("SELECT total(val) FROM x", "value of the outer SELECT", ""),
    ("SELECT total(zz) FROM x", 'no column "zz"', ""),
    ("SELECT free(i) FROM x", 'no column "j"', "free"),
    ("SELECT row_sums(x) FROM x", "is a table macro", ""),
    ("SELECT * FROM inc(3)", "needs a table", "inc"),
    ("SELECT * FROM exp((SELECT i, val AS u, 2 * val AS v FROM x))", "one value column", "exp"),
    ("SELECT * FROM row_sums(3)", "needs a table as t", "3"),
    ("SELECT * FROM row_sums(nope(x))", "no table function nope", "nope"),
    ("SELECT * FROM row_sums(i + 1)", "needs a table as t", "i"),
    ("SELECT * FROM row_sums(nope)", "no tensor", ""),
    ("SELECT forever(1)", "refers to itself", "forever"),
    ("SELECT ping(1) FROM x", "refers to itself", "ping"),
    ("SELECT * FROM deeper(x)", "refers to itself", "deeper"),
    ("UPDATE a SET v = forever(v)", "refers to itself", "forever"),
    ("SELECT " + "doubled(" * 30 + "1" + ")" * 30, "more than", "doubled"),
    # COPY
    ("COPY shifted TO 'f.npy'", "starts at 2", ""),
    ("COPY (SELECT i - 1 AS i, val FROM shifted) TO 'f.npy'", "starts at 1", ""),
    ("COPY a TO 'f.npz' (TENSOR 'm', TENSOR 'n')", "twice", "TENSOR 'n'"),
    ("COPY a TO 'f.npz' (TENSOR 'm' TENSOR 'n')", "Expected", "TENSOR 'n'"),
    ("COPY (SELECT i, v FROM a) TO 'f.npz' (TENSOR 'file')", "cannot name an array", ""),
    ("COPY (SELECT 1) FROM 'f.npy'", "Expected TO", "FROM"),
    ("COPY (SELECT 1 TO 'f.npy'", "Expected )", ""),
    ("COPY shifted FROM 'f.npy'", "starts at 2|rows already", ""),
    # DROP and transactions
    ("DROP TENSOR a, b", "one name", ","),
    ("DROP TENSOR a CASCADE", "CASCADE", "CASCADE"),
    ("DROP VIEW seen RESTRICT", "RESTRICT", "RESTRICT"),
    ("DROP TENSOR foo.a", "no schemas", "."),
    ("COMMIT", "No transaction", ""),
    ("BEGIN; BEGIN", "running already", ""),
]


@pytest.mark.parametrize(
    ("sql", "reason", "at"), spread(REFUSED, 45), ids=[c[0][:70] for c in spread(REFUSED, 45)]
)
def test_refused_with_position_and_unchanged(
    con: einsql.Connection, sql: str, reason: str, at: str
) -> None:
    con.execute("SET fallback = off")
    before = dict(con.store.objects)
    with pytest.raises(
        einsql.Error, match=reason.replace("(", r"\(").replace(")", r"\)")
    ) as caught:
        con.execute(sql)
    error = caught.value
    assert not isinstance(error, einsql.InternalError)
    assert error.position is not None
    assert sql[error.position :].startswith(tuple(at.split("|")))
    assert con.store.objects == before


CHANGED = [
    ("UPDATE a SET v = inc(i), w = inc(v)", "a", [(0, 1, 1), (1, 2, 1), (2, 3, 1)]),
    (
        "UPDATE a SET w = m.d + n.e FROM b AS m(k, d) JOIN x AS n(k, j, e) USING (k) "
        "WHERE a.i = k AND j = 1",
        "a", [(0, 0, 11), (1, 0, 25), (2, 0, 0)],
    ),
    (
        "UPDATE a SET w = b.val + c.val FROM b JOIN shifted c ON c.i = b.i + 1 WHERE a.i = b.i",
        "a", [(0, 0, 0), (1, 0, 20), (2, 0, 0)],
    ),
    (
        "WITH c AS (SELECT i, val * 2 AS d FROM b) UPDATE a SET w = d FROM c WHERE a.i = c.i",
        "a", [(0, 0, 20), (1, 0, 40), (2, 0, 0)],
    ),
    ("WITH c AS (SELECT 2 AS i, 7 AS v) INSERT INTO b SELECT * FROM c", "b",
     [(0, 10), (1, 20), (2, 7)]),
    ("INSERT INTO b WITH c AS (SELECT 2 AS i, 7 AS v) SELECT * FROM c", "b",
     [(0, 10), (1, 20), (2, 7)]),
    ("INSERT INTO b BY NAME SELECT 7 AS VAL, 2 AS i", "b", [(0, 10), (1, 20), (2, 7)]),
    ("INSERT INTO b AS q (val, i) VALUES (7, 1 + 1)", "b", [(0, 10), (1, 20), (2, 7)]),
    ("INSERT INTO b VALUES (inc(1), inc(inc(5)))", "b", [(0, 10), (1, 20), (2, 7)]),
    ("INSERT INTO b SELECT i, val FROM x WHERE j > 9", "b", [(0, 10), (1, 20)]),
    ("INSERT OR REPLACE INTO b VALUES (1, 5), (2, 7)", "b", [(0, 10), (1, 5), (2, 7)]),
    ("WITH c AS (SELECT 1 AS one) DELETE FROM b WHERE i = 1", "b", [(0, 10)]),
    ("DELETE FROM b AS q WHERE q.i = 1", "b", [(0, 10)]),
    # tensors without keys
    ("INSERT INTO s VALUES (5)", "s", [(5,)]),
    ("INSERT INTO s SELECT SUM(val) FROM b", "s", [(30,)]),
    ("INSERT INTO s SELECT 1 FROM b WHERE i > 7", "s", []),
    ("UPDATE s SET val = 1", "s", []),
    ("INSERT INTO s VALUES (5); UPDATE s SET val = val + 1 WHERE val > 1", "s", [(6,)]),
    ("INSERT INTO s VALUES (5); UPDATE s SET val = val + 1 WHERE val > 9", "s", [(5,)]),
    ("INSERT INTO s VALUES (5); INSERT OR REPLACE INTO s VALUES (6)", "s", [(6,)]),
    ("INSERT INTO s VALUES (5); DELETE FROM s WHERE val > 9", "s", [(5,)]),
    ("INSERT INTO s VALUES (5); DELETE FROM s WHERE val > 1", "s", []),
    ("INSERT INTO s VALUES (5); DELETE FROM s; DELETE FROM s", "s", []),
    ("CREATE TENSOR d (val INTEGER) DEFAULT 4; UPDATE d SET val = val * 2", "d", [(8,)]),
    ("CREATE TENSOR d (val INTEGER) DEFAULT 4; INSERT INTO d VALUES (5)", "d", [(5,)]),
    ("CREATE TENSOR d (i DIM(0), val INTEGER); INSERT INTO d SELECT i, v FROM a WHERE i > 5", "d",
     []),
    # definitions
    ("CREATE VIEW u(m, n) AS SELECT i, val FROM b", "u", [(0, 10), (1, 20)]),
    ("COPY (SELECT i, val FROM b WHERE i < 1) TO 'f.npy'; COPY (SELECT d0, val FROM 'f.npy') "
     "TO 'g.npy'", "'g.npy'", [(0, 10)]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "name", "rows"), spread(CHANGED, 14), ids=[c[0][:70] for c in spread(CHANGED, 14)]
)
def test_changed(
    con: einsql.Connection, sql: str, name: str, rows: list[tuple[float, ...]]
) -> None:
    con.execute(sql)
    assert con.execute(f"SELECT * FROM {name}").fetchall() == rows


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors", "arrow"])
def test_copy_there_and_back(con: einsql.Connection, suffix: str) -> None:
    option = "" if suffix == "npy" else " (TENSOR 'm')"
    con.execute(f"""
        CREATE TENSOR d (i DIM(2), j DIM(3), val BOOLEAN) DEFAULT FALSE;
        INSERT OR REPLACE INTO d VALUES (1, 2, TRUE);
        COPY d TO 'f.{suffix}'{option};
        CREATE TENSOR e (i DIM(2), j DIM(3), val BOOLEAN);
        COPY e FROM 'f.{suffix}'{option}""")
    for source in ("e", f"'f.{suffix}' AS f(i, j)"):
        assert con.execute(f"SELECT i, j FROM {source} WHERE val").fetchall() == [(1, 2)]


def test_read_tensor_names_an_array_of_a_file(con: einsql.Connection) -> None:
    np.savez("f.npz", m=np.arange(3), n=np.arange(4).reshape(2, 2))
    sql = """SELECT m.i, SUM(m.v * n.v) AS s FROM read_tensor('f.npz', 'm') AS m(i, v)
             JOIN read_tensor('f.npz', 'n') AS n(i, j, v) USING (i) GROUP BY m.i"""
    assert con.execute(sql).fetchall() == [(0, 0), (1, 5)]
    np.savez("f.npz", m=np.arange(3) * 2, n=np.arange(4).reshape(2, 2))
    assert con.execute(sql).fetchall() == [(0, 0), (1, 10)]  # a plan is kept, not its data
    tiles = "SELECT r.d0, r.t FROM ELEMENTS(TILES(read_tensor('f.npz', 'm'), 3)) AS r(d0, t)"
    assert con.execute(tiles).fetchall() == [(0, 0), (1, 2), (2, 4)]


def test_rows_are_counted_for_tensors_without_keys(con: einsql.Connection) -> None:
    counts = [
        con.execute(sql).rowcount
        for sql in ("UPDATE s SET val = 1", "DELETE FROM s", "INSERT INTO s VALUES (1)",
                    "UPDATE s SET val = 1 WHERE val > 5", "UPDATE s SET val = 9", "DELETE FROM s")
    ]  # fmt: skip
    assert counts == [0, 0, 1, 0, 1, 1]


# ---- macros and views, against DuckDB

ROWS = {
    "a": {"i": [0, 0, 1, 1], "j": [0, 1, 0, 1], "val": [1.0, 2.0, 3.0, 4.0]},
    "b": {"i": [0, 1, 2], "val": [10.0, 20.0, 40.0]},
}
DEFINITIONS = [
    "CREATE MACRO rms(x) AS sqrt(avg(x * x))",
    "CREATE MACRO f(x) AS (SELECT SUM(b.val) FROM b WHERE b.i = x)",
    "CREATE MACRO plus(x) AS x + 1",
    "CREATE MACRO twice(x) AS plus(x) + plus(plus(x))",
    "CREATE MACRO portion(x) AS x / SUM(x) OVER ()",
    "CREATE MACRO at_field(x) AS x.val * 2",
    "CREATE MACRO one() AS 1",
    "CREATE MACRO inner_most(x) AS (SELECT MAX((SELECT SUM(q.val) FROM b AS q WHERE q.i = r.i))"
    " FROM b AS r WHERE r.i = x)",
    "CREATE MACRO outer_most(x) AS f(x) + f(x + 1)",
    "CREATE MACRO over_b() AS (SELECT SUM(val) FROM b)",
    "CREATE MACRO upto(n) AS TABLE SELECT i, SUM(val) AS s FROM a WHERE j < n GROUP BY i",
    "CREATE VIEW v(p, q) AS SELECT i, SUM(val) FROM a GROUP BY i",
    "CREATE VIEW part(p) AS SELECT i, val FROM b",
]
QUERIES = [
    # arguments mean the caller's columns
    "SELECT i, j, f(i) FROM a",
    "SELECT i, j, f(j) FROM a",
    "SELECT q.i, f(q.i) FROM b AS q",
    "SELECT i, f(i) FROM b AS q",
    "SELECT q.i, f(q.i + 1) AS s FROM b AS q WHERE f(q.i) > 10",
    "SELECT i, f(i) FROM a AS q JOIN a AS r USING (i, j)",
    "SELECT f(1)",
    "SELECT i, inner_most(i) AS s FROM a",
    "SELECT i, outer_most(j) AS s FROM a AS z",
    # aggregates, windows and grouping inside macros
    "SELECT i, rms(val) FROM a GROUP BY i",
    "SELECT RMS(val) FROM a",
    "SELECT rms(val) + 1 FROM a",
    "SELECT i FROM a GROUP BY i HAVING rms(val) > 2",
    "SELECT rms(plus(val)), plus(rms(val)) FROM a",
    "SELECT i, j, portion(val) FROM a",
    "SELECT i, j FROM a QUALIFY portion(val) > 0.25",
    "SELECT plus(i), COUNT(*) FROM a GROUP BY plus(i)",
    "SELECT plus(i) AS k, COUNT(*) FROM a GROUP BY k",
    "SELECT plus(i), COUNT(*) FROM a GROUP BY 1",
    "SELECT plus(i), COUNT(*) FROM a GROUP BY ALL",
    "SELECT plus(i), COUNT(*) FROM a GROUP BY i + 1",
    "SELECT SUM(val) FROM a GROUP BY one()",
    "SELECT SUM(val) FROM a WHERE i > 7 GROUP BY one()",
    # everywhere an expression stands
    "SELECT twice(val) * 2 FROM a WHERE plus(i) > 1",
    "SELECT a.i, b.val FROM a JOIN b ON b.i = plus(a.i)",
    "SELECT * REPLACE (plus(val) AS val) FROM b",
    "SELECT plus(val) AS w, plus(w) AS z FROM b",
    "SELECT at_field(b) FROM b",
    "SELECT i, (SELECT SUM(plus(b.val)) FROM b WHERE b.i = plus(a.i)) AS s FROM a",
    "WITH c AS (SELECT plus(i) AS k, val FROM b) SELECT * FROM c",
    "SELECT * FROM upto(1)",
    "SELECT * FROM upto(plus(1))",
    "SELECT * FROM v",
    "SELECT q FROM v WHERE p = 1",
    "SELECT p, val FROM part",
]


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    for name, columns in ROWS.items():
        con.register("rows", pa.table(columns))
        con.execute(f"CREATE TABLE {name} AS SELECT * FROM rows")
    for text in DEFINITIONS:
        con.execute(text)
    return con


@pytest.mark.parametrize("sql", spread(QUERIES, 15))
def test_macros_and_views_agree_with_duckdb(duck: duckdb.DuckDBPyConnection, sql: str) -> None:
    con = einsql.connect(config={"jit": "never"})
    con.register("a", np.array([[1.0, 2.0], [3.0, 4.0]]), ("i", "j"))
    con.register("b", np.array([10.0, 20.0, 40.0]), ("i",))
    for text in DEFINITIONS:
        con.execute(text)
    expected, cur = duck.execute(sql), con.execute(sql)
    assert [d[0] for d in cur.description or ()] == [d[0] for d in expected.description or ()]
    assert sorted(cur.fetchall(), key=repr) == sorted(expected.fetchall(), key=repr)


def test_arguments_that_are_tables(con: einsql.Connection) -> None:
    con.execute("""
        CREATE MACRO along(t, axis) AS TABLE SELECT axis, SUM(t.val) AS s FROM t GROUP BY axis;
        CREATE MACRO joined(t, u, k) AS TABLE
            SELECT t.* EXCLUDE (val), t.val + w.val AS val FROM t JOIN u AS w USING (k);
        CREATE MACRO traced(t) AS TABLE SELECT * FROM EINSUM('ij->i', t);
        CREATE MACRO nested(t, k) AS TABLE SELECT * FROM along(t, k);
        CREATE MACRO grand(t) AS (SELECT SUM(t.val) FROM t);
        CREATE MACRO captured(t) AS TABLE WITH b AS (SELECT 1 AS val) SELECT t.val FROM t, b
    """)
    sums = [(0, 6.0), (1, 22.0), (2, 38.0)]
    for sql, rows in [
        ("SELECT * FROM along(x, i)", sums),
        ("SELECT * FROM along((SELECT i, j, val FROM x), i)", sums),
        ("SELECT * FROM nested(x, i)", sums),
        ("WITH y AS (SELECT * FROM x) SELECT * FROM nested(y, i)", sums),
        ("SELECT * FROM traced(x)", sums),
        ("SELECT * FROM joined(b, seen, i)", [(0, 20.0), (1, 40.0)]),
        ("SELECT * FROM joined(b, b, i)", [(0, 20.0), (1, 40.0)]),
        ("SELECT grand(x), grand((SELECT val FROM b))", [(66.0, 30.0)]),
    ]:
        assert con.execute(sql).fetchall() == rows, sql
    with pytest.raises(einsql.ProgrammingError, match="needs a name"):
        con.execute("SELECT * FROM joined(b, b, 3)")
    assert con.execute("SELECT * FROM captured(b)").fetchall() == [(10.0,), (20.0,)]
    assert con.execute("SELECT * FROM captured(seen)").fetchall() == [(10.0,), (20.0,)]


def test_an_argument_that_is_read_often_is_bound_once(con: einsql.Connection) -> None:
    con.execute("""
        CREATE MACRO twice(t) AS TABLE
            SELECT t.i, t.val + u.val AS val FROM t JOIN t AS u USING (i);
        CREATE MACRO again(t, k) AS TABLE
            WITH w AS (SELECT i, k * val AS val FROM twice(t)) SELECT w.i, w.val FROM w
    """)
    deep = "b"
    for _ in range(24):
        deep = f"(SELECT * FROM again((SELECT * FROM twice({deep})), 0.25))"
    rows = [(0, 10.0), (1, 20.0)]
    assert con.execute(f"SELECT * FROM {deep} AS x").fetchall() == rows
    # An argument means what its names mean where it is written.
    sql = "WITH t AS (SELECT * FROM b), u AS (SELECT * FROM t) SELECT * FROM twice((FROM u))"
    assert con.execute(sql).fetchall() == [(i, 2 * v) for i, v in rows]


def test_a_view_names_what_it_misses(con: einsql.Connection) -> None:
    def define() -> None:
        local = np.ones(3)
        con.execute("CREATE VIEW u AS SELECT d0, val FROM local")
        assert con.execute("SELECT SUM(val) FROM u").fetchone() == (local.sum(),)

    define()
    with pytest.raises(einsql.ProgrammingError, match='no tensor "local"') as caught:
        con.execute("SELECT * FROM u")
    assert "view u" in caught.value.hint
    con.execute("CREATE VIEW u2 AS SELECT val FROM seen; CREATE OR REPLACE VIEW seen AS SELECT 1")
    with pytest.raises(einsql.ProgrammingError, match='no column "val"'):
        con.execute("SELECT * FROM u2")
    con.execute("CREATE OR REPLACE VIEW seen AS SELECT i AS val FROM b")
    with pytest.raises(einsql.ProgrammingError, match="refers to itself"):
        con.execute("CREATE OR REPLACE VIEW seen AS SELECT * FROM u2")


# ---- truncated statements

COMPLETE = [
    "CREATE TENSOR t (i DIM(3), j DIM(2), v INT, w FLOAT) PARTITION BY (i 2, j 1) DEFAULT -1",
    "CREATE OR REPLACE TENSOR IF NOT EXISTS t PARTITION BY (i 2) AS SELECT i, j, val FROM x",
    "CREATE TEMP VIEW u(m, n) AS SELECT i, SUM(val) FROM x GROUP BY i",
    "CREATE OR REPLACE MACRO f(p, q) AS p + CASE WHEN q > 1 THEN -p ELSE (SELECT 1) END",
    "CREATE MACRO g(t, k) AS TABLE SELECT k, SUM(val) FROM t GROUP BY k",
    "DROP TENSOR IF EXISTS a",
    "INSERT OR REPLACE INTO b (i, val) VALUES (0, 1.5), (1, -CAST(2 AS DOUBLE))",
    "INSERT INTO b BY NAME SELECT 2 AS i, 3 AS val",
    "WITH c(k, d) AS (SELECT i, val FROM b) UPDATE a AS q SET v = 2, w = c.d FROM c WHERE i = k",
    "UPDATE a SET w = b.val + c.val FROM b JOIN seen AS c USING (i), x WHERE a.i = b.i AND x.j = 1",
    "DELETE FROM b AS q WHERE q.i BETWEEN 1 AND 2",
    "COPY a FROM 'f.npz' (TENSOR 'm')",
    "COPY (SELECT i, SUM(val) FROM x GROUP BY i) TO 'f.npz' (TENSOR 'm')",
    "SET jit = 'auto'",
    "SHOW TENSORS",
    "DESCRIBE SELECT i, val FROM b",
    "EXPLAIN (ANALYZE, VERBOSE, FORMAT text) SELECT i FROM b",
    "EXPLAIN ANALYZE VERBOSE SELECT i FROM b",
    "BEGIN TRANSACTION",
    "SELECT i, SUM(val) FILTER (WHERE j > 1) AS s FROM x GROUP BY ALL HAVING SUM(val) > 1",
    "SELECT * EXCLUDE (j) REPLACE (val + 1 AS val) FROM x AS y(i, j) WHERE NOT (i IN (1, 2))",
    "SELECT MAX(val) OVER (PARTITION BY i) FROM x NATURAL JOIN b QUALIFY val IS NOT NULL",
    "SELECT a.i FROM a JOIN b ON a.i = b.i, (SELECT 1 AS one) AS o, range(0, 3) AS r(k)",
    "SELECT * FROM EINSUM('ij,ij->i', x, x) AS e(i)",
    "WITH c AS (FROM x) SELECT x'1', inc(1), $1, $2, 1::INT, [1, 2], {'a': 1} FROM c ORDER BY 1",
    "FROM row_sums((SELECT i, val FROM b))",
    "MERGE INTO b USING a ON a.i = b.i WHEN MATCHED THEN UPDATE SET val = 1",
]


@pytest.mark.parametrize("text", spread(COMPLETE, 9), ids=[t[:60] for t in spread(COMPLETE, 9)])
def test_every_truncated_statement_works_or_is_refused(con: einsql.Connection, text: str) -> None:
    for token in tokenize(text):
        for tail in sample(("", " )"), ("", " )", " ,", " 1", " x")):
            with suppress(einsql.Error):
                con.execute(text[: token.end + 1] + tail)
            if con.store.in_transaction:
                con.rollback()
