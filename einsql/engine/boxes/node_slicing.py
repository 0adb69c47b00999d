"""The memory of a node, and the boxes into which it is cut to need less.

A box is the node over narrower bounds of some labels. Boxes along keys of the result compute
parts of it. Boxes along a reduced label compute partial sums, which are merged.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from math import ceil, prod

import numpy as np

from einsql.core.records import cached_property, dataclass
from einsql.core.schema import DType
from einsql.core.sparse.matrix import sparse_of
from einsql.ir.einsum.graph import EinSum, Value, exprs, stored_operands, subexpressions
from einsql.ir.einsum.partial_states import has_holistic, merges, with_state

COPIES = 2
"""Copies of an operand that a kernel makes: converted, and in another order."""
STATE = 17
"""Greatest size in bytes of an element's running values: a value, an extreme value, a flag."""
SORTED = 17
"""Bytes for each value of a holistic reduction: a copy that is sorted, its number, and a flag."""
SCATTERED = 32
"""The same for groups by computed keys: the value, its group, and sorted copies of both."""
PLACES = 24
"""Bytes that a gather takes for each element: the position and the value."""
WIDE = 256
"""Number of values of a label below which it is cut only as the last resort.

A matrix product reads an operand as often as the key of the other one is cut.
"""

Box = dict[str, tuple[int, int]]
"""The bounds of the labels that are cut."""


@dataclass(frozen=True, slots=True)
class Read:
    """An operand that a node reads.

    Attributes:
        labels: The labels of the operand except those along which its elements repeat.
        nbytes: Bytes of all fields of an element that are read, in a kernel's dtypes.
        far: Whether it is read in place at computed positions.
    """

    labels: tuple[str, ...]
    nbytes: float
    far: bool = False


class Footprint:
    """The memory that a node takes.

    Args:
        node: The node.
        operands: The fields of its operands; None if they are unknown.
    """

    def __init__(
        self, node: EinSum, operands: Sequence[Mapping[str, np.ndarray]] | None = None
    ) -> None:
        self.node = node
        self.extents = {a.label: a.extent for a in node.axes}
        self.free = tuple(a.label for a in node.axes if a.define is None)
        self.derived = {a.label for a in node.axes if a.define is not None}
        self._reads = tuple(self._all_reads(operands))
        self._density = _density(node, operands)
        self._fields = sum(f.dtype.numpy.itemsize for f in node.schema.fields)
        self._sums = sum(o.reduction is not None for o in with_state(node).outputs)
        scatters = any(k in self.derived for k in node.keys)
        self._sorted = (SCATTERED if scatters else SORTED) if has_holistic(node) else 0

    @cached_property
    def result(self) -> int:
        """Bytes of the result."""
        return prod(self.extents[k] for k in self.node.keys) * self._fields

    def nbytes(self, extents: Mapping[str, int] | None = None) -> int:
        """Returns the bytes of the node for given extents of its labels, result included."""
        extents = self.extents if extents is None else extents
        points = ceil(self._density * prod(extents[x] for x in self.free))
        total = 0
        for read in self._reads:
            elements = prod(extents[x] for x in read.labels)
            if read.far:
                elements = min(elements, points)
            total += ceil(COPIES * read.nbytes * elements)
        total += points * self._sorted
        keys = prod(extents[k] for k in self.node.keys)
        total += keys * self._fields
        if self._sums:
            of_each = _threads() if 8 * keys < points else 1
            total += keys * self._sums * STATE * of_each
        elif self.derived:
            total += points * PLACES
        else:
            total += keys * self._fields
        return total

    def _all_reads(self, operands: Sequence[Mapping[str, np.ndarray]] | None) -> Iterator[Read]:
        node = self.node
        wide = any(o.dtype not in _NARROW for o in node.outputs)
        fields: dict[int, set[str]] = {}
        for e in (e for root in exprs(node) for e in subexpressions(root)):
            if isinstance(e, Value):
                fields.setdefault(e.operand, set()).add(e.field)
                wide = wide or e.dtype not in _NARROW
        size = 8 if wide else 4
        for n, names in fields.items():
            labels = node.operands[n].labels
            operand_fields = None if operands is None else operands[n]
            kept = dict.fromkeys(labels)
            few = sparse_of(operand_fields)
            if operands is None and node.operands[n].source.sparse:
                continue  # its elements are counted when they are known
            if few is not None:  # a box has its share of the stored elements
                points = prod(self.extents[x] for x in kept)
                yield Read(tuple(kept), 2 * few.matrix.nbytes / max(1, points))
                continue
            far = any(x in self.derived for x in labels)
            if operand_fields is not None:
                arrays = [operand_fields[name] for name in names]
                steps = zip(labels, *(a.strides for a in arrays), strict=True)
                moving = {x for x, *some in steps if any(some)}
                kept = {x: None for x in kept if x in moving}
                far = far and all(a.flags.c_contiguous and a.flags.aligned for a in arrays)
            yield Read(tuple(kept), size * len(names), far=far)


def _density(node: EinSum, operands: Sequence[Mapping[str, np.ndarray]] | None) -> float:
    """The fraction of points at stored elements; 0 before the number of elements is known."""
    density = 1.0
    for n in stored_operands(node):
        few = None if operands is None else sparse_of(operands[n])
        if few is not None:
            density = min(density, few.matrix.stored / max(1, few.matrix.size))
        elif operands is None:
            density = 0.0
    return density


_NARROW = frozenset({DType.FLOAT, DType.HALF, DType.BFLOAT16})


@dataclass(frozen=True, slots=True)
class Cut:
    """A division of a node into boxes.

    Attributes:
        extents: The number of values of each label in a box, except the last box along the label.
        nbytes: Bytes that a box takes.
    """

    extents: Mapping[str, int]
    nbytes: int


def cut(footprint: Footprint, most: int) -> Cut:
    """Cuts a node into boxes within a number of bytes, or into the smallest boxes possible.

    Keys of the result are cut first, because their parts need no merging. Of labels with the same
    effect the slowest is cut, so that parts are contiguous.
    """
    node = footprint.node
    extents = dict(footprint.extents)
    needed = footprint.nbytes(extents)
    keys = list(node.keys)
    # Points beyond a computed label's bounds do not exist, so only a reduction may cut one.
    if any(o.reduction is None for o in node.outputs):
        keys = [k for k in keys if k not in footprint.derived]
    reduced = [x for x in node.reduced if x not in footprint.derived] if merges(node) else []
    for labels, floor in ((keys, WIDE), (reduced, WIDE), (keys, 1), (reduced, 1)):
        while needed > most:
            tried = [
                (footprint.nbytes(extents | {x: ceil(extents[x] / 2)}), n, x)
                for n, x in enumerate(labels)
                if extents[x] > floor
            ]
            if not tried or min(tried)[0] >= needed:
                break
            needed, _, label = min(tried)
            extents[label] = ceil(extents[label] / 2)
    return Cut(extents, needed)


def _threads() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # missing on some systems
        return os.cpu_count() or 1
