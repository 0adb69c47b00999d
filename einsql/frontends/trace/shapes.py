"""Functions that rearrange elements, such as reshape, transpose and roll."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from einsql.frontends.trace.array import TracedArray, elements, graph_of, implements, lifted, viewed
from einsql.frontends.trace.elementwise import choose, computed, dtype_of, literal
from einsql.frontends.trace.expressions import (
    ZERO,
    apply,
    clamped,
    index,
    label,
    plus,
    quotient,
    remainder,
    scaled,
    shifted,
)
from einsql.frontends.trace.nodes import Expr
from einsql.frontends.trace.source import untraceable
from einsql.frontends.trace.steps import read


def moved(x: TracedArray, shape: Sequence[int], places: Sequence[Expr]) -> TracedArray:
    """An array of a shape that copies another one's elements from places."""
    return TracedArray(x.graph, x.graph.map(shape, read(x.step, places)))


def _once(axes: Sequence[int]) -> None:
    if len(set(axes)) != len(axes):
        raise ValueError("repeated axis")


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from 0."""
    axis = operator.index(axis)
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of bounds for array of dimension {rank}")
    return axis % rank


# ---- the same elements in other axes


@implements(np.reshape)
def reshape(a: TracedArray, shape: Any, order: str = "C", copy: bool | None = None) -> TracedArray:
    """np.reshape: keys are split and merged in mixed radix."""
    if order != "C":
        raise untraceable(f"np.reshape with order='{order}'", "Transpose before and after.")
    wanted = [operator.index(n) for n in (shape if isinstance(shape, tuple | list) else (shape,))]
    if wanted.count(-1) == 1:
        known = prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = a.size // known if known else 0
    if prod(wanted) != a.size or -1 in wanted:
        raise ValueError(f"cannot reshape array of size {a.size} into shape {tuple(wanted)}")
    reshaped = viewed(a, wanted, _places(a.shape, wanted), exact=False)
    return TracedArray(a.graph, reshaped.step) if copy else reshaped


def _places(before: Sequence[int], after: Sequence[int]) -> list[Expr]:
    """The index of each axis of a shape, over the labels of another shape of the same size."""
    places: list[Expr] = [ZERO] * len(before)
    m = 0
    for first, last in _aligned(before, after):
        flat, weight = ZERO, 1
        start = m
        while m < len(after) and (weight < prod(before[first:last]) or after[m] == 1):
            weight *= after[m]
            m += 1
        if m == start:
            continue
        step = 1
        for n in reversed(range(start, m)):
            flat = plus(flat, scaled(label(n), step)) if after[n] != 1 else flat
            step *= after[n]
        rest: Expr = flat
        for n in reversed(range(first, last)):
            outer = prod(before[first:n]) == 1
            places[n] = rest if outer else remainder(rest, before[n], after)
            rest = ZERO if outer else quotient(rest, before[n], after)
            if before[n] == 1:
                places[n] = ZERO
    return places


def _aligned(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]]:
    """Runs of axes of the first shape whose size is that of a run of the second one."""
    if 0 in before:
        return [(0, len(before))]
    ends = {1}
    weight = 1
    for n in after:
        weight *= n
        ends.add(weight)
    runs, start, weight = [], 0, 1
    for n, extent in enumerate(before):
        weight *= extent
        if weight in ends and weight != prod(before[:start]):
            runs.append((start, n + 1))
            start = n + 1
    return runs


@implements(np.ravel)
def ravel(a: TracedArray, order: str = "C") -> TracedArray:
    """np.ravel."""
    return reshape(a, (-1,) if a.size else (0,), order)


@implements(np.transpose)
def transpose(a: TracedArray, axes: Any = None) -> TracedArray:
    """np.transpose."""
    order = range(a.ndim)[::-1] if axes is None else [axis_of(n, a.ndim) for n in axes]
    if sorted(order) != list(range(a.ndim)):
        raise ValueError("axes don't match array")
    places: list[Expr] = [ZERO] * a.ndim
    for n, axis in enumerate(order):
        places[axis] = label(n)
    return viewed(a, [a.shape[n] for n in order], places, number=a.number)


@implements(np.swapaxes)
def _swapaxes(a: TracedArray, axis1: int, axis2: int) -> TracedArray:
    order = list(range(a.ndim))
    m, n = axis_of(axis1, a.ndim), axis_of(axis2, a.ndim)
    order[m], order[n] = order[n], order[m]
    return transpose(a, order)


implements(np.matrix_transpose)(lambda x: _swapaxes(x, -1, -2))


@implements(np.moveaxis)
def moveaxis(a: TracedArray, source: Any, destination: Any) -> TracedArray:
    """np.moveaxis."""
    axes_from, wanted = (v if isinstance(v, tuple | list) else (v,) for v in (source, destination))
    froms, tos = ([axis_of(n, a.ndim) for n in v] for v in (axes_from, wanted))
    for axes in (froms, tos):
        _once(axes)
    moving = dict(zip(tos, froms, strict=True))
    rest = iter(n for n in range(a.ndim) if n not in moving.values())
    return transpose(a, [moving[n] if n in moving else next(rest) for n in range(a.ndim)])


@implements(np.expand_dims)
def expand_dims(a: TracedArray, axis: Any) -> TracedArray:
    """np.expand_dims."""
    positions = axis if isinstance(axis, tuple | list) else (axis,)
    rank = a.ndim + len(positions)
    new = [axis_of(n, rank) for n in positions]
    _once(new)
    old = iter(range(a.ndim))
    shape = [1 if n in new else a.shape[next(old)] for n in range(rank)]
    return viewed(a, shape, [label(n) for n in range(rank) if n not in new])


@implements(np.squeeze)
def _squeeze(a: TracedArray, axis: Any = None) -> TracedArray:
    if axis is None:
        gone = {n for n, e in enumerate(a.shape) if e == 1}
    else:
        dropped = [axis_of(n, a.ndim) for n in (axis if isinstance(axis, tuple) else (axis,))]
        _once(dropped)
        gone = set(dropped)
    if any(a.shape[n] != 1 for n in gone):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    kept = [n for n in range(a.ndim) if n not in gone]
    places: list[Expr] = [label(kept.index(n)) if n in kept else ZERO for n in range(a.ndim)]
    return viewed(a, [a.shape[n] for n in kept], places, number=a.number)


@implements(np.broadcast_to)
def broadcast_to(array: TracedArray, shape: Any, subok: bool = False) -> TracedArray:
    """np.broadcast_to."""
    wanted = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if any(e < 0 for e in wanted):
        raise ValueError("all elements of broadcast shape must be non-negative")
    if np.broadcast_shapes(array.shape, wanted) != wanted:
        raise ValueError(f"shape {array.shape} does not broadcast to {wanted}")
    skipped = len(wanted) - array.ndim
    places = [label(skipped + n) for n in range(array.ndim)]
    return viewed(array, wanted, places, locked=True)


@implements(np.broadcast_arrays)
def _broadcast_arrays(*args: Any, subok: bool = False) -> tuple[TracedArray, ...]:
    arrays = [lifted(graph_of(args), a) for a in args]
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    return tuple(broadcast_to(a, shape) for a in arrays)


@implements(np.flip)
def _flip(m: TracedArray, axis: Any = None) -> TracedArray:
    flipped = range(m.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    turned = [axis_of(n, m.ndim) for n in flipped]
    _once(turned)
    return m[tuple(slice(None, None, -1 if n in turned else 1) for n in range(m.ndim))]


@implements(np.roll)
def _roll(a: TracedArray, shift: Any, axis: Any = None) -> TracedArray:
    if axis is None:
        return reshape(_roll(ravel(a), operator.index(np.sum(shift)), 0), a.shape)
    if isinstance(shift, tuple | list) or isinstance(axis, tuple | list):
        rolled = a
        for by, along in np.broadcast(shift, axis):
            rolled = _roll(rolled, operator.index(by), operator.index(along))
        return rolled if rolled is not a else TracedArray(a.graph, a.step)
    at, extent = axis_of(axis, a.ndim), a.shape[axis]
    places: list[Expr] = [label(n) for n in range(a.ndim)]
    if extent > 1 and shift % extent:
        places[at] = apply("mod", shifted(label(at), -shift % extent), index(extent))
    return moved(a, a.shape, places)


@implements(np.repeat)
def repeat(a: TracedArray, repeats: int, axis: int | None = None) -> TracedArray:
    """np.repeat with one number."""
    if not isinstance(repeats, int | np.integer):
        raise untraceable("np.repeat with several numbers", "Give one number.")
    if repeats < 0:
        raise ValueError("repeats may not contain negative values.")
    x, at = (ravel(a), 0) if axis is None else (a, axis_of(axis, a.ndim))
    shape = [e * int(repeats) if n == at else e for n, e in enumerate(x.shape)]
    places: list[Expr] = [label(n) for n in range(x.ndim)]
    places[at] = quotient(label(at), int(repeats), shape) if repeats else ZERO
    return moved(x, shape, places)


@implements(np.tile)
def _tile(A: TracedArray, reps: Any) -> TracedArray:  # noqa: N803 - NumPy's name
    many = tuple(reps) if isinstance(reps, tuple | list) else (reps,)
    if any(n < 0 for n in many):
        raise ValueError("negative dimensions are not allowed")
    rank = max(len(many), A.ndim)
    shape = (1,) * (rank - A.ndim) + A.shape
    many = (1,) * (rank - len(many)) + many
    wanted = [e * r for e, r in zip(shape, many, strict=True)]
    places = [
        label(n) if many[n] == 1 or wanted[n] == 0 else apply("mod", label(n), index(shape[n]))
        for n in range(rank)
    ]
    return moved(A, wanted, places[rank - A.ndim :])


# ---- parts of matrices


def _triangle(m: Any, k: int, lower: bool) -> TracedArray:
    k = max(-m.size - 1, min(operator.index(k), m.size + 1))  # the same further out
    if m.ndim == 0:
        raise ValueError("an array without axes has no triangles")
    if m.ndim == 1:
        m = broadcast_to(m, (*m.shape, *m.shape))
    column, edge = label(m.ndim - 1), plus(label(m.ndim - 2), index(k))
    inside = apply("le", *((column, edge) if lower else (edge, column)))
    zero = literal(m.step.dtype.numpy.type(0).item(), m.step.dtype)
    return TracedArray(m.graph, m.graph.map(m.shape, choose(inside, elements(m, m.shape), zero)))


implements(np.tril)(lambda m, k=0: _triangle(m, k, True))
implements(np.triu)(lambda m, k=0: _triangle(m, k, False))


@implements(np.diagonal)
def diagonal(a: TracedArray, offset: int = 0, axis1: int = 0, axis2: int = 1) -> TracedArray:
    """np.diagonal."""
    m, n, offset = axis_of(axis1, a.ndim), axis_of(axis2, a.ndim), operator.index(offset)
    _once((m, n))
    rest = [k for k in range(a.ndim) if k not in (m, n)]
    down, right = max(0, -offset), max(0, offset)
    extent = max(0, min(a.shape[m] - down, a.shape[n] - right))
    places: list[Expr] = [ZERO] * a.ndim
    for k, axis in enumerate(rest):
        places[axis] = label(k)
    places[m] = plus(label(len(rest)), index(down))
    places[n] = plus(label(len(rest)), index(right))
    return viewed(a, [*(a.shape[k] for k in rest), extent], places, locked=True)


@implements(np.diag)
def diag(v: TracedArray, k: int = 0) -> TracedArray:
    """np.diag: a matrix's diagonal, or a matrix with one."""
    k = operator.index(k)
    if v.ndim == 2:
        return diagonal(v, k)
    if v.ndim != 1:
        raise ValueError("Input must be 1- or 2-d.")
    down, right = max(0, -k), max(0, k)
    side = v.shape[0] + down + right
    on = apply("eq", plus(label(0), index(right)), plus(label(1), index(down)))
    zero = literal(v.step.dtype.numpy.type(0).item(), v.step.dtype)
    if v.shape[0] == 0:
        return TracedArray(v.graph, v.graph.map((side, side), zero))
    value = read(
        v.step, [clamped(plus(label(0), index(-down)), v.shape[0], below=down > 0, above=right > 0)]
    )
    return TracedArray(v.graph, v.graph.map((side, side), choose(on, value, zero)))


