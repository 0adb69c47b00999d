"""The vector tier: runs any node by NumPy calls over blocks of the domain.

Enumerated labels are axes of every array; any other derived label is an array of its values. If
every free label is a key, a key has at most one point and no reduction is needed (pointwise).
Otherwise points are reduced densely, or scattered if a derived label is a key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.bfloat16 import loaded, stored
from einsql.core.lazy_module import lazy_modules
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.source_writer import FieldSource, Page
from einsql.core.sparse.matrix import sparse_of
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Expr, Operand, Output, Value
from einsql.ir.functions import REDUCTIONS
from einsql.ir.functions.casts import cast_array
from einsql.kernels.kernel import Arrays, Runner, Tick, ignoring
from einsql.kernels.scalars import bounds_of, derived_axes, labels_read
from einsql.kernels.vectorized.scalar import Block, Compiled, Mask, both, compile_expr
from einsql.kernels.vectorized.views import arrangement

if TYPE_CHECKING:
    from einsql.kernels.vectorized import program_writer as _writer
    from einsql.kernels.vectorized import reductions as _reductions
    from einsql.kernels.vectorized import sums as _sums
    from einsql.kernels.vectorized.program_writer import Domain, Reading

    Read = Callable[["_Points"], Reading]
    """A function that reads an operand at a block's points."""
else:  # loaded for reductions and for programs that repeat
    _reductions, _sums, _writer = lazy_modules(
        "einsql.kernels.vectorized", "reductions", "sums", "program_writer"
    )

BLOCK = 1 << 18
"""Points of a block, so that temporaries stay in cache and a block takes milliseconds."""
GATHER_BLOCK = 1 << 24
"""Points of a block that only moves values; its only temporaries are row numbers."""

AGAIN = 2
"""The number of the run from which a small node is assumed to repeat."""

Ranges = tuple[slice, ...]
"""The part of each enumerated axis that a block covers, counted from the axis's lo."""


@dataclass(frozen=True, slots=True)
class _Output:
    output: Output
    args: tuple[Compiled, ...]
    where: Compiled | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """The data-independent decisions about a node.

    Attributes:
        types: The types of each operand's fields.
        kept: The number of leading enumerated axes that are keys.
        room: The greatest number of points of a block.
        shape: The result's shape.
        once: The only block of a small domain, or None.
    """

    node: EinSum
    enumerated: tuple[Axis, ...]
    derived: tuple[tuple[Axis, Compiled], ...]
    guard: Compiled | None
    outputs: tuple[_Output, ...]
    reads: tuple[Read, ...]
    pointwise: bool
    selective: bool
    types: tuple[Mapping[str, DType], ...]
    kept: int
    room: int
    shape: tuple[int, ...]
    once: Ranges | None


