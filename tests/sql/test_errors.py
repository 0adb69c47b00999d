"""Bad input: an einsql.Error with a reason, a position and a way out; nothing changed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.storage import files
from tests.support.samples import spread


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> einsql.Connection:
    monkeypatch.chdir(tmp_path)
    np.save("good.npy", np.ones((3, 4), np.float32))
    np.save("double.npy", np.ones((3, 4)))
    np.save("shape.npy", np.ones((4, 3), np.float32))
    np.save("complex.npy", np.ones(3, np.complex128))
    np.save("pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    Path("truncated.npy").write_bytes(Path("good.npy").read_bytes()[:140])
    Path("header.npy").write_bytes(Path("good.npy").read_bytes()[:20])
    Path("foreign.npy").write_bytes(b"PAR1 this is no array")
    np.savez("two.npz", a=np.ones((3, 4), np.float32), b=np.ones(2))
    files.write("good.safetensors", np.ones((3, 4), np.float32), "m")
    Path("cut.safetensors").write_bytes(Path("good.safetensors").read_bytes()[:-1])
    Path("foreign.arrow").write_bytes(Path("good.npy").read_bytes())
    Path("damaged.npz").write_bytes(Path("two.npz").read_bytes()[:60])
    connection = einsql.connect()
    connection.register("x", np.arange(12, dtype=np.float32).reshape(3, 4), ("i", "j"))
    connection.execute("CREATE TENSOR w (i DIM(3), j DIM(4), val FLOAT)")
    connection.execute("INSERT INTO w VALUES (0, 0, 1.5), (2, 3, -2)")
    connection.execute("CREATE TENSOR d (i DIM(3), j DIM(4), val FLOAT) DEFAULT 0")
    return connection


CASES = [
    # names
    ("SELECT zz FROM x", "There is no column", "zz"),
    ("SELECT x.zz FROM x", 'has no column "zz"', "x.zz"),
    ("SELECT y.val FROM x", 'There is no table "y"', "y.val"),
    ("SELECT val FROM xx", 'There is no tensor "xx"', "xx"),
    ("SELECT val FROM x a, x b", "is ambiguous", "val"),
    ("SELECT val FROM x, x", "used twice in FROM", "x"),
    ("SELECT sine(val) FROM x", "There is no function sine", "sine"),
    ("SELECT * FROM nope(x)", "There is no table function nope", "nope"),
    ("SELECT a.i FROM x a JOIN x b USING (k)", 'has a column "k"', ""),
    ("SELECT * FROM x AS x(a, b, c, d)", "4 column names for 3 columns", "x"),
    # aggregates
    ("SELECT i FROM x WHERE SUM(val) > 1", "is not allowed in WHERE", "SUM"),
    ("SELECT i, val FROM x GROUP BY i", "must be in GROUP BY", "val"),
    ("SELECT i, SUM(val), j FROM x GROUP BY i", "must be in GROUP BY", "j"),
    ("SELECT SUM(SUM(val)) FROM x", "is not allowed in an aggregate", "SUM"),
    ("SELECT i FROM x HAVING i > 1", "HAVING needs a GROUP BY", "i"),
    ("SELECT SUM(val, i) FROM x", "Syntax error", ""),
    ("SELECT AVG(val > 0) FROM x", "does not accept BOOLEAN", "AVG"),
    ("SELECT i FROM x GROUP BY 4", "names no SELECT item", ""),
    # types
    ("SELECT val + (val > 0) FROM x", "does not accept", "val"),
    ("SELECT EXP(val > 0) FROM x", "does not accept", "EXP"),
    ("SELECT val + 'a' FROM x", "Text is outside", "'a'"),
    ("SELECT CAST(val AS TEXT) FROM x", "no type", "val"),
    ("SELECT 99999999999999999999", "does not fit BIGINT", ""),
    ("SELECT CASE WHEN val > 0 THEN 9223372036854775808 ELSE val END FROM x", "fit BIGINT", "922"),
    (f"SELECT val + {'7' * 1001} FROM x", "1001 digits(?s:.)*from -2.63", "777"),
    # syntax
    ("SELEC 1", "no SELEC statement", "SELEC"),
    ("SELECT 1 +", "Syntax error", ""),
    ("SELECT (1", "Syntax error", ""),
    ("SELECT 'open", "never closed", "'open"),
    ("SELECT 1 /* open", "never closed", "/*"),
    ("CREATE TENSOR t (i DIM(x))", "Expected the bound", "x"),
    ("CREATE TENSOR t (i DIM(3), v TEXT)", "no type TEXT", "TEXT"),
    ("CREATE TENSOR t (i DIM(3))", "needs a value column", ""),
    ("CREATE TENSOR t (i DIM(3), i FLOAT)", "same name", ""),
    ("CREATE TENSOR w (i DIM(3), v FLOAT)", 'a tensor "w" already', ""),
    ("COPY w FROM w", "Expected a file name", "w"),
    ("SET nope = 1", "no setting", ""),
    ("SET jit = maybe", "cannot be maybe", ""),
    # what is outside the fragment is named
    ("SELECT i FROM x ORDER BY i", "ORDER BY is outside", "i"),
    ("SELECT i FROM x LIMIT 1", "LIMIT is outside", ""),
    ("SELECT DISTINCT i FROM x", "DISTINCT is outside", ""),
    ("SELECT a.i FROM x a LEFT JOIN x b USING (i)", "LEFT JOIN is outside", ""),
    ("SELECT i FROM x UNION SELECT i FROM x", "UNION is outside", ""),
    ("SELECT VARIANCE(DISTINCT val) FROM x", "DISTINCT", ""),
    ("SELECT val, COUNT(*) FROM x GROUP BY val", "GROUP BY of a FLOAT", "val"),
    ("SELECT SUM(val) OVER (ORDER BY val) FROM x", "ORDER BY a value that is no key", ""),
    ("SELECT i FROM x WHERE val IN (SELECT val FROM x)", "IN with a subquery", ""),
    ("SELECT (SELECT val FROM x)", "may give several rows", ""),
    ("SELECT i * 0.5 AS h FROM x", "DECIMAL result", ""),
    ("WITH RECURSIVE r AS (SELECT 1) SELECT * FROM r", "WITH RECURSIVE", ""),
    # EINSUM
    ("SELECT * FROM EINSUM('ij,jk->ik', x, x)", "has the bounds", "EINSUM"),
    ("SELECT * FROM EINSUM('ijk->i', x)", "names 3 axes", "EINSUM"),
    ("SELECT * FROM EINSUM(x)", "needs its expression as text", "EINSUM"),
    # values
    ("SELECT 1 // 0", "Division by zero", ""),
    ("SELECT 9223372036854775807 + i FROM x", "Overflow in addition of BIGINT", ""),
    ("SELECT CAST(1e10 AS INTEGER)", "out of range", ""),
    # changes
    ("INSERT INTO w VALUES (0, 9, 1)", "j = 9 is out of bounds", "9"),
    ("INSERT INTO w VALUES (0, -1, 1)", "j = -1 is out of bounds", ""),
    ("INSERT INTO w VALUES (0, 1, NULL)", "NULL cannot be stored in val", ""),
    ("INSERT INTO w VALUES (0, 0, 1)", r"key \(i = 0, j = 0\) exists", ""),
    ("INSERT INTO w VALUES (0, 1, 1), (0, 1, 2)", "inserted twice", ""),
    ("INSERT INTO w VALUES (0, 1)", "gives 2 columns for 3", ""),
    ("INSERT INTO w (i, val) VALUES (0, 1)", "leaves out j", ""),
    ("INSERT INTO w SELECT i, j + 7, val FROM x", "out of bounds", ""),
    ("INSERT INTO w SELECT i, j, NULLIF(val, 3) FROM x", "are NULL", ""),
    ("INSERT INTO x VALUES (0, 0, 1)", "registered array", ""),
    ("UPDATE w SET val = NULL", "are NULL", ""),
    ("UPDATE w SET i = 1", "is a key", "i"),
    ("UPDATE w SET val = x.val FROM x WHERE x.i = w.i", "meet several rows", ""),
    ("DELETE FROM d", "has a DEFAULT", ""),
    ("CREATE TENSOR t AS SELECT i, val FROM x", "j are not selected", ""),
    ("CREATE TENSOR t AS SELECT i - 1 AS i, j, val FROM x", "starts at -1", ""),
    ("CREATE TENSOR t AS SELECT i, j, NULLIF(val, 3) AS val FROM x", "are NULL", ""),
    ("DROP TENSOR nope", "There is no tensor", ""),
    ("DROP VIEW w", "is a tensor, not a view", ""),
    ("ROLLBACK", "No transaction", ""),
    # files
    ("COPY d FROM 'none.npy'", "There is no file", ""),
    ("COPY d FROM 'none.npy'", r"Looked for '/.*/none.npy', from the current directory", ""),
    ("COPY d FROM 'pickled.npy'", "is pickled", ""),
    ("COPY d FROM 'truncated.npy'", "truncated", ""),
    ("COPY d FROM 'header.npy'", "truncated", ""),
    ("COPY d FROM 'foreign.npy'", "first bytes are wrong", ""),
    ("COPY d FROM 'double.npy'", "holds float64, but val is FLOAT", ""),
    ("COPY d FROM 'shape.npy'", r"has the shape \(4, 3\)", ""),
    ("COPY d FROM 'two.npz'", "has 2 arrays", ""),
    ("COPY d FROM 'two.npz' (TENSOR 'c')", "has no array 'c'", ""),
    ("COPY d FROM 'damaged.npz'", "damaged|truncated", ""),
    ("COPY d FROM 'good.npy' (TENSOR 'm')", "has no array 'm'", ""),
    ("COPY d FROM 'good.safetensors' (TENSOR 'x')", "has no array 'x'", ""),
    ("COPY d FROM 'cut.safetensors'", "truncated", ""),
    ("COPY d FROM 'foreign.arrow'", "first bytes are wrong", ""),
    ("COPY d TO 'f.npy' (TENSOR 'm')", "has no names", ""),
    ("COPY d TO 'f.safetensors' (TENSOR '__metadata__')", "cannot name a tensor", ""),
    ("COPY d TO 'f.arrow' (TENSOR '.x')", "cannot name a tensor", ""),
    ("COPY w FROM 'good.npy'", "has rows already", ""),
    ("COPY d TO 'out.txt'", "no tensor file", ""),
    ("COPY d TO 'no/such/folder.npy'", "cannot be written", ""),
    ("SELECT * FROM 'complex.npy'", "holds complex128", ""),
    ("SELECT * FROM 'pickled.npy'", "is pickled", ""),
    ("SELECT * FROM './two.npz'", "has 2 arrays", ""),
    ("SELECT * FROM read_tensor('two.npz', 'c')", "has no array 'c'", "read_tensor"),
    ("SELECT * FROM read_tensor(d)", "takes a file name", "read_tensor"),
    ("SELECT * FROM read_tensor('a', 'b', 'c')", "takes a file name", "read_tensor"),
]


@pytest.mark.parametrize(
    ("sql", "reason", "at"), spread(CASES, 40), ids=[c[0] for c in spread(CASES, 40)]
)
def test_refused_with_position_and_unchanged(
    con: einsql.Connection, sql: str, reason: str, at: str
) -> None:
    con.execute("SET fallback = off")
    before = dict(con.store.objects)
    with pytest.raises(einsql.Error, match=reason) as caught:
        con.execute(sql)
    error = caught.value
    assert error.sql == sql
    assert error.position is not None
    assert "LINE 1:" in str(error)
    if at:
        assert sql[error.position :].startswith(at)
    assert con.store.objects == before


def test_position_counts_from_the_start_of_the_script(con: einsql.Connection) -> None:
    sql = "SELECT 1;\n-- a comment; with a semicolon\nSELECT ';', zz FROM x"
    with pytest.raises(einsql.Error) as caught:
        con.execute(sql)
    assert caught.value.line == 3


def test_external_access_can_be_turned_off_for_good(con: einsql.Connection) -> None:
    con.execute("SET enable_external_access = false")
    for sql in ("SELECT * FROM 'good.npy'", "COPY d FROM 'good.npy'", "COPY d TO 'o.npy'",
                "SELECT * FROM read_tensor('good.npy')"):  # fmt: skip
        with pytest.raises(einsql.OperationalError, match="enable_external_access"):
            con.execute(sql)
    with pytest.raises(einsql.ProgrammingError, match="cannot be turned on"):
        con.execute("SET enable_external_access = true")


@pytest.mark.parametrize(
    "text",
    ["(" * 900 + "1" + ")" * 900, "+".join(["1"] * 900), "ABS(" * 900 + "1" + ")" * 900],
    ids=["parentheses", "sum", "calls"],
)
def test_what_duckdb_accepts_works(text: str) -> None:
    assert einsql.connect().execute(f"SELECT {text}").fetchone() in {(1,), (900,)}


@pytest.mark.parametrize(
    "text",
    ["(" * 1_000_000 + "1" + ")" * 1_000_000, "NOT " * 100_000 + "TRUE", "1" + "+1" * 1000,
     "CASE WHEN TRUE THEN " * 2000 + "1" + " END" * 2000],
    ids=["parentheses", "nots", "sum", "cases"],
)  # fmt: skip
def test_deeper_is_refused(text: str) -> None:
    with pytest.raises(einsql.ProgrammingError, match="nests deeper"):
        einsql.connect().execute(f"SELECT {text}")


def test_larger_than_16_mb_is_refused() -> None:
    with pytest.raises(einsql.ProgrammingError, match="at most 16,777,216"):
        einsql.connect().execute("SELECT 1" + " " * 17_000_000)