# ---- arrays of one number


def _filled(a: Any, value: Any, dtype: Any, shape: Any) -> TracedArray:
    own = a.step.dtype if dtype is None else dtype_of(dtype)
    wanted = a.shape if shape is None else shape if isinstance(shape, tuple | list) else (shape,)
    if not isinstance(value, bool | int | float | np.generic):
        return copy(broadcast_to(lifted(a.graph, value), tuple(wanted))).astype(own.numpy)
    filler = literal(np.asarray(value).astype(computed(own))[()].item(), own)
    return TracedArray(a.graph, a.graph.map(wanted, filler), number=False)


def _like(filler: int) -> Callable[..., TracedArray]:
    def build(
        a: Any,
        dtype: Any = None,
        order: str = "K",
        subok: bool = True,
        shape: Any = None,
        device: None = None,
    ) -> TracedArray:
        return _filled(a, filler, dtype, shape)

    return build


implements(np.zeros_like, np.empty_like)(_like(0))
implements(np.ones_like)(_like(1))


@implements(np.full_like)
def _full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: str = "K",
    subok: bool = True,
    shape: Any = None,
    device: None = None,
) -> TracedArray:
    return _filled(a, fill_value, dtype, shape)


@implements(np.copy)
def copy(a: TracedArray, order: str = "K", subok: bool = False) -> TracedArray:
    """np.copy: an array that shares no elements."""
    return TracedArray(a.graph, a.step, number=False)


implements(np.shape)(lambda a: a.shape)
implements(np.ndim)(lambda a: a.ndim)
implements(np.size)(lambda a, axis=None: a.size if axis is None else a.shape[axis])
