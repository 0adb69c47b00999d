"""A process that forks children while it has a database open, for test_fork.py.

After each child it commits once more and copies the database's files, which is what they would
hold if the process were killed then. What it prints are JSON objects, one for each child.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import numpy as np

import einsql
from tests.support.samples import sample

LIMIT = 60
"""Seconds for which a child may run."""


@dataclass
class World:
    """What the process has when it forks.

    Attributes:
        path: The database's file.
        con: A connection to it, with tables, tensors and what is not checkpointed.
        memory: One to a database in memory, with a table and a tensor.
        cursors: Of both, with rows that are not fetched yet.
        array: A result.
        rows: Rows of another.
    """

    path: str
    con: einsql.Connection
    memory: einsql.Connection
    cursors: list[einsql.Cursor]
    array: np.ndarray
    rows: list[tuple[object, ...]]


def world(path: str) -> World:
    """Opens the database and commits number 0."""
    con, memory = einsql.connect(path), einsql.connect()
    con.execute("CREATE TABLE t AS SELECT 0 AS k")
    con.execute("CREATE TENSOR w (i DIM(1000), val DOUBLE) DEFAULT 0")
    con.execute("PREPARE one AS SELECT k FROM t")
    memory.execute("CREATE TABLE t AS SELECT range AS k FROM range(5)")
    memory.register("x", np.eye(3), dims=("i", "j"))
    cursors = [
        con.execute("SELECT k FROM t"),
        con.execute("SELECT i, val FROM w"),
        memory.execute("SELECT k FROM t ORDER BY k"),
        memory.execute("SELECT i, j, val FROM x"),
    ]
    cursors[2].fetchone()
    array = con.execute("SELECT i, val FROM w").fetch_numpy()
    return World(path, con, memory, cursors, array, con.execute("SELECT k FROM t").fetchall())


def commit(it: World, number: int) -> None:
    """Commit of a number: the row of t and every element of w."""
    it.con.execute(f"BEGIN; UPDATE t SET k = {number}; UPDATE w SET val = {number}; COMMIT")


# ---- what children do


def refusals(it: World) -> list[str]:
    """Uses everything that was inherited; the errors."""
    uses: list[Callable[[], object]] = [
        lambda: it.con.execute("SELECT 1"),
        lambda: it.con.execute("EXECUTE one"),
        lambda: it.con.execute("INSERT INTO t VALUES (-1)"),
        lambda: it.con.execute("UPDATE w SET val = -1"),
        lambda: it.con.execute("VACUUM"),
        lambda: it.con.execute("CHECKPOINT"),
        lambda: it.con.execute("BEGIN"),
        it.con.commit,
        it.con.rollback,
        it.con.cursor,
        lambda: it.con.register("y", np.eye(2)),
        lambda: it.memory.execute("SELECT k FROM t"),
        lambda: it.memory.execute("SELECT i, j, val FROM x"),
        lambda: it.memory.unregister("x"),
    ]
    for cursor in it.cursors:
        uses += [cursor.fetchone, cursor.fetchall, cursor.fetch_arrow_table, cursor.fetch_numpy]
        uses.append(partial(cursor.execute, "SELECT 1"))
    return [refusal(use) for use in uses]


def refusal(use: Callable[[], object]) -> str:
    """What einsql says to a use, and of which class."""
    try:
        use()
    except einsql.Error as error:
        return f"{type(error).__name__}: {error.reason}"
    return "nothing"


def closes(it: World) -> object:
    """Closes everything."""
    for cursor in it.cursors:
        cursor.close()
    it.con.close()
    with it.memory:
        pass
    return [it.con.closed, it.memory.closed]


def writes(it: World) -> object:
    """Tries to change and to read the parent's database."""
    return refusals(it)


def reads(it: World) -> object:
    """Reads what was fetched before."""
    return [float(it.array.sum()), it.rows, it.cursors[2].rowcount]


def collects(it: World) -> object:
    """Drops everything."""
    it.cursors.clear()
    del it.con, it.memory
    return gc.collect() >= 0


def opens(it: World) -> object:
    """Opens the parent's file, to write and to read, and another one."""
    told = [refusal(lambda: einsql.connect(it.path))]
    told.append(refusal(lambda: einsql.connect(it.path, read_only=True)))
    other = f"{it.path}-other"
    with einsql.connect(other) as con:
        con.execute("CREATE TABLE u AS SELECT 7 AS k; CREATE TENSOR v AS SELECT k AS val FROM u")
    with einsql.connect(other) as con:
        return told, con.execute("SELECT val FROM v").fetchall()


