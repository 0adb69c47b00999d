"""Long statements: lists behind IN, texts of megabytes, and parts of WITH that nothing reads."""

from __future__ import annotations

import subprocess
import sys

import duckdb
import pytest

import einsql
from einsql.sql.parser.lexical import MAX_TOKENS
from einsql.sql.parser.long_literals import LEAST, LONGEST_TEXT, without_long_literals
from tests.support.samples import spread

LIST = ", ".join(str(n) for n in range(0, 20_000, 3))
QUERIES = (
    f"SELECT SUM(val) AS s FROM w WHERE i IN ({LIST})",
    f"SELECT SUM(val) AS s FROM w WHERE i NOT IN ({LIST}) AND val > 4",
    f"SELECT i, val FROM w WHERE val IN ({LIST}) ORDER BY i LIMIT 3",
    f"SELECT SUM(x) AS s FROM t WHERE x IN ( {LIST}, -7 , 1.5e1,.5,'12' )",
    f"WITH u AS (SELECT i FROM w WHERE i IN ({LIST})) SELECT COUNT(*) AS n FROM u, t WHERE i = x",
    f"SELECT COUNT(*) AS n FROM w WHERE i IN (/* ) */ {LIST}) OR val IN (1, 2)",
    f"SELECT i IN ({LIST}) AS inside, COUNT(*) AS n FROM w GROUP BY ALL ORDER BY ALL",
)


@pytest.fixture(scope="module")
def pair() -> tuple[einsql.Connection, duckdb.DuckDBPyConnection]:
    ours, theirs = einsql.connect(), duckdb.connect()
    rows = "SELECT range AS i, (range % 97)::DOUBLE AS val FROM range(1000)"
    ours.execute(f"CREATE TENSOR w AS {rows}")
    theirs.execute(f"CREATE TABLE w AS {rows}")
    for con in (ours, theirs):
        con.execute("CREATE TABLE t AS SELECT range AS x FROM range(1000)")
    return ours, theirs


@pytest.mark.parametrize("sql", spread(QUERIES, 3), ids=spread(range(len(QUERIES)), 3))
def test_long_lists_answer_as_in_duckdb(
    pair: tuple[einsql.Connection, duckdb.DuckDBPyConnection], sql: str
) -> None:
    ours, theirs = pair
    assert ours.execute(sql).fetchall() == theirs.execute(sql).fetchall()


def test_changes_take_long_lists() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR w AS SELECT range AS i, 1.0::DOUBLE AS val FROM range(1000)")
    con.execute(f"CREATE VIEW v AS SELECT i, val FROM w WHERE i IN ({LIST})")
    con.execute(f"UPDATE w SET val = 2 WHERE i IN ({LIST})")
    assert con.execute("SELECT SUM(val) FROM w").fetchall() == [(1334.0,)]
    assert con.execute("SELECT SUM(val) FROM v").fetchall() == [(668.0,)]
    con.execute(f"DELETE FROM w WHERE i IN ({LIST})")
    assert con.execute("SELECT COUNT(*) FROM w").fetchall() == [(666,)]


def test_a_long_list_is_named_where_duckdb_must_not_help(
    pair: tuple[einsql.Connection, duckdb.DuckDBPyConnection],
) -> None:
    con = pair[0]
    con.execute("SET fallback = off")
    try:
        with pytest.raises(einsql.NotSupportedError, match=f"IN with {LEAST:,} or more") as info:
            con.execute(QUERIES[0])
    finally:
        con.execute("SET fallback = on")
    assert info.value.position is not None


def test_only_long_literals_are_replaced() -> None:
    names = ", ".join(f"c{n}" for n in range(LEAST))
    long = "'" + LONGEST_TEXT * "'';" + "'"
    for text in (
        f"SELECT 'x IN ({LIST})'", f"SELECT x IN ({names})", f"SELECT f({LIST})",
        f"SELECT E{long}, x{long} -- {long}",
    ):  # fmt: skip
        assert without_long_literals(text) == text
    for text in (QUERIES[0], f"SELECT {long}, 1"):
        short = without_long_literals(text)
        assert len(short) == len(text)
        assert len(short.split()) < 20


@pytest.mark.parametrize("body", ["x IN ({})", "a a {}"])
def test_too_many_tokens_are_refused(body: str) -> None:
    text = "SELECT " + body.format(",".join(["1"] * MAX_TOKENS))
    with pytest.raises(einsql.ProgrammingError, match="more than 500,000 words") as info:
        einsql.connect().execute(text)
    assert "COPY" in info.value.hint


def test_tokens_are_counted_by_statement() -> None:
    script = "SELECT 1;" * (MAX_TOKENS // 4)
    with pytest.raises(einsql.ProgrammingError, match="nosuch"):
        einsql.connect().execute("SELECT nosuch; " + script)


def test_a_long_string_takes_memory_of_its_own_size() -> None:
    code = """if 1:
        import resource, einsql
        con = einsql.connect()
        con.execute("SELECT length('x')").fetchall()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        text = "SELECT length('" + "xxxx" * 2**18 + "')"
        assert con.execute(text).fetchall() == [(2**20,)]
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 50  # megabytes


@pytest.mark.parametrize(
    "sql",
    [
        "WITH u AS (SELECT nosuch FROM w) SELECT SUM(val) AS s FROM w",
        "WITH u AS (SELECT nosuch FROM w) SELECT SUM(x) AS s FROM t",
        "WITH u AS (SELECT nosuch FROM w), v AS (SELECT * FROM u) SELECT SUM(val) AS s FROM w",
        "SELECT (WITH u AS (SELECT nosuch FROM nowhere) SELECT SUM(val) FROM w) AS s",
        "WITH u AS (SELECT i, val FROM w WHERE i < 9), v AS (SELECT SUM(val) AS s FROM u) FROM v",
    ],
)
def test_parts_of_with_that_nothing_reads(
    pair: tuple[einsql.Connection, duckdb.DuckDBPyConnection], sql: str
) -> None:
    ours, theirs = pair
    assert ours.execute(sql).fetchall() == theirs.execute(sql).fetchall()


def test_parts_of_with_that_something_reads(
    pair: tuple[einsql.Connection, duckdb.DuckDBPyConnection],
) -> None:
    text = "WITH u AS (SELECT nosuch FROM w), v AS (SELECT * FROM u) SELECT SUM(val) FROM v"
    with pytest.raises(einsql.ProgrammingError, match="nosuch"):
        pair[0].execute(text)
