"""Ctrl-C at any line of a commit: every connection and the file agree on what is true."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import einsql
from tests.support.samples import sample

INVOLVED = ("_commit", "_end", "_follow_rows", "_show", "begin", "commit", "put", "statement")
"""Functions around DuckDB's commit, where memory and file may differ."""
EVERY = sample(37, 5)
"""One in so many lines is interrupted."""


class CtrlC:
    """Raises KeyboardInterrupt at the n-th line of the functions involved."""

    def __init__(self, line: int) -> None:
        self.left = line

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        involved = frame.f_code.co_name in INVOLVED and "storage" in frame.f_code.co_filename
        return self.count if involved else None

    def count(self, frame: FrameType, event: str, arg: object) -> Any:
        self.left -= event == "line"
        if not self.left:
            self.left = -1
            raise KeyboardInterrupt
        return self.count


def interrupted(con: einsql.Connection, sql: str, line: int) -> bool:
    """Runs a statement; True if it has so many lines, at the last of which it was interrupted."""
    before = sys.gettrace()
    sys.settrace(CtrlC(line))
    try:
        con.execute(sql)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def total(con: einsql.Connection) -> object:
    return con.execute("SELECT SUM(v) FROM a").fetchall()[0][0]


@pytest.mark.parametrize("transaction", [True, False])
def test_an_interrupted_commit_is_there_or_not_for_everybody(
    tmp_path: Path, transaction: bool
) -> None:
    for line in range(1, 1000, EVERY):
        path = str(tmp_path / f"{line}.db")
        with einsql.connect(path) as con, einsql.connect(path) as other:
            con.execute("CREATE TENSOR a (i DIM(4), v DOUBLE) DEFAULT 1; CREATE TABLE t (x INT)")
            if transaction:
                con.execute("BEGIN; UPDATE a SET v = 2; INSERT INTO t VALUES (1)")
            more = interrupted(con, "COMMIT" if transaction else "UPDATE a SET v = 2", line)
            con.rollback()
            found = {total(con), total(other)}
            if transaction:
                sums = [c.execute("SELECT count(*) FROM t").fetchone() for c in (con, other)]
                found |= {4.0 if rows == (0,) else 8.0 for rows in sums}
            con.execute("CREATE TENSOR b (i DIM(4), v DOUBLE) DEFAULT 1")  # commits, and sweeps
            other.execute("BEGIN; UPDATE b SET v = 3; COMMIT")
        with einsql.connect(path, read_only=True) as con:
            assert found | {total(con)} == {total(con)}, line
            assert con.execute("SELECT SUM(v) FROM b").fetchone() == (12.0,)
        if not more:
            assert line > EVERY
            return
    raise AssertionError("a commit has fewer lines")


def test_ctrl_c_while_a_thread_starts_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start

    def interrupted_start(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    with einsql.connect() as con:
        con.execute("CREATE TABLE t (k INT)")
        long = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(1000000) b"
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted_start)
            with pytest.raises(KeyboardInterrupt):
                con.duck.run(lambda: con.duck.execute(long), lambda fraction: None)
        for thread in threading.enumerate():
            if "worker" in thread.name:  # what has begun is stopped, and what has not never begins
                thread.join(10)
                assert not thread.is_alive()
        assert con.execute("SELECT 'a' || count(*) FROM t").fetchall() == [("a0",)]
