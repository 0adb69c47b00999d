"""Ctrl-C and interrupt() at any instant: one of two exceptions, and the next statement runs."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import einsql
from tests.support.samples import sample

INTERRUPTS = int(os.environ.get("EINSQL_INTERRUPTS", "0"))
"""How many interrupts at random instants there are; they take a minute for each hundred."""
# Ctrl-C may come in a finaliser, which Python tells of and goes on, or between open() and `with`.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
EVERY = sample(61, 17)
"""One in so many lines is interrupted."""
ROWS = 200_000


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, which it does not in pytest-xdist's workers."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def con(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[einsql.Connection]:
    monkeypatch.chdir(tmp_path)
    with einsql.connect() as made:
        columns = "i, i % 100 AS k, CAST(i AS DOUBLE) AS v"
        made.execute(f"CREATE TABLE t AS SELECT {columns} FROM range({ROWS}) r(i)")
        made.execute("CREATE TENSOR a (i DIM(100), j DIM(100), val DOUBLE) DEFAULT 2")
        yield made


def works(con: einsql.Connection) -> bool:
    """Whether a statement of DuckDB's still runs."""
    return con.execute("SELECT count(*) = ? FROM t", [ROWS]).fetchall() == [(True,)]


@contextmanager
def ctrl_c() -> Iterator[None]:
    """Sends SIGINT after a moment, and again where Python has ignored what its handler raised.

    Python reports an interrupt in a finaliser to `sys.unraisablehook`. Only then a second signal
    comes: while the first one is handled, it would end the test's own process.
    """
    came, ignored = threading.Event(), threading.Event()
    hook = sys.unraisablehook
    sys.unraisablehook = lambda report: ignored.set()

    def send() -> None:
        time.sleep(0.01)
        ignored.clear()
        os.kill(os.getpid(), signal.SIGINT)
        while not came.wait(0.1):
            if ignored.is_set():
                ignored.clear()
                os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        yield
    finally:
        came.set()
        sender.join()
        sys.unraisablehook = hook


def until_interrupted(work: Callable[[], object]) -> None:
    """Does what may be over before a signal comes, and waits for it."""
    work()
    time.sleep(60)


def test_ctrl_c_in_what_duckdb_reads_is_a_keyboard_interrupt(con: einsql.Connection) -> None:
    """DuckDB asks for rows in the main thread, or in one of its own while that waits."""
    schema = pa.schema({"x": pa.int64()})

    def batches() -> Iterator[pa.RecordBatch]:
        for n in range(1000):
            yield pa.record_batch([np.full(1000, n)], schema=schema)
            if n == 10:
                os.kill(os.getpid(), signal.SIGINT)

    rows = pa.RecordBatchReader.from_batches(schema, batches())
    with pytest.raises(KeyboardInterrupt):
        until_interrupted(lambda: con.register("rows", rows))
    assert works(con)


FETCHES: list[Callable[[einsql.Cursor], object]] = [
    lambda c: c.fetchall(),
    lambda c: c.fetchmany(10),
    lambda c: c.fetchone(),
    list,
    lambda c: c.fetch_arrow_table(),
    lambda c: c.fetch_df(),
    lambda c: c.fetch_numpy(),
    lambda c: c.__arrow_c_stream__(),
]


@pytest.mark.parametrize("fetch", FETCHES)
def test_ctrl_c_while_rows_are_fetched_is_a_keyboard_interrupt(
    con: einsql.Connection, fetch: Callable[[einsql.Cursor], object]
) -> None:
    cursor = con.execute("SELECT *, 'x' || i AS s FROM t")
    with pytest.raises(KeyboardInterrupt), ctrl_c():
        until_interrupted(lambda: fetch(cursor))
    assert works(con)


def test_with_another_handler_it_is_an_interrupted_error(con: einsql.Connection) -> None:
    class OtherError(Exception):
        pass

    def handle(number: int, frame: FrameType | None) -> None:
        raise OtherError

    signal.signal(signal.SIGINT, handle)
    cursor = con.execute("SELECT *, 'x' || i AS s FROM t")
    with pytest.raises((einsql.InterruptedError, OtherError)), ctrl_c():
        until_interrupted(cursor.fetchall)
    assert works(con)


class CtrlC:
    """Raises KeyboardInterrupt at the n-th line of what talks to DuckDB."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        within = os.path.join("storage", "duckdb") in frame.f_code.co_filename
        return self.count if within else None

    def count(self, frame: FrameType, event: str, arg: object) -> Any:
        self.left -= event == "line"
        if not self.left:
            self.left = -1
            raise KeyboardInterrupt
        return self.count


STATEMENTS = [
    "SELECT k, sum(v) FROM t GROUP BY k ORDER BY k",
    "SELECT t.k, a.val FROM t JOIN a ON a.i = t.i AND a.j = 0",
    "BEGIN; UPDATE t SET v = v + 1 WHERE i < 10; COMMIT",
    "CREATE OR REPLACE TENSOR b AS SELECT i, v FROM t WHERE i < 100",
]


@pytest.mark.parametrize("sql", STATEMENTS)
def test_ctrl_c_at_any_line_leaves_a_connection_that_works(
    con: einsql.Connection, sql: str
) -> None:
    for line in range(1, 2000, EVERY):
        before = sys.gettrace()
        sys.settrace(CtrlC(line))
        try:
            con.execute(sql)
        except KeyboardInterrupt:
            more = True
        else:
            more = False
        finally:
            sys.settrace(before)
        con.rollback()
        assert works(con), line
        if not more:
            assert line > EVERY
            return
    raise AssertionError("the statement has fewer lines")


WORK: list[Callable[[einsql.Connection], object]] = [
    *(lambda con, sql=sql: con.execute(sql) for sql in STATEMENTS),
    *(lambda con, fetch=fetch: fetch(con.execute("SELECT * FROM t")) for fetch in FETCHES),
    lambda con: con.execute("SELECT a.i, b.j, SUM(a.val * b.val) AS s FROM a JOIN a b ON a.j = b.i "
                            "GROUP BY a.i, b.j").fetch_numpy(),
    lambda con: con.execute("COPY t TO 't.parquet'; COPY a TO 'a.csv'"),
    lambda con: con.execute("EXPLAIN ANALYZE SELECT k, median(v) FROM t GROUP BY k").fetchall(),
    lambda con: con.execute("CREATE OR REPLACE TABLE u AS SELECT i, j, val + 1 AS v FROM a"),
    lambda con: con.register("frame", pd.DataFrame({"x": np.arange(ROWS)})),
]  # fmt: skip


@pytest.mark.skipif(not INTERRUPTS, reason="EINSQL_INTERRUPTS=400 says how many there are")
@pytest.mark.parametrize("by_signal", [True, False])
def test_interrupts_at_random_instants(con: einsql.Connection, by_signal: bool) -> None:
    chance, came = random.Random(), 0
    lasts = []
    for work in WORK:
        start = time.perf_counter()
        work(con)
        lasts.append(time.perf_counter() - start)

    def send(delay: float) -> None:
        time.sleep(delay)
        if by_signal:
            os.kill(os.getpid(), signal.SIGINT)
        else:
            con.interrupt()

    for _ in range(INTERRUPTS):
        n = chance.randrange(len(WORK))
        sender = threading.Thread(target=send, args=(chance.random() * lasts[n],))
        try:
            sender.start()
            WORK[n](con)
            sender.join()
        except (KeyboardInterrupt, einsql.InterruptedError):
            came += 1
        sender.join()
        con.rollback()
        assert works(con)
    print(f"{came} of {INTERRUPTS} came in time")
