"""Dot commands that DuckDB's shell has: listings, dumps, formats, programs and files."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.frontends.console.main import main
from einsql.frontends.console.output import wrapped
from einsql.storage.results.box import display_width

Run = Callable[..., tuple[int, str, str]]

CONTENT = """\
CREATE TENSOR t (i DIM(3), val DOUBLE);
INSERT INTO t VALUES (0, 'nan'::DOUBLE), (1, 0.30000000000000004e0);
CREATE TABLE people(i INTEGER PRIMARY KEY, "select" VARCHAR, b BLOB, l INTEGER[], v INTERVAL);
CREATE INDEX by_name ON people("select");
INSERT INTO people VALUES (1, 'it''s
two lines', '\\x00a'::BLOB, [1, NULL], INTERVAL 3 MONTH), (2, NULL, NULL, NULL, NULL);
CREATE VIEW zz AS SELECT * FROM t;
CREATE VIEW aa AS SELECT * FROM zz;
CREATE MACRO twice(x) AS x + x;
CREATE SCHEMA other;
CREATE TABLE other.numbers(n DOUBLE);
INSERT INTO other.numbers VALUES (-0.5);
CREATE TYPE mood AS ENUM ('so ''so''', 'good');
CREATE TABLE moods(m mood);
INSERT INTO moods VALUES ('good');
CREATE TABLE sums(a INTEGER, "b c" INTEGER GENERATED ALWAYS AS (a + 1), d DATE);
INSERT INTO sums(a, d) VALUES (1, DATE '2020-01-02');
CREATE TENSOR filled (i DIM(2), val DOUBLE) DEFAULT 1;
CREATE TYPE other."a b" AS STRUCT(u INTEGER, w VARCHAR[]);
CREATE SEQUENCE other."s q" START 5;
COMMENT ON TABLE other.numbers IS 'it''s';
COMMENT ON COLUMN people."select" IS 'a word';
COMMENT ON INDEX by_name IS 'sorted';
COMMENT ON TYPE other."a b" IS 'a pair';
COMMENT ON SEQUENCE other."s q" IS 'from 5';
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def command(*arguments: str) -> tuple[int, str, str]:
        status = main(["-no-init", *arguments])
        return (status, *capsys.readouterr())

    return command


def script(*lines: str) -> list[str]:
    return [word for line in lines for word in ("-c", line)]


def test_a_dump_makes_the_same_database(run: Run) -> None:
    Path("content.sql").write_text(CONTENT)
    assert run("-f", "content.sql", "-c", ".once first.sql", "-c", ".dump") == (0, "", "")
    queries = ("SELECT * FROM aa", "SELECT * FROM people", "SELECT * FROM other.numbers",
               "SELECT m, twice(2) AS four FROM moods", "FROM sums", "FROM filled")  # fmt: skip
    status, out, err = run("-jsonlines", "-f", "first.sql", "-c", ".once second.sql", "-c", ".dump",
                           *script(*queries))  # fmt: skip
    assert (status, err) == (0, "")
    assert Path("first.sql").read_text() == Path("second.sql").read_text()
    assert out.splitlines()[1] == '{"i":1,"val":0.30000000000000004}'
    assert '"select":"it\'s\\ntwo lines","b":"\\\\x00a","l":[1,null],"v":"90 days' in out
    assert out.splitlines()[-4:] == [
        '{"m":"good","four":4}',
        '{"a":1,"b c":2,"d":"2020-01-02"}',
        '{"i":0,"val":1.0}',
        '{"i":1,"val":1.0}',
    ]
    assert [n for n in CONTENT.splitlines() if n.startswith("COMMENT")] == [
        n for n in Path("first.sql").read_text().splitlines() if n.startswith("COMMENT")
    ]
    some = run("-f", "first.sql", "-c", ".dump T% numbers")[1]
    assert [line for line in some.splitlines() if "COMMENT" in line] == [
        "COMMENT ON TABLE other.numbers IS 'it''s';",
    ]
    assert [line.split()[2] for line in some.splitlines() if "CREATE" in line] == [
        "other.numbers(n",
        "t",
        "twice(x)",
    ]
    assert run("-c", ".dump none")[2] == "Error: There is nothing to dump like none\n"


def test_listings(run: Run) -> None:
    Path("content.sql").write_text(CONTENT)
    assert run("-f", "content.sql", *script(".indexes", ".indexes PEOPLE", ".indexes moods")) == (
        0,
        "by_name\nby_name\n",
        "",
    )
    status, out, _ = run("x.db", *script("ATTACH ':memory:' AS extra", ".databases"))
    assert (status, out) == (0, f"extra  (memory)\nx      {Path('x.db').absolute()}\n")


def test_files_become_tables_and_tensors(run: Run) -> None:
    Path("a.csv").write_text("i,s\n1,x\n2,y\n")
    Path("a.txt").write_text("7;z\n8;w\n")
    np.save("w.npy", np.arange(3.0))
    commands = (".import a.csv a", ".import --csv --skip 1 --header false 'a.csv' a",
                ".import --delim ; --header false a.txt b", ".import w.npy w", "FROM a", "FROM b",
                ".schema w")  # fmt: skip
    status, out, err = run("-csv", "-noheader", *script(*commands))
    assert (status, err) == (0, "")
    assert out == "1,x\n2,y\n1,x\n2,y\n7,z\n8,w\nCREATE TENSOR w (d0 DIM(3), val DOUBLE);\n"
    for wrong, reason in [
        (".import a.csv", "Usage: .import"),
        (".import --skip", "has no value"),
        (".import none.csv n", "none.csv"),
    ]:
        status, _, err = run("-c", wrong)
        assert (status, reason in err) == (1, True), wrong


def test_formats_can_be_changed(run: Run) -> None:
    query = "SELECT r.i, r.i * r.i AS n FROM range(2) AS r(i)"
    commands = (".mode", '.print "a\\tb" c', ".mode insert my t", ".mode insert order", query,
                ".mode list", ".separator ;", query, '.separator "\\t" ";\\n"', query,
                ".mode column", ".separator x", ".width 3 -4", query, ".width", ".width a",
                ".mode csv t")  # fmt: skip
    status, out, err = run(*script(*commands))
    assert status == 1
    assert out == (
        "current output mode: duckbox\na\tb c\n"
        'INSERT INTO "order"(i,n) VALUES(0,0);\nINSERT INTO "order"(i,n) VALUES(1,1);\n'
        "i;n\n0;0\n1;1\ni\tn;\n0\t0;\n1\t1;\n"
        "i       n\n---  ----\n0       0\n1       1\n"
    )
    assert [line.partition(":")[2] for line in err.splitlines() if "Error" in line] == [
        " Usage: .mode [MODE] [TABLE]",
        " The mode column has no separator",
        " Usage: .width NUMBER..., negative to align on the right",
        " Usage: .mode MODE, or .mode insert TABLE",
    ]
    assert run("-ascii", "-separator", "\\t", "-c", query)[1] == "i\tn\x1e0\t0\x1e1\t1\x1e"


def test_last_shows_everything(run: Run) -> None:
    rows = "SELECT r.i FROM range(9) AS r(i)"
    commands = (".last", ".maxrows 2", rows, ".mode csv", ".last", ".columns", ".mode duckbox",
                ".last", ".rows", ".show")  # fmt: skip
    _, out, err = run(*script(*commands))
    assert err == "Error: There is no result to print yet; run a SELECT first, then .last\n"
    assert "(2 shown)\ni\n0\n1\n2\n3\n4\n5\n6\n7\n8\n┌" in out
    assert "│ i      │ int64 │     0 │     1 │" in out
    assert "rendering: rows\n" in out


def test_last_is_the_last_result_that_had_rows(run: Run) -> None:
    commands = ("CREATE TABLE t AS SELECT 7 AS a", "FROM t", "UPDATE t SET a = 8", "FROM nothing",
                "DROP TABLE t", ".last")  # fmt: skip
    _, out, err = run("-csv", *script(*commands))
    assert "no result" not in err
    assert out == "a\n7\na\n7\n"


@pytest.mark.skipif(os.name != "posix", reason="the commands are POSIX's")
def test_programs_directories_and_the_editor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    Path("t.sql").write_text("SELECT 5 AS five;")
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "sed -i 's/1 AS one/2 AS two/'")
    commands = (".cd sub", ".shell cat ../t.sql; echo", ".system exit 3",
                "CREATE TABLE t(i INTEGER)", ".cd ..", ".read t.sql", "SELECT 1 AS one",
                ".edit", ".cd none")  # fmt: skip
    assert main(["-no-init", "-csv", "x.db", *script(*commands)]) == 1
    out, err = capfd.readouterr()
    assert out == "SELECT 5 AS five;\nfive\n5\none\n1\nSELECT 2 AS two\ntwo\n2\n"
    assert err.splitlines() == [
        "Error: the command ended with status 3",
        'Error: cannot change to "none": No such file or directory',
    ]
    monkeypatch.setenv("EDITOR", "false")
    assert main(["-no-init", *script("SELECT 1 AS one", ".edit")]) == 1
    assert 'the editor "false" ended with status 1; nothing is run' in capfd.readouterr().err


