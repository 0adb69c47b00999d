"""What the fresh processes of the benchmark `first` do.

`python -m benchmarks.first_run WHAT NUMBER FOLDER [ANSWER]`: WHAT is `numpy`; `start`, which ends
before the statement runs; `einsql`; or `session`, which repeats the statement and runs it on
arrays of another shape. NumPy's process does not import einsql.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.statements import CSR, STATEMENTS, Array, Statement, registered, split

if TYPE_CHECKING:
    import einsql

SECONDS, LEAST, MOST = 0.1, 5, 20
"""A statement is repeated for so long, at least and at most so many times."""


def main(what: str, number: str, folder: str, answer: str = "") -> None:
    statement = STATEMENTS[int(number)]
    arrays = loaded(statement, Path(folder), "")
    if what == "numpy":
        answer_array = statement.numpy(*arrays.values())
    else:
        import einsql

        con = einsql.connect()
        prepare(con, statement, statement.sizes, arrays)
        sql = text(statement, statement.sizes)
        if what == "session":
            _session(con, statement, Path(folder))
        if what != "start":
            answer_array = run(con, statement, sql)
        con.close()
    if answer:
        np.save(answer, plain(answer_array))


def loaded(statement: Statement, folder: Path, shape: str) -> dict[str, Array]:
    """The arrays that `first` has stored."""
    names: list[str] = []
    for name, kind in statement.tensors.items():
        names += [f"{name}.{part}" for part in CSR] if split(kind)[1] == "~" else [name]
    return {name: np.load(folder / f"{shape}{name}.npy") for name in names}


def text(statement: Statement, sizes: Mapping[str, int]) -> str:
    """The statement's text at some extents."""
    return statement.sql.format(**sizes) if "{" in statement.sql else statement.sql


def prepare(
    con: einsql.Connection,
    statement: Statement,
    sizes: Mapping[str, int],
    arrays: Mapping[str, Array],
) -> None:
    """Registers the arrays, and runs what comes before the statement."""
    for name, array, keys in registered(statement.tensors, sizes, arrays):
        con.register(name, array, dims=keys)
    if statement.before:
        con.execute(statement.before)


def run(con: einsql.Connection, statement: Statement, sql: str) -> Any:
    """The statement's answer, or after a change what was changed."""
    cursor = con.execute(sql)
    if statement.after:
        cursor = con.execute(statement.after)
    return cursor.fetch_numpy(fill=statement.fill)


def plain(answer: Any) -> Array:
    """An answer of one or several columns as one array."""
    return np.stack(list(answer.values())) if isinstance(answer, dict) else np.asarray(answer)


def _session(con: einsql.Connection, statement: Statement, folder: Path) -> None:
    """Writes the seconds of runs on the first shape, on another one, and on the first again.

    Repeated runs are those of another connection, which waits for kernels: a changed setting would
    drop the plans of this one.
    """
    import einsql

    waiting = einsql.connect(config={"jit": "wait"})
    seconds: dict[str, float] = {}

    def turn(what: str, shape: str, sizes: Mapping[str, int]) -> None:
        arrays = loaded(statement, folder, shape)
        sql = text(statement, sizes)
        for connection in (con, waiting):
            if statement.before:
                connection.execute("DROP TENSOR IF EXISTS w")
            prepare(connection, statement, sizes, arrays)
        start = time.perf_counter()
        answer = run(con, statement, sql)
        seconds[what] = time.perf_counter() - start
        np.save(folder / f"{what}.answer.npy", plain(answer))
        seconds[f"{what}, repeated"] = repeated(waiting, statement, sql)

    turn("first", "", statement.sizes)
    turn("new", "larger.", statement.larger())
    turn("seen", "", statement.sizes)
    waiting.close()
    (folder / "session.json").write_text(json.dumps(seconds))


def repeated(con: einsql.Connection, statement: Statement, sql: str) -> float:
    """The least seconds of runs after one that does not count."""
    run(con, statement, sql)
    taken: list[float] = []
    while len(taken) < LEAST or (sum(taken) < SECONDS and len(taken) < MOST):
        start = time.perf_counter()
        run(con, statement, sql)
        taken.append(time.perf_counter() - start)
    return min(taken)


if __name__ == "__main__":
    main(*sys.argv[1:])
