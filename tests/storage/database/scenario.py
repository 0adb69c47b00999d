"""What a process does to a database file while its calls are logged or fail.

Each step of a scenario is one commit, or changes nothing that can be seen. The log gets a note
when a step begins, and when it is done with what the database shows then.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import einsql
from einsql.storage.database.rows import files_of
from einsql.storage.database.tiles import tile_grid
from tests.storage.database.forking import import_everything

KEYS = "i DIM(300), j DIM(5)"
TILE = 1000
"""Bytes of a tile: the tensors of the scenarios have 12, and the sparse one 8 blocks."""
SHOWN = {
    "t": "SELECT count(*), max(k) FROM t",
    "u": "SELECT count(*), max(k) FROM u",
    "x": "SELECT MIN(val), MAX(val), COUNT(*), SUM(val) FROM x",
    "y": "SELECT MIN(val), MAX(val), COUNT(*) FROM y",
    "v": "SELECT s FROM v",
    "s": "SELECT COUNT(*), SUM(val), SUM(val * (5 * i + j)) FROM s",
}
"""Queries by the names of what they show."""

State = list[list[float] | None]
Step = Callable[[str, einsql.Connection], object]
"""Is given the directory and the connection."""
EMPTY: State = [None] * len(SHOWN)
"""What a file shows in which nothing was made, or that is not there."""


def look(con: einsql.Connection) -> State:
    """What a database holds, or b.db beside it; None for what there is not."""
    con.execute("SELECT 1 AS n").fetchall()
    beside = os.path.join(os.path.dirname(con.store.database.path or ""), "b.db")
    if os.path.exists(beside):
        con.execute(f"ATTACH IF NOT EXISTS '{beside}' AS b")
        ((many,),) = con.execute("SELECT count(*) FROM b.t").fetchall()
        return [[many]]
    tables = con.store.duck.names()
    there = {n: n in tables or con.store.get(n) is not None for n in SHOWN}
    return [
        list(con.execute(query).fetchall()[0]) if there[name] else None
        for name, query in SHOWN.items()
    ]


def sql(*statements: str) -> Step:
    """A step of statements."""

    def step(folder: str, con: einsql.Connection) -> None:
        for statement in statements:
            con.execute(statement.format(folder=folder))

    return step


def aside(*statements: str) -> Step:
    """A step while another connection's transaction looks at the file."""

    def step(folder: str, con: einsql.Connection) -> None:
        with einsql.connect(con.store.database.path or "") as other:
            other.execute("BEGIN")
            other.execute("SELECT count(*) FROM t").fetchall()
            sql(*statements)(folder, con)
            other.execute("ROLLBACK")

    return step


BOTH = (
    "BEGIN",
    "INSERT INTO t VALUES ({0})",
    "UPDATE x SET val = {0}",
    "CREATE OR REPLACE TENSOR y AS SELECT * FROM x",
    "CREATE OR REPLACE VIEW v AS SELECT SUM(val) - {0} AS s FROM x",
    "COMMIT",
)
"""A transaction with tensors and tables."""


def both(k: int) -> Step:
    """A step that is such a transaction."""
    return sql(*(s.format(k) for s in BOTH))


PREPARED: tuple[Step, ...] = (
    sql("CREATE TABLE t AS SELECT 0 AS k"),
    sql(f"CREATE TENSOR x ({KEYS}, val DOUBLE) DEFAULT 0"),
    both(1),
)
"""What makes the file of every scenario that does not make it itself."""

