"""Running values of the vector tier: a reduction over masked arrays, block by block.

A block contributes densely or scattered. Dense blocks have the reduced labels as axes; scattered
points have the position of their result element. Float sums and products are computed in float64
and rounded once, and sums of DOUBLE are split into short sums. Integer overflow raises. Running
values of slices of a reduction are merged at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from einsql.core.bfloat16 import stored
from einsql.core.buffer_pool import empty
from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.ir.einsum.graph import Output
from einsql.ir.einsum.states import merged_fields, reduced_fields, state_name, state_of
from einsql.ir.functions import REDUCTIONS, SCALARS, Reduction, equal, less
from einsql.ir.functions.casts import cast_array
from einsql.kernels.vectorized.scalar import Mask, refuse
from einsql.kernels.vectorized.sums import CHAIN, add_up

# NaN is the greatest float: fmin ignores it, maximum propagates it.
UFUNCS: dict[str, np.ufunc] = {
    "add": np.add,
    "mul": np.multiply,
    "least": np.fmin,
    "greatest": np.maximum,
    "or": np.logical_or,
    "and": np.logical_and,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "xor": np.bitwise_xor,
}
"""The NumPy functions that merge running values, by name of the scalar function."""

Where = tuple[slice, ...]
"""The elements of the result to which a block contributes."""


def start_of(output: Output) -> Any:
    """The value of an output at a key without points."""
    return 0 if output.reduction is None else REDUCTIONS[output.reduction].identity(output.dtype)


def starting(output: Output, shape: tuple[int, ...]) -> np.ndarray:
    """The stored array of an output without points."""
    values = empty(shape, output.dtype.carrier)
    values.fill(start_of(output))
    return stored(values, output.dtype)


class Accumulator(Protocol):
    """The running values of one output."""

    def dense(self, where: Where, args: Sequence[np.ndarray], mask: Mask) -> None:
        """Merges a block.

        Args:
            where: The result elements, one slice per axis of the result.
            args: The output's arguments, broadcast to the block, with the result's axes first,
                then the reduced ones.
            mask: The selected points, broadcastable to the block.
        """

    def scatter(self, at: np.ndarray, args: Sequence[np.ndarray]) -> None:
        """Merges one-dimensional points; `at` contains their flat positions in the result."""

    def result(self) -> np.ndarray:
        """The reduced values in the output's dtype."""


def accumulators(outputs: Sequence[Output], shape: tuple[int, ...]) -> list[Accumulator]:
    """Creates the running values of outputs, initialized to the reductions' identities."""
    states: dict[str, _State] = {}
    running: list[Accumulator] = []
    for o in outputs:
        reduction, name = REDUCTIONS[o.reduction or ""], state_name(o)
        if name is not None and name in states:
            running.append(_Field(states[name], reduction.place))
        elif name is not None:
            states[name] = _State(o, reduction, shape)
            running.append(states[name])
        elif reduction.better is not None:
            running.append(_Pair(o, reduction, shape))
        else:
            running.append(_Monoid(o, reduction, shape))
    return running


class _State:
    """The running values of all fields of a state; the result is one of them."""

    def __init__(self, output: Output, reduction: Reduction, shape: tuple[int, ...]) -> None:
        self.law = state_of(output.reduction or "")
        self.place = reduction.place
        self.fields = tuple(np.full(shape, f.start, f.dtype.carrier) for f in self.law.fields)

    def dense(self, where: Where, args: Sequence[np.ndarray], mask: Mask) -> None:
        rank = self.fields[0].ndim
        points = []
        for f, a in zip(self.law.fields, args, strict=True):
            values = cast_array(a, f.dtype)
            if mask is not None:
                values = np.where(mask, values, np.asarray(f.start, values.dtype))
            points.append(np.moveaxis(values.reshape(*values.shape[:rank], -1), -1, 0))
        if len(points[0]):
            self._merge(where, reduced_fields(self.law, points))

    def scatter(self, at: np.ndarray, args: Sequence[np.ndarray]) -> None:
        order = np.argsort(at, kind="stable")
        at = at[order]
        points = [cast_array(a[order], f.dtype) for f, a in zip(self.law.fields, args, strict=True)]
        while True:  # merges neighbours of the same element
            first = np.flatnonzero(np.diff(at, prepend=-1))
            rank = np.arange(len(at)) - np.repeat(first, np.diff(first, append=len(at)))
            partner = np.flatnonzero(rank % 2 == 1)
            if not len(partner):
                break
            pairs = merged_fields(
                self.law, [p[partner - 1] for p in points], [p[partner] for p in points]
            )
            for p, merged in zip(points, pairs, strict=True):
                p[partner - 1] = merged
            keep = np.flatnonzero(rank % 2 == 0)
            at, points = at[keep], [p[keep] for p in points]
        flat = tuple(f.reshape(-1) for f in self.fields)
        later = merged_fields(self.law, [f[at] for f in flat], points)
        for f, values in zip(flat, later, strict=True):
            f[at] = values

    def _merge(self, where: Where, later: Sequence[np.ndarray]) -> None:
        merged = merged_fields(self.law, [f[where] for f in self.fields], later)
        for f, values in zip(self.fields, merged, strict=True):
            f[where] = values

    def result(self) -> np.ndarray:
        return self.field(self.place)

    def field(self, place: int) -> np.ndarray:
        """The stored values of a field."""
        return stored(self.fields[place], self.law.fields[place].dtype)


