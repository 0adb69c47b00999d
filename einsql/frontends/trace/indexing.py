"""Indexing: integers, slices, None and `...`, integer arrays, and truth values under np.where."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.frontends.trace.array import FUNCTIONS, TracedArray, combine, implements, lifted, viewed
from einsql.frontends.trace.elementwise import choose, literal, meeting, number, truth
from einsql.frontends.trace.expressions import ZERO, apply, bounds, cast, index, label, plus, scaled
from einsql.frontends.trace.nodes import Affine, Expr, Read, Step
from einsql.frontends.trace.shapes import axis_of
from einsql.frontends.trace.source import untraceable
from einsql.frontends.trace.steps import read


def getitem(x: TracedArray, key: Any) -> TracedArray:
    """x[key]."""
    entries = _entries(x, key)
    arrays = [e for e in entries if isinstance(e, TracedArray)]
    common = np.broadcast_shapes(*(a.shape for a in arrays))
    slots = [n for n, e in enumerate(entries) if isinstance(e, TracedArray | int)]
    together = not arrays or slots == list(range(slots[0], slots[0] + len(slots)))
    together &= not arrays or not _is_separated(x, key, slots)
    before = 0 if not together else _kept(entries[: slots[0]]) if arrays else 0
    shape: list[int] = []
    places: list[Expr] = []
    axis, placed = 0, False
    if arrays and not together:
        shape, placed = list(common), True
    first = before if arrays else 0
    for e in entries:
        if arrays and together and not placed and isinstance(e, TracedArray | int):
            shape, placed = [*shape, *common], True
        if e is None:
            shape.append(1)
            continue
        extent = x.shape[axis]
        if isinstance(e, slice):
            start, stop, step = e.indices(extent)
            places.append(plus(scaled(label(len(shape)), step), index(start)))
            shape.append(len(range(start, stop, step)))
        elif isinstance(e, int):
            if not -extent <= e < extent:
                raise IndexError(f"index {e} is out of bounds for axis {axis} with size {extent}")
            places.append(index(e % extent))
        else:
            at = [label(first + len(common) - e.ndim + n) for n in range(e.ndim)]
            places.append(_gathered(x, e.step, at, extent))
        axis += 1
    alone = len(_given(key)) == x.ndim and all(isinstance(e, int) for e in _given(key))
    scalars = all(a.number for a in arrays) and len(_given(key)) < x.ndim
    if alone or (arrays and not scalars):  # NumPy copies these, or returns a scalar
        return TracedArray(x.graph, x.graph.map(shape, read(x.step, places)))
    return viewed(x, shape, places, exact=not arrays)


FUNCTIONS["getitem"] = getitem


def _is_separated(x: TracedArray, key: Any, slots: Sequence[int]) -> bool:
    """Whether a `...` for no axis is between arrays of an index, which NumPy then sets apart."""
    entries = _given(key)
    at = next((n for n, e in enumerate(entries) if e is Ellipsis), None)
    used = sum(e is not None and e is not Ellipsis for e in entries)
    return at is not None and used == x.ndim and slots[0] < at <= slots[-1]


def _given(key: Any) -> list[Any]:
    """The entries of an index, with whole numbers as Python's."""
    entries = key if isinstance(key, tuple) else (key,)
    return [int(e) if isinstance(e, np.generic) and e.dtype.kind in "iu" else e for e in entries]


def _entries(x: TracedArray, key: Any) -> list[Any]:
    """One entry for each axis, and None where one is added."""
    entries: list[Any] = []
    for e in _given(key):
        if isinstance(e, list | np.ndarray):
            array = np.asarray(e)
            e = lifted(x.graph, array.astype(np.int64) if array.dtype.kind in "iu" else array)
        if isinstance(e, TracedArray) and e.step.dtype is DType.BOOLEAN:
            raise untraceable(
                "Selecting elements by truth values",
                "Its shape depends on data; use np.where(condition, x, 0).",
            )
        if isinstance(e, bool | float) or not isinstance(
            e, int | slice | TracedArray | None | type(Ellipsis)
        ):
            raise IndexError("indexes are integers, slices, ..., None and arrays of integers")
        if isinstance(e, TracedArray) and not e.step.dtype.is_integer:
            raise IndexError("arrays used as indexes must be of integer type")
        entries.append(e)
    used = sum(e is not None and e is not Ellipsis for e in entries)
    if used > x.ndim or sum(e is Ellipsis for e in entries) > 1:
        raise IndexError(f"too many indices: array is {x.ndim}-dimensional")
    rest = [slice(None)] * (x.ndim - used)
    at = next((n for n, e in enumerate(entries) if e is Ellipsis), None)
    if at is None:
        return entries + rest
    return entries[:at] + rest + entries[at + 1 :]


