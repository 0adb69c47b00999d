"""Generated loops: runs every EinSum node, compiled by Numba on its first run.

The domain is cut into boxes, one kernel call each. Boxes that meet at different keys of
the result run on several threads, since kernels hold no lock; a box is small enough that
progress and cancellation are noticed between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import ceil, prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from einsql.algebra import REDUCTIONS, SCALARS
from einsql.buffers import empty
from einsql.einsum import TRUE, Axis, EinSum, Operand, Output
from einsql.errors import DataError
from einsql.kernels import cache, pool
from einsql.kernels.codegen import accumulator, generate, state
from einsql.kernels.expressions import Param, Program
from einsql.kernels.kernel import Fields, Runner, Tick
from einsql.kernels.nest import STRIP, Mode, Nest, plan_nest, weight
from einsql.schema import DType

BOX = 2**24
"""Work of one kernel call, in cheap operations: some 10 to 100 milliseconds."""
PARALLEL = 2**20
"""Work from which starting threads pays."""

Box = tuple[tuple[int, int], ...]
"""Zero-based half-open range of every loop."""


def compile_loops(node: EinSum) -> Runner:
    """A runner of any EinSum node.

    Args:
        node: The node; its operands arrive as fields with one axis per key.

    Returns:
        The runner. Its first run compiles, or loads what an earlier process compiled.
        FLOAT and HALF are computed as FLOAT, their sums and products in DOUBLE and
        rounded once. Element-wise outputs are 0 where no point exists. It raises
        DataError for a selected element that fails.
    """
    return _Loops(node).run


@dataclass(frozen=True, slots=True)
class _Array:
    """An operand's field over the domain, as a flat view and one stride per label.

    Attributes:
        strides: Elements per step of each label.
        unit: Whether the last label steps by one element.
    """

    flat: np.ndarray
    strides: dict[str, int]
    unit: bool


class _Loops:
    """A node with its plan."""

    def __init__(self, node: EinSum) -> None:
        self.node = node
        self.nest = plan_nest(node)
        self.axes = {a.label: a for a in node.axes}
        self.shape = node.schema.shape
        self.empty = any(a.extent == 0 for a in node.axes)
        self.partial = node.guard != TRUE or any(a.define is not None for a in node.axes)
        self.work = node.points * weight(node)
        self.programs: dict[frozenset[tuple[int, str]], Program] = {}
        self.sources: tuple[tuple[int, str], ...] = ()
        if not self.empty:
            contiguous = generate(node, self.nest, frozenset())
            self.programs[frozenset()] = contiguous
            self.sources = tuple(contiguous.arrays)
            self.boxes = _cut(node, self.nest)

    def run(self, operands: Sequence[Fields], tick: Tick) -> dict[str, np.ndarray]:
        node = self.node
        if self.empty:
            return {o.name: _start(o, self.shape) for o in node.outputs}
        arrays = {k: self.array(k, operands[k[0]][k[1]]) for k in self.sources}
        strided = frozenset(k for k, a in arrays.items() if not a.unit)
        program = self.programs.get(strided)
        if program is None:
            program = self.programs[strided] = generate(node, self.nest, strided)
        results = [self.allocate(o) for o in node.outputs]
        kernel = cache.load(program.source)
        fixed = (
            *(_carrier(c.dtype).type(c.dtype.numpy.type(c.value)) for c in program.constants),
            *(arrays[k].flat for k in program.arrays),
            *(r.reshape(-1) for result in results for r in result),
        )
        integers = np.array(
            [self.argument(p, program, arrays) for p in program.params], dtype=np.int64
        )

        def call(box: Box) -> int:
            failed = np.zeros(1, np.int64)
            kernel(np.array(box, dtype=np.int64).reshape(-1), integers, failed, *fixed)
            return int(failed[0])

        failed = _run_boxes(self.boxes, call, self.work, tick)
        if failed:
            first = (failed & -failed).bit_length() - 1
            raise DataError(program.reasons[first])
        return {
            o.name: self.finish(o, result) for o, result in zip(node.outputs, results, strict=True)
        }

    def array(self, key: tuple[int, str], values: np.ndarray) -> _Array:
        operand = self.node.operands[key[0]]
        dtype = operand.source.schema.dtype(key[1])
        return _flatten(
            _within(values, operand, self.axes), operand.labels, dtype, self.node.points
        )

    def argument(self, p: Param, program: Program, arrays: dict[tuple[int, str], _Array]) -> int:
        if p.kind == "lo":
            return self.axes[p.label].lo
        if p.kind == "hi":
            return self.axes[p.label].hi
        if p.kind == "stride":
            return arrays[program.arrays[p.array]].strides[p.label]
        place = self.node.keys.index(p.label)
        return prod(self.shape[place + 1 :])

    def allocate(self, o: Output) -> list[np.ndarray]:
        """The arrays a kernel writes for an output: its running values, or its result."""
        if o.reduction is None or not self.nest.keeps_state:
            carrier = _carrier(o.dtype)
            if not self.partial:
                return [empty(self.shape, carrier)]
            return [_start(o, self.shape).astype(carrier, copy=False)]
        start = REDUCTIONS[o.reduction].identity(o.dtype)
        first, *rest = (_carrier(t) for t in state(o))
        return [np.full(self.shape, start, first), *(np.zeros(self.shape, t) for t in rest)]

    def finish(self, o: Output, result: list[np.ndarray]) -> np.ndarray:
        values = result[0]
        if o.reduction is not None and self.nest.keeps_state:
            wide = accumulator(o)
            if wide is DType.BIGINT and o.dtype is not DType.BIGINT:
                lo, hi = o.dtype.range
                if np.any((values < lo) | (values > hi)):
                    monoid = SCALARS[REDUCTIONS[o.reduction].monoid or ""]
                    raise DataError(monoid.fails[o.dtype].reason)
        with np.errstate(over="ignore"):
            return values.astype(o.dtype.numpy, copy=False)


def _run_boxes(cut: Cut, call: Callable[[Box], int], work: int, tick: Tick) -> int:
    """Calls a kernel on every box; groups run on several threads.

    Returns:
        The bits of the failures met, 0 for none.
    """
    if work < PARALLEL or cut.grouped == 1:
        for done, box in enumerate(chain.from_iterable(cut.groups()), start=1):
            failed = call(box)
            if failed:
                return failed
            tick(done / cut.size)
        return 0

    def calls(group: Iterator[Box]) -> None:
        for box in group:
            failed = call(box)
            if failed:
                raise _FailedError(failed)

    try:
        pool.run(calls, cut.groups(), cut.grouped, tick)
    except _FailedError as stop:
        return stop.bits
    return 0


class _FailedError(Exception):
    """Leaves the boxes that were not begun alone."""

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.bits = bits


def _cut(node: EinSum, nest: Nest) -> Cut:
    """The domain in boxes, grouped by the keys of the result they meet at."""
    extent = [node.axis(x).extent for x in nest.loops]
    keys = [n for n, x in enumerate(nest.loops) if x in node.keys]
    work = prod(extent) * weight(node)
    parts = [1] * len(extent)
    if nest.mode is Mode.ROW:
        parts[-1] = ceil(extent[-1] / STRIP)
        keys.remove(len(extent) - 1)
    workers = pool.threads() if work >= PARALLEL else 1
    wanted = ceil(max(work / BOX, 4 * workers if workers > 1 else 1) / prod(parts))
    for n in keys:
        parts[n] = min(extent[n], wanted)
        wanted = ceil(wanted / parts[n])
    groups = [parts[n] if x in node.keys else 1 for n, x in enumerate(nest.loops)]
    if nest.keeps_state:
        wanted = ceil(work / BOX / prod(groups))
        for n, x in enumerate(nest.loops):
            if x not in node.keys:
                parts[n] = min(extent[n], wanted)
                wanted = ceil(wanted / parts[n])
    return Cut(tuple(extent), tuple(parts), tuple(x in node.keys for x in nest.loops))


@dataclass(frozen=True, slots=True)
class Cut:
    """A domain in boxes, made one at a time: 2⁶⁰ points have too many to hold them all.

    Attributes:
        extent: Values each loop takes.
        parts: In how many parts each loop is cut.
        kept: Which loops run over keys of the result.
    """

    extent: tuple[int, ...]
    parts: tuple[int, ...]
    kept: tuple[bool, ...]

    @property
    def size(self) -> int:
        """How many boxes there are."""
        return prod(self.parts)

    @property
    def grouped(self) -> int:
        """How many groups there are; boxes of one group meet at the same keys."""
        return prod(p for p, k in zip(self.parts, self.kept, strict=True) if k)

    def groups(self) -> Iterator[Iterator[Box]]:
        """The boxes of each group."""
        for number in range(self.grouped):
            yield self._boxes(number)

    def _boxes(self, group: int) -> Iterator[Box]:
        for number in range(self.size // self.grouped):
            yield tuple(reversed(list(self._ranges(group, number))))

    def _ranges(self, group: int, number: int) -> Iterator[tuple[int, int]]:
        """The range of each loop of one box, the innermost first."""
        for n in reversed(range(len(self.parts))):
            if self.kept[n]:
                group, at = divmod(group, self.parts[n])
            else:
                number, at = divmod(number, self.parts[n])
            yield self.extent[n] * at // self.parts[n], self.extent[n] * (at + 1) // self.parts[n]


def _start(o: Output, shape: tuple[int, ...]) -> np.ndarray:
    """What an output holds at keys without any point."""
    value = 0 if o.reduction is None else REDUCTIONS[o.reduction].identity(o.dtype)
    return np.full(shape, value, o.dtype.numpy)


def _carrier(dtype: DType) -> np.dtype:
    return np.dtype(np.float32) if dtype is DType.HALF else dtype.numpy


def _within(values: np.ndarray, operand: Operand, axes: Mapping[str, Axis]) -> np.ndarray:
    """An operand's field cut to the bounds of its labels."""
    cuts = []
    for label, key in zip(operand.labels, operand.source.schema.keys, strict=True):
        a = axes[label]
        cuts.append(slice(a.lo - key.lo, a.hi - key.lo))
    return values[tuple(cuts)]


