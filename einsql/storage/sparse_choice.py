"""The choice between dense arrays and sparse matrices."""

from __future__ import annotations

from einsql.core.schema import Schema

SPARSE = 4
"""A matrix with fewer than 1/4 of its elements becomes sparse. Five statements over 2000² FLOAT
took 1.04 times the processor time of a dense tensor with 1/2 of the elements, 0.77 times with 1/4,
0.5 with 1/8 and 0.28 with 1/32 (`storages` in benchmarks/sparse.py)."""
LEAST = 2**16
"""Elements of a matrix below which it stays dense: kernels read an array of this size in 50 µs, and
those of sparse operands start from it (`SMALL` in kernels/registry.py)."""
TWO_KEYS = (
    "Two keys can be one, i * 1000 + j AS ij, and one can be two, i // 1000 AS a, i % 1000 AS b."
)
"""The hint for tensors with another number of keys."""
MOST_ROWS, MOST_EACH = 2**24, 1000
"""Greatest extent of a key, or greatest extent for each element: a matrix stores every row's start.
"""
NOTICED = 2**24
"""Elements of a tensor with few rows and other than two keys from which there is a notice: its
values and flags take over 80 MB."""


def pays(schema: Schema, rows: int) -> bool:
    """Whether a relation with a number of rows is smaller and faster as a sparse matrix."""
    if len(schema.keys) != 2 or not schema.values:
        return False
    fits = max(schema.shape) <= max(MOST_ROWS, MOST_EACH * rows)
    return fits and schema.size >= LEAST and rows * SPARSE < schema.size


def notice(name: str, schema: Schema, rows: int) -> str | None:
    """The notice for a large tensor of few rows that is dense, because it has not two keys.

    Args:
        name: The name of the tensor.
        schema: Keys and values.
        rows: The number of rows.
    """
    if len(schema.keys) == 2 or schema.size < NOTICED or rows * SPARSE >= schema.size:
        return None
    return (
        f"{name} is dense, with {rows:,} rows among {schema.size:,} keys: sparse storage needs two "
        f"keys. {TWO_KEYS}"
    )
