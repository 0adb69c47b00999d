"""A process that commits until it is killed, and what must be there afterwards.

Commit k makes the row of the table t, every element of x and y, and two rows of z and of the sparse
tensor q equal k. Every
third commit is backed up. The file of acknowledgements gets a line when a commit or a backup
begins, one before a commit's first payload is written and one when it is done, each with the time.
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
from collections import Counter
from pathlib import Path
from statistics import median

import numpy as np

import einsql
from einsql.storage.database.rows import files_of
from einsql.storage.database.tiles import tile_grid
from tests.storage.database.forking import import_everything

SHAPE = (300, 500)
"""Of x and y; a payload is some chunks long."""
BACKUP = ".backup"
"""How the names of backups end."""
KEYS = f"i DIM({SHAPE[0]}), j DIM({SHAPE[1]})"
ROWS, TILE = 40, 320
"""The rows of z, and the bytes of a tile while a process is to be killed: one row."""


def prepare(path: str) -> None:
    """Makes the database at commit 0."""
    with einsql.connect(path) as con:
        con.execute("BEGIN")
        con.store.duck.execute("CREATE TABLE t AS SELECT 0 AS k")
        for name in "xy":
            con.execute(f"CREATE TENSOR {name} ({KEYS}, val DOUBLE) DEFAULT 0")
        con.execute(f"CREATE TENSOR z (i DIM({ROWS}), j DIM({TILE // 8}), val DOUBLE) DEFAULT 0")
        con.execute("CREATE TENSOR q STORAGE SPARSE AS SELECT i, j, val FROM z")
        con.execute("COMMIT")


def state(con: einsql.Connection) -> set[float]:
    """Every number that the table and the tensors hold, as of one commit."""
    with con.store.snapshot():
        (row,) = con.store.duck.execute("FROM t")
        found = {float(row[0])}
        for name in "xy":
            found |= set(con.execute(f"SELECT MIN(val), MAX(val) FROM {name}").fetchall()[0])
        lists = [rows(con, name) for name in "zq"]
    return found | {first if first >= max(rest) else -1.0 for first, *rest in lists}


def rows(con: einsql.Connection, name: str) -> list[float]:
    """The number in each row of z or q; -1 for a row with several."""
    query = f"SELECT i, MIN(val), MAX(val) FROM {name} GROUP BY i ORDER BY i"
    found = con.execute(query).fetchall()
    return [float(lo) if lo == hi else -1.0 for _, lo, hi in found]


def history(k: int) -> list[float]:
    """The rows of z, and of q, after commits 1 to k: each changes the first one and another."""
    written = [0.0] * ROWS
    for n in range(max(1, k - ROWS), k + 1):
        written[0] = written[1 + n % (ROWS - 1)] = n
    return written


def commits(con: einsql.Connection, k: int, source: str) -> None:
    """Commit number k, of one of several kinds."""
    con.execute("BEGIN")
    con.store.duck.execute("UPDATE t SET k = ?", [k])
    con.execute(f"UPDATE y SET val = {k}")
    for name in "zq":
        con.execute(f"UPDATE {name} SET val = {k} WHERE i = 0")
        con.execute(f"UPDATE {name} SET val = {k} WHERE i = {1 + k % (ROWS - 1)}")
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
    writing = False

    def note(what: str) -> None:
        os.write(log, f"{what} {k} {time.monotonic()}\n".encode())

    def hears(event: str, details: tuple[object, ...]) -> None:
        nonlocal writing
        if event == "open" and not writing and str(details[0]).endswith(".arrow.part"):
            writing = True
            note("writes")

    sys.addaudithook(hears)
    with einsql.connect(path, config={"jit": "never"}) as con:  # compiling is not to be killed
        k = int(max(state(con)))
        while True:
            k += 1
            writing = False
            note("begin")
            commits(con, k, f"{path}.source.npy")
            note("done")
            writing = True  # what follows is a copy, or rolled back
            if k % 3 == 0:
                note("backup")
                con.execute(f"BACKUP TO '{path}.{k}{BACKUP}'")
                note("copied")
            if k % 7 == 0:
                con.execute("VACUUM")
                con.execute("BEGIN; UPDATE x SET val = -1; ROLLBACK")


def check(path: str, told: str) -> int:
    """Asserts that the database holds the last acknowledged commit, or the one after it.

    Returns:
        Which one it holds.
    """
    lines = read(told)
    done = max((k for what, k, _ in lines if what == "done"), default=0)
    begun = max((k for what, k, _ in lines if what == "begin"), default=0)
    with einsql.connect(path) as con:
        found = state(con)
        assert len(found) == 1, f"a mixture of commits: {found}"
        (k,) = found
        assert rows(con, "z") == rows(con, "q") == history(int(k))
        assert max(done, 0) <= k <= max(begun, done), f"commit {k}, not {done} or {begun}"
        held = frozenset().union(*map(files_of, con.store.objects.values()))
        there = set(os.listdir(f"{path}.tensors")) - {"einsql"}
        assert there == held, f"orphans: {there - held}, missing: {held - there}"
    copied = {f"{path}.{k}{BACKUP}" for what, k, _ in lines if what == "copied"}
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


def read(told: str) -> list[tuple[str, int, float]]:
    """The acknowledgements: what, the commit's number, and when in seconds."""
    lines = (line.split() for line in Path(told).read_text().splitlines())
    return [(what, int(k), float(at)) for what, k, at in lines]


