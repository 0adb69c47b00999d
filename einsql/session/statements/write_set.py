"""What a change has computed, checked, and still to store: all parts of a statement at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core import buffer_pool
from einsql.session.statements.target import changed
from einsql.storage.array_ownership import behind, owned
from einsql.storage.objects import Tensor

if TYPE_CHECKING:
    from einsql.planner.context import Context

Index = Any
"""What NumPy takes between brackets: slices, arrays of positions, a mask."""


@dataclass(frozen=True, slots=True)
class Write:
    """New values of some cells of a tensor.

    Attributes:
        tensor: As it was.
        at: The cells; None for all of them.
        values: What they are to hold, by column, in the shape that `at` gives.
        count: How many cells there are.
        presence: Whether their keys are there from now on; None if that stays.
        flat: Whether `at` counts cells in key order instead of indexing by keys.
    """

    tensor: Tensor
    at: Index
    values: Mapping[str, np.ndarray]
    count: int
    presence: bool | None = None
    flat: bool = False


WriteSet = Write | Tensor
"""What is to be stored: new cells, or a tensor as a whole."""


def store(ctx: Context, changes: Sequence[WriteSet], foreign: Callable[[], set[int]]) -> None:
    """Stores what all parts of a statement have made.

    Cells are overwritten where nobody else can see the array, and else in a copy of it. Arrays
    that are overwritten come last, and the store takes them back if the statement fails.

    Args:
        ctx: The session, within `store.statement`.
        changes: What to store; no two for one tensor.
        foreign: Gives ids of the owners of memory that a tensor must not share.
    """
    new = [_Storing(ctx, m, foreign) if isinstance(m, Write) else m for m in changes]
    for item in new:
        ctx.store.put(item.finished() if isinstance(item, _Storing) else item)


def _own(at: Index) -> Index:
    """The cells, copied where they are told by an array that a change may overwrite."""
    if isinstance(at, tuple):
        return tuple(map(_own, at)) if any(isinstance(x, np.ndarray) for x in at) else at
    return at.copy() if isinstance(at, np.ndarray) and behind(at) is not None else at


class _Storing:
    """The new arrays of a tensor; those that are written in place still have to be."""

    def __init__(self, ctx: Context, write: Write, foreign: Callable[[], set[int]]) -> None:
        at = _own(write.at)
        self.ctx, self.write = ctx, write if at is write.at else replace(write, at=at)
        relation = write.tensor.relation
        self.fields = {f.name: relation.fields[f.name] for f in relation.schema.values}
        self.mask = relation.present
        self.waiting: list[tuple[np.ndarray, np.ndarray | np.bool_]] = []
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
        """The array with its new cells, or where they are to be written once all is ready."""
        store = self.ctx.store
        alone = store.overwritable(array) if self.ctx.cluster is None else None
        if alone is not None:
            if isinstance(values, np.ndarray) and behind(values) is not None:
                values = values.copy()  # of what is overwritten, perhaps
            self.waiting.append((self._cells(alone), values))
            return alone.view()  # another object: what is kept of the old one on a GPU is old
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
        with memory.lending():  # in a file, if it does not fit; the next change copies it again
            return buffer_pool.empty(shape, dtype)

    def finished(self) -> Tensor:
        """The tensor, its arrays written."""
        for cells, values in self.waiting:
            self.ctx.store.overwrite(cells, self.write.at, values)
        return changed(self.write.tensor, self.fields, self.mask)
