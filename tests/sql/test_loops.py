"""FOR … DO … END FOR: its reading, its steps, what is kept of it and the rows it gives."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.sql.parser.lexical import is_complete, scan
from einsql.sql.parser.text_edits import replaced

STEPS = """FOR step IN range({}) DO
  UPDATE w SET val = w.val * 0.5 + step;
  SELECT SUM(val) AS total FROM w;
END FOR;"""


def by_hand(steps: int) -> list[tuple[int, float]]:
    value, rows = 1.0, []
    for step in range(steps):
        value = value * 0.5 + step
        rows.append((step, 3 * value))
    return rows


@pytest.fixture
def con() -> einsql.Connection:
    made = einsql.connect()
    made.execute("CREATE TENSOR w (i DIM(3), val DOUBLE) DEFAULT 1")
    return made


def total(con: einsql.Connection) -> float:
    return float(con.execute("SELECT SUM(val) FROM w").fetchall()[0][0])


def test_a_loop_gives_a_row_for_each_step(con: einsql.Connection) -> None:
    cursor = con.execute(STEPS.format(6))
    assert [d[:2] for d in cursor.description or ()] == [("step", "BIGINT"), ("total", "DOUBLE")]
    assert cursor.rowcount == 6
    assert cursor.fetchall() == by_hand(6)
    assert cursor.fetch_numpy()["total"].tolist() == [t for _, t in by_hand(6)]
    assert cursor.fetch_arrow_table().column("step").to_pylist() == list(range(6))
    assert total(con) == by_hand(6)[-1][1]


def test_loops_nest_and_take_parameters(con: einsql.Connection) -> None:
    sql = """FOR e IN range(1, ?) DO FOR b IN range(6, e, -?) DO
        UPDATE w SET val = w.val + ? * b;
        SELECT e * 10 + b AS at, SUM(val) AS t FROM w;
      END FOR; END FOR"""
    expected, value = [], 3.0
    for e in range(1, 3):
        for b in range(6, e, -2):
            value += 3 * 0.25 * b
            expected.append((e, b, e * 10 + b, value))
    assert con.execute(sql, [3, 2, 0.25]).fetchall() == expected
    outer = """FOR e IN range(2) DO
        FOR b IN range(e + 1) DO UPDATE w SET val = 0; SELECT b; END FOR;
        SELECT COUNT(*) AS n FROM w WHERE i < e; END FOR"""
    assert con.execute(outer).fetchall() == [(0, 0), (1, 1)]


def test_a_loop_without_a_select_counts_changes(con: einsql.Connection) -> None:
    cursor = con.execute("FOR s IN range(4) DO UPDATE w SET val = s; END FOR")
    assert (cursor.description, cursor.rowcount, total(con)) == (None, 12, 9)
    assert con.execute("FOR s IN range(5, 0) DO SELECT s; END FOR").fetchall() == []
    some = "FOR s IN range(6) DO SELECT val FROM w WHERE i = 0 AND s % 2 = 1; END FOR"
    assert con.execute(some).fetchall() == [(1, 3.0), (3, 3.0), (5, 3.0)]


def test_the_variable_is_a_value_and_no_name(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE log (step INTEGER, t DOUBLE)")
    sql = """FOR step IN range(3) DO
        INSERT INTO log (step, t) SELECT step, SUM(val) + step FROM w;
        SELECT step, t, step * 2 AS twice FROM log WHERE log.step = step;
      END FOR"""
    cursor = con.execute(sql)
    assert cursor.fetchall() == [(0, 0, 3.0, 0), (1, 1, 4.0, 2), (2, 2, 5.0, 4)]
    con.execute("FOR step IN range(3) DO UPDATE log SET step = step + log.step; END FOR")
    assert con.execute("SELECT step FROM log ORDER BY 1").fetchall() == [(3,), (4,), (5,)]
    sql = "CREATE OR REPLACE TENSOR r AS SELECT r.i, n AS v FROM range(n) r(i)"
    con.execute(f"FOR n IN range(2, 4) DO {sql}; END FOR")
    assert con.execute("SELECT i, v FROM r").fetchall() == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize("inside", [False, True])
def test_a_step_that_fails_is_undone_and_those_before_are_kept(
    con: einsql.Connection, inside: bool
) -> None:
    sql = """FOR s IN range(9) DO
  UPDATE w SET val = w.val + 1;
  INSERT INTO seen VALUES (4 - s, s);
