"""The choice between dense arrays and stored elements."""

from __future__ import annotations

from einsql.core.schema import Schema

SPARSE = 4
"""A tensor with fewer than 1/4 of its elements becomes sparse. Five statements over 2000² FLOAT
took 1.04 times the processor time of a dense tensor with 1/2 of the elements, 0.77 times with 1/4,
0.5 with 1/8 and 0.28 with 1/32 (`storages` in benchmarks/sparse.py)."""
LEAST = 2**16
"""Elements of a matrix below which it stays dense: kernels read an array of this size in 50 µs, and
those of sparse operands start from it (`SMALL` in kernels/registry.py)."""
OF_ONE_KEY, LEAST_OF_ONE_KEY = 16, 2**20
"""The same for a tensor with one key, whose dense arrays take few instructions for each element.
Seven statements over 2^20 FLOAT took 1.33 times the processor time of a dense tensor with 1/4 of
the elements, 1.0 times with 1/16 and 0.8 with 1/256 (`one_key` in benchmarks/sparse_keys.py)."""
MAX_KEYS = 2**58
"""The most keys of a sparse tensor: positions in key order are BIGINT."""
MOST_ROWS, MOST_EACH = 2**24, 1000
"""Greatest extent of a key, or greatest extent for each element: a matrix stores every row's start.
"""


def pays(schema: Schema, rows: int) -> bool:
    """Whether a relation with a number of rows is smaller and faster as a sparse tensor."""
    if not schema.keys or not schema.values or schema.size > MAX_KEYS:
        return False
    if len(schema.keys) == 1:
        return schema.size >= LEAST_OF_ONE_KEY and rows * OF_ONE_KEY < schema.size
    if max(schema.shape) > max(MOST_ROWS, MOST_EACH * rows):
        return False
    return schema.size >= LEAST and rows * SPARSE < schema.size
