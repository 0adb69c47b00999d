"""Stored definitions, and damaged rows of the catalog, which never stop a file from opening."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

import einsql
from einsql.frontends.console.objects import entries
from einsql.session.statements import ddl
from einsql.sql.parser import parser
from tests.support.samples import spread

TENSOR = "CREATE TENSOR x (i DIM(4), val FLOAT) DEFAULT 1; UPDATE x SET val = i"


def nested(kind: str, depth: int) -> str:
    """A query whose text nests so deep."""
    return {
        "parentheses": f"SELECT {'(' * depth}1{')' * depth} AS s",
        "abs": f"SELECT {'ABS(' * depth}1{')' * depth} AS s",
        "case": f"SELECT {'CASE WHEN TRUE THEN ' * depth}1{' END' * depth} AS s",
        "subquery": f"SELECT s FROM ({'SELECT s FROM (' * depth}SELECT 1 AS s{')' * depth})",
        "macro": f"SELECT {'once(' * depth}1{')' * depth} AS s",
    }[kind]


def altered(path: str, change: str, given: list[object] | None = None) -> None:
    """Changes the file as another program would."""
    with duckdb.connect(path) as con:
        con.execute(change, given)


def damage(path: str, name: str | None, kind: str | None, told: str | None) -> None:
    altered(path, "INSERT INTO __einsql.objects VALUES (?, 1, ?, ?)", [name, kind, told])


def view(text: str) -> str:
    return json.dumps({"text": text})


def test_a_deep_definition_is_used_after_reopening(path: str) -> None:
    depths = {"parentheses": 900, "abs": 300, "case": 300, "subquery": 160, "macro": 60}
    with einsql.connect(path) as con:
        con.execute("CREATE MACRO once(a) AS a * 1")
        for kind, depth in depths.items():
            con.execute(f"CREATE VIEW v_{kind} AS {nested(kind, depth)}")
            assert con.execute(f"SELECT s FROM v_{kind}").fetchone() == (1,)
    with einsql.connect(path, read_only=True) as con:
        for kind in depths:
            for _ in range(2):  # the plan is kept
                assert con.execute(f"SELECT s + 1 AS t FROM v_{kind}").fetchone() == (2,)
        query = "SELECT s || 'x' AS w FROM v_abs"  # DuckDB has a part in it
        assert con.execute(query).fetchone() == ("1x",)
        con.execute(f"CREATE TEMP TABLE t AS {query}")
        assert con.execute("DESCRIBE v_abs").fetchall()[0][0] == "s"
        loop = "FOR k IN range(2) DO SELECT s + k AS t FROM v_abs; END FOR"
        assert con.execute(loop).fetchall() == [(0, 1), (1, 2)]


def test_a_chain_of_definitions_nests_as_one(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute("CREATE VIEW v0 AS SELECT 1 AS s; CREATE MACRO m0(a) AS a")
        for n in range(1, 40):
            con.execute(f"CREATE VIEW v{n} AS SELECT s + 1 AS s FROM v{n - 1}")
            con.execute(f"CREATE MACRO m{n}(a) AS m{n - 1}(a) + 1")

    def at_depth(frames: int) -> object:
        """Uses them where little of the caller's own stack is left."""
        if frames:
            return at_depth(frames - 1)
        return con.execute("SELECT s, m39(s) AS t FROM v39").fetchone()

    with einsql.connect(path) as con:
        assert at_depth(500) == (40, 79)


