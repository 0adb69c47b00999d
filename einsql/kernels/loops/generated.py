"""Generated loops: runs every EinSum node, compiled on its first run.

The domain is cut into boxes, one kernel call each. Boxes with different keys of the result run
on several threads, since kernels release the GIL. Boxes are small, because progress and
cancellation are handled between two of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from itertools import chain
from math import prod

import numpy as np

from einsql.core.bfloat16 import stored
from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import DataError, Error
from einsql.ir.einsum.graph import Const, EinSum, Output
from einsql.ir.einsum.states import has_states, owners, state_of
from einsql.ir.functions import REDUCTIONS, SCALARS
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.loops.codegen import accumulator, compensated, generate, is_compensated, state
from einsql.kernels.loops.expressions import FAR, Argument, Program, Role, first_error
from einsql.kernels.loops.flatten_labels import flattened
from einsql.kernels.loops.loop_cuts import Box, Cut, cut
from einsql.kernels.loops.loop_nest import Nest, plan_nest
from einsql.kernels.runtime import compile_cache, thread_pool, thread_team
from einsql.kernels.runtime.machine_code import Kernel
from einsql.kernels.vectorized.reductions import merge, starting
from einsql.kernels.vectorized.views import window

FEW = 64
"""Number of boxes up to which their table is cached between runs."""
OPERATION = 1e-9
"""Approximate seconds of a cheap operation, to estimate the time of a call."""


def compile_loops(node: EinSum) -> Runner:
    """Creates a runner of any EinSum node.

    Args:
        node: The node; its operands are passed as fields with one axis per key.

    Returns:
        The runner. Its first run compiles the kernel or loads it from the compile cache.
        FLOAT, HALF and BFLOAT16 are computed as FLOAT, their sums and products in DOUBLE and
        rounded once. Sums of DOUBLE are compensated once per `strips.FOLDED` terms, or for each
        term if keys are computed. Element-wise outputs are 0 where no point exists. The runner
        raises DataError for a selected element that fails.
    """
    return flattened(node, lambda part: Loops(part).run)


@dataclass(frozen=True, slots=True)
class _Source:
    """An operand's field that the kernel reads.

    Attributes:
        window: The slices of the field that the domain covers, or None for the complete field.
    """

    operand: int
    field: str
    dtype: np.dtype
    labels: tuple[str, ...]
    window: tuple[slice, ...] | None


@dataclass(slots=True)
class _Layout:
    """The parts of a run that depend only on the operands' strides.

    Attributes:
        strided: The operands whose last label has a stride other than one element.
        numbers: The kernel's argument, without boxes and addresses.
        kernel: The compiled function; None before the first call.
    """

    strided: frozenset[tuple[int, str]]
    program: Program
    numbers: np.ndarray
    kernel: Kernel | None = None


Steps = tuple[tuple[int, ...], ...]
Groups = Sequence[tuple[int, Sequence[Box]]]
"""The slice and the boxes of groups; the boxes of different groups run concurrently. They have
different keys of the result, or different slices."""


class Loops:
    """Runs the kernel of a node.

    Args:
        node: The node.
        nest: The order of its loops; None for the best one.
        near: Whether the kernel assumes small angles, see `generate`.
        boxes: The partition of the loops; None for the best one.
    """

    def __init__(
        self,
        node: EinSum,
        nest: Nest | None = None,
        near: bool = True,
        boxes: Cut | None = None,
    ) -> None:
        self.node, self.near, self.partition = node, near, boxes
        self.owner = owners(node.outputs)
        self.far: Loops | None = None
        self.nest = plan_nest(node, alone=True) if nest is None else nest
        self.axes = {a.label: a for a in node.axes}
        self.shape = node.schema.shape
        self.empty = any(a.extent == 0 for a in node.axes)
        self.partial = any(node.axis(k).define is not None for k in node.keys)
        self.points = node.points
        self.layouts: dict[Steps, _Layout] = {}
        self.sources: tuple[_Source, ...] = ()
        if not self.empty:
            contiguous = self.written(frozenset())
            self.sources = tuple(_source(node, *key) for key in contiguous.arrays)
            self.contiguous = contiguous
            self.partial |= contiguous.has_gaps
            self.boxes = cut(node, self.nest) if boxes is None else boxes
            only = self.boxes.size == 1
            self.box = next(next(self.boxes.groups())[1]) if only else None
            self.few: list[tuple[int, list[np.ndarray]]] | None = None
            if self.boxes.size <= FEW:
                self.few = [(part, list(map(ends_of, of))) for part, of in self.boxes.groups()]
            self.table: Table | None = None
            if (
                self.few
                and self.boxes.grouped == self.boxes.size
                and self.boxes.work * OPERATION < thread_team.LONG
            ):
                alone = [(part, ends) for part, (ends,) in self.few]
                self.table = Table(alone, self.boxes.work * OPERATION)

    def run(
        self, operands: Sequence[Arrays], tick: Tick, parts: Groups | Table | None = None
    ) -> dict[str, np.ndarray]:
        """Computes the fields of the result.

        Args:
            operands: The arrays of each operand.
            tick: Callback with the completed fraction; raises to cancel.
            parts: Boxes that cover the domain; None for those of the partition.
        """
        node = self.node
        if self.empty:
            return {o.name: starting(o, self.shape) for o in node.outputs}
        arrays = [self.array(s, operands[s.operand][s.field]) for s in self.sources]
        steps = tuple([a.strides for a in arrays])
        layout = self.layouts.get(steps)
        if layout is None:
            layout = self.layouts[steps] = self.lay_out(steps)
        kernel = layout.kernel
        if kernel is None:
            kernel = layout.kernel = compile_cache.load(layout.program.source, tick)
        results = [self.allocate(n, o) for n, o in enumerate(node.outputs)]
        numbers = layout.numbers.copy()
        first = len(numbers) - len(arrays) - sum(map(len, results))
        written = [r for result in results for r in result]
        numbers[first:] = [a.ctypes.data for a in chain(arrays, written)]
        failed = self.call(kernel, numbers, written, tick, parts)
        if not failed and self.boxes.slices > 1 and has_states(node):
            numbers[:2] = -self.boxes.slices, prod(self.shape)
            failed = kernel(numbers)
        reasons = layout.program.reasons
        if failed and FAR in reasons and failed & 1 << reasons.index(FAR):
            if self.far is None:
                self.far = self.with_far()
            return self.far.run(operands, tick, parts)
        if failed:
            raise self.error(reasons, failed)
        return {o.name: self._finish(n, o, results) for n, o in enumerate(node.outputs)}

    def call(
        self,
        kernel: Kernel,
        numbers: np.ndarray,
        written: list[np.ndarray],
        tick: Tick,
        parts: Groups | Table | None,
    ) -> int:
        """Calls a kernel on every box; groups of boxes run on several threads.

        Returns:
            The bits of the failures, 0 for none.
        """
        if parts is None and self.box is not None:
            numbers[: 2 * len(self.box)] = ends_of(self.box)
            failed: int = kernel(numbers)
            tick(1.0)
            return failed
        strides = [r.nbytes // self.boxes.slices for r in written]
        table = self.table if parts is None else parts
        if isinstance(table, Table):
            failed = table.run(kernel, numbers, strides)
            tick(1.0)
            return failed
        size, grouped = self.boxes.size, self.boxes.grouped
        groups: Iterable[tuple[int, Iterable[np.ndarray]]] = self.few or (
            (part, map(ends_of, boxes)) for part, boxes in self.boxes.groups()
        )
        if parts is not None and not isinstance(parts, Table):
            size, grouped = sum(len(boxes) for _, boxes in parts), len(parts)
            groups = ((part, map(ends_of, boxes)) for part, boxes in parts)
        progress = _Progress(size, tick)

        def calls(group: tuple[int, Iterable[np.ndarray]]) -> None:
            part, boxes = group
            own = numbers.copy()
            if part:
                own[len(own) - len(written) :] += [part * s for s in strides]
            for ends in boxes:
                own[: len(ends)] = ends
                failed = kernel(own)
                if failed:
                    raise _FailedError(failed)
                if not progress.step():
                    return

        try:
            thread_pool.run(calls, groups, grouped, lambda _: progress.tell())
        except _FailedError as stop:
            return stop.bits
        return 0

    def array(self, source: _Source, values: np.ndarray) -> np.ndarray:
        """Returns an operand as a view, or as a copy if it has no address."""
        if source.window is not None:
            values = values[source.window]
        if values.dtype != source.dtype:
            values = values.astype(source.dtype)
        if values.flags.c_contiguous and values.flags.aligned:
            return values
        size = source.dtype.itemsize
        steps = [s for s, n in zip(values.strides, values.shape, strict=True) if n > 1]
        # Repeated reads of a strided array cost more than one copy.
        reused = steps[-1:] != [size] and 0 not in steps and self.points >= 4 * values.size
        if reused or not values.flags.aligned or any(s % size for s in steps):
            return np.ascontiguousarray(values).reshape(values.shape)
        return values

    def lay_out(self, steps: Steps) -> _Layout:
        """Creates the program and its integer arguments for operands with these strides."""
        strides: list[dict[str, int]] = []
        strided = set()
        for source, own_steps in zip(self.sources, steps, strict=True):
            size = source.dtype.itemsize
            extents = [self.axes[x].extent for x in source.labels]
            strides.append(label_steps(source.labels, extents, own_steps, size))
            if extents and extents[-1] > 1 and own_steps[-1] != size:
                strided.add((source.operand, source.field))
        strided_sources = frozenset(strided)
        program = self.program(strided_sources)
        numbers = [0] * (2 * len(self.nest.loops))
        numbers += [self._argument(p, strides) for p in program.params]
        numbers += [bits(c) for c in program.constants]
        numbers += [0] * (
            len(self.sources) + sum(len(self._kinds(n, o)) for n, o in enumerate(self.node.outputs))
        )
        return _Layout(strided_sources, program, np.array(numbers, np.int64))

    def program(self, strided: frozenset[tuple[int, str]]) -> Program:
        """Returns the cached source for a set of strided operands."""
        if not strided:
            return self.contiguous
        for layout in self.layouts.values():
            if layout.strided == strided:
                return layout.program
        return self.written(strided)

    def written(self, strided: frozenset[tuple[int, str]]) -> Program:
        """Writes the source for a set of strided operands."""
        return generate(self.node, self.nest, strided, self.near)

    def with_far(self) -> Loops:
        """Creates loops that make no assumption about angles and divisors."""
        return Loops(self.node, self.nest, near=False, boxes=self.partition)

    def error(self, reasons: Sequence[str], bits: int) -> Error:
        """The error for the bits that a kernel returned."""
        return first_error(reasons, bits)

    def _argument(self, p: Argument, strides: list[dict[str, int]]) -> int:
        return strides[p.array][p.label] if p.role is Role.STRIDE else p.of_node(self.node)

    def _kinds(self, number: int, o: Output) -> list[np.dtype]:
        if o.reduction is None or not self.nest.keeps_state:
            return [o.dtype.numpy]
        if self.owner[number] != number:
            return []
        return [_carrier(t) for t in state(o, self.nest)]

    def allocate(self, number: int, o: Output) -> list[np.ndarray]:
        """Allocates the arrays that a kernel writes for an output: running values or the result.

        An output of a state whose running values another output has needs none.
        """
        if o.reduction is None or not self.nest.keeps_state:
            return [starting(o, self.shape) if self.partial else empty(self.shape, o.dtype.numpy)]
        shape, kinds = (self.boxes.slices, *self.shape), self._kinds(number, o)
        if REDUCTIONS[o.reduction].fields:
            fields = state_of(o.reduction).fields[: len(kinds)]
            return [np.full(shape, f.start, t) for f, t in zip(fields, kinds, strict=True)]
        start = REDUCTIONS[o.reduction].identity(o.dtype)
        first, *rest = kinds
        return [np.full(shape, start, first), *(np.zeros(shape, t) for t in rest)]

    def _finish(self, number: int, o: Output, results: Sequence[list[np.ndarray]]) -> np.ndarray:
        result = results[number]
        if o.reduction is None or not self.nest.keeps_state:
            return result[0]
        if REDUCTIONS[o.reduction].fields:  # the kernel has merged the slices
            return results[self.owner[number]][REDUCTIONS[o.reduction].place][0, ...]
        if is_compensated(o, self.nest):
            result = [compensated(*result[-2:])]
        values = merge(o, result)[0]
        if accumulator(o) is DType.BIGINT and o.dtype is not DType.BIGINT:
            lo, hi = o.dtype.range
            if np.any((values < lo) | (values > hi)):
                monoid = SCALARS[REDUCTIONS[o.reduction].monoid or ""]
                raise DataError(monoid.fails[o.dtype].reason)
        with np.errstate(over="ignore"):
            return stored(values, o.dtype).astype(o.dtype.numpy, copy=False)


def ends_of(box: Box) -> np.ndarray:
    """The start and end of each loop of a box, in the layout that kernels read."""
    return np.array(box, np.int64).reshape(-1)


class Table:
    """Independent boxes of a kernel whose calls are short.

    Args:
        boxes: The slice of each box, and the box or its ends as `ends_of` returns them.
        seconds: Estimated seconds of all boxes on one thread.
    """

    def __init__(self, boxes: Sequence[tuple[int, Box | np.ndarray]], seconds: float) -> None:
        self.seconds = seconds
        self.ends = np.array([ends for _, ends in boxes], np.int64).reshape(len(boxes), -1)
        parts = np.array([part for part, _ in boxes])
        self.parts = parts[:, None] if parts.any() else None

    def run(self, kernel: Kernel, numbers: np.ndarray, strides: Sequence[int]) -> int:
        """Calls the kernel on every box; returns the bits of the failures.

        Args:
            kernel: The compiled function.
            numbers: The kernel's argument without the boxes.
            strides: Bytes between slices of each result; the last entries of the argument.
        """
        rows = np.empty((len(self.ends), len(numbers)), np.int64)
        rows[...] = numbers
        rows[:, : self.ends.shape[1]] = self.ends
        if self.parts is not None:
            rows[:, len(numbers) - len(strides) :] += self.parts * np.array(strides)
        return thread_team.run(
            kernel.address,
            thread_team.array_rows(rows),
            thread_team.at_hand(self.seconds),
        )


class _Progress:
    """Counts completed boxes of several threads; the statement's thread reports progress."""

    def __init__(self, total: int, tick: Tick) -> None:
        self._total, self._tick = total, tick
        self._done = 0
        self._stopped = False
        self._lock = threading.Lock()
        self._teller = threading.get_ident()

    def step(self) -> bool:
        """Counts a box; returns False if the remaining boxes are cancelled."""
        with self._lock:
            self._done += 1
        if threading.get_ident() == self._teller:
            self.tell()
        return not self._stopped

    def tell(self) -> None:
        """Reports progress; an exception stops the other threads after their current box."""
        try:
            self._tick(self._done / self._total)
        except BaseException:
            self._stopped = True
            raise


