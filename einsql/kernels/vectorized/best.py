"""NTH_MIN and NTH_MAX: the best values of all groups, with their arguments.

A key that only the place of an output reads numbers the best values of a group. The groups are
those of the other keys: each of them is searched once for all places. A lower bound of the last
wanted value leaves a few candidates of each group. Only these are sorted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np

from einsql.core.bfloat16 import loaded, stored
from einsql.core.schema import PRESENT, DType
from einsql.core.sparse.compressed import Compressed
from einsql.core.sparse.matrix import Sparse, sparse_of
from einsql.core.sparse.numbering import numbers_of
from einsql.ir.einsum.evaluation import expression_value, same
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Label,
    Output,
    Value,
    labels_of,
    operands_of,
    subexpressions,
)
from einsql.ir.einsum.reasons import unproven
from einsql.kernels.kernel import Arrays, Compile, Runner, Tick
from einsql.kernels.vectorized.candidates import (
    CACHED,
    Candidates,
    RowSearch,
    codes_of,
    leading,
    order_of,
    reaching,
    worst_of,
)
from einsql.kernels.vectorized.key_boxes import boxes, steps, still, within

BLOCK = 1 << 22
"""Greatest number of values that are computed at once, unless a single group has more."""
_Search = tuple[Expr, Expr, Expr, bool]
"""Argument, value and condition of outputs, and whether greater values are better."""


def compile_best(node: EinSum, compile_node: Compile) -> Runner:
    """Compiles a node whose outputs are all NTH_MIN or NTH_MAX.

    Args:
        node: The node.
        compile_node: Compiles nodes without such reductions.
    """
    return _Best(node, compile_node).run


class _Best:
    """The runner of a node.

    Args:
        node: The node.
        compile_node: Compiles the values.
    """

    def __init__(self, node: EinSum, compile_node: Compile) -> None:
        self._node, self._compile = node, compile_node
        self._searches: dict[_Search, list[Output]] = {}
        for o in node.outputs:
            argument, compared, _ = o.args
            search = (argument, compared, o.where, o.reduction == "nth_max")
            self._searches.setdefault(search, []).append(o)
        numbering = _numbering(node)
        self._groups = tuple(k for k in node.keys if k not in numbering)
        axes = tuple(a for a in node.axes if a.label not in numbering)
        free = [a.label for a in axes if a.define is None]
        self._by = tuple(k for k in self._groups if k in free)
        self._computed = tuple(k for k in self._groups if k not in free)
        self._gone = tuple(x for x in free if x not in self._groups)
        is_partial = node.guard != TRUE or next(unproven(node), None) is not None
        fields: list[Output] = []
        for n, (argument, compared, where, greatest) in enumerate(self._searches):
            masked = is_partial or where != TRUE
            # Where the point is not selected, the extreme of no values is the worst one.
            worst, condition = ("max" if greatest else "min", where) if masked else (None, TRUE)
            fields.append(Output(_value(n), (compared,), compared.dtype, worst, condition))
            if not _is_position(argument, free):
                fields.append(Output(_argument(n), (argument,), argument.dtype, worst, condition))
            if masked:
                fields.append(Output(_mask(n), (TRUE,), DType.BOOLEAN, "bool_or", where))
        self._over_elements = self._stored_values(node, axes)
        fields += (Output(_place(k), (Label(k),), DType.BIGINT) for k in self._computed)
        self._values = replace(
            node, axes=axes, keys=(*self._by, *self._gone), outputs=tuple(fields), hint=(), grid=()
        )
        extents = [node.axis(k).extent for k in self._by]
        terms = prod(node.axis(x).extent for x in self._gone)
        self._steps = steps(extents, max(1, BLOCK // max(1, terms)))
        self._whole = compile_node(self._values).run if self._steps == extents else None

    def run(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """Computes the fields of the result."""
        node = self._node
        fields = {o.name: np.zeros(node.schema.shape, o.dtype.numpy) for o in node.outputs}
        if 0 in (a.extent for a in node.axes):
            return fields
        extents = [node.axis(k).extent for k in self._by]
        done, total = 0, prod(extents)
        with np.errstate(all="ignore"):
            few = None if self._over_elements is None else self._elements(operands, tick)
            if few is not None:
                for n, (search, outputs) in enumerate(self._searches.items()):
                    fields |= self._chosen(n, search, outputs, {}, few, sparse_of(few))
                return fields
            for bounds in boxes(extents, self._steps):
                box = dict(zip(self._by, bounds, strict=True))
                values = self._computed_values(box)(operands, partial(still, tick, done / total))
                part = tuple(box.get(k, slice(0, node.axis(k).extent)) for k in node.keys)
                for n, (search, outputs) in enumerate(self._searches.items()):
                    for name, column in self._chosen(n, search, outputs, box, values):
                        fields[name][part] = column
                done += prod(s.stop - s.start for s in bounds)
                tick(done / total)
        return fields

    def _stored_values(self, node: EinSum, axes: tuple[Axis, ...]) -> Runner | None:
        """Compiles the values at the elements of a sparse operand; None without such a one."""
        keys = (*self._by, *self._gone)
        if self._computed or not self._gone:
            return None
        fields = [Output(PRESENT, (TRUE,), DType.BOOLEAN, "bool_or")]
        for n, (argument, compared, where, _) in enumerate(self._searches):
            fields.append(Output(_value(n), (compared,), compared.dtype))
            fields.append(Output(_argument(n), (argument,), argument.dtype))
            if where != TRUE:
                fields.append(Output(_mask(n), (where,), DType.BOOLEAN))
        values = replace(node, axes=axes, keys=keys, outputs=tuple(fields), hint=(), grid=())
        return self._compile(values).run if values.sparse else None

    def _elements(self, operands: Sequence[Arrays], tick: Tick) -> Arrays | None:
        """The values at stored elements; None if no operand is sparse."""
        assert self._over_elements is not None
        if all(sparse_of(fields) is None for fields in operands):
            return None
        values = self._over_elements(operands, tick)
        few = sparse_of(values)
        return None if few is None or few.filled else values

    def _computed_values(self, box: Mapping[str, slice]) -> Runner:
        if self._whole is not None:
            return self._whole
        return self._compile(within(self._values, box)).run

    def _chosen(
        self,
        n: int,
        search: _Search,
        outputs: Sequence[Output],
        box: Mapping[str, slice],
        values: Arrays,
        few: Sparse | None = None,
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yields the outputs of a search over a box of keys.

        Args:
            n: The number of the search.
            search: The argument, value, condition and direction.
            outputs: The outputs.
            box: The bounds of the keys that are cut, from 0.
            values: The fields of the element-wise node over the box.
            few: The same fields, if the points are their stored elements.
        """
        argument, compared, _, greatest = search
        grid = self._grid(box)
        places = {o.name: _evaluated(o.args[2], grid) for o in outputs}
        wanted = max(int(p.max()) for p in places.values()) + 1
        of_elements = values
        if few is not None:
            of_elements = {name: few.taken(name).values for name in few.names}
        array = np.atleast_1d(loaded(of_elements[_value(n)], compared.dtype))
        selected = of_elements.get(_mask(n))
        shape = [grid[k].size for k in self._groups]
        if few is not None:
            best = self._of_elements(few.taken(), array, selected, wanted, greatest)
        elif self._computed:
            best = self._scattered(array, selected, values, shape)
            best = best.only(leading(best.group, best.of(array), wanted, greatest))
        else:
            search_rows = RowSearch(wanted, greatest, self._breaks_ties(argument, compared))
            best = search_rows.candidates(array, selected, len(self._by))
        codes = codes_of(best.of(array), greatest)
        if _argument(n) in of_elements:
            arguments = best.of(np.atleast_1d(loaded(of_elements[_argument(n)], argument.dtype)))
        else:
            arguments = self._positions(argument, best, box)
        order = order_of(best.group, codes, arguments)
        counts = np.bincount(best.group, minlength=prod(shape))
        starts = np.cumsum(counts) - counts
        arguments = np.append(arguments[order], np.zeros(1, arguments.dtype))
        group = np.zeros((), np.int64)
        for k, extent in zip(self._groups, shape, strict=True):
            group = group * extent + (grid[k] - grid[k].flat[0])
        for o in outputs:
            place = places[o.name]
            at = np.where(place < counts[group], starts[group] + place, len(order))
            yield o.name, stored(arguments[at], o.dtype)

    def _grid(self, box: Mapping[str, slice]) -> dict[str, np.ndarray]:
        """The values of each key of the result over a box, along the key's axis."""
        grid: dict[str, np.ndarray] = {}
        for n, k in enumerate(self._node.keys):
            a = self._node.axis(k)
            part = box.get(k, slice(0, a.extent))
            shape = [-1 if m == n else 1 for m in range(len(self._node.keys))]
            grid[k] = np.arange(a.lo + part.start, a.lo + part.stop).reshape(shape)
        return grid

    def _of_elements(
        self,
        matrix: Compressed,
        array: np.ndarray,
        selected: np.ndarray | None,
        wanted: int,
        greatest: bool,
    ) -> Candidates:
        """The selected elements that may be among the best; groups have equal first keys."""
        by = len(self._by)
        if by == 1:
            starts, counts = matrix.starts, matrix.counts
            if selected is not None:
                array = np.where(selected, array, worst_of(array.dtype, greatest))
            chosen = reaching(array, starts[:-1], counts, wanted, greatest)
            if selected is not None:
                chosen = selected if chosen is None else chosen & selected
            every = np.arange(matrix.stored) if chosen is None else np.flatnonzero(chosen)
            return Candidates(np.searchsorted(starts, every, side="right") - 1, (), every)
        elements = np.arange(matrix.stored) if selected is None else np.flatnonzero(selected)
        group = np.zeros(len(elements), np.int64)
        if by:
            places = [p if selected is None else p[elements] for p in matrix.positions[:by]]
            group = numbers_of(places, matrix.extents[:by])
        best = Candidates(group, (), elements)
        return best.only(leading(group, array[elements], wanted, greatest))

    def _scattered(
        self,
        array: np.ndarray,
        selected: np.ndarray | None,
        values: Arrays,
        shape: Sequence[int],
    ) -> Candidates:
        """All selected values of groups with computed keys."""
        node, number = self._node, np.zeros((), np.int64)
        for k, extent in zip(self._groups, shape, strict=True):
            if k in self._computed:
                position = values[_place(k)] - node.axis(k).lo
            else:
                lifted = [-1 if x == k else 1 for x in self._values.keys]
                position = np.arange(extent).reshape(lifted)
            number = number * extent + position
        chosen = np.ones(array.shape, bool) if selected is None else np.atleast_1d(selected)
        at = np.nonzero(chosen)
        return Candidates(np.broadcast_to(number, array.shape)[at], at)

    def _breaks_ties(self, argument: Expr, compared: Expr) -> bool:
        """Whether the first ones of equal values have the least arguments."""
        if argument == compared:
            return True
        if not set(labels_of(argument)) <= set(self._gone) or not _is_position(
            argument, self._gone
        ):
            return False
        extents = [self._node.axis(x).extent for x in self._gone]
        if isinstance(argument, Label) and argument.name == self._gone[-1]:
            return prod(extents[:-1]) == 1
        if prod(extents) > CACHED:
            return False
        at = np.unravel_index(np.arange(prod(extents)), extents or (1,))
        grid = dict(zip(self._gone, at, strict=False))
        lows = {x: self._node.axis(x).lo for x in self._gone}
        values = _evaluated(argument, {x: grid[x] + lows[x] for x in self._gone})
        return bool((np.diff(np.atleast_1d(values)) >= 0).all())

    def _positions(self, argument: Expr, found: Candidates, box: Mapping[str, slice]) -> np.ndarray:
        """The values of an argument that reads keys only."""

        def leaf(e: Label | Value) -> np.ndarray:
            assert isinstance(e, Label)
            lo = self._node.axis(e.name).lo + box.get(e.name, slice(0, 0)).start
            return np.asarray(found.at[self._values.keys.index(e.name)] + lo)

        every = np.ones(found.group.shape, bool)
        numbers = expression_value(argument, leaf, every, same)
        integers: np.ndarray = np.broadcast_to(numbers, every.shape).astype(argument.dtype.numpy)
        return integers


