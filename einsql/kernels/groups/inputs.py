"""The arrays and integer arguments of a group's run, cached by the operands' strides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.ir.einsum.graph import Node
from einsql.kernels.groups.driver import external, write
from einsql.kernels.groups.places import Driver, GroupInputs, Result, Source
from einsql.kernels.groups.plan import Plan
from einsql.kernels.kernel import Arrays
from einsql.kernels.loops.generated import label_steps
from einsql.kernels.runtime.machine_code import address
from einsql.kernels.vectorized.views import window

MOST = 64
"""Layouts that a group caches; operands whose strides vary do not pay for caching."""

Results = Mapping[Result, np.ndarray]
"""The arrays of a group's results."""


@dataclass(frozen=True, slots=True)
class _Read:
    """The reading of an operand.

    Attributes:
        place: The number of the source outside the group, or of the group's result.
        is_result: Whether the operand is a result of the group.
        field: The field.
        part: The slices within the bounds of the labels; None for the complete array.
        dtype: The field's type.
    """

    place: int
    is_result: bool
    field: str
    part: tuple[slice, ...] | None
    dtype: np.dtype

    def array(self, operands: Sequence[Arrays], results: Sequence[np.ndarray]) -> np.ndarray:
        """Returns the part of the array that the group reads."""
        if self.is_result:
            return results[self.place]
        values = operands[self.place][self.field]
        return np.asarray(values if self.part is None else values[self.part], self.dtype)


@dataclass(frozen=True, slots=True)
class Layout:
    """The parts of a run that depend only on the operands' strides.

    Attributes:
        driver: The kernel.
        numbers: Its integer arguments without addresses.
        places: The numbers of the arguments that are addresses.
        arrays: The array of each address: its number among the operands and then the results.
        copied: The operands that the kernel cannot read in place.
    """

    driver: Driver
    numbers: np.ndarray
    places: np.ndarray
    arrays: tuple[int, ...]
    copied: tuple[int, ...]


class Inputs:
    """The operands and results of a group.

    Args:
        plan: The group.
        sources: The distinct operands from outside the group.
    """

    def __init__(self, plan: Plan, sources: Sequence[Node]) -> None:
        self._plan = plan
        self._results: dict[Result, tuple[tuple[int, ...], np.dtype]] = {
            (at, o.name): (m.node.schema.shape, o.dtype.numpy)
            for at, m in enumerate(plan.members)
            if m.visible
            for o in m.node.outputs
        }
        self._external = external(plan)
        place = {id(s): n for n, s in enumerate(sources)}
        number = {id(n): at for at, n in enumerate(plan.nodes)}
        own = list(self._results)
        self._reads: list[_Read] = []
        for at, operand, name in self._external:
            node = plan.members[at].node
            o = node.operands[operand]
            is_result = id(o.source) in number
            where = own.index((number[id(o.source)], name)) if is_result else place[id(o.source)]
            part = None if is_result else window(node, o)
            dtype = o.source.schema.dtype(name).numpy
            self._reads.append(_Read(where, is_result, name, part, dtype))
        self._drivers: dict[frozenset[Source], Driver] = {}
        self._layouts: dict[object, Layout] = {}

    def bind(
        self, operands: Sequence[Arrays]
    ) -> tuple[Driver, np.ndarray, Results, Sequence[np.ndarray]]:
        """Allocates the results, and computes the integer arguments of a run.

        Args:
            operands: The fields of each source.

        Returns:
            The kernel, its arguments, the results, and the arrays that the caller keeps alive.
        """
        results = [empty(shape, dtype) for shape, dtype in self._results.values()]
        arrays = [read.array(operands, results) for read in self._reads]
        key = tuple([a.strides if a.flags.aligned else None for a in arrays])
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MOST:
                self._layouts.clear()
            layout = self._layouts[key] = self._lay_out(arrays, results)
        for n in layout.copied:
            arrays[n] = _copy(arrays[n])
        arrays += results
        numbers = layout.numbers.copy()
        numbers[layout.places] = [address(arrays[n]) for n in layout.arrays]
        return layout.driver, numbers, dict(zip(self._results, results, strict=True)), arrays

    def _lay_out(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> Layout:
        from einsql.kernels.groups.panels import width  # imports llvmlite

        plan, copied = self._plan, []
        steps: dict[Source, dict[str, int]] = {}
        for n, (source, array) in enumerate(zip(self._external, arrays, strict=True)):
            if not _is_readable(array):
                copied.append(n)
                array = _copy(array)
            at, operand, _ = source
            steps[source] = _steps(plan.members[at].node.operands[operand].labels, array)
        strided = frozenset(s for s in self._external if self._is_strided(s, steps[s]))
        driver = self._drivers.get(strided)
        if driver is None:
            driver = self._drivers[strided] = write(plan, strided)
        panel = {
            at: width(m.node.outputs[0].dtype.numpy.itemsize, m.node.axis(m.product.wide).extent)
            for at, m in enumerate(plan.members)
            if m.product is not None
        }
        bound = GroupInputs(steps, dict(zip(self._results, results, strict=True)), panel)
        numbers = np.array([number(bound) for number in driver.numbers], np.int64)
        order = {key: n for n, key in enumerate((*self._external, *self._results))}
        return Layout(
            driver,
            numbers,
            np.array([n for n, _ in driver.bases], np.intp),
            tuple(order[key] for _, key in driver.bases),
            tuple(copied),
        )

    def _is_strided(self, source: Source, steps: Mapping[str, int]) -> bool:
        at, operand, _ = source
        labels = self._plan.members[at].node.operands[operand].labels
        is_loop = self._plan.members[at].product is None
        return is_loop and bool(labels) and steps[labels[-1]] != 1


def _is_readable(array: np.ndarray) -> bool:
    """True if all strides are multiples of an element, so that the kernel reads it in place."""
    size = array.itemsize
    return array.flags.aligned and not any(s < 0 or s % size for s in array.strides)


def _copy(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(array.shape)


def _steps(labels: Sequence[str], array: np.ndarray) -> dict[str, int]:
    """The stride of each label in an operand, in elements."""
    steps = label_steps(labels, array.shape, array.strides, array.itemsize)
    last = labels[-1:]
    if last and labels.count(last[0]) == 1 and array.shape[-1] == 1:
        steps[last[0]] = 1
    return steps
