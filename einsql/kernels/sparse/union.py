"""Sparse operands over the same keys, with one structure: the keys that any of them stores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.compressed import Compressed, at_cells
from einsql.core.sparse.matrix import Sparse
from einsql.core.sparse.numbering import numbers_of

Labels = tuple[str, ...]


def united(operands: Sequence[tuple[Sparse, Labels]]) -> list[Elements]:
    """The operands over the keys that one of them stores, of which the other ones have their fill.

    Args:
        operands: Fields over the same labels in any order, and the labels of their keys.

    Returns:
        Elements with the labels of the first operand; other keys are absent.
    """
    (first, labels), *more = operands
    structure = first.taken()
    shared = (structure.shares_structure(o.taken()) and same == labels for o, same in more)
    if all(o.turned == first.turned for o, _ in more) and all(shared):
        return [
            Elements(o.taken(), _values(o, slice(None)), None, first.turned, o.is_constant)
            for o, _ in operands
        ]
    every_cell = [_cells(o, own, labels) for o, own in operands]
    union = np.unique(np.concatenate(every_cell))
    structure, _ = at_cells(first.extents, union)
    return [
        _spread(o, structure, np.searchsorted(union, cells))
        for (o, _), cells in zip(operands, every_cell, strict=True)
    ]


def _values(fields: Sparse, order: slice | np.ndarray) -> dict[str, np.ndarray]:
    return {name: fields.taken(name).values[order] for name in fields.names}


def _cells(fields: Sparse, own: Labels, labels: Labels) -> np.ndarray:
    """The position of each element in the order of other keys.

    Args:
        fields: The fields.
        own: The labels of their keys.
        labels: The same labels in the other order.
    """
    positions = fields.taken().positions
    order = own[::-1] if fields.turned else own
    extents = dict(zip(own, fields.extents, strict=True))
    at = [positions[order.index(x)].astype(np.int64) for x in labels]
    return numbers_of(at, tuple(extents[x] for x in labels))


def _spread(fields: Sparse, union: Compressed, at: np.ndarray) -> Elements:
    """The fields over the union.

    Args:
        fields: The fields.
        union: The structure of the union.
        at: The place of each of their elements in the union.
    """
    values = {}
    for name in fields.names:
        own = fields.taken(name).values
        values[name] = np.full(union.stored, fields.fill(name), own.dtype)
        values[name][at] = own
    return Elements(union, values)
