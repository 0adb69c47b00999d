"""The computed changes of a statement, which are stored together after all checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from einsql.core import buffer_pool
from einsql.core.free_memory import require_dense
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.errors import IntegrityError
from einsql.session.statements import sparse_rows
from einsql.session.statements.target import changed, key_text
from einsql.storage.array_ownership import behind, owned
from einsql.storage.objects import Tensor
from einsql.storage.relation import Relation
from einsql.storage.undo_log import Index

if TYPE_CHECKING:
    from einsql.planner.context import Context
    from einsql.storage.fields import Fields


@dataclass(frozen=True, slots=True)
class Write:
    """New values of some cells of a tensor.

    Attributes:
        tensor: The tensor before the statement.
        at: The cells; None for all of them.
        values: The new values by column, in the shape that `at` selects.
        count: The number of cells.
        presence: The new presence of the keys; None leaves it unchanged.
        flat: Whether `at` counts cells in key order instead of indexing by keys.
    """

    tensor: Tensor
    at: Index
    values: Mapping[str, np.ndarray]
    count: int
    presence: bool | None = None
    flat: bool = False


WriteSet = Write | Tensor
"""New cells of a tensor, or a new tensor."""


def joined(writes: Sequence[Write]) -> Write:
    """Returns the writes of several INSERTs into one tensor as one write.

    Boxes that adjoin along one key become one box; other writes become a list of cells.

    Args:
        writes: The writes, each of a box or of a list of cells in key order (`flat`).

    Raises:
        IntegrityError: Two of them write one cell.
    """
    first = writes[0]
    if len(writes) == 1:
        return first
    schema = first.tensor.relation.schema
    boxes = [_box(write) for write in writes]
    row = _in_a_row([box for box in boxes if box is not None]) if None not in boxes else None
    if row is not None:
        axis, order = row
        at = [slice(lo, hi) for lo, hi in boxes[order[0]] or ()]
        at[axis] = slice(at[axis].start, (boxes[order[-1]] or ())[axis][1])
        parts = [_whole(writes[n]) for n in order]
        values = {k: np.concatenate([part[k] for part in parts], axis) for k in first.values}
        count = sum(write.count for write in writes)
        return replace(first, at=tuple(at), values=values, count=count)
    cells = np.concatenate([_flat(write) for write in writes])
    unique, counts = np.unique(cells, return_counts=True)
    if len(unique) < len(cells):
        key = key_text(schema, int(unique[counts > 1][0]))
        raise IntegrityError(f"The key ({key}) is inserted twice")
    parts = [_whole(write) for write in writes]
    values = {k: np.concatenate([part[k].reshape(-1) for part in parts]) for k in first.values}
    return replace(first, at=cells, values=values, count=len(cells), flat=True)


def _box(write: Write) -> list[tuple[int, int]] | None:
    """Returns the positions of a write along each key; None for a list of cells."""
    if write.flat:
        return None
    if write.at is None:
        return [(0, extent) for extent in write.tensor.relation.schema.shape]
    return [(s.start, s.stop) for s in write.at]


def _in_a_row(boxes: Sequence[Sequence[tuple[int, int]]]) -> tuple[int, list[int]] | None:
    """Returns the key along which boxes adjoin and their order, or None if they do not."""
    differ = [n for n, spans in enumerate(zip(*boxes, strict=True)) if len(set(spans)) > 1]
    if len(differ) != 1:
        return None
    (axis,) = differ
    order = sorted(range(len(boxes)), key=lambda n: boxes[n][axis])
    adjoin = all(boxes[a][axis][1] == boxes[b][axis][0] for a, b in pairwise(order))
    return (axis, order) if adjoin else None


def cell(write: Write, number: int) -> int:
    """The flat index of one of the cells of a write, counted in the order of its values."""
    shape = write.tensor.relation.schema.shape
    box = _box(write) if write.flat or write.at is None or not _has_arrays(write.at) else None
    if box is not None:
        extents = [hi - lo for lo, hi in box]
        places = np.unravel_index(number, extents) if box else ()
        at = [lo + int(n) for (lo, _), n in zip(box, places, strict=True)]
    elif isinstance(write.at, tuple):
        at = [int(positions[number]) for positions in write.at]
    else:
        listed = write.at if write.flat else np.flatnonzero(write.at)
        return int(listed[number])
    return int(np.ravel_multi_index(at, shape)) if shape else 0


def _has_arrays(at: Index) -> bool:
    """Whether an index is a mask or a tuple of positions."""
    return isinstance(at, np.ndarray) or any(isinstance(x, np.ndarray) for x in at)


def _whole(write: Write) -> dict[str, np.ndarray]:
    """Returns the values of a write in the shape of its cells."""
    box = _box(write)
    shape = (write.count,) if box is None else tuple(hi - lo for lo, hi in box)
    return {name: np.broadcast_to(values, shape) for name, values in write.values.items()}


def _flat(write: Write) -> np.ndarray:
    """Returns the positions of a write's cells in key order."""
    box = _box(write)
    if box is None:
        return np.asarray(write.at)
    at = np.zeros((), np.int64)
    for (lo, hi), extent in zip(box, write.tensor.relation.schema.shape, strict=True):
        at = at[..., None] * extent + np.arange(lo, hi)
    return at.reshape(-1)


def store(ctx: Context, changes: Sequence[WriteSet], foreign: Callable[[], set[int]]) -> None:
    """Stores the changes of all parts of a statement.

    Cells are overwritten in place if no other reader has the array, else in a copy. In-place
    writes come last, and the store undoes them if the statement fails.

    Args:
        ctx: The session, within `store.statement`.
        changes: The changes, at most one for each tensor.
        foreign: Returns ids of memory owners that a tensor must not share.
    """
    new = [_new_state(ctx, m, foreign) if isinstance(m, Write) else m for m in changes]
    for item in new:
        ctx.store.put(item.finished() if isinstance(item, _Storing) else item)