def test_threads_with_deep_statements_leave_the_recursion_limit() -> None:
    code = (
        "import einsql, sys, threading\n"
        "before = sys.getrecursionlimit()\n"
        "def run():\n"
        "    for _ in range(8):\n"
        "        con = einsql.connect()\n"
        "        con.execute('SELECT ' + '(' * 300 + '1' + ')' * 300).fetchone()\n"
        "threads = [threading.Thread(target=run) for _ in range(4)]\n"
        "[t.start() for t in threads]; [t.join() for t in threads]\n"
        "print(sys.getrecursionlimit() == before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


DAMAGE = [
    ("potion", view("CREATE VIEW b0 AS SELECT 1"), "its kind is 'potion'", "VIEW"),
    ("potion", "{}", "its kind is 'potion'", "TENSOR"),
    ("potion", "{}", "its kind is 'potion'", "MACRO"),
    ("view", "{", "Expecting property name", "VIEW"),
    ("view", "[" * 100_000, "recursion", "VIEW"),
    ("view", "7", "7 where dict belongs", "VIEW"),
    ("view", '{"text": 7}', "7 where str belongs", "VIEW"),
    ("view", "{}", "its row has no 'text'", "VIEW"),
    ("view", None, "has no description", "VIEW"),
    (None, "{}", "has no kind", "MACRO"),
    ("view", view("CREATE VIEW other AS SELECT 1"), "the text of the view 'other'", "VIEW"),
    ("tensor", '{"name": "b"}', "its row has no 'keys'", "TENSOR"),
    ("tensor", None, "has no description", "TENSOR"),
    ("macro", view("CREATE MACRO b13(x) AS x"), "the text of the macro 'b13'", "MACRO"),
    ("VIEW", view("CREATE VIEW b14 AS SELECT 1"), "its kind is 'VIEW'", "VIEW"),
]
"""Kind and rest of the rows b0, b1, …; what is wrong with each, and what drops it.

The hint says DROP VIEW for each row without a kind.
"""


def test_damaged_rows_are_told_of_and_dropped(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute(TENSOR)
        con.execute("CREATE VIEW v AS SELECT SUM(val) AS s FROM x")
        con.execute("CREATE TABLE t AS SELECT 7 AS n")
    before = os.listdir(f"{path}.tensors")
    for n, (kind, told, *_) in enumerate(DAMAGE):
        damage(path, f"b{n}", kind, told)
    with einsql.connect(path, read_only=True) as con:
        assert con.execute("SELECT s, n FROM v, t").fetchone() == (6.0, 7)
        listed = {r[0]: r[2] for r in con.execute("SHOW TENSORS").fetchall()}
        assert listed.pop("x") == "val FLOAT"
        for n, (_, _, why, _) in enumerate(DAMAGE):
            text = listed.pop(f"b{n}")
            assert text.startswith("damaged ")
            assert why in text
        assert not listed
    with einsql.connect(path) as con:
        for n, (_, _, why, drop) in enumerate(DAMAGE):
            with pytest.raises(einsql.OperationalError, match=f'"b{n}" is damaged') as failed:
                con.execute(f"SELECT * FROM b{n}")
            assert why in str(failed.value)
            assert f'remove it: DROP {drop} "b{n}"' in failed.value.hint or n in (1, 2, 9)
        for use in (
            "SELECT n, 'x' FROM t, b3",
            "UPDATE b3 SET val = 1",
            "DESCRIBE b3",
            "COPY b3 TO 'b.npy'",
            "CREATE TABLE c AS SELECT * FROM b3",
            "INSERT INTO t SELECT * FROM b3",
            "CREATE VIEW w AS SELECT * FROM b3",
        ):
            with pytest.raises(einsql.OperationalError, match='"b3" is damaged'):
                con.execute(use)
        with pytest.raises(einsql.ProgrammingError, match="is a view, not a tensor"):
            con.execute("DROP TENSOR b3")
        con.execute("UPDATE x SET val = 2 WHERE i = 3; CREATE TENSOR y AS SELECT * FROM x")
        assert {*os.listdir(f"{path}.tensors")} >= {*before}  # b12 may name any of them
        for n, (*_, drop) in enumerate(DAMAGE):
            con.execute(f"DROP {drop} b{n}")
        con.execute("CREATE VIEW b3 AS SELECT 3 AS s")
    with einsql.connect(path) as con:
        assert con.execute("SELECT v.s, b3.s FROM v, b3").fetchone() == (5.0, 3)
        assert [r[0] for r in con.execute("SHOW TENSORS").fetchall()] == ["x", "y"]
    assert len(os.listdir(f"{path}.tensors")) == 3


@pytest.mark.parametrize("name", [None, "", "()"])
def test_a_row_without_a_name_gets_one(path: str, name: str | None) -> None:
    with einsql.connect(path) as con:
        con.execute(TENSOR)
        con.execute('CREATE TENSOR "none" AS SELECT * FROM x')
    for number in (1, 2):
        told = view(f"CREATE VIEW b{number} AS SELECT 1")
        damage(path, name, "view", told)
    with einsql.connect(path) as con:
        listed = con.execute("SHOW TENSORS").fetchall()
        assert [r[0] for r in listed[2:]] == ["none", "x"]
        assert all("the name in its row" in r[2] for r in listed[:2])
        con.execute(f"DROP VIEW {listed[0][0]}")
        with pytest.raises(einsql.OperationalError, match="is damaged"):
            con.execute(f"SELECT * FROM {listed[1][0]}")
    with einsql.connect(path) as con:
        assert con.execute("SHOW TENSORS").fetchall() == listed[1:]
        con.execute(f"DROP VIEW {listed[1][0]}")
        assert con.execute("PRAGMA integrity_check").fetchone() == ("ok", None, None)


def test_two_rows_of_a_name_are_damaged_and_keep_their_payloads(path: str) -> None:
    with einsql.connect(path) as con:
        con.execute(TENSOR)
        con.execute("CREATE TENSOR y AS SELECT * FROM x")
    altered(path, "INSERT INTO __einsql.objects SELECT 'x', 9, kind, told FROM __einsql.objects")
    before = os.listdir(f"{path}.tensors")
    with einsql.connect(path) as con:
        with pytest.raises(einsql.OperationalError, match="3 rows of this name"):
            con.execute("SELECT * FROM x")
        assert con.execute("SELECT SUM(val) FROM y").fetchone() == (6.0,)
        con.execute("VACUUM")
        assert os.listdir(f"{path}.tensors") == before
        con.execute("DROP TENSOR x")
    with einsql.connect(path) as con:
        assert con.execute("SELECT SUM(val) FROM y").fetchone() == (6.0,)
    assert len(os.listdir(f"{path}.tensors")) == 2


@pytest.mark.parametrize("change", ["told = replace(told, 'FLOAT', 'TEXT')", "told = NULL"])
def test_the_payload_of_a_damaged_row_stays(path: str, change: str) -> None:
    with einsql.connect(path) as con:
        con.execute(TENSOR)
    with duckdb.connect(path) as duck:
        rows = duck.execute("SELECT * FROM __einsql.objects").fetchall()
    altered(path, f"UPDATE __einsql.objects SET {change}")
    with einsql.connect(path) as con:
        con.execute("CREATE TENSOR y (i DIM(2), val FLOAT) DEFAULT 1; UPDATE y SET val = 2; VACUUM")
        with pytest.raises(einsql.OperationalError, match='The tensor "x" is damaged'):
            con.execute("SELECT * FROM x")
    altered(path, "DELETE FROM __einsql.objects WHERE name = 'x'")
    altered(path, "INSERT INTO __einsql.objects VALUES (?, ?, ?, ?)", list(rows[0]))
    with einsql.connect(path) as con:  # repaired by hand
        assert con.execute("SELECT SUM(val) FROM x").fetchone() == (6.0,)


@pytest.mark.parametrize(
    ("text", "why"),
    spread(
        [
            ("CREATE VIEW b AS SELECT " + "(" * 5000 + "1" + ")" * 5000, "nests deeper than 999"),
            ("CREATE VIEW b AS SELECT FROM WHERE", ""),
            ("CREATE VIEW b AS SELECT 'x", "never closed"),
            ("CREATE VIEW b", "Expected AS"),
            ("CREATE VIEW b AS SELECT 1; DROP TENSOR x", ""),
            ("CREATE /* c */ OR REPLACE\n VIEW --\n b AS SELECT ?", "parameter"),
        ],
        3,
    ),
)
def test_a_text_that_cannot_be_read_is_told_of_when_it_is_used(
    path: str, text: str, why: str
) -> None:
    with einsql.connect(path) as con:
        con.execute(TENSOR)
        con.execute("CREATE TABLE t AS SELECT 7 AS n")
    damage(path, "b", "view", view(text))
    with einsql.connect(path, read_only=True) as con, einsql.connect(path, read_only=True) as other:
        assert other.execute("SELECT SUM(val) FROM x").fetchone() == (6.0,)
        for use in ("SELECT * FROM b", "SELECT n, 'x' FROM t, b", "CREATE TEMP TABLE c AS FROM b"):
            with pytest.raises(einsql.OperationalError, match='The view "b" is damaged') as failed:
                con.execute(use)
            assert why in str(failed.value)
        assert con.execute("SHOW TENSORS").fetchall()[0][2].startswith("damaged view")
    with einsql.connect(path) as con:
        con.execute("CREATE OR REPLACE VIEW b AS SELECT 3 AS s")
    with einsql.connect(path) as con:
        assert con.execute("SELECT s FROM b").fetchone() == (3,)


def test_nothing_is_parsed_before_it_is_used(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with einsql.connect(path) as con:
        con.execute(TENSOR)
        con.execute('CREATE OR REPLACE VIEW "Long ""v""" AS SELECT val FROM x')
        con.execute("CREATE MACRO up(a, b := (1 + 1)) AS TABLE SELECT i + b AS i, val FROM a")
        con.execute("CREATE MACRO down(a) AS a - 1")
    parsed: list[str] = []
    parse = parser.parse

    def counted(text: str) -> object:
        parsed.append(text)
        return parse(text)

    monkeypatch.setattr(ddl, "parse", counted)
    with einsql.connect(path) as con, einsql.connect(path) as second:
        calls = {(e.name, e.call, e.in_from) for e in entries(con)}
        assert calls == {
            ('Long "v"', "", True), ("down", "down(a)", False),
            ("up", "up(a, b := (1 + 1))", True), ("x", "", True),
        }  # fmt: skip
        con.execute("SHOW TENSORS; SHOW TABLES; CREATE TENSOR y AS SELECT * FROM x")
        con.execute("BEGIN; UPDATE y SET val = 3; COMMIT; VACUUM")
        assert second.execute("SELECT SUM(val) FROM y").fetchone() == (12.0,)
        con.execute("CREATE TABLE t AS SELECT 1 AS n; SELECT n || 'x' FROM t").fetchall()
        assert parsed == []
        assert con.execute("SELECT COUNT(*) FROM up(x)").fetchone() == (4,)
        assert second.execute("SELECT COUNT(*) FROM up(x)").fetchone() == (4,)
        assert len(parsed) == 1


def test_an_open_does_not_read_a_long_text(path: str) -> None:
    """Two million terms take a minute to parse; the console opens the file as well."""
    einsql.connect(path).close()
    with einsql.connect(path) as con:
        con.execute("CREATE VIEW v AS SELECT 1 AS s")
    text = "CREATE VIEW b AS SELECT " + "1, " * 2_000_000 + "1"
    damage(path, "b", "view", view(text))
    done = subprocess.run(
        [sys.executable, "-m", "einsql", path],
        input="SELECT s FROM v;\nSHOW TENSORS;\n.tables\nDROP VIEW b;\n",
        capture_output=True, text=True, timeout=30, check=True,
    )  # fmt: skip
    assert "1" in done.stdout
    assert done.stderr == ""
    assert Path(path).exists()
    with einsql.connect(path) as con:
        assert list(con.store.objects) == ["v"]
