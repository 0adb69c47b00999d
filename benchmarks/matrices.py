"""Matrices, and the SQL over them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import einsql
from einsql.kernels.runtime import thread_pool

Array = np.ndarray

MATMUL = """
SELECT a.i, b.j, SUM(a.val * b.val) AS val
FROM a JOIN b ON a.j = b.i
GROUP BY a.i, b.j
"""


def random(*shape: int, seed: int = 0) -> Array:
    """A float32 matrix of standard normal values."""
    return np.random.default_rng((seed, *shape)).standard_normal(shape, dtype=np.float32)


def connected(matrices: Mapping[str, Array]) -> einsql.Connection:
    """A connection that knows matrices by name, with keys i and j."""
    con = einsql.connect()
    for name, matrix in matrices.items():
        con.register(name, matrix, dims=("i", "j"))
    return con


def fetched(con: einsql.Connection, sql: str, fill: float | None = None) -> Array:
    """The result of a query as an array; `fill` is the value of absent elements."""
    result: Array = con.execute(sql).fetch_numpy(fill=fill)
    return result


def check(found: Array, expected: Array) -> None:
    """Compares float32 results that may have been summed in another order."""
    error = float(np.max(np.abs(found - expected)) / np.max(np.abs(expected)))
    if found.shape != expected.shape or not error <= 1e-4:
        raise AssertionError(f"einsql and NumPy differ by {error} of the largest element")


def pytorch() -> Any:
    """PyTorch on as many threads as kernels have, or None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(thread_pool.threads())
    return torch