def compile_vector(node: EinSum) -> Runner:
    """Compiles any node; costs about 10 µs per NumPy call and block when first run.

    From its second run on, a small node runs as a generated function, see `program_writer`.
    """
    if any(a.extent == 0 for a in node.axes):
        return lambda operands, tick: {
            o.name: _reductions.starting(o, node.schema.shape) for o in node.outputs
        }
    plan = _plan(node)
    compute = _pointwise if plan.pointwise else _reduced

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        return compute(plan, operands, tick)

    if plan.once is None:
        return ignoring(run)
    runs = 0
    best: Runner = run

    def short(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        nonlocal runs, best
        runs += 1
        if runs == AGAIN and _writer.is_suited(node):
            best = _writer.compile_program(node, _domain(plan)) or run
        return best(operands, tick)

    def write(page: Page, operands: Sequence[FieldSource]) -> Mapping[str, str] | None:
        suited = _writer.is_suited(node)
        return _writer.write_node(node, _domain(plan), page, operands) if suited else None

    return ignoring(short, write)


def is_gather(node: EinSum) -> bool:
    """True for nodes that only move values, which NumPy does at memory bandwidth."""
    free = {a.label for a in node.axes if a.define is None}
    return free == set(node.keys) and all(
        isinstance(e, Value) for o in node.outputs for e in o.args
    )


# Compilation


def _plan(node: EinSum) -> _Plan:
    free = [a for a in node.axes if a.define is None]
    pointwise = all(a.label in node.keys for a in free)
    keys = [node.axis(k) for k in node.keys]
    enumerated = keys if pointwise else [a for a in keys if a.define is None]
    enumerated = [*enumerated, *(a for a in free if a.label not in node.keys)]
    bounds = bounds_of(node)
    derived = derived_axes(node)
    outputs = tuple(
        _Output(
            o,
            tuple(compile_expr(e, bounds) for e in o.args),
            None if o.where == TRUE else compile_expr(o.where, bounds),
        )
        for o in node.outputs
    )
    extents = [a.extent for a in enumerated]
    room = GATHER_BLOCK if is_gather(node) else BLOCK
    return _Plan(
        node=node,
        enumerated=tuple(enumerated),
        derived=tuple((a, compile_expr(define, bounds)) for a, define in derived),
        guard=None if node.guard == TRUE else compile_expr(node.guard, bounds),
        outputs=outputs,
        reads=tuple(_compile_read(node, o, enumerated, derived) for o in node.operands),
        pointwise=pointwise,
        selective=any(
            o.output.reduction is not None or any(a.fails for a in o.args) for o in outputs
        ),
        types=tuple({f.name: f.dtype for f in o.source.schema.fields} for o in node.operands),
        kept=sum(a.label in node.keys for a in enumerated),
        room=room,
        shape=node.schema.shape,
        once=tuple(slice(0, n) for n in extents) if prod(extents) <= room else None,
    )


def _compile_read(
    node: EinSum,
    operand: Operand,
    enumerated: Sequence[Axis],
    derived: Sequence[tuple[Axis, Expr]],
) -> Read:
    """Returns a function that aligns an operand's fields with the enumerated axes."""
    place = {a.label: n for n, a in enumerate(enumerated)}
    varies = {x: {x} for x in place}  # the enumerated labels a label's value depends on
    for a, define in derived:
        varies.setdefault(a.label, set()).update(
            *(varies[x] for x in labels_read(node, define) if a.label not in place)
        )
    gathered = [x for x in operand.labels if x not in place]
    rows = [x for x in operand.labels if x in place]
    if not gathered:
        return _slicing(node, operand, place)
    if len(gathered) == 1 and len(set(rows)) == len(rows):
        axes = sorted(varies[gathered[0]], key=place.__getitem__)
        if not set(axes) & set(rows):
            return _taking(node, operand, place, gathered[0], axes)
    return _indexing(node, operand)


def _starts(node: EinSum, operand: Operand) -> list[int]:
    """The offset of each label's lower bound in the operand's array."""
    keys = operand.source.schema.keys
    return [node.axis(x).lo - k.lo for x, k in zip(operand.labels, keys, strict=True)]


def _lift(labels: Sequence[str], place: Mapping[str, int]) -> tuple[slice | None, ...]:
    return tuple(slice(None) if x in labels else None for x in place)


def _slicing(node: EinSum, operand: Operand, place: Mapping[str, int]) -> Read:
    starts = _starts(node, operand)
    axes = [place[x] for x in operand.labels]
    labels = [x for x in place if x in operand.labels]
    arrange = arrangement(operand.labels, labels)
    lift = _lift(labels, place)

    def bind(points: _Points) -> Reading:
        part = [_shifted(points.ranges[a], s) for a, s in zip(axes, starts, strict=True)]
        if arrange is None:
            rest = iter(part)
            return _writer.Indexed(tuple(None if x is None else next(rest) for x in lift))
        window = tuple(part)
        return lambda array: np.asarray(arrange(array[window]))[lift]

    return bind


def _taking(
    node: EinSum, operand: Operand, place: Mapping[str, int], gathered: str, axes: Sequence[str]
) -> Read:
    """Reads complete rows by number; the row numbers vary along other axes than the rows."""
    starts = _starts(node, operand)
    at = operand.labels.index(gathered)
    now = [*operand.labels[:at], *axes, *operand.labels[at + 1 :]]
    labels = [x for x in place if x in now]
    arrange = arrangement(now, labels)
    lift = _lift(labels, place)
    squeezed = tuple(n for x, n in place.items() if x not in axes)
    first = node.axis(gathered).lo

    def bind(points: _Points) -> Reading:
        numbers = points.label(gathered).squeeze(squeezed) + (starts[at] - first)
        window: list[slice | np.ndarray] = [
            slice(None) if x == gathered else _shifted(points.ranges[place[x]], s)
            for x, s in zip(operand.labels, starts, strict=True)
        ]
        rows = tuple(window)
        window[at] = numbers
        index = tuple(window)

        def read(array: np.ndarray) -> np.ndarray:
            part = array[rows]
            # take() would first copy a table without adjacent rows
            taken = part.take(numbers, axis=at) if part.flags.c_contiguous else array[index]
            taken = np.asarray(taken if arrange is None else arrange(taken))
            return taken[lift] if None in lift else taken  # a result is not copied if no view

        return read

    return bind


def _indexing(node: EinSum, operand: Operand) -> Read:
    keys = operand.source.schema.keys

    def bind(points: _Points) -> Reading:
        return _writer.Indexed(
            tuple(points.label(x) - k.lo for x, k in zip(operand.labels, keys, strict=True))
        )

    return bind


def _shifted(part: slice, by: int) -> slice:
    return slice(part.start + by, part.stop + by)


def _domain(plan: _Plan) -> Domain:
    """The only block of a node with data-independent labels."""
    assert plan.once is not None  # the domain has one block
    points = _Points(replace(plan, guard=None), (), plan.once)
    mask = points.derive()
    node, guard = plan.node, plan.guard
    return _writer.Domain(
        shape=points.shape,
        kept=plan.kept,
        pointwise=plan.pointwise,
        labels={a.label: points.label(a.label) for a in node.axes},
        mask=mask,
        guards=guard is not None and (plan.selective or guard.fails),
        reads=tuple(read(points) for read in plan.reads),
    )


# Running


class _Points(Block):
    """The points of one block, with cached labels and operand values."""

    def __init__(self, plan: _Plan, operands: Sequence[Arrays], ranges: Ranges) -> None:
        self.plan = plan
        self.operands = operands
        self.ranges = ranges
        self.shape = tuple(r.stop - r.start for r in ranges)
        self.labels: dict[str, np.ndarray] = {}
        self.values: dict[tuple[int, str], np.ndarray] = {}

    def label(self, name: str) -> np.ndarray:
        if name not in self.labels:
            axes = self.plan.enumerated
            n = next(n for n, a in enumerate(axes) if a.label == name)
            lo = axes[n].lo
            numbers = np.arange(lo + self.ranges[n].start, lo + self.ranges[n].stop)
            shape = [-1 if m == n else 1 for m in range(len(axes))]
            self.labels[name] = numbers.reshape(shape)
        return self.labels[name]

    def value(self, operand: int, field: str) -> np.ndarray:
        if (operand, field) not in self.values:
            array = self.plan.reads[operand](self)(self.operands[operand][field])
            self.values[operand, field] = loaded(array, self.plan.types[operand][field])
        return self.values[operand, field]

    def derive(self) -> Mask:
        """Computes the derived labels; returns the points that exist by them and the guard."""
        mask: Mask = None
        if not self.plan.derived and self.plan.guard is None:
            return mask
        enumerated = {a.label for a in self.plan.enumerated}
        for axis, define in self.plan.derived:
            number = define.run(self, mask).astype(np.int64, copy=False)
            if axis.label in enumerated:
                mask = both(mask, np.asarray(number == self.label(axis.label)))
                continue
            inside = (number >= axis.lo) & (number < axis.hi)
            if not inside.all():
                mask = both(mask, inside)
                number = np.clip(number, axis.lo, axis.hi - 1)
            self.labels[axis.label] = number.reshape(
                number.shape or (1,) * len(self.shape)  # literals have no axes
            )
        guard = self.plan.guard
        if guard is not None and (self.plan.selective or guard.fails):
            mask = both(mask, guard.run(self, mask))
        return mask


class _Arrays(dict[str, np.ndarray]):
    """The fields of a sparse operand as arrays, each of which is made when it is first read."""

    def __init__(self, fields: Arrays) -> None:
        super().__init__()
        self.fields = fields

    def __missing__(self, name: str) -> np.ndarray:
        self[name] = array = self.fields[name]
        return array


def _blocks(shape: Sequence[int], room: int) -> Iterator[Ranges]:
    """Cuts a domain into blocks of `room` points, with complete trailing axes if they fit."""
    steps: list[int] = []
    for extent in reversed(shape):
        step = max(1, min(extent, room))
        steps.append(step)
        room //= extent if step == extent else room
    return _tiles(tuple(shape), tuple(reversed(steps)))


def _tiles(shape: tuple[int, ...], steps: tuple[int, ...]) -> Iterator[Ranges]:
    """Generates the tiles of a grid lazily: 2⁶⁰ points have too many for a list."""
    if not shape:
        yield ()
        return
    for start in range(0, shape[0], steps[0]):
        first = slice(start, min(shape[0], start + steps[0]))
        for rest in _tiles(shape[1:], steps[1:]):
            yield (first, *rest)


def _points(plan: _Plan, operands: Sequence[Arrays], tick: Tick) -> Iterator[tuple[_Points, Mask]]:
    """Generates the blocks of the domain with their existing points; reports progress."""
    if plan.once is not None:  # most nodes are small
        points = _Points(plan, operands, plan.once)
        yield points, points.derive()
        tick(1.0)
        return
    shape = [a.extent for a in plan.enumerated]
    total, done = prod(shape), 0
    operands = [fields if sparse_of(fields) is None else _Arrays(fields) for fields in operands]
    for ranges in _blocks(shape, plan.room):
        points = _Points(plan, operands, ranges)
        yield points, points.derive()
        done += prod(points.shape)
        tick(done / total)


def _pointwise(plan: _Plan, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
    shape = plan.shape
    fields: dict[str, np.ndarray] = {}
    for points, mask in _points(plan, operands, tick):
        for o in plan.outputs:
            values = stored(_only(o, points, mask), o.output.dtype)
            if values.shape == shape and values.flags.owndata and values.flags.writeable:
                fields[o.output.name] = values
                continue
            if o.output.name not in fields:
                fields[o.output.name] = np.empty(shape, o.output.dtype.numpy)
            fields[o.output.name][points.ranges] = values
    return fields


def _only(o: _Output, points: _Points, mask: Mask) -> np.ndarray:
    """The only contribution at each key, or the identity if there is none."""
    if o.output.reduction is None:
        return np.asarray(cast_array(o.args[0].run(points, mask), o.output.dtype))
    selected = mask if o.where is None else both(mask, o.where.run(points, mask))
    args = [a.run(points, selected) for a in o.args]
    place = REDUCTIONS[o.output.reduction].place
    value = cast_array(args[place], o.output.dtype)
    if selected is not None:
        value = np.where(selected, value, np.asarray(_reductions.start_of(o.output), value.dtype))
    if o.output.reduction == "sum" and value.dtype.kind == "f":
        return _sums.from_zero(value)
    return np.asarray(value)


def _reduced(plan: _Plan, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
    node, kept = plan.node, plan.kept
    scattered = kept < len(node.keys)
    # Densely reduced results have the kept axes in the result's key order.
    running = _reductions.accumulators([o.output for o in plan.outputs], plan.shape)
    for points, mask in _points(plan, operands, tick):
        for o, run in zip(plan.outputs, running, strict=True):
            selected = mask if o.where is None else both(mask, o.where.run(points, mask))
            args = [np.broadcast_to(a.run(points, selected), points.shape) for a in o.args]
            if scattered:
                at = np.broadcast_to(_positions(node, points), points.shape)
                chosen = ... if selected is None else np.broadcast_to(selected, points.shape)
                run.scatter(at[chosen].reshape(-1), [a[chosen].reshape(-1) for a in args])
            else:
                run.dense(points.ranges[:kept], args, selected)
    return {o.output.name: r.result() for o, r in zip(plan.outputs, running, strict=True)}


def _positions(node: EinSum, points: _Points) -> np.ndarray:
    """The flat position of each point's key in the result."""
    flat = np.zeros((), np.int64)
    for k in node.keys:
        axis = node.axis(k)
        flat = flat * axis.extent + (points.label(k) - axis.lo)
    return flat