class _Field:
    """Another field of a state, whose running values the state's first output has."""

    def __init__(self, state: _State, place: int) -> None:
        self.state, self.place = state, place

    def dense(self, where: Where, args: Sequence[np.ndarray], mask: Mask) -> None:
        pass

    def scatter(self, at: np.ndarray, args: Sequence[np.ndarray]) -> None:
        pass

    def result(self) -> np.ndarray:
        return self.state.field(self.place)


class _Monoid:
    def __init__(self, output: Output, reduction: Reduction, shape: tuple[int, ...]) -> None:
        self.dtype = output.dtype
        self.function = reduction.monoid or ""
        self.ufunc = UFUNCS[self.function]
        self.running_type = running_type(self.function, output.dtype)
        self.identity = reduction.identity(self.running_type)
        self.state = np.full(shape, self.identity, self.running_type.carrier)

    def dense(self, where: Where, args: Sequence[np.ndarray], mask: Mask) -> None:
        gone = tuple(range(self.state.ndim, args[0].ndim))
        values = cast_array(args[0], self.dtype)
        if mask is not None:
            values = np.where(mask, values, np.asarray(self.identity, values.dtype))
        part = self._reduce(values, gone) if gone else values
        self.state[where] = self._merge(self.state[where], part)

    def scatter(self, at: np.ndarray, args: Sequence[np.ndarray]) -> None:
        values = cast_array(args[0], self.dtype)
        state = self.state.reshape(-1)
        if self.dtype is DType.BOOLEAN:
            # One deciding value suffices, and indexed stores are the fastest scatter.
            deciding = self.function in ("or", "greatest")
            state[at[values if deciding else ~values]] = deciding
        elif self.function == "mul" and self.dtype.is_integer:
            part = np.full(state.shape, 1, state.dtype)
            elements, factors = _segment_products(at, values, self.dtype)
            part[elements] = factors
            state[...] = self._merge(state, part)
        elif self.function == "add" and self.dtype.is_integer:
            state[...] = self._merge(state, _segment_sums(at, values, len(state)))
        elif self.function == "add" and self.dtype is DType.DOUBLE and _repeats(at):
            _add_sorted(state, at, values)
        elif self.function == "add" and len(at) >= len(state):
            state += np.bincount(at, values, len(state))
        else:
            self.ufunc.at(state, at, values.astype(state.dtype, copy=False))

    def result(self) -> np.ndarray:
        if self.dtype.is_integer and self.function == "add":
            lo, hi = self.dtype.range
            if np.any((self.state < lo) | (self.state > hi)):
                raise DataError(SCALARS["add"].fails[self.dtype].reason)
        return stored(self.state, self.dtype).astype(self.dtype.numpy, copy=False)

    def _reduce(self, values: np.ndarray, gone: tuple[int, ...]) -> np.ndarray:
        if self.dtype.is_integer and self.function == "add":
            return _exact_sum(values, gone)
        if self.dtype.is_integer and self.function == "mul":
            return _exact_product(values, len(gone), self.dtype)
        if self.dtype is DType.DOUBLE and self.function == "add":
            return add_up(values, gone, exact=True)
        return np.asarray(self.ufunc.reduce(values, axis=gone, dtype=self.state.dtype))

    def _merge(self, old: np.ndarray, new: np.ndarray) -> np.ndarray:
        failure = SCALARS[self.function].fails.get(self.running_type)
        if failure is not None:
            refuse(failure, None, old, new)
        return np.asarray(self.ufunc(old, new))


