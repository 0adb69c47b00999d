"""Statements whose WITH changes tensors: all parts read the old state, and change it at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import einsql

BOTH = """
    WITH h AS (SELECT i, EXP(SIN(x.val)) * COS(x.val) + x.val / 3 AS val FROM x),
         s1 AS (UPDATE a SET val = a.val - h.val FROM h WHERE h.i = a.i),
         s2 AS (INSERT INTO log SELECT 2 AS t, i, h.val FROM h)
    SELECT SUM(val) AS total FROM h"""


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as made:
        prepared(made)
        yield made


def prepared(con: einsql.Connection) -> None:
    """Makes the tensors that the statements below read and change."""
    con.execute("CREATE TENSOR x AS SELECT i, i / 7 AS val FROM range(5) AS r(i)")
    con.execute("CREATE TENSOR a AS SELECT i, i + 0.5::DOUBLE AS val FROM range(5) AS r(i)")
    con.execute("CREATE TENSOR b AS SELECT i, i * 10.0::DOUBLE AS val FROM range(5) AS r(i)")
    con.execute("CREATE TENSOR log (t DIM(4), i DIM(5), val DOUBLE)")


def values(con: einsql.Connection, name: str) -> list[Any]:
    return con.execute(f"SELECT * FROM {name}").fetchall()


def array(con: einsql.Connection, name: str) -> np.ndarray:
    return np.array([row[-1] for row in values(con, name)])


def test_every_part_reads_what_was_there_before(con: einsql.Connection) -> None:
    a, b = array(con, "a"), array(con, "b")
    cursor = con.execute("""
        WITH s AS (UPDATE a SET val = b.val FROM b WHERE b.i = a.i),
             d AS (DELETE FROM log),
             x2 AS (INSERT OR REPLACE INTO x SELECT a.i, a.val * b.val FROM a JOIN b USING (i))
        UPDATE b SET val = a.val FROM a WHERE a.i = b.i AND a.val > 1""")
    assert (cursor.rowcount, cursor.description) == (4, None)
    np.testing.assert_array_equal(array(con, "a"), b)
    np.testing.assert_array_equal(array(con, "b"), np.where(a > 1, a, b))
    np.testing.assert_array_equal(array(con, "x"), a * b)


@pytest.mark.parametrize("setting", ["sites = 1", "sites = 3", "disabled_rules = 'share'"])
def test_what_parts_share_is_one_node_and_computed_once(
    con: einsql.Connection, setting: str
) -> None:
    x, a = array(con, "x"), array(con, "a")
    plan = str(con.explain(BOTH))
    assert (plan.count("EXP("), plan.count("COS(")) == (1, 1)
    assert plan.splitlines()[-3:] == ["r2  SELECT", "r3  UPDATE a", "r4  INSERT log"]
    con.execute(f"SET {setting}")
    h = np.exp(np.sin(x)) * np.cos(x) + x / 3
    assert con.execute(BOTH).fetchone() == (pytest.approx(h.sum()),)
    np.testing.assert_allclose(array(con, "a"), a - h)
    np.testing.assert_allclose(array(con, "log"), h)
    assert [row[:2] for row in values(con, "log")] == [(2, i) for i in range(5)]


def test_a_statement_is_planned_once(con: einsql.Connection) -> None:
    text = """
        WITH s AS (UPDATE a SET val = a.val + ? FROM b WHERE b.i = a.i)
        UPDATE b SET val = a.val FROM a WHERE a.i = b.i"""
    a, b = array(con, "a"), array(con, "b")
    calls = con.planner_calls
    for _ in range(3):
        con.execute(text, [2.0])
        a, b = a + 2, a
    assert con.planner_calls == calls + 1
    con.execute(text, [3.0])
    a, b = a + 3, a
    assert con.planner_calls == calls + 1
    np.testing.assert_array_equal([array(con, "a"), array(con, "b")], [a, b])
    con.execute("CREATE OR REPLACE TENSOR b AS SELECT i, 1.0::DOUBLE AS val FROM range(3) AS r(i)")
    con.execute(text, [2.0])
    np.testing.assert_array_equal(array(con, "b"), a[:3])
    a[:3] += 2
    np.testing.assert_array_equal(array(con, "a"), a)


def test_results_and_tensors_of_one_name_have_memory_of_their_own(con: einsql.Connection) -> None:
    text = """
        WITH h AS (SELECT i, x.val + 1 AS val FROM x),
             s AS (INSERT OR REPLACE INTO a SELECT * FROM h),
             t AS (INSERT OR REPLACE INTO b SELECT * FROM h)
        SELECT * FROM h"""
    wanted = array(con, "x") + 1
    for _ in range(2):
        shown = con.execute(text).fetch_numpy()
        if shown.flags.writeable:
            shown[:] = -1
        con.execute("UPDATE b SET val = 7 WHERE i = 1")
        con.execute("UPDATE b SET val = 8 WHERE i = 2")
        np.testing.assert_array_equal(array(con, "a"), wanted)
        np.testing.assert_array_equal(array(con, "b"), [wanted[0], 7, 8, *wanted[3:]])


REFUSED = [
    ("WITH s AS (UPDATE a SET val = 1) UPDATE a SET val = 2", "Two parts", "a SET val = 2"),
    ("WITH s AS (UPDATE a SET val = 1) SELECT * FROM s", "gives no rows", ""),
    ("WITH s AS (DELETE FROM a RETURNING i) SELECT * FROM b", "RETURNING in DELETE", ""),
    ("WITH s AS (UPDATE a SET val = 1) UPDATE t SET n = 1", "the table t", "t SET n"),
    ("WITH s AS (UPDATE a SET val = 1) SELECT * FROM t", 'no tensor "t"', "t"),
    ("WITH s AS (UPDATE a SET val = 1), s AS (SELECT 1) SELECT 2", "twice", "s AS (SELECT"),
    ("SELECT * FROM (WITH s AS (UPDATE a SET val = 1) SELECT * FROM b)", "inside of a", "s AS"),
    ("CREATE TENSOR z AS WITH s AS (UPDATE a SET val = 1) SELECT * FROM b", "inside of a", "s AS"),
    ("WITH s AS (UPDATE a SET val = 1) INSERT INTO b VALUES (1, 2)", "exists in b", "b VALUES"),
    ("WITH s AS (INSERT INTO a SELECT 1, NULL) SELECT i FROM b", "NULL", "a SELECT 1"),
    ("WITH s AS (UPDATE nothing SET val = 1) SELECT i FROM b", "no tensor", "nothing"),
]


@pytest.mark.parametrize(("sql", "reason", "at"), REFUSED)
def test_what_cannot_be_is_refused_where_it_stands_and_changes_nothing(
    con: einsql.Connection, sql: str, reason: str, at: str
) -> None:
    con.execute("CREATE TABLE t (n INTEGER)")
    before = values(con, "a"), values(con, "b")
    with pytest.raises(einsql.Error, match=reason) as caught:
        con.execute(sql)
    assert caught.value.position is not None
    assert sql[caught.value.position :].startswith(at)
    assert (values(con, "a"), values(con, "b")) == before


def test_parts_of_tables_alone_are_duckdbs(con: einsql.Connection) -> None:
    con.execute("CREATE TABLE t (n INTEGER)")
    assert con.execute("WITH s AS (INSERT INTO t VALUES (1), (2)) SELECT 3").fetchall() == [(3,)]
    assert con.execute("SELECT * FROM t ORDER BY n").fetchall() == [(1,), (2,)]


# ---- interrupts


IN_PLACE = """
    WITH s AS (UPDATE a SET val = a.val + 1 WHERE i < 3),
         t AS (INSERT INTO log SELECT 1 AS t, i, val FROM a),
         d AS (DELETE FROM b WHERE i = 4)
    UPDATE x SET val = a.val FROM a WHERE a.i = x.i AND x.i > 1"""

NAMES = ("a", "b", "x", "log")

RESET = (
    "INSERT OR REPLACE INTO a SELECT i, i + 0.5::DOUBLE AS val FROM range(5) AS r(i)",
    "UPDATE a SET val = 3 WHERE i = 1",  # in memory that nobody has seen
    "INSERT OR REPLACE INTO b SELECT i, i * 10.0::DOUBLE AS val FROM range(5) AS r(i)",
    "DELETE FROM b WHERE i = 0",
    "UPDATE x SET val = i WHERE i <> 1",
    "DELETE FROM log WHERE t = 1",
    "INSERT OR REPLACE INTO log VALUES (0, 0, 1)",
)

EVERY = 11
"""One in so many lines is interrupted."""


class Stop:
    """Raises KeyboardInterrupt at one line among those of a statement's changes."""

    FILES = ("changes/writing.py", "engine/store.py", "engine/private.py", "database/memory.py")

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        name = frame.f_code.co_filename.replace("\\", "/")
        return self.line if any(f in name for f in self.FILES) else None

    def line(self, frame: FrameType, event: str, arg: object) -> Callable[..., Any]:
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self.line