SCENARIOS: dict[str, tuple[Step, ...]] = {
    "creation": (*PREPARED, sql("INSERT INTO t VALUES (4)")),
    "commits": (
        both(10),
        sql("INSERT INTO t VALUES (11)"),
        sql("UPDATE x SET val = 12"),
        sql("BEGIN", "DELETE FROM t", "DROP TENSOR y", "DROP VIEW v",
            "CREATE OR REPLACE TENSOR x AS SELECT i, j, val + 1 AS val FROM x", "COMMIT"),
        sql("BEGIN", "INSERT INTO t VALUES (14)", "UPDATE x SET val = 14", "ROLLBACK"),
    ),
    "tables": (
        sql("CREATE TABLE u AS SELECT range AS k FROM range(3)"),
        sql("COPY u FROM '{folder}/rows.csv'"),
        sql("UPDATE t SET k = k + 1"),
        aside("INSERT INTO t VALUES (23)"),
        sql("ALTER TABLE u ADD COLUMN w INTEGER"),
        sql("DROP TABLE u"),
    ),
    "attached": (
        sql("INSERT INTO b.t VALUES (50)"),
        sql("INSERT INTO b.t VALUES (51)"),
        sql("CHECKPOINT b"),
        sql("INSERT INTO b.t VALUES (53)"),
        sql("DETACH b"),
    ),
    "vacuum": (
        sql("UPDATE x SET val = 30"),
        sql("VACUUM"),
        sql("INSERT INTO t VALUES (32)"),
        sql("CHECKPOINT"),
        sql("VACUUM"),
        both(35),
        sql("CHECKPOINT"),
    ),
    "tiles": (
        sql("UPDATE x SET val = 60"),
        sql("UPDATE x SET val = 61 WHERE i = 7 AND j = 2"),
        sql("BEGIN", "INSERT INTO t VALUES (62)", "UPDATE x SET val = 62 WHERE i = 200",
            "UPDATE x SET val = 63 WHERE i = 7", "COMMIT"),
        sql("BEGIN", "UPDATE x SET val = 1 WHERE i = 3", "ROLLBACK"),
        sql("UPDATE x SET val = 64 WHERE i = 100"),
        sql("VACUUM"),
        sql("INSERT OR REPLACE INTO x VALUES (9, 3, 66), (299, 0, 66)"),
        sql("UPDATE x SET val = val + 1 WHERE i < 150"),
        sql("CREATE OR REPLACE TENSOR y AS SELECT i, j, CAST(i AS DOUBLE) AS val FROM x"),
        sql("DELETE FROM y WHERE i = 3 AND j = 2"),
        sql("INSERT INTO y VALUES (3, 2, 400)"),
        sql(f"CREATE OR REPLACE TENSOR x ({KEYS}, val DOUBLE) DEFAULT 0.5"),
        sql("UPDATE x SET val = 71 WHERE i = 9 OR val > 80"),
    ),
    "blocks": (
        sql("CREATE TENSOR s STORAGE SPARSE AS "
            "SELECT i, j, i + val AS val FROM x WHERE (i + j) % 3 = 0"),
        sql("UPDATE s SET val = 61 WHERE i = 9 AND j = 3"),
        sql("BEGIN", "INSERT INTO t VALUES (62)", "INSERT INTO s VALUES (100, 0, 62), (101, 0, 63)",
            "DELETE FROM s WHERE i = 9 AND j = 3", "UPDATE s SET val = 64 WHERE i = 200", "COMMIT"),
        sql("BEGIN", "DELETE FROM s WHERE i = 3", "ROLLBACK"),
        sql("INSERT INTO s VALUES (299, 2, 65)"),
        sql("VACUUM"),
        sql("INSERT OR REPLACE INTO s VALUES (9, 3, 67), (299, 4, 67)"),
        sql("UPDATE s SET val = val + 1 WHERE i < 150 AND i >= 20"),
        sql("UPDATE s SET val = val + 1 WHERE i % 30 = 0"),
        sql(f"CREATE OR REPLACE TENSOR s ({KEYS}, val DOUBLE) DEFAULT 0.5 STORAGE SPARSE"),
        sql("UPDATE s SET val = 70 WHERE i = 9 OR i = 250"),
        sql("UPDATE s SET val = 71 WHERE i = 9"),
    ),
    "automatic": (
        sql("SET wal_autocheckpoint = '1KB'"),
        both(41),
        sql("INSERT INTO t SELECT range % 43 FROM range(40000)"),
        aside("INSERT INTO t VALUES (44)"),
        sql("UPDATE x SET val = 45"),
        sql("CREATE TABLE u AS SELECT range AS k FROM range(40000)"),
    ),
}  # fmt: skip


