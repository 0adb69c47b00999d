"""Merging of partial results: the states of all parts become one state, for each reduction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from einsql.core.bfloat16 import loaded, stored
from einsql.core.buffer_pool import converted
from einsql.core.schema import DType
from einsql.ir.einsum.graph import EinSum, Output
from einsql.ir.einsum.partial_states import State, merged_state, state_fields

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
