"""A process that commits until it is killed, and what must be there afterwards.

Commit k makes the row of the table t and every element of x and y equal k. Every third commit is
backed up. The file of acknowledgements gets a line when a commit or a backup begins and one when
it is done.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import einsql
from einsql.engine.database.rows import payload_of

SHAPE = (300, 500)
"""Of x and y; a payload is some chunks long."""
BACKUP = ".backup"
"""How the names of backups end."""
KEYS = f"i DIM({SHAPE[0]}), j DIM({SHAPE[1]})"


def prepare(path: str) -> None:
    """Makes the database at commit 0."""
    with einsql.connect(path) as con:
        con.execute("BEGIN")
        con.store.duck.execute("CREATE TABLE t AS SELECT 0 AS k")
        for name in "xy":
            con.execute(f"CREATE TENSOR {name} ({KEYS}, val DOUBLE) DEFAULT 0")
        con.execute("COMMIT")


def state(con: einsql.Connection) -> set[float]:
    """Every number that the table and the tensors hold, as of one commit."""
    with con.store.snapshot():
        (row,) = con.store.duck.execute("FROM t")
        found = {float(row[0])}
        for name in "xy":
            found |= set(con.execute(f"SELECT MIN(val), MAX(val) FROM {name}").fetchall()[0])
    return found


def commits(con: einsql.Connection, k: int, source: str) -> None:
    """Commit number k, of one of several kinds."""
    con.execute("BEGIN")
    con.store.duck.execute("UPDATE t SET k = ?", [k])
    con.execute(f"UPDATE y SET val = {k}")
    if k % 3 == 0:
        con.execute("CREATE OR REPLACE TENSOR x AS SELECT * FROM y")
    elif k % 3 == 1:
        np.save(source, np.full(SHAPE, float(k)))
        con.execute(f"CREATE OR REPLACE TENSOR x ({KEYS}, val DOUBLE)")
        con.execute(f"COPY x FROM '{source}'")
    else:
        con.execute(f"UPDATE x SET val = {k}")
    if k % 4 == 0:
        con.execute(f"CREATE OR REPLACE VIEW v AS SELECT SUM(val) - {k} AS s FROM x")
    con.execute("COMMIT")


def run(path: str, told: str) -> None:
    """Commits without end."""
    log = os.open(told, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with einsql.connect(path, config={"jit": "never"}) as con:  # compiling is not to be killed
        k = int(max(state(con)))
        while True:
            k += 1
            os.write(log, f"begin {k}\n".encode())
            commits(con, k, f"{path}.source.npy")
            os.write(log, f"done {k}\n".encode())
            if k % 3 == 0:
                os.write(log, f"backup {k}\n".encode())
                con.execute(f"BACKUP TO '{path}.{k}{BACKUP}'")
                os.write(log, f"copied {k}\n".encode())
            if k % 7 == 0:
                con.execute("VACUUM")
                con.execute("BEGIN; UPDATE x SET val = -1; ROLLBACK")


def check(path: str, told: str) -> int:
    """Asserts that the database holds the last acknowledged commit, or the one after it.

    Returns:
        Which one it holds.
    """
    lines = [line.split() for line in Path(told).read_text().splitlines()]
    done = max((int(k) for what, k in lines if what == "done"), default=0)
    begun = max((int(k) for what, k in lines if what == "begin"), default=0)
    with einsql.connect(path) as con:
        found = state(con)
        assert len(found) == 1, f"a mixture of commits: {found}"
        (k,) = found
        assert max(done, 0) <= k <= max(begun, done), f"commit {k}, not {done} or {begun}"
        held = {payload_of(item) for item in con.store.objects.values()} - {None}
        there = set(os.listdir(f"{path}.tensors")) - {"einsql"}
        assert there == held, f"orphans: {there - held}, missing: {held - there}"
    copied = {f"{path}.{k}{BACKUP}" for what, k in lines if what == "copied"}
    check_backups(path, copied, int(k))
    return int(k)


def check_backups(path: str, copied: set[str], newest: int) -> None:
    """Asserts that each backup is one commit; removes them, and what killed ones have left.

    Args:
        path: The database.
        copied: The backups that are acknowledged; those that were checked before are gone.
        newest: The commit that the database holds.
    """
    pattern = re.compile(re.escape(path) + r"\.(\d+)" + re.escape(BACKUP))
    folder = os.path.dirname(path)
    there = [os.path.join(folder, name) for name in os.listdir(folder)]
    for target in there:
        number = pattern.fullmatch(target)
        if number is not None:
            with einsql.connect(target) as con:
                assert state(con) == {float(number[1])}, f"{target} is no commit"
            assert int(number[1]) <= newest
    seen = Path(f"{path}.seen")
    before = set(seen.read_text().split("\n")) if seen.exists() else set()
    assert copied - before <= set(there), f"lost: {copied - before - set(there)}"
    seen.write_text("\n".join(before | copied))
    for left in there:
        if BACKUP in left and os.path.isdir(left):
            shutil.rmtree(left)
        elif BACKUP in left:
            os.unlink(left)


def wait_for_commits(told: str, many: int) -> None:
    """Waits until so many more commits have begun."""
    before = Path(told).read_text().count("begin")
    for _ in range(20_000):
        if Path(told).read_text().count("begin") >= before + many:
            return
        time.sleep(0.003)
    raise TimeoutError("the process does not commit")


def kills(path: str, times: int, seed: int) -> int:
    """Kills a committing process again and again; returns how many commits there were."""
    pick = random.Random(seed)
    prepare(path)
    told = f"{path}.told"
    Path(told).touch()
    command = [sys.executable, "-m", "tests.database.victim", path, told]
    k = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for _ in range(times):
            nursery.stdin.write(b"go\n")
            nursery.stdin.flush()
            pid = int(nursery.stdout.readline())
            if pick.random() < 0.8:  # else it dies while it opens the database
                wait_for_commits(told, pick.randint(1, 4))
            time.sleep(pick.uniform(0, 0.06))
            os.kill(pid, signal.SIGKILL)
            assert nursery.stdout.readline() == b"dead\n"
            k = check(path, told)
        nursery.stdin.close()
    return k


def main() -> None:
    """Forks a process that commits whenever it is told to, for starting Python takes long."""
    path, told = sys.argv[1:]
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            run(path, told)
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