def _numbering(node: EinSum) -> set[str]:
    """The keys that only the places of outputs read."""
    read = {x for a in node.axes if a.define is not None for x in _labels(node, a.define)}
    read |= _labels(node, node.guard)
    for o in node.outputs:
        for e in (*o.args[:2], o.where):
            read |= _labels(node, e)
    free = {k for k in node.keys if node.axis(k).define is None}
    places = {x for o in node.outputs for x in labels_of(o.args[2])}
    return (free & places) - read


def _labels(node: EinSum, e: Expr) -> set[str]:
    """The labels of an expression and of the operands that it reads."""
    return {*labels_of(e), *(x for n in operands_of(e) for x in node.operands[n].labels)}


def _is_position(argument: Expr, free: Sequence[str]) -> bool:
    """Whether an argument is an integer expression of free keys, which needs no array."""
    return not any(isinstance(e, Value) for e in subexpressions(argument)) and (
        argument.dtype.is_integer and set(labels_of(argument)) <= set(free)
    )


def _evaluated(place: Expr, grid: Mapping[str, np.ndarray]) -> np.ndarray:
    """The place of each key of the result, broadcast to the keys."""

    def leaf(e: Label | Value) -> np.ndarray:
        assert isinstance(e, Label)
        return grid[e.name]

    shape = np.broadcast_shapes(*(g.shape for g in grid.values()))
    return np.broadcast_to(expression_value(place, leaf, np.ones(shape, bool), same), shape)


def _value(n: int) -> str:
    return f"value {n}"


def _argument(n: int) -> str:
    return f"argument {n}"


def _mask(n: int) -> str:
    return f"selected {n}"


def _place(key: str) -> str:
    return f"place {key}"