def running_type(function: str, dtype: DType) -> DType:
    """The type in which a scalar function merges values of a type."""
    if function not in ("add", "mul"):
        return dtype
    if dtype.is_float:
        return DType.DOUBLE
    return DType.BIGINT if function == "add" else dtype


class _Pair:
    def __init__(self, output: Output, reduction: Reduction, shape: tuple[int, ...]) -> None:
        self.output = output
        self.lowest = reduction.name == "arg_min"
        self.extreme = REDUCTIONS["min" if self.lowest else "max"]
        self.empty: Any = reduction.identity(output.dtype)
        self.best = self._start(shape)

    def _start(self, shape: tuple[int, ...]) -> list[np.ndarray]:
        """The least argument, its extreme value, and a flag that any point was selected."""
        value_type = self.output.args[1].dtype
        return [
            np.full(shape, self._no_arg(), self.output.dtype.carrier),
            np.full(shape, self.extreme.identity(value_type), value_type.carrier),
            np.zeros(shape, bool),
        ]

    def _no_arg(self) -> Any:
        return REDUCTIONS["min"].identity(self.output.dtype)

    def dense(self, where: Where, args: Sequence[np.ndarray], mask: Mask) -> None:
        arg, value = cast_array(args[0], self.output.dtype), args[1]
        gone = tuple(range(self.best[1].ndim, value.ndim))
        selected = np.broadcast_to(True if mask is None else mask, value.shape)
        ignored = np.asarray(self.extreme.identity(self.output.args[1].dtype), value.dtype)
        candidates = np.where(selected, value, ignored)
        extreme = UFUNCS[self.extreme.monoid or ""].reduce(candidates, axis=gone, keepdims=True)
        attained = selected & equal(value, extreme)
        least = np.fmin.reduce(
            np.where(attained, arg, np.asarray(self._no_arg(), arg.dtype)), axis=gone
        )
        values = np.asarray(extreme).reshape(least.shape)
        self._merge(where, [np.asarray(least), values, np.asarray(selected.any(axis=gone))])

    def scatter(self, at: np.ndarray, args: Sequence[np.ndarray]) -> None:
        arg, value = cast_array(args[0], self.output.dtype), args[1]
        shape = self.best[1].shape
        least, values, seen = self._start((self.best[1].size,))
        UFUNCS[self.extreme.monoid or ""].at(values, at, value)
        attained = equal(value, values[at])
        np.fmin.at(least, at[attained], arg[attained])
        seen[at] = True
        everywhere = tuple(slice(None) for _ in shape)
        self._merge(everywhere, [x.reshape(shape) for x in (least, values, seen)])

    def _merge(self, where: Where, new: list[np.ndarray]) -> None:
        merged = _pair(self.lowest, [x[where] for x in self.best], new)
        for running, values in zip(self.best, merged, strict=True):
            running[where] = values

    def result(self) -> np.ndarray:
        empty = np.asarray(self.empty, self.output.dtype.carrier)
        arguments = np.where(self.best[2], self.best[0], empty)
        return stored(arguments, self.output.dtype)


def _repeats(at: np.ndarray) -> bool:
    """True if an element has more points than may be added one after another in DOUBLE."""
    most = 2 * CHAIN
    if len(at) <= most:
        return False
    ordered = np.sort(at)
    return bool((ordered[most:] == ordered[:-most]).any())


def _add_sorted(state: np.ndarray, at: np.ndarray, values: np.ndarray) -> None:
    """Adds points to their elements in order; NumPy adds neighbours in pairs."""
    order = np.argsort(at, kind="stable")
    elements, starts = np.unique(at[order], return_index=True)
    with np.errstate(all="ignore"):
        state[elements] += np.add.reduceat(values[order], starts)