@pytest.mark.parametrize("transaction", [False, True])
def test_an_interrupt_at_any_line_leaves_the_old_state_or_the_new_one(
    con: einsql.Connection, transaction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> list[np.ndarray]:
        found = (con.execute(f"SELECT *, val + 0 AS v FROM {n}").fetchall() for n in NAMES)
        return [np.array([row[-1] for row in rows]) for rows in found]

    overwritten: list[object] = []
    overwrite = con.store.overwrite

    def counted(*given: Any) -> None:
        overwritten.append(given)
        overwrite(*given)

    monkeypatch.setattr(con.store, "overwrite", counted)
    line, undone, done = 1 + transaction, 0, False
    while not done:
        first = state()
        if transaction:
            con.execute("BEGIN")
        for sql in RESET:
            con.execute(sql)
        before = state()
        overwritten.clear()
        sys.settrace(Stop(line))
        try:
            con.execute(IN_PLACE)
            done = True
        except KeyboardInterrupt:
            line += EVERY
        finally:
            sys.settrace(None)
        now = state()
        pairs = zip(now, before, strict=True)
        same = [len(a) == len(b) and bool((a == b).all()) for a, b in pairs]
        assert all(same) or not any(same), (line, same)
        if all(same):
            undone += bool(overwritten)
            con.execute(IN_PLACE)
            now = state()
        a, b, x, log = before
        np.testing.assert_array_equal(now[0], a + (np.arange(5) < 3))
        np.testing.assert_array_equal(now[1], b[:-1])
        np.testing.assert_array_equal(now[2], np.where(np.arange(5) > 1, a, x))
        np.testing.assert_array_equal(now[3], [*log, *a])
        if transaction:
            con.execute("ROLLBACK")
            for now_, then in zip(state(), first, strict=True):
                np.testing.assert_array_equal(now_, then)
    assert len(overwritten) >= 5
    assert undone > 5
