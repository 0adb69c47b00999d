"""The choice between dense arrays and sparse matrices."""

from __future__ import annotations

from einsql.core.schema import Schema

SPARSE = 4
"""A matrix with fewer than 1/4 of its elements becomes sparse."""
LEAST = 2**16
"""Elements of a matrix below which an array is faster, whatever it lacks."""
MOST_ROWS, MOST_EACH = 2**24, 1000
"""Greatest extent of a key, or greatest extent for each element: a matrix stores every row's start.
"""


def pays(schema: Schema, rows: int) -> bool:
    """Whether a relation with a number of rows is smaller and faster as a sparse matrix."""
    if len(schema.keys) != 2 or not schema.values:
        return False
    fits = max(schema.shape) <= max(MOST_ROWS, MOST_EACH * rows)
    return fits and schema.size >= LEAST and rows * SPARSE < schema.size