class _FailedError(Exception):
    """Cancels the boxes that have not started."""

    def __init__(self, bits: int) -> None:
        super().__init__(bits)
        self.bits = bits


def _carrier(dtype: DType) -> np.dtype:
    return np.dtype(np.float32) if dtype is DType.HALF else dtype.carrier


def _source(node: EinSum, operand: int, name: str) -> _Source:
    read = node.operands[operand]
    return _Source(
        operand=operand,
        field=name,
        dtype=read.source.schema.dtype(name).numpy,
        labels=read.labels,
        window=window(node, read),
    )


def label_steps(
    labels: Sequence[str], extents: Sequence[int], strides: Sequence[int], size: int
) -> dict[str, int]:
    """The stride of each label in an array, in elements.

    Args:
        labels: The label of each axis; the strides of a repeated label are added.
        extents: The extents of the axes.
        strides: The strides of the axes in bytes.
        size: Bytes of an element.
    """
    steps = dict.fromkeys(labels, 0)
    for label, step, n in zip(labels, strides, extents, strict=True):
        steps[label] += step // size if n > 1 else 0
    return steps


def bits(c: Const) -> int:
    """The bits of a literal as an integer argument."""
    value = c.dtype.carrier.type(c.value)
    return int(np.float64(value).view(np.int64)) if c.dtype.is_float else int(value)