def _flatten(values: np.ndarray, labels: tuple[str, ...], dtype: DType, points: int) -> _Array:
    """A flat view of an array that kernels can index; a copy only where there is none."""
    carrier = _carrier(dtype)
    values = np.asarray(values, carrier)
    steps = [
        s if n > 1 else carrier.itemsize for s, n in zip(values.strides, values.shape, strict=True)
    ]
    last = steps[-1:] == [carrier.itemsize] or not steps
    awkward = not values.flags.aligned or any(s < 0 or s % carrier.itemsize for s in steps)
    # Reading a strided array again and again costs more than copying it once.
    reused = not last and 0 not in steps and points >= 4 * values.size
    if awkward or reused:
        values = np.ascontiguousarray(values).reshape(values.shape)
        steps, last = list(values.strides), True
    strides: dict[str, int] = {}
    for label, step, n in zip(labels, steps, values.shape, strict=True):
        strides[label] = strides.get(label, 0) + (step // carrier.itemsize if n > 1 else 0)
    if values.flags.c_contiguous:
        flat = values.reshape(-1)
    else:
        span = 1 + sum(
            (n - 1) * (s // carrier.itemsize) for n, s in zip(values.shape, steps, strict=True)
        )
        flat = as_strided(values, (span,), (carrier.itemsize,), writeable=False)
    flat = flat.view()
    flat.flags.writeable = False
    return _Array(flat, strides, last)
