"""Maps that add constants to keys of a sparse tensor: its elements at other keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from einsql.core.free_memory import require
from einsql.core.records import dataclass
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.compressed import ROW, at_cells
from einsql.core.sparse.matrix import Sparse, sparse_of
from einsql.core.sparse.numbering import matrix_shape, numbers_of
from einsql.ir.einsum.affine import affine_labels
from einsql.ir.einsum.graph import EinSum, Value, is_shift
from einsql.kernels.kernel import Arrays, Runner, Tick

BYTES = 32
"""Bytes of an element besides its values, while elements are sorted by their new keys."""


@dataclass(frozen=True, slots=True)
class _Move:
    """The box of a tensor's elements that a shift keeps, and where they go.

    Attributes:
        spans: The positions of the box along each key of the tensor.
        to: The position of the box's first element along the key of the result that follows it.
        keys: The number of this key of the result.
    """

    spans: tuple[slice, ...]
    to: tuple[int, ...]
    keys: tuple[int, ...]


def over_shift(node: EinSum, otherwise: Callable[[], Runner]) -> Runner | None:
    """Matches shifts of a sparse tensor.

    Args:
        node: The node.
        otherwise: Compiles this node with another kernel, for an operand that is not sparse.

    Returns:
        The runner, or None. It returns an `Elements`.
    """
    if not is_shift(node):
        return None
    move, other = _move_of(node), cache(otherwise)

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        fields = sparse_of(operands[0])
        if fields is None or fields.filled:
            return other()(operands, tick)
        return _shifted(node, move, fields)  # type: ignore[return-value] # announced by `may_be_sparse`

    return run


def _move_of(node: EinSum) -> _Move:
    (operand,) = node.operands
    forms = affine_labels(node)
    spans: list[slice] = []
    to: list[int] = []
    keys: list[int] = []
    for label, key in zip(operand.labels, operand.source.schema.keys, strict=True):
        axis, form = node.axis(label), forms.get(label)
        base, by = label, 0
        if form is not None:
            ((base, _),) = form.steps.items()
            by = form.offset
        follows = node.axis(base)
        first = max(axis.lo, follows.lo + by, key.lo)
        end = max(first, min(axis.hi, follows.hi + by, key.hi))
        spans.append(slice(first - key.lo, end - key.lo))
        to.append(first - by - follows.lo)
        keys.append(node.keys.index(base))
    return _Move(tuple(spans), tuple(to), tuple(keys))


def _shifted(node: EinSum, move: _Move, fields: Sparse) -> Elements:
    extents = node.schema.shape
    read = {o.name: o.args[0].field for o in node.outputs if isinstance(o.args[0], Value)}
    if any(s.start == s.stop for s in move.spans):
        structure, _ = at_cells(extents, np.zeros(0, np.int64))
        kinds = {f.name: f.dtype.numpy for f in node.schema.fields}
        return Elements(structure, {name: np.zeros(0, kinds[name]) for name in read})
    in_order = not fields.turned and list(move.keys) == sorted(move.keys)
    if in_order and fields.increases:
        require(ROW * matrix_shape(extents)[0])
        parts = {
            name: fields.taken(field).moved(move.spans, move.to, extents)
            for name, field in read.items()
        }
        first = next(iter(parts.values()), None)
        if first is None:
            first = fields.taken().moved(move.spans, move.to, extents)
        if fields.is_constant:
            return Elements(first, {name: part.values for name, part in parts.items()})
        values = {name: part.values.copy() for name, part in parts.items()}
        return Elements(first.copied(), values)
    matrix = fields.taken()
    require(matrix.stored * BYTES)
    turn = slice(None, None, -1 if fields.turned else 1)
    part = matrix.of(np.arange(matrix.stored)).part(*move.spans[turn])
    at: list[np.ndarray] = [np.zeros(0)] * len(extents)
    for key, place, to in zip(move.keys[turn], part.positions, move.to[turn], strict=True):
        at[key] = place.astype(np.int64) + to
    structure, _ = at_cells(extents, numbers_of(at, extents))
    numbers = part.values[structure.values]
    values = {name: fields.taken(field).values[numbers] for name, field in read.items()}
    return Elements(structure, values)