def swept(folder: str, con: einsql.Connection) -> str:
    """What is wrong in a payload directory; nothing if it holds what the catalog names."""
    held = frozenset().union(*map(files_of, con.store.objects.values()))
    directory = os.path.join(folder, "model.db.tensors")
    there = set(os.listdir(directory)) - {"einsql"} if os.path.isdir(directory) else set()
    return "" if there == held else f"orphans: {there - held}, missing: {held - there}"


def judge(folder: str, allowed: list[State]) -> str:
    """Opens a file; says what is wrong with what it holds, or nothing."""
    try:
        with connect(folder) as con:
            shown = look(con)
            return swept(folder, con) if shown in allowed else f"{shown} is none of {allowed}"
    except einsql.Error as error:
        return f"{type(error).__name__}: {error}"


class Shim:
    """The shim of this process, if it was loaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(None)

    def arm(self, folder: str, log: str, at: int, kind: int) -> None:
        """Logs the calls below a folder from now on; one of them fails."""
        self._library.shim_arm(f"{folder}/".encode(), log.encode(), ctypes.c_long(at), kind)

    def note(self, what: str, more: object = None) -> None:
        """Adds a note to the log."""
        text = json.dumps([what, more], separators=(",", ":"))
        self._library.shim_note(text.replace("\t", " ").encode())


def connect(folder: str) -> einsql.Connection:
    """The database of a folder; compiling kernels is not what fails here."""
    return einsql.connect(os.path.join(folder, "model.db"), config={"jit": "never"})


def prepare(folder: str, steps: tuple[Step, ...] = PREPARED) -> None:
    """Makes a database for a scenario."""
    Path(folder, "rows.csv").write_text("7\n8\n")
    with connect(folder) as con:
        for step in steps:
            step(folder, con)


def act(folder: str, name: str, shim: Shim) -> None:
    """Runs a scenario; after a step that fails the file is closed and opened again."""
    con = witness = None
    try:
        shim.note("begin", "connect")
        con = connect(folder)
        witness = connect(folder)
        shim.note("done", look(con))
        for n, step in enumerate(SCENARIOS[name]):
            shim.note("begin", f"{name} {n}")
            step(folder, con)
            shim.note("done", look(con))
        shim.note("begin", "close")
        last = look(con)
        witness.close()
        con.close()
        shim.note("done", last)
    except einsql.Error as error:
        shim.note("failed", [type(error).__name__, str(error)])
        recover(folder, [c for c in (con, witness) if c is not None and not c.closed], shim)


def recover(folder: str, open_: list[einsql.Connection], shim: Shim) -> None:
    """What each session shows after a failure, and the file once it is opened again."""
    for con in open_:
        try:
            shim.note("saw", look(con))
        except einsql.OperationalError as error:
            shim.note("refused", str(error))
    for con in open_:
        con.close()
    try:
        with connect(folder) as again:
            shim.note("reopened", look(again))
            again.execute("CREATE TABLE IF NOT EXISTS t (k INTEGER); INSERT INTO t VALUES (99)")
            again.execute(f"CREATE OR REPLACE TENSOR x ({KEYS}, val DOUBLE) DEFAULT 99")
            shim.note("went on", look(again))
    except einsql.OperationalError as error:
        shim.note("stays closed", str(error))


def main() -> None:
    """Forks a process for each order on the standard input, for starting Python takes long."""
    shim = Shim()
    import_everything()
    tile_grid.TILE = TILE
    for line in sys.stdin:
        folder, log, at, kind, name = json.loads(line)
        pid = os.fork()
        if not pid:
            try:
                shim.arm(folder, log, at, kind)
                act(folder, name, shim)
            except BaseException:
                shim.note("foreign", traceback.format_exc())
            os._exit(0)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    main()