def begins(it: World) -> object:
    """Uses connections of its own, with tables, kernels that are compiled, and threads."""
    with einsql.connect() as con:
        con.execute("CREATE TABLE t AS SELECT range AS k FROM range(100000)")
        total = con.execute("SELECT SUM(k) AS s FROM t").fetchall()
        ramp = np.arange(90_000.0).reshape(300, 300)
        con.register("a", ramp, dims=("i", "j"))
        most = con.execute("SELECT i, MAX(val * 2 - j) AS m FROM a GROUP BY i").fetch_numpy()
        product = con.execute(
            "SELECT x.i, y.j, SUM(x.val * y.val) AS val FROM a x JOIN a y ON x.j = y.i "
            "GROUP BY x.i, y.j"
        ).fetch_numpy()
    rows = np.arange(300.0) * 300
    close = [  # without NumPy's products, which may not be interrupted by a fork
        bool(np.allclose(most[1:], rows[1:] * 2 + 299)),
        bool(np.allclose(product[:, 0], ((ramp * rows).sum(axis=1)))),
    ]
    return total, close, einsql.einsum("ij->i", np.eye(2)).tolist()


def forks_again(it: World) -> object:
    """Has a child of its own, which is refused as well."""
    with einsql.connect() as con:
        con.execute("CREATE TABLE t AS SELECT 1 AS k")
        child = os.fork()
        if child == 0:
            told = {refusal(lambda: con.execute("SELECT k FROM t")), *refusals(it)}
            os._exit(0 if len(told) == 2 and "nothing" not in told else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, con.execute("SELECT k FROM t").fetchall()


ALL = ("exit", "raise", "os._exit")
"""How children end: through the interpreter's end, by an exception, or without."""
ACTIONS = {
    writes: ALL, closes: sample(ALL[1:2], ALL), collects: sample(ALL[2:], ALL), reads: ("exit",),
    opens: ("exit",), begins: ("exit",), forks_again: ("exit",),
}  # fmt: skip


def fork(it: World, action: Callable[[World], object], end: str) -> tuple[int, str, str]:
    """Has a child do something; its status, what it tells, and what it writes as errors."""
    reading, writing = os.pipe()
    errors = f"{it.path}.stderr"
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        try:
            os.write(writing, json.dumps(action(it)).encode())
        except BaseException:
            traceback.print_exc()
        if end == "raise":
            raise KeyError(action.__name__)
        if end == "exit":
            sys.exit(0)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        told = file.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with open(errors, encoding="utf-8") as text:
        return status, told, text.read()


def copy(path: str, target: str) -> None:
    """Copies a database's files as they are."""
    for suffix in ("", ".wal"):
        with suppress(FileNotFoundError):
            shutil.copy(path + suffix, target + suffix)
    shutil.copytree(f"{path}.tensors", f"{target}.tensors")


def survive(path: str) -> None:
    """Has children do everything, and is killed."""
    it = world(path)
    for number, (action, ends) in enumerate(ACTIONS.items(), 1):
        for end in ends:
            status, told, errors = fork(it, action, end)
            commit(it, number)
            target = f"{path}-{action.__name__}-{end}"
            copy(path, target)
            line = {"action": action.__name__, "end": end, "status": status, "told": told}
            print(json.dumps({**line, "errors": errors, "copy": target, "commit": number}))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def runs_threads(path: str) -> None:
    """Has children while other threads run statements of every kind; is killed in the end."""
    it = world(path)
    begins(it)  # imports: a child would find locks of Python's on modules that are being imported
    stopped = threading.Event()

    def work(step: Callable[[int], object]) -> None:
        number = 0
        while not stopped.is_set():
            number += 1
            step(number)
            time.sleep(sample(0.02, 0.002))  # two cores are few for all of them

    def connects(number: int) -> None:
        with einsql.connect(f"{path}-{number % 2}") as con:
            con.execute("CREATE OR REPLACE TABLE t AS SELECT 1 AS k")

    steps = (connects, lambda number: commit(it, number), lambda number: begins(it))
    threads = [threading.Thread(target=work, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    statuses = []
    for n in range(int(os.environ.get("EINSQL_FORKS", sample("2", "3")))):
        time.sleep(0.01 * n)
        statuses.append(fork(it, begins, "exit")[:2])
    stopped.set()
    for thread in threads:
        thread.join()
    commit(it, 77)
    print(json.dumps(statuses))
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def shares(path: str) -> None:
    """Has a child and a child's child open a file that all of them only read."""
    with einsql.connect(path) as con:
        con.execute("CREATE TABLE t AS SELECT 3 AS k; CREATE TENSOR w AS SELECT k AS val FROM t")
    con = einsql.connect(path, read_only=True)

    def read(depth: int) -> list[object]:
        with einsql.connect(path, read_only=True) as own:
            found: list[object] = [own.execute("SELECT k FROM t").fetchall()]
            found.append(own.execute("SELECT val FROM w").fetchall())
            if depth:
                it = World(path, own, own, [], np.zeros(0), [])
                found.append(fork(it, lambda _: read(depth - 1), "os._exit")[:2])
            return found

    it = World(path, con, con, [], np.zeros(0), [])
    print(json.dumps([fork(it, lambda _: read(1), "exit"), con.execute("FROM t").fetchall()]))


if __name__ == "__main__":
    {"survive": survive, "threads": runs_threads, "shares": shares}[sys.argv[1]](sys.argv[2])