def _kept(entries: list[Any]) -> int:
    return sum(isinstance(e, slice | None) for e in entries)


def _gathered(x: TracedArray, step: Step, at: list[Affine], extent: int) -> Expr:
    """An array's element as an index: counted from 0, or from the end if it is negative.

    Indices out of bounds are an error that the program checks for; here they are clipped.
    """
    element = read(step, at)
    if extent == 0:
        raise IndexError("an axis without elements cannot be indexed")
    own = step.expr
    if isinstance(own, Affine):
        least, most = bounds(own, step.extents)
        if least >= 0 and most < extent:
            return element
    x.graph.checks.append((step, extent))
    wide = cast(element, DType.BIGINT)
    if not _never_negative(step):
        behind = apply("add", wide, number(extent, wide))
        wide = choose(apply("lt", wide, number(0, wide)), behind, wide)
    return apply("greatest", number(0, wide), apply("least", number(extent - 1, wide), wide))


def _never_negative(step: Step) -> bool:
    if step.how in ("ARG_MAX", "ARG_MIN"):
        return True
    return isinstance(step.expr, Read) and _never_negative(step.expr.step)


@implements(np.take)
def _take(a: Any, indices: Any, axis: int | None = None, mode: str = "raise") -> TracedArray:
    if mode != "raise":
        raise untraceable(f"np.take with mode='{mode}'", "Bring the indices into bounds before.")
    x = a if isinstance(a, TracedArray) else lifted(indices.graph, np.asarray(a))
    if not isinstance(indices, TracedArray):
        positions = np.asarray(indices)
        indices = positions if positions.size else positions.astype(np.int64)
    if axis is None:
        return _copied(getitem(x.reshape(-1), indices))
    return _copied(getitem(x, (*[slice(None)] * axis_of(axis, x.ndim), indices)))


def _copied(x: TracedArray) -> TracedArray:
    return TracedArray(x.graph, x.step)


@implements(np.take_along_axis)
def _take_along_axis(arr: Any, indices: Any, axis: int | None = -1) -> TracedArray:
    if axis is None:
        return getitem(arr.reshape(-1), indices)
    x = arr if isinstance(arr, TracedArray) else lifted(indices.graph, np.asarray(arr))
    chosen = lifted(x.graph, indices)
    axis = axis_of(axis, x.ndim)
    pairs = zip(x.shape, chosen.shape, strict=True)
    shape = [
        many if n == axis else np.broadcast_shapes((own,), (many,))[0]
        for n, (own, many) in enumerate(pairs)
    ]
    at = [label(n) if e > 1 else ZERO for n, e in enumerate(chosen.shape)]
    places: list[Expr] = [label(n) for n in range(x.ndim)]
    places[axis] = _gathered(x, chosen.step, at, x.shape[axis])
    return TracedArray(x.graph, x.graph.map(shape, read(x.step, places)))


@implements(np.where)
def where(condition: Any, x: Any = None, y: Any = None) -> TracedArray:
    """np.where(condition, x, y)."""
    if x is None or y is None:
        raise untraceable("np.where without values", "Its shape depends on data.")

    def chosen(c: Any, a: Any, b: Any) -> Expr:
        test = literal(bool(c)) if isinstance(c, bool | int | float) else truth(c)
        return choose(test, *meeting(a, b))

    choice = combine(chosen, condition, x, y)
    choice.number = False
    return choice
