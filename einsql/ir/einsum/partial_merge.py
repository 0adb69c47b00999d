"""Merging of partial results: the states of all parts become one state, for each reduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from einsql.core.bfloat16 import loaded, stored
from einsql.core.buffer_pool import converted
from einsql.core.schema import DType
from einsql.ir.einsum.graph import EinSum, Output
from einsql.ir.einsum.partial_states import State, merged_state, state_fields
from einsql.ir.functions import REDUCTIONS

_EXACT = np.dtype(np.float64)
"""The dtype in which float sums are merged."""
_TOGETHER = 512
"""Parts of a DOUBLE sum that are added sequentially, before their sums are added."""


class Total:
    """The sequential merge of one tile's parts; float sums are rounded at the end.

    Attributes:
        parts: The number of parts so far.
    """

    def __init__(self, node: EinSum) -> None:
        """Starts without parts.

        Args:
            node: The node of the parts, with the state that merging needs.
        """
        companions = {k for o in node.outputs for k in _fields(o)[1:]}
        self._leading = [(o, _fields(o)) for o in node.outputs if o.name not in companions]
        self.parts = 0
        self._node = node
        self._types = {o.name: o.dtype for o in node.outputs}
        self._first: Mapping[str, np.ndarray] | None = None
        self._states: dict[str, State] = {}
        self._earlier: dict[str, np.ndarray] = {}

    def add(self, part: Mapping[str, np.ndarray]) -> None:
        """Merges one more part.

        Raises:
            DataError: An integer sum overflows.
        """
        self.parts += 1
        if self.parts == 1:
            self._first = part
            return
        for o, names in self._leading:
            new = self._state(part, names)
            if self._first is not None:
                first = self._state(self._first, names)
                self._states[o.name] = (converted(first[0], _EXACT),) if _is_float_sum(o) else first
            self._states[o.name] = _merged(o, self._states[o.name], new)
            if self.parts % _TOGETHER == 0 and _is_float_sum(o) and o.dtype is DType.DOUBLE:
                (total,) = self._states[o.name]
                self._states[o.name] = (np.zeros_like(total),)
                self._earlier[o.name] = self._with_earlier(o.name, total)
        self._first = None

    def _with_earlier(self, name: str, total: np.ndarray) -> np.ndarray:
        """Adds the earlier parts to a sum of parts."""
        with np.errstate(all="ignore"):  # infinities of both signs make NaN
            return total + self._earlier[name] if name in self._earlier else total

    def _state(self, part: Mapping[str, np.ndarray], names: tuple[str, ...]) -> State:
        return tuple(loaded(part[k], self._types[k]) for k in names)

    def result(self) -> dict[str, np.ndarray]:
        """Returns the merged parts as one part, which may be partial itself."""
        assert self.parts > 0
        if self._first is not None:
            return {o.name: self._first[o.name] for o in self._node.outputs}
        merged_fields = {
            name: array
            for o, names in self._leading
            for name, array in zip(names, self._states[o.name], strict=True)
        }
        for name in self._earlier:
            merged_fields[name] = self._with_earlier(name, merged_fields[name])
        return {
            o.name: _as(stored(merged_fields[o.name], o.dtype), o.dtype.numpy)
            for o in self._node.outputs
        }


def merged(node: EinSum, parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Merges partial results of one tile into one, which may be partial itself.

    Args:
        node: The node of the parts, with the state that merging needs.
        parts: The fields of each part.

    Raises:
        DataError: An integer sum overflows.
    """
    total = Total(node)
    for part in parts:
        total.add(part)
    return total.result()


def repeated(
    node: EinSum, state: Mapping[str, np.ndarray], times: np.ndarray
) -> dict[str, np.ndarray]:
    """The state of groups of equal points.

    Args:
        node: The node, with the state that merging needs.
        state: The fields of one point, in the groups' shape or broadcastable to it.
        times: The number of points of each group.

    Returns:
        The fields; float sums are in DOUBLE, as `Total` merges them.

    Raises:
        DataError: An integer sum overflows.
    """
    outputs = {o.name: o for o in node.outputs}
    companions = {k for o in node.outputs for k in _fields(o)[1:]}
    count, fields = times.reshape(-1), dict[str, np.ndarray]()
    for o in (o for o in node.outputs if o.name not in companions):
        names = _fields(o)
        point: State = tuple(
            np.array(np.broadcast_to(loaded(state[k], outputs[k].dtype), times.shape)).reshape(-1)
            for k in names
        )
        starts = [REDUCTIONS[outputs[k].reduction or "sum"].identity for k in names]
        empty: State = tuple(
            np.full(len(count), start(outputs[k].dtype), a.dtype)
            for k, start, a in zip(names, starts, point, strict=True)
        )
        if _is_float_sum(o):
            with np.errstate(all="ignore"):  # infinity times 0
                total: State = (np.where(count > 0, point[0].astype(_EXACT) * count, empty[0]),)
        else:
            total = _power(o, point, empty, count)
        for k, array in zip(names, total, strict=True):
            fields[k] = stored(array.reshape(times.shape), outputs[k].dtype)
    return fields


def _power(o: Output, point: State, empty: State, times: np.ndarray) -> State:
    """States of several equal points, by merging states of 1, 2, 4, … points."""
    total = tuple(a.copy() for a in empty)
    is_empty = np.ones(len(times), np.bool_)
    while times.any():
        odd = (times & 1).astype(np.bool_)
        first, later = odd & is_empty, odd & ~is_empty
        more = _merged(o, tuple(a[later] for a in total), tuple(a[later] for a in point))
        for a, b, c in zip(total, point, more, strict=True):
            a[first], a[later] = b[first], c
        is_empty &= ~odd
        times = times >> 1
        left = times > 0
        half = tuple(a[left] for a in point)
        for a, c in zip(point, _merged(o, half, half), strict=True):
            a[left] = c
    return total


def _as(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array if array.dtype == dtype else converted(array, dtype)


def _fields(o: Output) -> tuple[str, ...]:
    return state_fields(o.name, _reduction(o))


def _reduction(o: Output) -> str:
    return o.reduction or "sum"  # a map of partial values is linear


def _is_float_sum(o: Output) -> bool:
    return _reduction(o) == "sum" and o.dtype.is_float


def _merged(o: Output, old: State, new: State) -> State:
    with np.errstate(all="ignore"):  # infinities of both signs make NaN
        if _is_float_sum(o):
            total = old[0]
            total += new[0]
            return (total,)
        return merged_state(_reduction(o), o.dtype, old, new)
