"""Sparse operands over the same keys, with one structure: the keys that any of them stores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.matrix import Compressed, Sparse, sorted_matrix, transposed

Labels = tuple[str, ...]


def united(operands: Sequence[tuple[Sparse, Labels]]) -> list[Elements]:
    """The operands over the keys that one of them stores, of which the other ones have their fill.

    Args:
        operands: Fields over the same two labels in any order, and the labels of their keys.

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
    parts = [_by_rows(o, own == labels) for o, own in operands]
    flat = [p.rows * p.shape[1] + p.columns for p in parts]
    every = np.unique(np.concatenate(flat))
    rows, columns = np.divmod(every, max(1, parts[0].shape[1]))
    union, _ = sorted_matrix(parts[0].shape, rows, columns)
    return [
        _spread(o, union, np.searchsorted(every, at), p.values)
        for (o, _), p, at in zip(operands, parts, flat, strict=True)
    ]


def _values(fields: Sparse, order: slice | np.ndarray) -> dict[str, np.ndarray]:
    return {name: fields.taken(name).values[order] for name in fields.names}


def _by_rows(fields: Sparse, same_order: bool) -> Compressed:
    """The numbers of the elements, with the first operand's first key as rows."""
    matrix = fields.taken()
    numbered = matrix.of(np.arange(matrix.stored))
    return numbered if same_order != fields.turned else transposed(numbered)


def _spread(fields: Sparse, union: Compressed, at: np.ndarray, numbers: np.ndarray) -> Elements:
    """The fields over the union.

    Args:
        fields: The fields.
        union: The structure of the union.
        at: The place of each of their elements in the union.
        numbers: The numbers of these elements.
    """
    values = {}
    for name in fields.names:
        own = fields.taken(name).values
        values[name] = np.full(union.stored, fields.fill(name), own.dtype)
        values[name][at] = own[numbers]
    return Elements(union, values)
