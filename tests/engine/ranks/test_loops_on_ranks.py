"""FOR on MPI ranks: results of one site, few waits, and the steps that are kept."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import einsql
from einsql.engine.ranks.driver import Cluster
from tests.engine.ranks.conftest import Connected
from tests.engine.ranks.processes import ranks_of
from tests.support.samples import spread

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

LOOP = """FOR step IN range({}) DO
  UPDATE w SET val = w.val * 0.5 + step;
  SELECT SUM(val) AS total FROM w;
END FOR"""

OVERFLOW = """FOR step IN range(40) DO
  UPDATE w SET val = w.val + 1;
  UPDATE n SET val = n.val * 2;
  SELECT SUM(val) AS total FROM w;
END FOR"""
"""The values of n overflow at step 30, on the second rank only."""

LOOPS = [
    LOOP.format(30),
    # One statement is the body; it has a parameter that changes, and the row of the old state.
    """FOR step IN range(20) DO
      WITH d AS (SELECT i, val * 0.9 + step AS val FROM w),
           u AS (UPDATE w SET val = d.val FROM d WHERE d.i = w.i),
           t AS (INSERT OR REPLACE INTO sums SELECT step AS t, SUM(val) AS val FROM d)
      SELECT SUM(val) AS total FROM w;
    END FOR""",
    "FOR step IN range(9) DO UPDATE w SET val = w.val + step; END FOR",
    # A window of the old state, at another place in each step.
    """FOR step IN range(12) DO
      WITH s AS (SELECT SUM(val) AS val FROM w WHERE i >= step % 4 * 2 AND i < step % 4 * 2 + 2),
           u AS (UPDATE w SET val = w.val * 0.5)
      SELECT val FROM s;
    END FOR""",
    # Rows that are no only row of their result.
    """FOR step IN range(8) DO
      UPDATE w SET val = w.val + 1;
      SELECT val FROM w WHERE i = step;
    END FOR""",
    """FOR e IN range(3) DO
      FOR step IN range(5) DO UPDATE w SET val = w.val + step * e; END FOR;
      SELECT MAX(val) AS m FROM w;
    END FOR""",
    """FOR step IN range(6) DO
      UPDATE w SET val = w.val + 1 WHERE i < 5; DELETE FROM holes WHERE i = step;
      SELECT COUNT(*) AS c FROM holes;
    END FOR""",
]

APART = [
    "FOR step IN range(5) DO UPDATE w SET val = w.val + 1; COMMIT; END FOR",
    """FOR step IN range(5) DO
      UPDATE w SET val = w.val + 1; INSERT INTO log SELECT step, SUM(val) FROM w;
    END FOR""",
    # The rows of a SELECT before DuckDB's first statement of the step.
    """FOR step IN range(5) DO
      UPDATE w SET val = w.val + step; SELECT SUM(val) AS total FROM w;
      INSERT INTO log SELECT step, SUM(val) FROM w;
    END FOR""",
]
"""Loops whose steps end with a commit."""


class Counts(Counter[str]):
    """Counts of the session's calls of ranks."""


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Counts runs that the session waits for (`call`), and those that it does not (`start`)."""
    counted = Counts()
    for name in ("call", "start"):
        real: Callable[..., Any] = getattr(Cluster, name)

        def count(self: Cluster, *given: Any, name: str = name, real: Any = real) -> object:
            counted[name] += 1
            return real(self, *given)

        monkeypatch.setattr(Cluster, name, count)
    return counted


@pytest.fixture
def alone() -> Iterator[einsql.Connection]:
    with einsql.connect() as con:
        fill(con)
        yield con


def fill(con: einsql.Connection) -> None:
    """Creates the tensors that the loops change."""
    con.execute("CREATE TENSOR w (i DIM(8), val DOUBLE) PARTITION BY (i 2) DEFAULT 1")
    con.execute("CREATE TENSOR n (i DIM(8), val INTEGER) PARTITION BY (i 2) DEFAULT 0")
    con.execute("UPDATE n SET val = 1 WHERE i = 6")
    con.execute("CREATE TENSOR sums (t DIM(40), val DOUBLE)")
    con.execute("CREATE TENSOR holes (i DIM(8), val DOUBLE)")
    con.execute("INSERT INTO holes SELECT i, i / 2 AS val FROM range(6) r(i)")
    con.execute("CREATE TABLE log (step INTEGER, total DOUBLE)")


def state(con: einsql.Connection) -> list[list[tuple[object, ...]]]:
    """Returns the rows of every tensor and table."""
    names = ("w", "n", "sums", "holes", "log")
    return [con.execute(f"SELECT * FROM {name} ORDER BY ALL").fetchall() for name in names]


def rows_of(con: einsql.Connection, sql: str) -> object:
    """Returns the rows of a loop, or the number of changed rows."""
    cursor = con.execute(sql)
    return cursor.rowcount if cursor.description is None else cursor.fetchall()


def error_of(con: einsql.Connection, sql: str) -> einsql.Error:
    """Returns the error of a statement."""
    with pytest.raises(einsql.Error) as caught:
        con.execute(sql)
    return caught.value


def test_loops_give_the_results_of_one_site(connected: Connected, alone: einsql.Connection) -> None:
    con = connected(2)
    fill(con)
    for sql in spread(LOOPS, 4) + spread(APART, 2):
        assert rows_of(con, sql) == rows_of(alone, sql)
        assert state(con) == state(alone)


def test_the_session_does_not_wait_for_each_step(connected: Connected, counts: Counts) -> None:
    con = connected(2)
    fill(con)
    con.execute(LOOP.format(30))
    counts.clear()
    con.execute(LOOP.format(30)).fetchall()
    assert counts == {"call": 2, "start": 58}  # a loop's first step is run alone
    con.execute(APART[0])
    counts.clear()
    con.execute(APART[0])
    assert not counts["start"]


def test_a_callback_for_rows_sees_the_state_after_each_step(
    connected: Connected, counts: Counts
) -> None:
    con = connected(2)
    fill(con)
    seen = []
    con.stepped = lambda _, row: seen.append(
        (row, con.execute("SELECT SUM(val) FROM w").fetchall())
    )
    rows = con.execute(LOOP.format(6)).fetchall()
    assert seen == [(row, [row[1:]]) for row in rows]
    assert not counts["start"]
    con.execute("UPDATE w SET val = 1")
    con.stepped = lambda _, row: con.interrupt() if row[0] == 3 else None
    with pytest.raises(einsql.errors.InterruptedError, match="up to step = 3 are kept"):
        con.execute(LOOP.format(6))
    con.stepped = None
    assert con.execute("SELECT SUM(val) FROM w").fetchall() == [rows[3][1:]]


@pytest.mark.parametrize("inside", [False, True])
def test_a_failure_on_one_rank_undoes_its_step_on_all(
    connected: Connected, alone: einsql.Connection, counts: Counts, inside: bool
) -> None:
    con = connected(2)
    fill(con)
    for each in (con, alone):
        if inside:
            each.execute("BEGIN")
            each.execute("UPDATE holes SET val = 9")
    before = state(con)
    found, wanted = error_of(con, OVERFLOW), error_of(alone, OVERFLOW)
    assert counts["start"] > 60
    assert "up to step = 29 are kept" in wanted.hint
    assert (str(found), found.position) == (str(wanted), wanted.position)
    assert state(con) == state(alone) != before
    assert rows_of(con, LOOP.format(5)) == rows_of(alone, LOOP.format(5))
    if inside:
        con.execute("ROLLBACK")
        alone.execute("ROLLBACK")
    assert state(con) == state(alone)


def test_a_step_with_several_rows_is_undone(connected: Connected, alone: einsql.Connection) -> None:
    con = connected(2)
    fill(con)
    sql = """FOR s IN range(9) DO
      UPDATE w SET val = w.val + 1;
      SELECT val FROM w WHERE i * 4 < s;
    END FOR"""
    found, wanted = error_of(con, sql), error_of(alone, sql)
    assert (str(found), found.position) == (str(wanted), wanted.position)
    assert "s = 4 are kept" in wanted.hint
    assert state(con) == state(alone)


def kept_steps(error: einsql.Error) -> int:
    """Returns the number of steps that the hint of a loop's error names as kept."""
    return int(error.hint.split("up to step = ")[1].split(" ")[0]) + 1