def test_without_external_access_nothing_outside_is_reached(run: Run) -> None:
    Path("t.sql").write_text("SELECT 5 AS five;")
    refused = (".shell echo out", ".system echo out", ".cd /", ".import t.sql t", ".edit",
               ".output out.txt", ".once out.txt", ".read t.sql", ".dump", ".open", ".open x.db",
               ".plot out.png", ".pager cat")  # fmt: skip
    allowed = (".output", ".pager off", ".mode csv", "SELECT 1 AS a", ".last", ".tables")
    before = os.getcwd()
    off = "SET enable_external_access = false"
    status, out, err = run(*script(off, *refused, *allowed))
    assert (status, out) == (1, "a\n1\na\n1\n")
    assert err.count(" is off: enable_external_access is false\n") == len(refused)
    assert os.getcwd() == before
    assert [p.name for p in Path().iterdir()] == ["t.sql"]


def test_messages_break_between_words() -> None:
    error = einsql.Error(
        "There is no column of this name in any of the tensors that FROM lists here",
        hint="  Known columns are: " + ", ".join(f"column_{n}" for n in range(12)),
        position=7,
        sql="SELECT " + "wrong_" * 9 + " FROM t",
    )
    text = wrapped(f"Error: {error}", 40)
    message, place = text.split("\n\n")
    assert max(map(display_width, message.split("\n"))) <= 40
    assert " ".join(message.split()) == " ".join(f"Error: {error}".split("\n\n")[0].split())
    assert all(line.startswith("  ") for line in message.split("\n")[3:])
    assert place == str(error).split("\n\n")[1]


