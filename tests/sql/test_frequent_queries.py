"""Queries that are accepted without DuckDB's parser are accepted by it, too."""

import random
import re
import subprocess
import sys

import duckdb
import pytest

from einsql.sql.parser.frequent_queries import KEYWORDS, is_frequent

FREQUENT = [
    "SELECT a.i, b.k, SUM(a.val * b.val) AS val FROM a JOIN b ON a.j = b.j GROUP BY a.i, b.k",
    "SELECT p, ARG_MIN(c, val) AS nearest, SQRT(MIN(val)) AS far FROM distance GROUP BY p",
    "SELECT i, j, 0.5 * val * (1 + ERF(val * 0.7071067811865476)) AS val FROM x",
    "SELECT * FROM softmax(x, j) AS s(i, j), (SELECT MAX(val) AS m FROM x) t WHERE s.val >= t.m",
    "WITH m AS (SELECT j, AVG(val) AS m FROM x GROUP BY j), "
    "l AS (SELECT x.* REPLACE (x.val - m.m AS val) FROM x NATURAL JOIN m) "
    "SELECT * EXCLUDE (val, j), STDDEV(val) AS s FROM l GROUP BY ALL HAVING COUNT(*) > 1e3",
    "SELECT CASE WHEN NOT val < -1 AND i <> 3 THEN CAST(val AS FLOAT) ELSE i::DOUBLE END FROM x",
    "SELECT adam(m.val, v.val, 3, rate := .01) FROM m INNER JOIN v USING (i, j) CROSS JOIN w AS u",
    "SELECT (SELECT SUM(val) FROM y) + COALESCE(x.val, -1) // 2 FROM x WHERE i BETWEEN 0 AND 3 - 1",
    """SELECT "odd name"."a""b", 'it''s' FROM "T" WHERE val IS NOT NULL OR i NOT IN (1, 2 ** 3)""",
    "SELECT * RENAME (val AS w) FROM x WHERE i % 2 = 0 AND TRUE",
    "SELECT CASE i WHEN 1 THEN 'one' END AS word, f(), g(a => 1) FROM x, y",
]
REFUSED = [
    "SELECT val NOT IN FROM q",
    "SELECT ,i FROM q",
    "SELECT i FROM q, , q AS p",
    "SELECT i FROM q GROUP BY",
    "SELECT a < b < c FROM q",
    "SELECT a = b IS NOT",
    "SELECT f(1,,2)",
    "SELECT (1",
    "SELECT 1)",
    "SELECT 1 2",
    "SELECT 'a' 'b'",
    "SELECT e'a'",
    "SELECT group FROM q",
    "WITH a AS (SELECT 1), A AS (SELECT 2) SELECT 3",
    "SELECT * EXCLUDE (a, a) FROM q",
    "SELECT * EXCLUDE (a) REPLACE (1 AS a) FROM q",
    "SELECT a FROM b JOIN c",
    "SELECT 1; SELECT 2",
    "DELETE FROM q",
]
LEXEME = re.compile(r"""\s+|\w+|"[^"]*"|'[^']*'|[^\w\s]""")
WORDS = "SELECT FROM NOT AND IN IS NULL AS CASE END BY ALL JOIN x 1 's' , ( ) * . - = < :: \ue000"
INSERTED = WORDS.split()


@pytest.mark.parametrize("text", FREQUENT)
def test_frequent_queries_are_recognised(text: str) -> None:
    assert is_frequent(text)
    assert is_frequent(f"  {text.replace(' ', chr(10))}  ")
    assert len(duckdb.connect().extract_statements(text)) == 1


@pytest.mark.parametrize("text", REFUSED)
def test_other_texts_are_left_to_duckdb(text: str) -> None:
    assert not is_frequent(text)


@pytest.mark.parametrize("seed", range(5))
def test_duckdb_accepts_what_is_recognised(seed: int) -> None:
    """Texts with lexemes deleted, repeated, exchanged and inserted at random."""
    draw = random.Random(seed)
    connection = duckdb.connect()
    accepted = 0
    for _ in range(1000):
        parts = LEXEME.findall(draw.choice(FREQUENT))
        for _ in range(draw.randint(1, 3)):
            at, other = draw.randrange(len(parts)), draw.randrange(len(parts))
            match draw.randrange(4):
                case 0:
                    del parts[at]
                case 1:
                    parts.insert(at, parts[other])
                case 2:
                    parts[at], parts[other] = parts[other], parts[at]
                case _:
                    parts.insert(at, f" {draw.choice(INSERTED)} ")
        text = "".join(parts)
        if is_frequent(text):
            accepted += 1
            assert len(connection.extract_statements(text)) == 1, text
    assert accepted > 50


@pytest.mark.parametrize("text", FREQUENT)
def test_duckdb_accepts_the_truncated_texts_that_are_recognised(text: str) -> None:
    connection = duckdb.connect()
    for end in range(len(text)):
        if is_frequent(text[:end]):
            assert len(connection.extract_statements(text[:end])) == 1, text[:end]


def test_keywords_are_duckdbs() -> None:
    rows = (
        duckdb.connect()
        .execute(
            "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category <> 'unreserved'"
        )
        .fetchall()
    )
    assert {word for (word,) in rows} == KEYWORDS


def test_long_and_deep_texts_are_left_to_duckdb() -> None:
    assert is_frequent(f"SELECT {'(' * 20}1{')' * 20}")
    assert not is_frequent(f"SELECT {'(' * 200}1{')' * 200}")
    assert not is_frequent(f"SELECT {'1 + ' * 10_000} 1")


def test_a_first_query_does_not_load_duckdb() -> None:
    program = """
import sys, numpy as np, einsql
con = einsql.connect()
con.register("x", np.ones((2, 3)), ("i", "j"))
for sql in ("SELECT i, SUM(val) AS val FROM x GROUP BY i", "SELECT * FROM softmax(x, j)"):
    con.execute(sql).fetch_numpy()
print("_duckdb" in sys.modules or "duckdb" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "False"
