"""Ordered windows within parts by expressions, and frames that may be empty, as in DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

import einsql

VALUES = np.array([3, -1, 7, 2, 0, -5], np.int32)
MATRIX = np.arange(12, dtype=np.int32).reshape(3, 4) * 7 % 11
FUNCTIONS = (
    "LAG(val) OVER ({})",
    "LEAD(val, 2) OVER ({})",
    "FIRST_VALUE(val) OVER ({})",
    "LAST_VALUE(val) OVER ({} ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING)",
    "SUM(val) OVER ({} ROWS 1 PRECEDING)",
    "ROW_NUMBER() OVER ({})",
    "FIRST_VALUE(val) OVER ({} ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING)",
    "LAST_VALUE(val) OVER ({} ROWS BETWEEN 2 FOLLOWING AND UNBOUNDED FOLLOWING)",
    "LAST_VALUE(val) OVER ({} RANGE BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)",
    "COUNT(val) OVER ({} RANGE BETWEEN 1 FOLLOWING AND 2 FOLLOWING)",
)
WINDOWS = (
    ("v", "ORDER BY i"),
    ("v", "ORDER BY i DESC"),
    ("v", "PARTITION BY i % 2 ORDER BY i"),
    ("v", "PARTITION BY i // 2 ORDER BY i DESC"),
    ("v", "PARTITION BY val > 1 ORDER BY i"),
    ("m", "PARTITION BY i ORDER BY j"),
    ("m", "PARTITION BY i, j % 2 ORDER BY j"),
    ("m", "PARTITION BY i, j // 2 ORDER BY j DESC"),
    ("m", "PARTITION BY j, i % 2 ORDER BY i"),
)


@pytest.mark.parametrize(("table", "window"), WINDOWS)
def test_windows_within_parts(table: str, window: str) -> None:
    con, duck = einsql.connect(), duckdb.connect()
    array = VALUES if table == "v" else MATRIX
    keys = "ij"[: array.ndim]
    con.register(table, array, dims=tuple(keys))
    duck.execute(f"CREATE TABLE {table} ({', '.join(f'{k} BIGINT' for k in keys)}, val INTEGER)")
    rows = [[*at, cell.item()] for at, cell in np.ndenumerate(array)]
    duck.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    for function in FUNCTIONS:
        columns = f"{', '.join(keys)}, {function.format(window)} AS w"
        sql = f"SELECT {columns} FROM {table} ORDER BY {', '.join(keys)}"
        assert con.execute(sql).fetchall() == duck.execute(sql).fetchall(), sql
