"""Holistic reductions: the values of all groups are sorted, and every group is read at once.

An element-wise node computes the values, with the greatest value of the type in place of those that
are not selected. Groups over free labels are rows of equal length. Groups by computed keys are
first collected into rows. Quantiles of complete rows need a partition instead of a sort.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import floor, prod

import numpy as np

from einsql.core.bfloat16 import loaded, stored
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Const, EinSum, Expr, Label, Output
from einsql.ir.einsum.partial_states import is_holistic
from einsql.ir.einsum.reasons import unproven
from einsql.ir.functions import equal
from einsql.ir.functions.holistic import HALVES, between, position
from einsql.kernels.kernel import Arrays, Compile, Runner, Tick
from einsql.kernels.vectorized.key_boxes import boxes, steps, still, within
from einsql.kernels.vectorized.reductions import accumulators

BLOCK = 1 << 22
"""Greatest number of values that are sorted at once, unless a single group has more."""
LOOSE = 4
"""Greatest size of rows with room for the largest of several groups, in values of the groups.

Sorting rows takes 5 to 20 times less per value than a sort by group and value together.
"""
LARGE = 64
"""Least mean size of scattered groups that are sorted one by one, with a call of NumPy for each."""
DENSE = 2
"""Greatest size of a table of counts, in values."""

_QUANTILES = ("quantile_cont", "quantile_disc")

Sorts = dict[tuple[Expr, Expr], list[Output]]
"""The outputs that read the same selected values, by value and condition."""


def compile_holistic(node: EinSum, compile_node: Compile) -> Runner:
    """Compiles a node whose outputs are all holistic reductions.

    Args:
        node: The node.
        compile_node: Compiles nodes without such reductions.
    """
    sorts: Sorts = {}
    for o in node.outputs:
        assert is_holistic(o)
        sorts.setdefault((o.args[0], o.where), []).append(o)
    is_partial = node.guard != TRUE or next(unproven(node), None) is not None
    return _Holistic(node, sorts, is_partial, compile_node).run


@dataclass(frozen=True, slots=True, eq=False)
class _Groups:
    """Sorted groups.

    Attributes:
        values: The values of the groups one after another, with gaps.
        starts: The position of each group's first value.
        counts: The number of its values.
    """

    values: np.ndarray
    starts: np.ndarray
    counts: np.ndarray

    def compact(self) -> _Groups:
        """The same groups without gaps."""
        if len(self.values) == self.counts.sum():
            return self
        starts = np.cumsum(self.counts) - self.counts
        moved = np.repeat(self.starts - starts, self.counts)
        return _Groups(self.values[moved + np.arange(len(moved))], starts, self.counts)


class _Holistic:
    """The runner of a node.

    Args:
        node: The node.
        sorts: Its outputs, by their values.
        is_partial: Whether points may not exist.
        compile_node: Compiles the values.
    """

    def __init__(self, node: EinSum, sorts: Sorts, is_partial: bool, compile_node: Compile) -> None:
        self._node, self._sorts, self._compile = node, sorts, compile_node
        free = [a.label for a in node.axes if a.define is None]
        self._by = tuple(k for k in node.keys if k in free)
        self._computed = tuple(k for k in node.keys if k not in free)
        self._gone = tuple(x for x in free if x not in node.keys)
        fields: list[Output] = []
        self._masked: list[bool] = []
        for n, (value, where) in enumerate(sorts):
            masked = is_partial or where != TRUE
            self._masked.append(masked)
            # Where the point is not selected, the least of no values is the greatest one.
            fields.append(
                Output(_value(n), (value,), value.dtype, "min", where)
                if masked
                else Output(_value(n), (value,), value.dtype)
            )
            if masked:
                fields.append(Output(_mask(n), (TRUE,), DType.BOOLEAN, "bool_or", where))
        fields += (Output(_place(k), (Label(k),), DType.BIGINT) for k in self._computed)
        self._values = replace(
            node, keys=(*self._by, *self._gone), outputs=tuple(fields), hint=(), grid=()
        )
        extents = [node.axis(k).extent for k in self._by]
        self._terms = prod(node.axis(x).extent for x in self._gone)
        self._steps = steps(extents, max(1, BLOCK // max(1, self._terms)))
        whole = self._steps == extents
        self._whole = compile_node(self._values).run if whole else None

    def run(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """Computes the fields of the result."""
        node = self._node
        fields = {o.name: np.zeros(node.schema.shape, o.dtype.numpy) for o in node.outputs}
        if 0 in (a.extent for a in node.axes):
            return fields
        reduced = self._by_computed_keys if self._computed else self._of_rows
        extents = [node.axis(k).extent for k in self._by]
        done, total = 0, prod(extents)
        with np.errstate(all="ignore"):
            for bounds in boxes(extents, self._steps):
                box = dict(zip(self._by, bounds, strict=True))
                values = self._computed_values(box)(operands, partial(still, tick, done / total))
                part = tuple(box.get(k, slice(0, node.axis(k).extent)) for k in node.keys)
                shape = tuple(s.stop - s.start for s in part)
                for name, column in reduced(shape, values).items():
                    fields[name][part] = column.reshape(shape)
                done += prod(s.stop - s.start for s in bounds)
                tick(done / total)
        return fields

    def _of_rows(self, shape: tuple[int, ...], values: Arrays) -> dict[str, np.ndarray]:
        """The results of groups over free keys, in one dimension.

        Args:
            shape: The extents of the keys.
            values: The fields of the element-wise node.
        """
        rows = prod(shape)
        columns: dict[str, np.ndarray] = {}
        for n, ((value, _), outputs) in enumerate(self._sorts.items()):
            array = loaded(values[_value(n)], value.dtype)
            selected = values[_mask(n)] if self._masked[n] else None
            at = np.arange(rows).reshape(shape + (1,) * len(self._gone))
            counted = _counted(at, array, selected, rows, outputs)
            if counted is not None:
                columns |= counted
                continue
            array = np.array(array, order="C").reshape(rows, self._terms)
            counts = np.full(rows, self._terms)
            if selected is not None:
                counts = np.count_nonzero(selected.reshape(rows, self._terms), axis=1)
            _sort(array, [] if self._masked[n] else outputs)
            starts = np.arange(rows) * self._terms
            groups = _Groups(array.reshape(-1), starts, counts)
            columns |= {o.name: _reduced(o, groups) for o in outputs}
        return columns

    def _computed_values(self, box: Mapping[str, slice]) -> Runner:
        if self._whole is not None:
            return self._whole
        return self._compile(within(self._values, box)).run

    def _by_computed_keys(self, shape: tuple[int, ...], values: Arrays) -> dict[str, np.ndarray]:
        """The results of groups by computed keys, in one dimension; arguments as of `_of_rows`."""
        node, size = self._node, prod(shape)
        places = np.zeros((), np.int64)
        for k, extent in zip(node.keys, shape, strict=True):
            if k in self._computed:
                number = values[_place(k)] - node.axis(k).lo
            else:
                lifted = [-1 if x == k else 1 for x in self._values.keys]
                number = np.arange(extent).reshape(lifted)
            places = places * extent + number
        columns: dict[str, np.ndarray] = {}
        for n, ((value, _), outputs) in enumerate(self._sorts.items()):
            array = loaded(values[_value(n)], value.dtype)
            selected = values[_mask(n)]
            reduced = _counted(places, array, selected, size, outputs)
            if reduced is None:
                at = np.broadcast_to(places, array.shape)
                if selected.all():
                    at, array = at.reshape(-1), array.reshape(-1)
                else:
                    at, array = at[selected], array[selected]
                groups = _collected(at, array, size)
                reduced = {o.name: _reduced(o, groups) for o in outputs}
            columns |= reduced
        return columns


def _value(n: int) -> str:
    return f"value {n}"


def _mask(n: int) -> str:
    return f"selected {n}"


def _place(key: str) -> str:
    return f"place {key}"


def _sort(rows: np.ndarray, outputs: Sequence[Output]) -> None:
    """Sorts rows in place, as far as the outputs read complete rows in order."""
    last = rows.shape[1] - 1
    if not outputs or any(o.reduction not in _QUANTILES for o in outputs):
        rows.sort(axis=1)
        return
    read: set[int] = set()
    for o in outputs:
        if o.reduction == "quantile_disc":
            read.add(position(last + 1, _fraction(o)))
        else:
            low = floor(last * _fraction(o))
            read |= {low, min(last, low + 1)}
    _select(rows, sorted(read))


def _select(rows: np.ndarray, places: Sequence[int]) -> None:
    """Moves the values at some places of the sorted rows there, and lesser values before them.

    A partition at one place is a vectorised quickselect, which is several times as fast as NumPy's
    partition at several places. The greatest of the lesser values precedes a place.
    """
    end = rows.shape[1]
    for n, place in reversed(list(enumerate(places))):
        if n == 0 and place + 1 == end < rows.shape[1]:
            rows[:, place] = rows[:, :end].max(axis=1)
        else:
            rows[:, :end].partition(place, axis=1)
        end = place


def _counted(
    at: np.ndarray,
    values: np.ndarray,
    selected: np.ndarray | None,
    size: int,
    outputs: Sequence[Output],
) -> dict[str, np.ndarray] | None:
    """The results from a table of counts, by group and value; None if it would be too large.

    Args:
        at: The group of each value, broadcast to the values where it is selected.
        values: The values.
        selected: Which values are selected; None for all.
        size: The number of groups.
        outputs: The outputs that read them.
    """
    interpolates = any(o.reduction == "quantile_cont" for o in outputs)
    if interpolates or values.dtype.kind not in "bi" or values.size == 0:
        return None
    chosen = values if selected is None else values[selected]
    if chosen.size == 0:
        return {o.name: np.zeros(size, o.dtype.numpy) for o in outputs}
    low, high = int(chosen.min()), int(chosen.max())
    span = high - low + 1
    if span * size > DENSE * chosen.size:
        return None
    if selected is not None:
        at = np.broadcast_to(at, values.shape)[selected]
    cells = chosen.astype(np.int64)
    cells += at * span - low
    counts = np.bincount(cells.reshape(-1), minlength=size * span).reshape(size, span)
    return {o.name: _of_counts(o, counts, low) for o in outputs}


def _of_counts(o: Output, counts: np.ndarray, low: int) -> np.ndarray:
    """The result of each group, 0 for an empty one.

    Args:
        o: The output.
        counts: The number of values of each group, by value.
        low: The value of the first column.
    """
    if o.reduction == "count_distinct":
        return np.asarray(np.count_nonzero(counts, axis=1))
    if o.reduction in HALVES:
        group, values = np.nonzero(counts)
        (total,) = accumulators([replace(o, reduction="sum")], (len(counts),))
        total.scatter(group, [HALVES[o.reduction](values + low)])
        return total.result()
    sizes = counts.sum(axis=1)
    if o.reduction == "mode":
        column = counts.argmax(axis=1)
    else:
        places = _positions(np.maximum(sizes, 1), _fraction(o))
        column = np.count_nonzero(counts.cumsum(axis=1) <= places[:, None], axis=1)
    return np.asarray(np.where(sizes > 0, column + low, 0)).astype(o.dtype.numpy)


def _collected(at: np.ndarray, values: np.ndarray, size: int) -> _Groups:
    """Sorted groups of scattered values.

    Args:
        at: The group of each value.
        values: The values.
        size: The number of groups.
    """
    counts = np.bincount(at, minlength=size)
    starts = np.cumsum(counts) - counts
    longest = int(counts.max(initial=0))
    large = len(values) >= LARGE * size
    if size * longest > LOOSE * len(values) and not large:
        return _Groups(values[np.lexsort((values, at))], starts, counts)
    if size <= 2**16:
        at = at.astype(np.uint16)  # sorted in linear time
    order = np.argsort(at, kind="stable")
    if large:
        values = values[order]
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            values[start : start + count].sort()
        return _Groups(values, starts, counts)
    rank = np.arange(len(order)) - np.repeat(starts, counts)
    rows = np.full((size, longest), _greatest(values.dtype), values.dtype)
    rows[np.repeat(np.arange(size), counts), rank] = values[order]
    rows.sort(axis=1)
    return _Groups(rows.reshape(-1), np.arange(size) * longest, counts)


def _greatest(dtype: np.dtype) -> bool | int | float:
    if dtype.kind == "f":
        return float("nan")
    return True if dtype.kind == "b" else int(np.iinfo(dtype).max)


def _fraction(o: Output) -> float:
    constant = o.args[1]
    assert isinstance(constant, Const)
    return float(constant.value)


def _reduced(o: Output, groups: _Groups) -> np.ndarray:
    """The result of each group, 0 for an empty one."""
    some = groups.counts > 0
    groups = _Groups(groups.values, groups.starts[some], groups.counts[some])
    results = np.zeros(len(some), o.dtype.numpy)
    if some.any():
        column = _quantiles(o, groups) if o.reduction in _QUANTILES else _of_runs(o, groups)
        results[some] = stored(np.asarray(column), o.dtype)
    return results


def _quantiles(o: Output, groups: _Groups) -> np.ndarray:
    fraction, values = _fraction(o), groups.values
    if o.reduction == "quantile_disc":
        return np.asarray(values[groups.starts + _positions(groups.counts, fraction)])
    place = (groups.counts - 1) * fraction
    low = np.floor(place)
    share = place - low
    at = groups.starts + low.astype(np.int64)
    least, next_one = values[at], values[np.minimum(at + 1, len(values) - 1)]
    return np.asarray(np.where(share == 0, least, between(least, next_one, share, o.dtype)))


def _positions(counts: np.ndarray, fraction: float) -> np.ndarray:
    """The position of a discrete quantile in groups of some sizes."""
    sizes, number = np.unique(counts, return_inverse=True)
    return np.take([position(int(n), fraction) for n in sizes], number)


def _of_runs(o: Output, groups: _Groups) -> np.ndarray:
    """The reduction of the runs of equal values of each group."""
    groups = groups.compact()
    values, starts = groups.values, groups.starts
    begins = np.ones(len(values), bool)
    begins[1:] = ~equal(values[1:], values[:-1])
    begins[starts] = True
    firsts = np.flatnonzero(begins)
    distinct = np.diff(np.searchsorted(firsts, starts), append=len(firsts))
    if o.reduction == "count_distinct":
        return distinct
    group = np.repeat(np.arange(len(starts)), distinct)
    if o.reduction in HALVES:
        (total,) = accumulators([replace(o, reduction="sum")], (len(starts),))
        total.scatter(group, [HALVES[o.reduction](values[firsts])])
        return loaded(total.result(), o.dtype)
    lengths = np.diff(firsts, append=len(values))
    longest = np.maximum.reduceat(lengths, np.cumsum(distinct) - distinct)
    most = np.flatnonzero(lengths == longest[group])
    chosen = np.empty(len(starts), np.int64)
    chosen[group[most[::-1]]] = firsts[most[::-1]]  # the last assignment is the least value
    return np.asarray(values[chosen])
