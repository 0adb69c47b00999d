"""CHECK: what it refuses, what it says, and where the declaration is kept."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import spread

TOKENS = "CREATE TENSOR tokens (b DIM(2), t DIM(3), val INTEGER CHECK (val BETWEEN 0 AND 29))"
FILLED = [[5, 0, 29], [7, 8, 9]]


def tokens(clause: str = "", path: str = ":memory:") -> einsql.Connection:
    con = einsql.connect(path)
    con.execute(f"{TOKENS} {clause}")
    con.register("src", np.array(FILLED, np.int32), dims=("b", "t"))
    con.execute("INSERT OR REPLACE INTO tokens SELECT b, t, val FROM src")
    return con


def values(con: einsql.Connection) -> list[list[int]]:
    numbers: list[list[int]] = con.execute("SELECT b, t, val FROM tokens").fetch_numpy().tolist()
    return numbers


@pytest.mark.parametrize("default", ["", "DEFAULT 1"])
@pytest.mark.parametrize(
    ("statement", "wrong", "at"),
    [
        ("INSERT OR REPLACE INTO tokens VALUES (0, 0, 1), (1, 2, 30)",
         "val = 30 at (b = 1, t = 2)", 55),
        ("INSERT OR REPLACE INTO tokens VALUES (0, 1, -1)", "val = -1 at (b = 0, t = 1)", 45),
        ("INSERT OR REPLACE INTO tokens SELECT b, t, val + 21 FROM src",
         "val = 50 at (b = 0, t = 2)", 0),
        ("INSERT OR REPLACE INTO tokens SELECT b, t, val + 21 FROM src WHERE t = 2 AND b = 1",
         "val = 30 at (b = 1, t = 2)", 0),
        ("INSERT OR REPLACE INTO tokens SELECT b, t, 30 FROM src WHERE val > 8",
         "val = 30 at (b = 0, t = 2)", 0),
        ("INSERT OR REPLACE INTO tokens SELECT 1, b + 1, 99 FROM generate_series(1) AS g(b) "
         "ORDER BY b", "val = 99 at (b = 1, t = 1)", 0),
        ("UPDATE tokens SET val = -val", "val = -5 at (b = 0, t = 0)", 0),
        ("UPDATE tokens SET val = val + 22 WHERE b = 1", "val = 30 at (b = 1, t = 1)", 0),
        ("UPDATE tokens SET val = val + 22 WHERE val > 7 AND val < 10",
         "val = 30 at (b = 1, t = 1)", 0),
        ("UPDATE tokens SET val = 30 WHERE b = t", "val = 30 at (b = 0, t = 0)", 0),
        ("UPDATE tokens SET val = 31 FROM (SELECT b FROM src ORDER BY val LIMIT 1) s "
         "WHERE s.b = tokens.b", "val = 31 at (b = 0, t = 0)", 0),
        ("WITH a AS (UPDATE tokens SET val = val + 1) SELECT COUNT(*) FROM src",
         "val = 30 at (b = 0, t = 2)", 18),
    ],
)  # fmt: skip
def test_a_violation_changes_nothing(default: str, statement: str, wrong: str, at: int) -> None:
    con = tokens(default)
    con.execute("CREATE TENSOR other (i DIM(1), val INTEGER) DEFAULT 0")
    for script in (statement, f"BEGIN; UPDATE other SET val = 1; {statement}"):
        with pytest.raises(einsql.IntegrityError) as refused:
            con.execute(script)
        reason = f"{wrong} violates CHECK (val BETWEEN 0 AND 29) of tokens"
        assert refused.value.reason == reason
        assert refused.value.hint == "Values from 0 to 29 are allowed."
        assert refused.value.position == at + len(script) - len(statement)
        assert values(con) == FILLED
    con.execute("ROLLBACK")


def test_values_within_the_bounds_are_stored() -> None:
    con = tokens()
    con.execute("UPDATE tokens SET val = 29 - val")
    con.execute("DELETE FROM tokens WHERE b = 0")
    con.execute("INSERT INTO tokens VALUES (0, 0, 0), (0, 1, 29), (0, 2, 1)")
    assert values(con) == [[0, 29, 1], [22, 21, 20]]


def test_files_are_tested(tmp_path: Path) -> None:
    con = einsql.connect()
    con.execute(TOKENS)
    np.save(tmp_path / "wrong.npy", np.array([[5, 0, 30], [7, 8, 9]], np.int32))
    (tmp_path / "wrong.csv").write_text("b,t,val\n0,1,3\n1,1,-1\n")
    for name, wrong in (("wrong.npy", r"val = 30 at \(b = 0, t = 2\)"), ("wrong.csv", "val = -1")):
        with pytest.raises(einsql.IntegrityError, match=wrong):
            con.execute(f"COPY tokens FROM '{tmp_path / name}'")
        assert con.execute("SELECT COUNT(*) FROM tokens").fetchone() == (0,)
    np.save(tmp_path / "right.npy", np.array(FILLED, np.int32))
    con.execute(f"COPY tokens FROM '{tmp_path / 'right.npy'}'")
    assert values(con) == FILLED


@pytest.mark.parametrize(
    ("sql", "reason"),
    spread([
        ("(i DIM(3), v INTEGER CHECK (v > 3)) DEFAULT 1", r"v = 1 at \(i = 0\) violates"),
        ("(i DIM(2), j DIM(3), v INTEGER CHECK (v < 29)) AS SELECT b, t, val FROM src",
         r"v = 29 at \(i = 0, j = 2\) violates CHECK \(v <= 28\)"),
        ("(i DIM(3), v INTEGER CHECK (v > 3 AND v < 4))", "No value of v"),
        ("(i DIM(3), v TINYINT CHECK (v > 127))", "No value of v"),
        ("(i DIM(3), v FLOAT CHECK (v > 3))", "bounds integers"),
        ("(i DIM(3), v INTEGER CHECK (i > 1))", "i is a key"),
        ("(i DIM(3), v INTEGER, CHECK (w > 1))", 'no column "w"'),
        ("(i DIM(3), v INTEGER CHECK (v % 2 = 0))", "compares integer columns"),
        ("(i DIM(3), v INTEGER CHECK (v > 1 OR v < 0))", "compares integer columns"),
        ("(i DIM(3), v INTEGER CHECK (v > 1.5))", "compares integer columns"),
        ("(i DIM(3), v INTEGER CHECK (v > ?))", "parameter"),
        ("(i DIM(3), v INTEGER CHECK v > 1)", "Expected"),
    ], 6),
)  # fmt: skip
def test_refused_declarations(sql: str, reason: str) -> None:
    con = tokens()
    with pytest.raises(einsql.Error, match=reason) as refused:
        con.execute(f"CREATE TENSOR x {sql}", (1,) if "?" in sql else ())
    assert refused.value.position is not None
    with pytest.raises(einsql.Error):
        con.execute("SELECT * FROM x")


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        ("val INTEGER CHECK (val >= 0 AND val < 30)", "CHECK (val BETWEEN 0 AND 29)"),
        ("val INTEGER CHECK ((0 <= val) AND (29 >= val))", "CHECK (val BETWEEN 0 AND 29)"),
        ("val INTEGER, CHECK (val > -2)", "CHECK (val >= -1)"),
        ("val BIGINT CONSTRAINT top CHECK (val < 5)", "CHECK (val <= 4)"),
        ("val INTEGER CHECK (val > 2) CHECK (val < 9), CHECK (val > 1)",
         "CHECK (val BETWEEN 3 AND 8)"),
        ("val TINYINT CHECK (val = 5)", "CHECK (val = 5)"),
        ("val TINYINT CHECK (val BETWEEN -1000 AND 1000)", ""),
    ],
)  # fmt: skip
def test_forms(columns: str, shown: str) -> None:
    con = einsql.connect()
    con.execute(f"CREATE TENSOR x (check DIM(3), {columns})")
    described = con.execute("DESCRIBE x").fetchall()[-1]
    assert (described[0], described[3]) == ("val", shown)
    kind = columns.split()[1].strip(",")
    ((_, _, listed, *_),) = con.execute("SHOW TENSORS").fetchall()
    assert listed == f"val {kind} {shown}".strip()


def test_the_declaration_is_kept(tmp_path: Path) -> None:
    path, copy, folder = (str(tmp_path / name) for name in ("m.db", "copy.db", "out"))
    with tokens(path=path) as con:
        con.execute("CREATE TENSOR free (i DIM(2), val INTEGER) DEFAULT 0")
        con.execute(f"BACKUP TO '{copy}'")
        con.execute(f"EXPORT DATABASE '{folder}'")
    with duckdb.connect(path) as catalog:  # tensors without CHECK are stored as before
        rows = catalog.execute("SELECT name FROM __einsql.objects WHERE told LIKE '%checks%'")
        assert rows.fetchall() == [("tokens",)]
    with (
        einsql.connect() as imported,
        einsql.connect(path) as first,
        einsql.connect(copy) as other,
    ):
        imported.execute(f"IMPORT DATABASE '{folder}'")
        for con in (first, other, imported):
            assert values(con) == FILLED
            described = con.execute("DESCRIBE tokens").fetchall()[-1]
            assert described[3] == "CHECK (val BETWEEN 0 AND 29)"
            with pytest.raises(einsql.IntegrityError, match="val = 30"):
                con.execute("UPDATE tokens SET val = val + 1")
            con.execute("UPDATE free SET val = -1")