def _exact_sum(values: np.ndarray, gone: tuple[int, ...]) -> np.ndarray:
    """Sums integers exactly; only a total beyond int64 is an error.

    Raises:
        DataError: A total does not fit BIGINT.
    """
    count = int(np.prod([values.shape[axis] for axis in gone]))
    if count * _magnitude(values) < 2**63:
        return np.asarray(np.add.reduce(values, axis=gone, dtype=np.int64))
    return _carry(
        np.asarray(np.add.reduce(values >> 32, axis=gone)),
        np.asarray(np.add.reduce(values & 0xFFFFFFFF, axis=gone)),
    )


def _segment_sums(at: np.ndarray, values: np.ndarray, size: int) -> np.ndarray:
    """The same as `_exact_sum`, over the points of the same element."""
    if len(at) * _magnitude(values) < 2**63:
        total = np.zeros(size, np.int64)
        np.add.at(total, at, values.astype(np.int64, copy=False))
        return total
    high, low = np.zeros(size, np.int64), np.zeros(size, np.int64)
    np.add.at(high, at, values >> 32)
    np.add.at(low, at, values & 0xFFFFFFFF)
    return _carry(high, low)


def _carry(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Returns `high`·2³² + `low`; raises DataError if it does not fit int64."""
    high = high + (low >> 32)
    if np.any((high < -(2**31)) | (high >= 2**31)):
        raise DataError(SCALARS["add"].fails[DType.BIGINT].reason)
    return np.asarray((high << 32) | (low & 0xFFFFFFFF))


def _magnitude(values: np.ndarray) -> int:
    return max(abs(int(values.min())), abs(int(values.max()))) if values.size else 0


def _exact_product(values: np.ndarray, gone: int, dtype: DType) -> np.ndarray:
    """Multiplies integers along the last `gone` axes, as `_segment_products`."""
    shape = values.shape[: values.ndim - gone]
    results = int(np.prod(shape))
    at = np.repeat(np.arange(results), values.size // max(1, results))
    return _segment_products(at, values.reshape(-1), dtype)[1].reshape(shape)


def _segment_products(
    at: np.ndarray, values: np.ndarray, dtype: DType
) -> tuple[np.ndarray, np.ndarray]:
    """Multiplies integers of the same element, in pairs.

    Raises:
        DataError: A product does not fit the type.
    """
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    failure = SCALARS["mul"].fails[dtype]
    while True:
        first = np.flatnonzero(np.diff(at, prepend=-1))
        rank = np.arange(len(at)) - np.repeat(first, np.diff(first, append=len(at)))
        keep = np.flatnonzero(rank % 2 == 0)
        partner = np.flatnonzero(rank % 2 == 1)
        if not len(partner):
            return at, values
        refuse(failure, None, values[partner - 1], values[partner])
        values[partner - 1] *= values[partner]
        at, values = at[keep], values[keep]


def merge(o: Output, running: list[np.ndarray]) -> list[np.ndarray]:
    """Merges the running values of slices.

    Args:
        o: The output.
        running: The running values with the slices as first axis: one array, or for pairs the
            arguments, their values and flags of whether there are any.

    Returns:
        The merged running values without the first axis.

    Raises:
        DataError: A sum or product of integers does not fit BIGINT.
    """
    entry = REDUCTIONS[o.reduction or ""]
    if entry.fields:
        with np.errstate(all="ignore"):
            return list(reduced_fields(state_of(entry.name), running))
    merged = [r[0, ...] for r in running]
    with np.errstate(all="ignore"):
        for n in range(1, len(running[0])):
            new = [r[n, ...] for r in running]
            if entry.better is None:
                merged = [_monoid(entry.monoid or "", merged[0], new[0])]
            else:
                merged = _pair(entry.name == "arg_min", merged, new)
    return merged


def _monoid(function: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    scalar = SCALARS[function]
    if old.dtype == np.int64 and DType.BIGINT in scalar.fails:
        refuse(scalar.fails[DType.BIGINT], None, old, new)
    return np.asarray(scalar.numpy(old, new))


def _pair(lowest: bool, old: list[np.ndarray], new: list[np.ndarray]) -> list[np.ndarray]:
    wins = less(new[1], old[1]) if lowest else less(old[1], new[1])
    ties = equal(new[1], old[1]) & less(new[0], old[0])
    take = new[2] & (~old[2] | wins | ties)
    return [np.where(take, b, a) for a, b in zip(old, new, strict=True)]
