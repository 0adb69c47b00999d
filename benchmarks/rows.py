"""The same SQL text on DuckDB, over one row per element."""

from __future__ import annotations

import duckdb
import numpy as np
import pyarrow as pa

from benchmarks.matrices import MATMUL, Array, check, connected, random
from benchmarks.measure import measure
from benchmarks.report import Finding, Section, factor, times

AIM = 500.0


def rows() -> Section:
    """256² and 512², each engine giving its own result form: an array, an Arrow table."""
    return Section(
        "The same text on DuckDB's element rows, all threads: DuckDB's time / einsql's time",
        (_rows(256, 15), _rows(512, 7)),
    )


def _rows(n: int, rounds: int) -> Finding:
    a, b = random(n, n), random(n, n, seed=1)
    con = connected({"a": a, "b": b})
    duck = duckdb.connect()
    for name, matrix in (("a", a), ("b", b)):
        elements = _elements(matrix)
        duck.register("elements", elements)
        duck.execute(f"CREATE TABLE {name} AS FROM elements")
    try:
        check(con.execute(MATMUL).fetch_numpy(), _matrix(duck.sql(MATMUL).to_arrow_table(), n))
        taken = measure(
            {
                "einsql": lambda: con.execute(MATMUL).fetch_numpy(),
                "duckdb": lambda: duck.sql(MATMUL).to_arrow_table(),
            },
            rounds=rounds,
            seconds=0.0,
            calls={"einsql": 10},
        )
    finally:
        duck.close()
    found = taken.ratio("duckdb", "einsql")
    return Finding(
        f"{n}² vs DuckDB",
        factor(found, 0),
        f"≥ {AIM:.0f}×",
        found.value >= AIM,
        times({name: taken.median(name) for name in taken.seconds}),
    )


def _elements(matrix: Array) -> pa.Table:
    i, j = (x.reshape(-1) for x in np.indices(matrix.shape))
    return pa.table({"i": i, "j": j, "val": matrix.reshape(-1)})


def _matrix(table: pa.Table, n: int) -> Array:
    matrix = np.empty((n, n))
    matrix[table["i"].to_numpy(), table["j"].to_numpy()] = table["val"].to_numpy()
    return matrix