def _new_state(ctx: Context, write: Write, foreign: Callable[[], set[int]]) -> _Storing | Tensor:
    """The new state of a tensor. Sparsely stored elements are written into new arrays."""
    if not write.tensor.relation.fields.is_sparse:
        return _Storing(ctx, write, foreign)
    shape = write.tensor.relation.schema.shape
    if write.presence is False and write.count == prod(shape):
        return sparse_rows.without_rows(write.tensor)
    box = write.at is None or not (write.flat or _has_arrays(write.at))
    if box and write.count:
        require_dense(sparse_rows.WIDTH * write.count, shape)
    if write.flat or box:
        cells = _flat(write)
        values = {name: array.reshape(-1) for name, array in _whole(write).items()}
    elif isinstance(write.at, tuple):
        cells = np.asarray(np.ravel_multi_index(write.at, shape))
        values = dict(write.values)
    else:
        cells, values = np.flatnonzero(write.at), dict(write.values)
    return sparse_rows.with_cells(write.tensor, cells, values, write.presence)


def _own(at: Index) -> Index:
    """Copies index arrays that a change may overwrite."""
    if isinstance(at, tuple):
        return tuple(map(_own, at)) if any(isinstance(x, np.ndarray) for x in at) else at
    return at.copy() if isinstance(at, np.ndarray) and behind(at) is not None else at


class _Storing:
    """The new arrays of a tensor. Writes in place are delayed until `finished`."""

    def __init__(self, ctx: Context, write: Write, foreign: Callable[[], set[int]]) -> None:
        at = _own(write.at)
        self.ctx, self.write = ctx, write if at is write.at else replace(write, at=at)
        self.waiting: list[tuple[np.ndarray, np.ndarray | np.bool_]] = []
        self.tiles = self._tiles()
        if self.tiles is None:
            self._arrays(foreign)

    def _tiles(self) -> Fields | None:
        """Returns the fields of a stored tensor of which the write changes some tiles, or None."""
        write, relation = self.write, self.write.tensor.relation
        if write.at is None or self.ctx.cluster is not None:
            return None
        values: dict[str, np.ndarray | np.bool_] = dict(write.values)
        has_mask = relation.schema.has(PRESENT) or write.presence is False
        if has_mask and write.presence is not None:
            values[PRESENT] = np.bool_(write.presence)
        in_place = relation.fields.in_place(
            tuple(values), write.at, write.flat, self.ctx.store.mark
        )
        if in_place is None:
            return None
        for name, new in values.items():
            if isinstance(new, np.ndarray) and behind(new) is not None:
                new = new.copy()  # it may alias the cells that are overwritten
            self.waiting.append((self._cells(in_place.cells[name]), new))
        return in_place.fields

    def _arrays(self, foreign: Callable[[], set[int]]) -> None:
        """Sets the new arrays of all fields."""
        write, relation = self.write, self.write.tensor.relation
        self.fields = {f.name: relation.fields[f.name] for f in relation.schema.values}
        self.mask = relation.present
        for name, values in write.values.items():
            if write.at is None:
                self.fields[name] = owned(values, foreign())
            else:
                self.fields[name] = self._written(self.fields[name], values)
        if write.presence is None:
            return
        if self.mask is None:
            if write.presence:
                return
            self.mask = np.broadcast_to(np.True_, relation.schema.shape)
        if write.at is None:
            self.mask = np.broadcast_to(np.bool_(write.presence), relation.schema.shape)
        else:
            self.mask = self._written(self.mask, np.bool_(write.presence))

    def _written(self, array: np.ndarray, values: np.ndarray | np.bool_) -> np.ndarray:
        """Returns the array with its new cells, or a view into which `finished` writes them."""
        store = self.ctx.store
        alone = store.overwritable(array) if self.ctx.cluster is None else None
        if alone is not None:
            if isinstance(values, np.ndarray) and behind(values) is not None:
                values = values.copy()  # they may alias the cells that are overwritten
            self.waiting.append((self._cells(alone), values))
            return alone.view()  # a new object, because GPU copies are cached by identity
        copied = self._empty(array.shape, array.dtype)
        copied[...] = array
        self._cells(copied)[self.write.at] = values
        return copied

    def _cells(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(-1) if self.write.flat else array

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        memory = self.ctx.memory
        if memory.keeps(prod(shape) * dtype.itemsize):
            return self.ctx.store.allocate(shape, dtype)
        with memory.lending():  # in a temporary file, if memory is short
            return buffer_pool.empty(shape, dtype)

    def finished(self) -> Tensor:
        """Performs the delayed writes and returns the new tensor."""
        for cells, values in self.waiting:
            self.ctx.store.overwrite(cells, self.write.at, values)
        tensor = self.write.tensor
        if self.tiles is None:
            return changed(tensor, self.fields, self.mask)
        schema = tensor.relation.schema
        if PRESENT not in self.tiles:
            return tensor.with_relation(Relation(schema, self.tiles))
        if self.write.presence and self.tiles.all_set(PRESENT):
            dense = Relation(Schema(schema.keys, schema.values), self.tiles.without_flags())
            return tensor.with_relation(dense)
        fields = (*schema.values, Field(PRESENT, DType.BOOLEAN))
        if schema.fields != fields:
            schema = Schema(schema.keys, fields)
        return tensor.with_relation(Relation(schema, self.tiles))