@pytest.mark.skipif(os.name != "posix", reason="the commands are POSIX's")
def test_results_go_into_programs(run: Run) -> None:
    commands = (".once |tr a-z 'A-Z' > once.txt", "SELECT 1 AS a", ".output |cat > 'all of.txt';",
                "SELECT 2 AS b", "SELECT 3 AS c", ".output", ".once |head -n 1 > first.txt",
                "FROM range(50000)", ".once |no-such-program", "SELECT 4 AS d",
                "SET enable_external_access = false", ".once |cat > none.txt")  # fmt: skip
    status, out, err = run("-csv", *script(*commands))
    assert (status, out) == (1, "")
    assert err.splitlines() == [
        'Error: the command "no-such-program" cannot be run',
        "Error: .once FILE is off: enable_external_access is false",
    ]
    contents = {p.name: p.read_text() for p in Path().glob("*.txt")}
    assert contents == {"once.txt": "A\n1\n", "all of.txt": "b\n2\nc\n3\n", "first.txt": "range\n"}


def test_a_dump_keeps_storage_defaults_comments_and_zeros(run: Run) -> None:
    Path("content.sql").write_text(
        "CREATE TENSOR s (i DIM(2000000), j DIM(2000000), val DOUBLE) STORAGE SPARSE;\n"
        "INSERT INTO s VALUES (5, 1999999, 2.5);\n"
        "CREATE TENSOR far (i DIM(2), val DOUBLE) DEFAULT 'inf'::DOUBLE;\n"
        "CREATE VIEW v1 AS SELECT i FROM range(3) r(i) -- a note\n;\n"
        "CREATE MACRO m1(x) AS x + 1 -- another\n;\n"
        "CREATE TABLE zeros AS SELECT -0.0e0 AS d;\n"
        "CREATE TEMP TENSOR own AS SELECT i, i AS val FROM range(2) r(i);\n"
    )
    assert run("-f", "content.sql", "-c", ".once first.sql", "-c", ".dump") == (0, "", "")
    queries = (
        "SELECT i, j, val FROM s",
        "SELECT MIN(val) AS least FROM far",
        "SELECT COUNT(*) AS n, m1(2) AS three FROM v1",
        "SELECT 1 / d AS q FROM zeros",
    )
    status, out, err = run("-jsonlines", "-f", "first.sql", *script(*queries))
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        '{"i":5,"j":1999999,"val":2.5}',
        '{"least":1e999}',
        '{"n":3,"three":3}',
        '{"q":-1e999}',
    ]
    assert "own" not in Path("first.sql").read_text()


def test_a_dump_does_not_take_a_temp_object_for_the_one_it_hides(run: Run) -> None:
    Path("content.sql").write_text(
        "CREATE TENSOR x AS SELECT i, i AS val FROM range(2) r(i);\n"
        "CREATE TEMP TENSOR x AS SELECT i, i * 5 AS val FROM range(2) r(i);\n"
    )
    _, _, err = run("-f", "content.sql", "-c", ".dump")
    assert "A TEMP object hides x" in err
