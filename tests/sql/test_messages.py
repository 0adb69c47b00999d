"""What a mistake or an odd spelling gives: the right class and reason, and nothing on stderr."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import combinations


def connection() -> einsql.Connection:
    con = einsql.connect()
    con.register("x", np.arange(6.0).reshape(2, 3), ("i", "j"))
    con.execute("CREATE TENSOR t (i DIM(3), val DOUBLE) DEFAULT 0")
    return con


@pytest.mark.parametrize(
    ("sql", "given", "error", "reason"),
    [
        ("INSERT INTO t SELECT i, SUM(val) AS val FROM x GROUP BY i LIMIT 1", [],
         einsql.NotSupportedError, "LIMIT is outside"),
        ("WITH a AS (CREATE TENSOR b (i DIM(2), val FLOAT)) SELECT 1", [],
         einsql.ProgrammingError, "Syntax error"),
        ("CREATE VIEW v AS ALTER TABLE x", [], einsql.Error, "ALTER"),
        ("INSERT INTO t VALUES (0, 1.5) LIMIT 1", [], einsql.NotSupportedError, "is outside"),
        ("SELECT SUM(val) IGNORE NULLS AS s FROM x", [],
         einsql.NotSupportedError, "^IGNORE NULLS is outside"),
        ("SELECT SUM(val IGNORE NULLS) AS s FROM x", [],
         einsql.NotSupportedError, "^IGNORE NULLS is outside"),
        ("SELECT FIRST_VALUE(val IGNORE NULLS) OVER (PARTITION BY i) AS s FROM x", [],
         einsql.NotSupportedError, "^IGNORE NULLS is outside"),
        ("SELECT MAX(val RESPECT NULLS) OVER (PARTITION BY i) AS s FROM x", [],
         einsql.NotSupportedError, "^RESPECT NULLS is outside"),
        ("SELECT COUNT(y.*) FROM x", [], einsql.ProgrammingError, 'no table "y"'),
        ("SELECT SUM(x.*) FROM x", [], einsql.ProgrammingError, r"takes no x\.\*"),
        ("SELECT $2 + 1 AS a", [1], einsql.ProgrammingError, r"1 was given of \$2"),
        ("SELECT $2 + $1 AS a", [1], einsql.ProgrammingError, "has 2 parameters; 1 was given"),
        ("SELECT i, SUM(val) AS s FROM x GROUP BY +1", [], einsql.ProgrammingError, "GROUP BY"),
    ],
)  # fmt: skip
def test_a_mistake_is_called_by_its_name(
    sql: str,
    given: list[object],
    error: type[Exception],
    reason: str,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    con = connection()
    con.execute("SET fallback = off")
    with pytest.raises(error, match=reason):
        con.execute(sql, given or None)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


QUERIES = [
    "SELECT COUNT(x.*) FROM x",
    "SELECT i, COUNT(c.*) AS n FROM x c GROUP BY i",
    "SELECT COUNT(c.*) FILTER (WHERE j > 0) AS n FROM x c",
    "SELECT i, COUNT(c.*) OVER (PARTITION BY i) AS n FROM x c",
    "SELECT SUM(val) AS s FROM x GROUP BY +1",
    "SELECT j, SUM(val) AS s FROM x GROUP BY 1, + 2, /* ,+1 */ +30",
    "SELECT i, s FROM (SELECT i, SUM(val) AS s FROM x GROUP BY 1) AS q WHERE s > +1",
    "SELECT i, SUM(val) AS s FROM x GROUP BY i HAVING SUM(val) > +1",
    "SELECT SUM(s) AS s FROM (SELECT SUM(val) AS s FROM x GROUP BY +1, -- ,\n +1) AS q",
    "SELECT i, ROUND(SUM(val), +1) AS s FROM x GROUP BY ROUND(i, +1), 1",
]


@pytest.mark.parametrize("sql", QUERIES)
def test_odd_spellings_mean_what_they_mean_to_duckdb(sql: str) -> None:
    duck = duckdb.connect()
    con = connection()
    rows = con.execute("SELECT * FROM x").fetch_arrow_table()
    duck.register("x", rows)
    cursor = con.execute(sql)
    wanted = duck.execute(sql)
    assert [d[0] for d in cursor.description or ()] == [d[0] for d in wanted.description or ()]
    assert sorted(cursor.fetchall()) == sorted(wanted.fetchall())


def test_a_huge_empty_tensor_is_read_without_memory() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR big (i DIM(1000000), j DIM(1000000), val FLOAT)")
    assert con.execute("SELECT i, j, val FROM big").fetchall() == []
    assert con.execute("SELECT * FROM big").fetch_arrow_table().num_rows == 0
    con.execute("CREATE TENSOR few (i DIM(4), val FLOAT)")
    con.execute("INSERT INTO few VALUES (2, 1.5)")
    cursor = con.execute("SELECT i, val FROM few")
    con.execute("INSERT INTO few VALUES (3, 2.5)")
    assert cursor.fetchall() == [(2, 1.5)]  # what was read stays as it was
    assert con.execute("SELECT i, val FROM few").fetchall() == [(2, 1.5), (3, 2.5)]


def test_a_query_in_parentheses_is_explained() -> None:
    con = connection()
    query = "SELECT SUM(val) AS s FROM x"
    assert str(con.explain(f"({query})")) == str(con.explain(query))
    plan = con.explain(f"(({query}))", sites=2)
    assert plan.to_dict()["sites"] == 2


WITHOUT_PLAN = [
    "CREATE TENSOR z (i DIM(4), val DOUBLE)", "DROP TENSOR t", "CREATE VIEW w AS SELECT i FROM x",
    "CREATE MACRO f(a) AS a + 1", "SET sites = 2", "RESET plan", "SHOW TENSORS", "SHOW mesh",
    "DESCRIBE x", "BEGIN", "COMMIT", "CALIBRATE", "VACUUM", "COPY t TO 'o.npy'", "BACKUP TO 'b.db'",
    "COPY u FROM 'o.csv'", "EXPORT DATABASE 'd'", "EXPORT PLAN 'p.json' FOR SELECT 1",
    "IMPORT DATABASE 'd'", "EXPLAIN SELECT 1", "PRAGMA integrity_check",
]  # fmt: skip


@pytest.mark.parametrize(
    ("sql", "options"),
    combinations(WITHOUT_PLAN, ["", "ANALYZE ", "(LEVEL ia) ", "(FORMAT svg) ", "(SITES 2) "]),
)
def test_explain_names_statements_without_a_plan(sql: str, options: str) -> None:
    con = connection()
    con.execute("CREATE TABLE u (a INT)")
    with pytest.raises(
        einsql.NotSupportedError, match=f"This {sql.split()[0]} has no plan"
    ) as info:
        con.execute(f"EXPLAIN {options}{sql}")
    assert info.value.position == len(f"EXPLAIN {options}")
    assert "EXPLAIN the SELECT" in info.value.hint


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("EXPLAIN", "Write EXPLAIN SELECT"),
        ("EXPLAIN ATTACH ':memory:' AS m", "plans of queries and of changes"),
        ("EXPLAIN ANALYZE ATTACH ':memory:' AS m", "EXPLAIN ANALYZE measures queries"),
        ("EXPLAIN ANALYZE USE memory", "EXPLAIN ANALYZE measures queries"),
        ("EXPLAIN INSERT INTO t VALUES (0, 1.5)", "plans of INSERT … SELECT"),
        ("EXPLAIN (LEVEL tra) SELECT a FROM u ORDER BY a", "EXPLAIN without LEVEL"),
        ("EXPLAIN (LEVEL ia) CREATE TABLE z (a INT)", "EXPLAIN without LEVEL"),
        ("EXPLAIN (LEVEL ia) SELECT a FROM nosuch", "Known names: x, t"),
        ("EXPLAIN (LEVEL logic) SELECT a FROM u", "Known levels"),
    ],
)
def test_refused_explains_have_hints(sql: str, hint: str) -> None:
    con = connection()
    con.execute("CREATE TABLE u (a INT)")
    with pytest.raises(einsql.Error) as caught:
        con.execute(sql)
    assert hint in caught.value.hint


def test_explain_leaves_transactions_alone() -> None:
    con = connection()
    for sql in ("BEGIN", "COMMIT", "ROLLBACK"):
        with pytest.raises(einsql.NotSupportedError, match="has no plan"):
            con.execute(f"EXPLAIN ANALYZE {sql}")
    con.execute("BEGIN; INSERT OR REPLACE INTO t VALUES (0, 1.5); ROLLBACK")
    assert con.execute("SELECT SUM(val) AS s FROM t").fetchall() == [(0.0,)]


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELECT a FROM x AS x(i, j, v, w, a)", "5 column names for 3 columns"),
        ("INSERT INTO t SELECT i FROM x", "INSERT gives 1 column for 2"),
        ("SELECT * FROM EINSUM('i->i', x, x)", "has 1 operand, but 2 are given"),
        ("SELECT i FROM TILES(t, 2, 2) t", "for each of 1 key, not 2"),
    ],
)
def test_counts_of_one_are_singular(sql: str, message: str) -> None:
    with pytest.raises(einsql.Error, match=message):
        connection().execute(sql)


@pytest.mark.parametrize(
    ("sql", "meant", "at"),
    [
        ("SELEC 1", "SELECT", "SELEC"),
        ("EXPLAIN SELET 1", "SELECT", "SELET"),
        ("UPDAT x SET val = 1", "UPDATE", "UPDAT"),
        ("ROLBACK", "ROLLBACK", "ROLBACK"),
        ("TRUNCAT x", "TRUNCATE", "TRUNCAT"),
        ("CREATE TENSER y AS SELECT 1 AS val", "TENSOR", "TENSER"),
        ("DROP TENSR x", "TENSOR", "TENSR"),
        ("SELECT i FORM x", "FROM", "FORM"),
        ("SELECT i FROM x WHER i > 1", "WHERE", "WHER"),
        ("SELECT i FROM x AS x(i, j) GRUOP BY i", "GROUP", "GRUOP"),
    ],
)
def test_misspelt_words_are_pointed_at(sql: str, meant: str, at: str) -> None:
    with pytest.raises(einsql.Error) as caught:
        connection().execute(sql)
    assert caught.value.hint.startswith(f"Did you mean {meant}?")
    assert caught.value.position == sql.index(at)


def test_a_word_like_no_other_is_not_guessed_at() -> None:
    with pytest.raises(einsql.Error, match="no XYZZY statement") as caught:
        connection().execute("xyzzy 1")
    assert caught.value.hint.startswith("Statements: SELECT")


LOSS = "WITH loss AS (SELECT SUM(val * val) AS val FROM t)"


@pytest.mark.parametrize(
    ("sql", "hint", "at"),
    [
        (f"{LOSS} SELECT GRADIENT(loss, t)", "call it in FROM", "GRADIENT"),
        (f"{LOSS} SELECT * FROM GRADIENT(loss)", "SELECT in parentheses", "GRADIENT"),
        (f"{LOSS} SELECT * FROM GRADIENT(loss, t, x)", "a GRADIENT each", "GRADIENT"),
        (f"{LOSS} SELECT * FROM GRADIENT('loss', t)", "without quotes", "'loss'"),
        (f"{LOSS} SELECT * FROM GRADIENTS(loss, t)", '"gradient"', "GRADIENTS"),
        ("UPDATE t SET val = g.val FROM x AS g WHERE g.i = t.i", "Compare all keys", "UPDATE"),
        ("SELECT * FROM softmx(x, i)", '"softmax"', "softmx"),
        ("SELECT * FROM layernorm(x, i)", '"layer_norm"', "layernorm"),
        ("SELECT sigmod(val) FROM x", '"sigmoid"', "sigmod"),
        ("SELECT lenght('a')", '"length"', "lenght"),
        ("SELECT EINSUM('ij->i', x)", "call it in FROM", "EINSUM"),
        ("PREPARE p AS SELECT i FROM x WHERE val > ?", "PREPARE takes none", "?"),
    ],
)  # fmt: skip
def test_mistakes_around_training_have_a_way_out(sql: str, hint: str, at: str) -> None:
    with pytest.raises(einsql.Error) as caught:
        connection().execute(sql)
    assert hint in caught.value.hint
    assert caught.value.position == sql.index(at)


@pytest.mark.parametrize("wrong", ["strngth('a')", "nope.x", "1 +* 2", "'a' || (1, "])
def test_mistakes_far_into_a_line_have_their_position(wrong: str) -> None:
    con = connection()
    con.execute("CREATE TABLE names (name VARCHAR)")
    columns = ", ".join(f"name AS n{n}" for n in range(40))
    sql = f"SELECT {columns},\n {columns}, {wrong} AS é, {columns} FROM names"
    with pytest.raises(einsql.Error) as caught:
        con.execute(sql)
    assert caught.value.line == 2
    place = sql.index(wrong)
    assert place <= (caught.value.position or 0) <= place + len(wrong) + len(" AS é") + 1


def test_a_guess_unlike_what_was_written_is_not_passed_on() -> None:
    with pytest.raises(einsql.Error, match="Function with name strngth does not exist") as caught:
        connection().execute("SELECT strngth('a') AS s FROM range(2)")
    assert "Did you mean" not in caught.value.hint


def test_parameters_that_do_not_fit_say_what_does() -> None:
    con, two = connection(), "SELECT 1; SELECT ?"
    with pytest.raises(einsql.ProgrammingError, match="single statement") as caught:
        con.execute(two, [1])
    assert (caught.value.position, caught.value.line) == (two.index("SELECT ?"), 1)
    assert "one by one" in caught.value.hint
    with pytest.raises(einsql.ProgrammingError, match="cannot be a ndarray") as caught:
        con.execute("SELECT i FROM x WHERE val = ?", [np.ones((2, 2))])
    assert "named in FROM" in caught.value.hint
    torch = pytest.importorskip("torch")
    with pytest.raises(einsql.ProgrammingError, match="cannot be a Tensor") as caught:
        con.execute("SELECT i FROM x WHERE val = ?", [torch.tensor(0.5)])
    assert "item()" in caught.value.hint


@pytest.mark.parametrize(
    ("sql", "at", "reason"),
    [
        ("CREATE TABLE t (n INTEGER, by DOUBLE)", "by", "Syntax error"),
        ("ALTER TABLE t ADD CLUMN y INT", "INT", "Syntax error"),
        pytest.param(
            "SELECT i, val - @val - 1 AS v FROM x ORDER BY i",
            "@",
            "Syntax error",
            marks=pytest.mark.skipif(duckdb.__version__ != "2.0.0", reason="DuckDB 2.0.1 reads it"),
        ),
        ("CREATE TENSR t (n INTEGER, by DOUBLE)", "TENSR", "CREATE TENSR is outside"),
        ("SELEC 1", "SELEC", "no SELEC statement"),
    ],
)
def test_a_syntax_error_of_duckdbs_is_told_where_it_is(sql: str, at: str, reason: str) -> None:
    with einsql.connect() as con:
        con.register("x", np.arange(3.0), dims=("i",))
        with pytest.raises(einsql.Error, match=reason) as error:
            con.execute(sql)
    assert error.value.position == sql.index(at)


@pytest.mark.parametrize(
    ("sql", "at", "reason"),
    [
        ("SELECT i FROM ONLY x", "x", "ONLY is outside"),
        ("SELECT i FROM ONLY x ORDER BY i, val LIMIT 1", "ONLY", "Syntax error"),
        ("UPDATE a SET v = 1 ORDER BY abs(-i)", "abs", "ORDER BY in UPDATE"),
        ('UPDATE a SET v = 1 ORDER BY -("i" + 1)', '"i"', "ORDER BY in UPDATE"),
        ("DELETE FROM a, x WHERE a.i = x.i", "x", "several tables"),
    ],
)
def test_what_is_refused_is_named_where_duckdb_stops_at_it(sql: str, at: str, reason: str) -> None:
    with einsql.connect() as con:
        con.register("x", np.arange(3.0), dims=("i",))
        con.execute("CREATE TENSOR a (i DIM(3), v INTEGER)")
        with pytest.raises(einsql.Error, match=reason) as error:
            con.execute(sql)
    assert error.value.position == sql.index(at)


def test_a_long_line_is_shown_in_complete_words() -> None:
    with einsql.connect() as con, pytest.raises(einsql.Error) as caught:
        con.execute(f"SELECT nme FROM range(3) AS x WHERE {'description ' * 3}AND {'other ' * 9}")
    line = str(caught.value).splitlines()[-2]
    assert line.endswith(" …")
    assert len(line) <= len("LINE 1: ") + 69


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT i, dot(x, t) FROM x", "A product is a join"),
        ("SELECT * FROM matmul(x, t)", "A product is a join"),
        ("SELECT cumsum(val) FROM x", "OVER (ORDER BY key)"),
        ("SELECT clip(val, 0, 1) FROM x", "LEAST(GREATEST"),
        ("SELECT transpose(x)", "SELECT j AS i, i AS j"),
        ("SELECT topk(val, 2) FROM x", "MAX(x, n)"),
        ("SELECT std(val) FROM x", "STDDEV_POP"),
        ("SELECT i, argmax(val) FROM x GROUP BY i", "ARG_MAX(key, value)"),
        ("SELECT i, where(val > 0, 1, 0) AS v FROM x", "CASE WHEN"),
        ("SELECT softmax(val) FROM x", "FROM softmax(x, axis)"),
        ("ALTER TABLE t RENAME TO u", 'FROM "t"'),
        ("MERGE INTO t USING x ON t.i = x.i WHEN MATCHED THEN DELETE", 'REPLACE INTO "t"'),
    ],
)
def test_habits_of_other_libraries_get_the_way_in_sql(sql: str, hint: str) -> None:
    with connection() as con, pytest.raises(einsql.Error) as caught:
        con.execute(sql)
    assert hint in caught.value.hint


def test_header_alone_is_true(tmp_path: Path) -> None:
    with connection() as con:
        con.execute(f"COPY x TO '{tmp_path / 'x.csv'}' (HEADER, DELIMITER ';')")
    assert (tmp_path / "x.csv").read_text().splitlines()[:2] == ['"i";"j";"val"', "0;0;0"]