END FOR"""
    con.execute("CREATE TENSOR seen (i DIM(5), val INTEGER)")
    if inside:
        con.execute("BEGIN")
    cursor = con.cursor()
    with pytest.raises(einsql.Error) as caught:
        cursor.execute(sql)
    assert "The steps up to s = 4 are kept." in caught.value.hint
    assert (caught.value.line, str(caught.value).splitlines()[-2][:20]) == (
        3,
        "LINE 3:   INSERT INT",
    )
    assert (total(con), cursor.description) == (18, None)
    assert con.execute("SELECT val FROM seen").fetchall() == [(4,), (3,), (2,), (1,), (0,)]
    if inside:
        con.execute("ROLLBACK")
        assert total(con) == 3


def test_duckdb_failing_undoes_its_step_alone(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE log (s INTEGER PRIMARY KEY)")
    con.execute("INSERT INTO log VALUES (3)")
    with pytest.raises(einsql.IntegrityError, match="up to s = 2 are kept"):
        con.execute(
            "FOR s IN range(9) DO UPDATE w SET val = s; INSERT INTO log VALUES (s); END FOR"
        )
    assert total(con) == 6
    assert con.execute("SELECT s FROM log ORDER BY s").fetchall() == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("within", [False, True])
def test_an_interrupt_keeps_the_complete_steps(con: einsql.Connection, within: bool) -> None:
    seen: list[tuple[Any, ...]] = []

    def stepped(description: Sequence[Sequence[Any]], row: tuple[Any, ...]) -> None:
        assert [d[0] for d in description] == ["step", "total"]
        seen.append(row)
        if len(seen) == 4 and not within:
            con.interrupt()

    def progress(fraction: float) -> None:
        assert 0 <= fraction <= 1
        if within and len(seen) == 4 and fraction > 0.4 + 0.05:  # in the SELECT of the next one
            con.interrupt()

    con.stepped, con.progress = stepped, progress
    cursor = con.cursor()
    with pytest.raises(einsql.errors.InterruptedError, match="up to step = 3 are kept"):
        cursor.execute(STEPS.format(10))
    con.stepped = con.progress = None
    assert seen == by_hand(4) == cursor.fetchall()
    assert total(con) == by_hand(4)[-1][1]
    assert not con.store.in_transaction


def test_a_loop_commits_at_its_end_or_where_it_says(tmp_path: Path) -> None:
    con = einsql.connect(str(tmp_path / "model.db"))
    other = einsql.connect(str(tmp_path / "model.db"))
    con.execute("CREATE TENSOR w (i DIM(3), val DOUBLE) DEFAULT 1")
    seen: list[float] = []
    con.stepped = lambda description, row: seen.append(total(other))
    con.execute("FOR s IN range(3) DO UPDATE w SET val = s + 5; SELECT s; END FOR")
    assert (seen, total(other)) == ([3, 3, 3], 21)
    seen.clear()
    con.execute("FOR s IN range(3) DO UPDATE w SET val = s; COMMIT; SELECT s; END FOR")
    assert seen == [0, 3, 6]
    seen.clear()
    with pytest.raises(einsql.OperationalError, match="cannot run in a transaction"):
        con.execute("BEGIN; FOR s IN range(3) DO UPDATE w SET val = s; COMMIT; END FOR")
    con.close()
    other.close()


@pytest.mark.parametrize(
    ("sql", "reason", "at"),
    [
        ("FOR s IN range(3) DO SELECT x FROM w; END FOR", 'no column "x"', "x FROM"),
        ("SELECT 1; FOR s IN range(?) DO\n SELECT s + y FROM w; END FOR", "no column", "y"),
        ("FOR s IN range(3) DO FOR t IN range(s) DO SELECT s, t + z; END FOR; END FOR", "z", "z;"),
        ("FOR s IN range(3) SELECT 1; UPDATE w SET val = 3; END FOR", "Expected DO", "SELECT 1"),
        ("FOR s IN range(3) DO SELECT 1;", "no END FOR", "FOR s"),
        ("FOR s IN w DO SELECT 1; END FOR", "Expected RANGE", "w DO"),
        ("FOR s IN range(3) DO SELEC 1; END FOR", "no SELEC", "SELEC"),
        ("FOR s IN range(3) DO UPDATE w SET val = 9; SELECT 1 +; END FOR", "Syntax", "+"),
        ("FOR s IN range(2.5) DO SELECT 1; END FOR", "whole numbers", "2.5"),
        ("FOR s IN range(1, 2, 0) DO SELECT 1; END FOR", "by 0", "1, 2"),
        ("FOR s IN range() DO SELECT 1; END FOR", "one to three", ") DO"),
        ("FOR s IN range(3) DO END FOR", "no statements", "END"),
        ("FOR s IN range(3) DO ROLLBACK; END FOR", "ROLLBACK is not allowed", "ROLLBACK"),
        ("FOR s IN range(3) DO SELECT i FROM w; END FOR", "one row a step", "SELECT i"),
        ("FOR s IN range(3) DO FOR S IN range(2) DO SELECT 1; END FOR; END FOR", "has S", "S IN"),
        ("EXPLAIN FOR s IN range(3) DO SELECT 1; END FOR", "shows one statement", "FOR"),
    ],
)
def test_what_is_wrong_in_a_loop_is_said_where_it_stands(
    con: einsql.Connection, sql: str, reason: str, at: str
) -> None:
    with pytest.raises(einsql.Error, match=reason) as caught:
        con.execute(sql.replace("?", "2"))
    error = caught.value
    assert error.sql is not None
    assert error.position is not None
    assert error.sql[error.position :].startswith(at)
    assert total(con) == 3


def test_splitting_leaves_loops_whole() -> None:
    text = """-- one
    FOR a IN range(2) DO /* FOR; */ UPDATE w SET val = CASE WHEN a > 1 THEN 2 END;
      FOR b IN range(3) DO SELECT ';'; END /* ; */ FOR; SELECT 2; END FOR; SELECT "for"; EXPLAIN
    ANALYZE FOR c IN range(2) DO SELECT 1; END FOR; SELECT [x FOR x IN [1]]"""
    found = [text[s.start : s.end].split() for s in scan(text)]
    assert [f[0] for f in found] == ["FOR", "SELECT", "EXPLAIN", "SELECT"]
    assert found[0][-2:] == found[2][-2:] == ["END", "FOR"]
    assert is_complete("FOR a IN range(2) DO SELECT 1; END FOR;")
    assert not is_complete("FOR a IN range(2) DO SELECT 1;")
    assert not is_complete("FOR a IN range(2) DO FOR b IN range(2) DO SELECT 1; END FOR;")
    with pytest.raises(einsql.Error, match="deeper than 16"):
        scan("FOR a IN range(1) DO " * 20)


def test_places_are_found_again_behind_replaced_words() -> None:
    made = replaced("ab step cd step", [(3, 7, "$1"), (11, 15, "$12345")])
    assert made.text == "ab $1 cd $12345"
    assert [made.before(n) for n in (0, 3, 4, 5, 6, 9, 14, 15)] == [0, 3, 4, 7, 8, 11, 14, 15]


def test_a_plan_that_reads_no_variable_is_made_once(con: einsql.Connection) -> None:
    con.execute("FOR s IN range(2) DO SELECT SUM(val) FROM w; END FOR")
    before = con.planner_calls
    con.execute("FOR s IN range(50) DO SELECT AVG(val) FROM w; END FOR")
    assert con.planner_calls <= before + 2


def test_sites_run_loops(con: einsql.Connection) -> None:
    con.execute("SET sites = 2")
    assert np.allclose(con.execute(STEPS.format(4)).fetchall(), by_hand(4))


def test_what_a_failed_step_has_overwritten_in_place_comes_back(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR cache (t DIM(8), i DIM(3), val DOUBLE) DEFAULT 0")
    sql = """FOR s IN range(8) DO
        INSERT OR REPLACE INTO cache SELECT r.t, w.i, s + 1 FROM range(8) r(t), w WHERE r.t = s;
        UPDATE cache SET val = cache.val * 2 WHERE t = s;
        INSERT INTO few VALUES (s, 1);
        END FOR"""
    con.execute("CREATE TENSOR few (i DIM(5), val INTEGER)")
    with pytest.raises(einsql.Error, match="up to s = 4 are kept"):
        con.execute(sql)
    rows = con.execute("SELECT t, SUM(val) FROM cache GROUP BY t").fetchall()
    assert rows == [(t, 6 * (t + 1) if t < 5 else 0) for t in range(8)]


def test_a_training_step_is_planned_once(con: einsql.Connection) -> None:
    sql = """FOR s IN range({}) DO
        WITH loss AS (SELECT SUM(val * val) AS val FROM w),
        moved AS (UPDATE w SET val = w.val - 0.25 * g.val FROM GRADIENT(loss, w) g WHERE g.i = w.i)
        SELECT val FROM loss;
        END FOR"""
    assert con.execute(sql.format(3)).fetchall() == [(0, 3), (1, 0.75), (2, 0.1875)]
    before = con.planner_calls
    con.execute(sql.format(40))
    assert con.planner_calls <= before + 3


def test_who_is_told_of_a_step_may_ask_the_same_connection(con: einsql.Connection) -> None:
    scale = np.full(3, 2.0)
    seen = []
    con.stepped = lambda description, row: seen.append(total(con))
    sql = """FOR s IN range(4) DO
        UPDATE w SET val = w.val * scale.val FROM scale AS scale(i) WHERE scale.i = w.i;
        SELECT s; END FOR"""
    con.execute(sql)
    assert seen == [6, 12, 24, 48]
    assert scale.sum() == 6


def test_changes_read_variables_at_run_time(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR x AS SELECT r.i, r.i::DOUBLE AS val FROM range(40) AS r(i)")
    sql = """FOR s IN range({}) DO
        WITH part AS (SELECT AVG(val) AS val FROM x
                      WHERE i BETWEEN (s % 4) * 10 AND (s % 4) * 10 + 9),
        moved AS (UPDATE w SET val = w.val + part.val / (s + 1) FROM part)
        SELECT val FROM part;
        END FOR"""
    rows = con.execute(sql.format(8)).fetchall()
    assert rows == [(s, 4.5 + 10 * (s % 4)) for s in range(8)]
    value = 1 + sum((4.5 + 10 * (s % 4)) / (s + 1) for s in range(8))
    assert total(con) == pytest.approx(3 * value)
    before = con.planner_calls
    con.execute(sql.format(60))
    assert con.planner_calls <= before + 2


def test_changes_of_a_part_that_a_variable_names(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR cache (t DIM(6), i DIM(3), val DOUBLE)")
    con.execute("""FOR s IN range(6) DO
        INSERT INTO cache SELECT r.t, w.i, w.val * s FROM range(6) AS r(t), w WHERE r.t = s;
        INSERT OR REPLACE INTO w VALUES (1, s);
        UPDATE cache SET val = cache.val + 100 WHERE t = s AND i = 0;
        DELETE FROM cache WHERE t = s - 1 AND i = 2;
        END FOR""")
    rows = con.execute("SELECT t, i, val FROM cache").fetchall()
    middle = [1, 0, 1, 2, 3, 4]
    wanted = [
        (t, i, [100 + t, middle[t] * t, t][i]) for t in range(6) for i in range(3)
        if i < 2 or t == 5
    ]  # fmt: skip
    assert rows == wanted


def test_a_step_is_undone_though_another_loop_ran_while_it_was_told_of() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR a AS SELECT i, i * 1.0::DOUBLE AS val FROM range(2) r(i)")

    def told(*_: object) -> None:
        con.stepped = None
        con.execute("FOR q IN range(1) DO SELECT SUM(val) AS z FROM a; END FOR")
        con.stepped = told

    con.stepped = told
    with pytest.raises(einsql.Error, match="up to s = 1 are kept"):
        con.execute(
            "FOR s IN range(4) DO UPDATE a SET val = a.val + 1 WHERE i < 1; "
            "UPDATE a SET val = a.val + 1 WHERE i < 1; "
            "SELECT k FROM range(2) r(k) WHERE k = 0 OR s >= 2; END FOR"
        )
    assert con.execute("SELECT * FROM a").fetchall() == [(0, 4.0), (1, 1.0)]


FAILING = "UPDATE g SET val = g.val + 3"
"""A statement whose third run overflows."""


@pytest.mark.parametrize("path", [":memory:", "loop.db"])
def test_a_failed_step_undoes_its_changes_of_tables(path: str, tmp_path: Path) -> None:
    file = path if path == ":memory:" else str(tmp_path / path)
    with einsql.connect(file) as con:
        con.execute(
            "CREATE TABLE log (step INT); CREATE TENSOR w (i DIM(3), val INTEGER) DEFAULT 0"
        )
        con.execute("CREATE TENSOR g (i DIM(3), val INTEGER) DEFAULT 2147483640")
        step = f"INSERT INTO log SELECT step; UPDATE w SET val = w.val + 1; {FAILING}"
        with pytest.raises(einsql.DataError, match="Overflow") as caught:
            con.execute(f"FOR step IN range(9) DO {step}; END FOR")
        assert "up to step = 1 are kept" in caught.value.hint
        assert con.execute("SELECT * FROM log ORDER BY ALL").fetchall() == [(0,), (1,)]
        assert con.execute("SELECT MAX(val) AS m FROM w").fetchall() == [(2,)]
        # Complete steps of an inner loop stay.
        with pytest.raises(einsql.DataError, match="Overflow") as caught:
            con.execute(
                "FOR e IN range(9) DO FOR q IN range(2) DO UPDATE w SET val = w.val + 1; END FOR; "
                f"INSERT INTO log SELECT 100 + e; CREATE TABLE made (a INT); {FAILING}; END FOR"
            )
        assert "up to e = 0, q = 1 are kept" in caught.value.hint
        assert con.execute("SELECT * FROM log ORDER BY ALL").fetchall() == [(0,), (1,)]
        assert con.execute("SELECT MAX(val) AS m FROM w").fetchall() == [(4,)]
        con.execute("CREATE TABLE made (b INT); INSERT INTO log VALUES (7)")
    if file != ":memory:":
        with einsql.connect(file) as con:
            assert con.execute("SELECT * FROM log ORDER BY ALL").fetchall() == [(0,), (1,), (7,)]
            assert con.execute("SELECT MAX(val) AS m FROM w").fetchall() == [(4,)]


def test_columns_of_a_loop_have_one_type_for_all_steps() -> None:
    con = einsql.connect()
    con.execute("CREATE TENSOR q AS SELECT i, 3 * i AS val FROM range(2) r(i)")
    table = con.execute(
        "FOR s IN range(3) DO SELECT SUM(val) AS v FROM q; "
        "CREATE OR REPLACE TENSOR q AS SELECT i, val / 2 AS val FROM q; END FOR"
    ).fetch_arrow_table()
    assert table.column("v").to_pylist() == [3.0, 1.5, 0.75]


def test_names_of_columns_are_not_the_variable() -> None:
    con = einsql.connect()
    con.execute("CREATE TABLE log (step BIGINT PRIMARY KEY, total DOUBLE)")
    for body, rows in (
        ("CREATE OR REPLACE TABLE r AS SELECT step, step * 2 AS d; INSERT INTO log SELECT step, d "
         "FROM r", [(0, 0.0), (1, 2.0)]),
        ("MERGE INTO log USING (SELECT 1 AS a) z ON log.step = step WHEN MATCHED THEN UPDATE "
         "SET total = step + 5 WHEN NOT MATCHED THEN INSERT (step, total) VALUES (step, 7)",
         [(0, 5.0), (1, 6.0)]),
        ("INSERT INTO log VALUES (step, 1) ON CONFLICT (step) DO UPDATE SET total = 9",
         [(0, 9.0), (1, 9.0)]),
        ("CREATE TABLE IF NOT EXISTS other (step BIGINT); INSERT INTO other VALUES (step)",
         [(0, 9.0), (1, 9.0)]),
    ):  # fmt: skip
        con.execute(f"FOR step IN range(2) DO {body}; END FOR")
        assert con.execute("FROM log ORDER BY step").fetchall() == rows, body
    assert con.execute("FROM other ORDER BY step").fetchall() == [(0,), (1,)]
    with pytest.raises(einsql.NotSupportedError, match="A subquery in range"):
        con.execute("FOR step IN range((SELECT COUNT(*) FROM log)) DO SELECT step AS q; END FOR")
