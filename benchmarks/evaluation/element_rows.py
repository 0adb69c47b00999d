"""The same SQL text over arrays and over tables with a row for each element."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import Array, Prepared, Task

Keys = Mapping[str, tuple[str, ...]]
Order = tuple[str, ...]


def by_einsql(sql: str, keys: Keys) -> Callable[[Task], Prepared]:
    """Einsql over the inputs as tensors."""

    def prepare(task: Task) -> Prepared:
        import einsql

        con = einsql.connect()
        for name, axes in keys.items():
            con.register(name, task.load(name), dims=axes)
        return Prepared(lambda: con.execute(sql).fetch_numpy(), lambda result: result)

    return prepare


def by_duckdb(sql: str, keys: Keys, order: Order) -> Callable[[Task], Prepared]:
    """DuckDB over tables of elements; the answer is ordered by its keys."""

    def prepare(task: Task) -> Prepared:
        import duckdb
        import pyarrow as pa

        con = duckdb.connect()
        for name, axes in keys.items():
            array = task.load(name)
            places = np.indices(array.shape, dtype=np.int32).reshape(array.ndim, -1)
            table = pa.table({**dict(zip(axes, places, strict=True)), "val": array.reshape(-1)})
            con.register("given", table)
            con.execute(f"CREATE TABLE {name} AS FROM given")
            con.unregister("given")

        def answer(result: Any) -> Array:
            ordered = result.sort_by([(key, "ascending") for key in order])
            values: Array = ordered["val"].to_numpy()
            return values

        return Prepared(lambda: con.sql(sql).to_arrow_table(), answer)

    return prepare


def by_postgresql(sql: str, keys: Keys, order: Order) -> Callable[[Task], Prepared]:
    """PostgreSQL over tables of elements; the result stays at the server."""

    def prepare(task: Task) -> Prepared:
        from benchmarks.evaluation import postgresql

        con = postgresql.connected({name: task.load(name) for name in keys}, keys)

        def answer(result: Any) -> Array:
            rows = con.execute(f"SELECT val FROM result ORDER BY {', '.join(order)}").fetchall()
            return np.array([row[0] for row in rows])

        return Prepared(
            lambda: con.execute(f"CREATE TEMP TABLE result AS {sql}"),
            answer,
            between=lambda: con.execute("DROP TABLE IF EXISTS result"),
        )

    return prepare