def wait_for(told: str, what: str, many: int) -> None:
    """Waits until so many more lines say that something has happened."""
    with Path(told).open() as file:
        file.seek(0, os.SEEK_END)
        for _ in range(60_000):
            many -= file.read().count(what)
            if many <= 0:
                return
            time.sleep(0.001)
    raise TimeoutError("the process does not commit")


def died(told: str, before: int) -> str:
    """Where a process died: while it opened the file, committed, or between commits.

    Args:
        told: The acknowledgements.
        before: How many there were when it started.
    """
    last = [what for what, _, _ in read(told)[before:]][-1:]
    places = {
        "begin": "before the first payload",
        "writes": "between the first payload and the return",
        "done": "after the return",
        "backup": "in a backup",
        "copied": "after the return",
    }
    return places[last[0]] if last else "opening"


def kills(path: str, times: int, seed: int) -> tuple[int, Counter[str]]:
    """Kills a committing process again and again.

    Most kills are aimed at the time from the first write of a payload to the return of COMMIT,
    as long as it took lately.

    Returns:
        How many commits there were, and where the processes died.
    """
    pick = random.Random(seed)
    prepare(path)
    told = f"{path}.told"
    Path(told).touch()
    command = [sys.executable, "-m", "tests.storage.database.victim", path, told]
    k, places = 0, Counter[str]()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        for _ in range(times):
            before = len(read(told))
            nursery.stdin.write(b"go\n")
            nursery.stdin.flush()
            pid = int(nursery.stdout.readline())
            aim = pick.random()
            if aim < 0.75:
                wait_for(told, "writes", pick.randint(1, 3))
                time.sleep(pick.uniform(0, 0.8 * lasted(told)))
            elif aim < 0.9:
                wait_for(told, "begin", pick.randint(1, 4))
                time.sleep(pick.uniform(0, 0.06))
            else:  # it dies while it opens the database
                time.sleep(pick.uniform(0, 0.06))
            os.kill(pid, signal.SIGKILL)
            assert nursery.stdout.readline() == b"dead\n"
            places[died(told, before)] += 1
            k = check(path, told)
        nursery.stdin.close()
    return k, places


def lasted(told: str) -> float:
    """Seconds from the first write of a payload to the return, of the latest commits."""
    lines = read(told)[-60:]
    began = {k: at for what, k, at in lines if what == "writes"}
    took = [at - began[k] for what, k, at in lines if what == "done" and k in began]
    return median(took) if took else 0.02


def main() -> None:
    """Forks a process that commits whenever it is told to, for starting Python takes long."""
    path, told = sys.argv[1:]
    import_everything()
    tile_grid.TILE = TILE
    for _ in sys.stdin:
        pid = os.fork()
        if not pid:
            run(path, told)
        print(pid, flush=True)
        os.waitpid(pid, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