@pytest.mark.parametrize("by_signal", [False, True])
def test_an_interrupt_keeps_whole_steps(
    connected: Connected, interruptible: None, by_signal: bool
) -> None:
    con = connected(2)
    fill(con)
    sql = """FOR step IN range(100000) DO
      UPDATE w SET val = w.val + 1; UPDATE n SET val = step;
    END FOR"""
    con.execute(sql.replace("100000", "3"))
    con.execute("UPDATE w SET val = 0")

    def stop() -> None:
        time.sleep(0.3)
        if by_signal:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            con.interrupt()

    thread = threading.Thread(target=stop)
    thread.start()
    expected = KeyboardInterrupt if by_signal else einsql.errors.InterruptedError
    with pytest.raises(expected) as caught:
        con.execute(sql)
    thread.join()
    ((steps,),) = con.execute("SELECT MAX(val) FROM w").fetchall()
    assert 0 < steps < 100000
    assert con.execute("SELECT MIN(val) FROM w").fetchall() == [(steps,)]
    assert con.execute("SELECT MAX(val) FROM n").fetchall() == [(steps - 1,)]
    if isinstance(caught.value, einsql.Error):
        assert kept_steps(caught.value) == steps


def test_another_connection_uses_the_ranks_during_a_loop(connected: Connected) -> None:
    con, other = connected(2), connected(2)
    for each in (con, other):
        fill(each)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for n in range(20):
                found = other.execute(f"SELECT SUM(val * {n}) FROM w").fetchall()
                assert found == [(8.0 * n,)]
            other.execute(LOOP.format(10))
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    rows = con.execute(LOOP.format(100)).fetchall()
    assert len(rows) == 100
    error = error_of(con, OVERFLOW)
    thread.join()
    assert not failures
    assert kept_steps(error) == 30


def test_a_rank_that_ends_ends_the_loop() -> None:
    others = ranks_of(os.getpid())
    with einsql.connect(config={"mpi": 2}) as con:
        con.execute("SET sites = 2")
        fill(con)
        con.execute(LOOP.format(3))
        own = [pid for pid in ranks_of(os.getpid()) if pid not in others]
        timer = threading.Timer(0.3, os.kill, (own[1], signal.SIGKILL))
        timer.start()
        with pytest.raises(einsql.OperationalError) as caught:
            con.execute(LOOP.format(1000000))
        timer.join()
        assert "are kept" in caught.value.hint
        con.execute("CREATE OR REPLACE TENSOR w (i DIM(8), val DOUBLE) DEFAULT 1")
        assert len(con.execute(LOOP.format(20)).fetchall()) == 20
