"""A process that forks children while other interfaces than `connect` are in use, for test_fork.py.

It prints JSON objects: what a child tells, or what the process has found after it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import sqlalchemy

import einsql
from einsql.kernels.runtime import compile_cache
from tests.storage.database.forked import World, fork, refusal

NOBODY = einsql.connect()
"""An inherited connection for the children of `multiprocessing`."""


def children(path: str, **actions: Any) -> dict[str, Any]:
    """What children tell that end through the interpreter's end, each after one action."""
    it = World(path, NOBODY, NOBODY, [], np.zeros(0), [])
    found = {}
    for name, action in actions.items():
        status, told, errors = fork(it, action, "exit")
        assert (status, errors) == (0, ""), (name, status, told, errors)
        found[name] = json.loads(told)
    return found


def attached(path: str) -> dict[str, Any]:
    """A user's own DuckDB connection."""
    con = duckdb.connect(f"{path}-user")
    con.execute("CREATE TABLE t AS SELECT 4 AS k")
    edb = einsql.attach(con)
    edb.register("x", np.arange(3.0), dims=("i",))
    total = "SELECT s FROM einsql('SELECT SUM(val) AS s FROM x')"

    def use(_: World) -> object:
        told = [refusal(lambda: edb.sql(total)), refusal(lambda: edb.execute("FROM t"))]
        edb.close()
        own = einsql.attach(duckdb.connect())
        own.register("x", np.arange(3.0), dims=("i",))
        found: Any = own.sql(total)
        return told, found.fetchall()

    found = children(path, use=use)
    con.execute("INSERT INTO t VALUES (5)")
    result: Any = edb.sql(total)
    named = (
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_name = 'tensor_of'"
    )
    functions = con.execute(named).fetchall()
    rows = con.execute("SELECT sum(k) FROM t").fetchall()
    return {**found, "parent": [result.fetchall(), rows, functions]}


def pooled(path: str) -> dict[str, Any]:
    """SQLAlchemy's pools: one of a file, and one in memory."""
    file = sqlalchemy.create_engine(f"einsql:///{path}-pool")
    memory = sqlalchemy.create_engine("einsql://")
    create = sqlalchemy.text("CREATE TABLE t AS SELECT 6 AS k")
    select = sqlalchemy.text("SELECT k FROM t")
    for engine in (file, memory):
        with engine.begin() as con:
            con.execute(create)

    def use(_: World) -> object:
        with memory.begin() as con:  # another connection, to another database
            con.execute(create)
            rows = [list(row) for row in con.execute(select)]
        told = ""
        try:
            file.connect()
        except sqlalchemy.exc.OperationalError as error:
            told = str(error.orig)
        file.dispose()
        return rows, told

    found = children(path, use=use)
    with file.begin() as con:
        return {**found, "parent": [list(row) for row in con.execute(select)]}


def traced(path: str) -> dict[str, Any]:
    """A program with a session of its own, and one with the caller's."""
    own = einsql.trace(lambda x: x * 2, np.ones(3))
    own.connection.execute("SET memory_limit = '1GB'")
    shared = einsql.trace(lambda x: x * 3, np.ones(3), connection=NOBODY)

    def use(_: World) -> object:
        limit = own.connection.settings.memory_limit
        return own(np.ones(3)).tolist(), limit == 10**9, refusal(lambda: shared(np.ones(3)))

    found = children(path, use=use)
    return {**found, "parent": [own(np.ones(3)).tolist(), shared(np.ones(3)).tolist()]}


def spilled(path: str) -> dict[str, Any]:
    """A result in a temporary file."""
    folder = f"{path}.spill"
    con = einsql.connect(config={"memory_limit": "40MB", "temp_directory": folder})
    con.register("x", np.arange(3_000_000.0), dims=("i",))
    results = [con.execute("SELECT i, val * 2 AS val FROM x").fetch_numpy()]

    def use(_: World) -> object:
        before = results[0][-1]
        results[0][:] = -1  # its own copy, as all memory of a child
        after = results[0][-1]
        results.clear()
        con.close()
        return before, after

    found = children(path, use=use)
    there = os.path.isdir(folder)
    return {**found, "parent": [there, float(results[0][-1]), float(results[0].min())]}


def cached(path: str) -> dict[str, Any]:
    """A temporary directory for kernels."""
    folder = f"{path}.cache"
    os.mkdir(folder)
    os.chmod(folder, 0o777)
    os.environ["EINSQL_CACHE_DIR"] = folder
    before = compile_cache.directory()
    assert before is not None
    found = children(path, use=lambda _: compile_cache.directory() != before)
    return {**found, "parent": [before.is_dir(), str(before).startswith(folder)]}


def work(number: int) -> list[Any]:
    """What a process of a pool does."""
    with einsql.connect() as con:
        con.execute(f"CREATE TABLE t AS SELECT {number} AS k")
        return [refusal(NOBODY.cursor), con.execute("SELECT k FROM t").fetchall()]


def pool(path: str) -> dict[str, Any]:
    """multiprocessing's pool of forked processes."""
    with einsql.connect(path) as con:
        con.execute("CREATE TABLE t AS SELECT 1 AS k")
        with multiprocessing.get_context("fork").Pool(2) as processes:
            found = processes.map(work, range(3))
        con.execute("INSERT INTO t VALUES (2)")
    with einsql.connect(path) as con:
        return {"workers": found, "parent": con.execute("SELECT k FROM t ORDER BY k").fetchall()}


def main(path: str) -> None:
    """Runs all of them."""
    for action in (attached, pooled, traced, spilled, cached, pool):
        print(json.dumps({action.__name__: action(path)}), flush=True)
    assert Path(f"{path}-pool").exists()


if __name__ == "__main__":
    main(sys.argv[2])
