"""The numbering of keys as rows and columns of a matrix, in mixed radix.

The rows of a sparse tensor are its first key. A column is the number of the other keys in mixed
radix, the last one fastest. A tensor with one key has one row. So `row * columns + column` is the
position in key order for any number of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

Extents = tuple[int, ...]
"""The number of values of each key."""


def matrix_shape(extents: Extents) -> tuple[int, int]:
    """The numbers of rows and columns of a tensor with at least one key."""
    if len(extents) == 1:
        return 1, extents[0]
    return extents[0], prod(extents[1:])


def numbers_of(places: Sequence[np.ndarray], extents: Extents) -> np.ndarray:
    """The numbers of positions, in mixed radix.

    Args:
        places: The position of each key, at least one.
        extents: The number of values of each key.
    """
    first, *more = places
    if not more:
        return first
    numbers = first.astype(np.int64)
    for place, extent in zip(more, extents[1:], strict=True):
        numbers *= extent
        numbers += place
    return numbers


def places_of(numbers: np.ndarray, extents: Extents) -> tuple[np.ndarray, ...]:
    """The position of each key at numbers in mixed radix; the inverse of `numbers_of`."""
    places = []
    for extent in reversed(extents[1:]):
        kind = numbers.dtype.type
        if extent > np.iinfo(numbers.dtype).max:  # so are all numbers
            places.append(numbers)
            numbers = np.zeros_like(numbers)
            continue
        divided = numbers // kind(max(1, extent))
        places.append(numbers - divided * kind(extent))
        numbers = divided
    return (numbers, *reversed(places))


def are_within(places: Sequence[np.ndarray], spans: Sequence[slice]) -> np.ndarray:
    """Flags of the positions within a box.

    Args:
        places: The position of each key, at least one.
        spans: The box, slices with a start and a stop.
    """
    flags = np.ones(len(places[0]), np.bool_)
    for place, span in zip(places, spans, strict=True):
        flags &= (place >= span.start) & (place < span.stop)
    return flags


def index_type(*numbers: int) -> np.dtype:
    """The type of the starts and columns of a matrix with these numbers: int32 where they fit."""
    return np.dtype(np.int32 if max(numbers, default=0) < 2**31 else np.int64)
