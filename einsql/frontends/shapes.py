"""Elements in other places: reshape, transpose, concatenate, pad and their kin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np

from einsql.frontends.array import TracedArray, elements, graph_of, implements, lifted
from einsql.frontends.elementwise import choose, literal, met
from einsql.frontends.expressions import (
    ZERO,
    Affine,
    Expr,
    apply,
    cast,
    index,
    label,
    plus,
    quotient,
    remainder,
    scaled,
    shifted,
)
from einsql.frontends.source import untraceable
from einsql.frontends.steps import read
from einsql.schema import DType


def moved(x: TracedArray, shape: Sequence[int], places: Sequence[Expr]) -> TracedArray:
    """An array of a shape that reads another one at places."""
    return TracedArray(x.graph, x.graph.map(shape, read(x.step, places)))


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from 0."""
    if not -rank <= axis < rank:
        raise ValueError(f"axis {axis} is out of bounds for array of dimension {rank}")
    return axis % rank


# ---- the same elements in other axes


@implements(np.reshape)
def reshape(a: TracedArray, shape: Any, order: str = "C", copy: bool | None = None) -> TracedArray:
    """np.reshape: keys are split and merged in mixed radix."""
    if order != "C":
        raise untraceable(f"np.reshape with order='{order}'", "Transpose before and after.")
    wanted = [int(n) for n in (shape if isinstance(shape, tuple | list) else (shape,))]
    if wanted.count(-1) == 1:
        known = prod(n for n in wanted if n != -1)
        wanted[wanted.index(-1)] = a.size // known if known else 0
    if prod(wanted) != a.size or -1 in wanted:
        raise ValueError(f"cannot reshape array of size {a.size} into shape {tuple(wanted)}")
    return moved(a, wanted, _places(a.shape, wanted))


def _places(before: Sequence[int], after: Sequence[int]) -> list[Expr]:
    """Where each axis of a shape is read for the labels of another one of the same size."""
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
    found, start, weight = [], 0, 1
    for n, extent in enumerate(before):
        weight *= extent
        if weight in ends and weight != prod(before[:start]):
            found.append((start, n + 1))
            start = n + 1
    return found


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
    return moved(a, [a.shape[n] for n in order], places)


@implements(np.matrix_transpose)
def matrix_transpose(x: TracedArray) -> TracedArray:
    """np.matrix_transpose."""
    return swapaxes(x, -1, -2)


@implements(np.swapaxes)
def swapaxes(a: TracedArray, axis1: int, axis2: int) -> TracedArray:
    """np.swapaxes."""
    order = list(range(a.ndim))
    m, n = axis_of(axis1, a.ndim), axis_of(axis2, a.ndim)
    order[m], order[n] = order[n], order[m]
    return transpose(a, order)


@implements(np.moveaxis)
def moveaxis(a: TracedArray, source: Any, destination: Any) -> TracedArray:
    """np.moveaxis."""
    given, wanted = (v if isinstance(v, tuple | list) else (v,) for v in (source, destination))
    moving = {axis_of(d, a.ndim): axis_of(s, a.ndim) for s, d in zip(given, wanted, strict=True)}
    rest = iter(n for n in range(a.ndim) if n not in moving.values())
    return transpose(a, [moving[n] if n in moving else next(rest) for n in range(a.ndim)])


@implements(np.expand_dims)
def expand_dims(a: TracedArray, axis: Any) -> TracedArray:
    """np.expand_dims."""
    given = axis if isinstance(axis, tuple | list) else (axis,)
    rank = a.ndim + len(given)
    new = {axis_of(n, rank) for n in given}
    old = iter(range(a.ndim))
    shape = [1 if n in new else a.shape[next(old)] for n in range(rank)]
    return moved(a, shape, [label(n) for n in range(rank) if n not in new])


@implements(np.squeeze)
def squeeze(a: TracedArray, axis: Any = None) -> TracedArray:
    """np.squeeze."""
    if axis is None:
        gone = {n for n, e in enumerate(a.shape) if e == 1}
    else:
        gone = {axis_of(n, a.ndim) for n in (axis if isinstance(axis, tuple) else (axis,))}
    if any(a.shape[n] != 1 for n in gone):
        raise ValueError("cannot select an axis to squeeze out which has size not equal to one")
    kept = [n for n in range(a.ndim) if n not in gone]
    places: list[Expr] = [label(kept.index(n)) if n in kept else ZERO for n in range(a.ndim)]
    return moved(a, [a.shape[n] for n in kept], places)


@implements(np.broadcast_to)
def broadcast_to(array: TracedArray, shape: Any, subok: bool = False) -> TracedArray:
    """np.broadcast_to."""
    wanted = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if np.broadcast_shapes(array.shape, wanted) != wanted:
        raise ValueError(f"shape {array.shape} does not broadcast to {wanted}")
    return TracedArray(array.graph, array.graph.map(wanted, elements(array, wanted)))


@implements(np.broadcast_arrays)
def broadcast_arrays(*args: Any, subok: bool = False) -> tuple[TracedArray, ...]:
    """np.broadcast_arrays."""
    arrays = [lifted(graph_of(args), a) for a in args]
    shape = np.broadcast_shapes(*(a.shape for a in arrays))
    return tuple(broadcast_to(a, shape) for a in arrays)


@implements(np.flip)
def flip(m: TracedArray, axis: Any = None) -> TracedArray:
    """np.flip."""
    given = range(m.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    turned = {axis_of(n, m.ndim) for n in given}
    return m[tuple(slice(None, None, -1 if n in turned else 1) for n in range(m.ndim))]


@implements(np.roll)
def roll(a: TracedArray, shift: int, axis: int | None = None) -> TracedArray:
    """np.roll along one axis."""
    if axis is None:
        return reshape(roll(ravel(a), shift, 0), a.shape)
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
    x, at = (ravel(a), 0) if axis is None else (a, axis_of(axis, a.ndim))
    shape = [e * int(repeats) if n == at else e for n, e in enumerate(x.shape)]
    places: list[Expr] = [label(n) for n in range(x.ndim)]
    places[at] = quotient(label(at), int(repeats), shape)
    return moved(x, shape, places)


@implements(np.tile)
def tile(A: TracedArray, reps: Any) -> TracedArray:  # noqa: N803 - NumPy's name
    """np.tile."""
    many = tuple(reps) if isinstance(reps, tuple | list) else (reps,)
    rank = max(len(many), A.ndim)
    shape = (1,) * (rank - A.ndim) + A.shape
    many = (1,) * (rank - len(many)) + many
    wanted = [e * r for e, r in zip(shape, many, strict=True)]
    places = [
        label(n) if many[n] == 1 else apply("mod", label(n), index(shape[n])) for n in range(rank)
    ]
    return moved(A, wanted, places[rank - A.ndim :])


# ---- several arrays in one


@implements(np.concatenate, np.concat)
def concatenate(arrays: Sequence[Any], axis: int | None = 0, **options: Any) -> TracedArray:
    """np.concatenate: each point chooses the array it lies in."""
    _refuse(options, "np.concatenate")
    graph = graph_of(arrays)
    given = [lifted(graph, a) for a in arrays]
    if axis is None:
        given, axis = [ravel(a) for a in given], 0
    at = axis_of(axis, given[0].ndim)
    rest = {(*a.shape[:at], *a.shape[at + 1 :]) for a in given}
    if len(rest) != 1:
        raise ValueError("all the input array dimensions except for the concatenation axis must "
                         "match exactly")  # fmt: skip
    dtype = met(*(a.step.dtype for a in given))
    given = [a for a in given if a.shape[at]] or given[:1]
    total = sum(a.shape[at] for a in given)
    shape = [total if n == at else e for n, e in enumerate(given[0].shape)]
    parts: list[Expr] = []
    start = 0
    for a in given:
        places: list[Expr] = [label(n) for n in range(len(shape))]
        places[at] = _held(plus(label(at), index(-start)), a.shape[at], start, total)
        parts.append(cast(read(a.step, places), dtype))
        start += a.shape[at]
    found = _chosen(parts, [a.shape[at] for a in given], label(at))
    return TracedArray(graph, graph.map(shape, found))


def _chosen(parts: Sequence[Expr], extents: Sequence[int], at: Affine) -> Expr:
    """The part in whose interval a label lies."""
    found = parts[-1]
    for n in reversed(range(len(parts) - 1)):
        below = apply("lt", at, index(sum(extents[: n + 1])))
        found = choose(below, parts[n], found)
    return found


def _held(e: Affine, extent: int, start: int, total: int) -> Expr:
    """An index held within an axis, where other points do not read it."""
    found: Expr = e
    if start + extent < total:
        found = apply("least", found, index(extent - 1))
    if start > 0:
        found = apply("greatest", found, index(0))
    return found


@implements(np.stack)
def stack(arrays: Sequence[Any], axis: int = 0, **options: Any) -> TracedArray:
    """np.stack."""
    _refuse(options, "np.stack")
    graph = graph_of(arrays)
    given = [lifted(graph, a) for a in arrays]
    if len({a.shape for a in given}) != 1:
        raise ValueError("all input arrays must have the same shape")
    at, dtype = axis_of(axis, given[0].ndim + 1), met(*(a.step.dtype for a in given))
    shape = [*given[0].shape[:at], len(given), *given[0].shape[at:]]
    rest: list[Expr] = [label(n) for n in range(len(shape)) if n != at]
    parts = [cast(read(a.step, rest), dtype) for a in given]
    return TracedArray(graph, graph.map(shape, _chosen(parts, [1] * len(parts), label(at))))


@implements(np.vstack)
def vstack(tup: Sequence[Any], **options: Any) -> TracedArray:
    """np.vstack."""
    graph = graph_of(tup)
    given = [lifted(graph, a) for a in tup]
    return concatenate([a if a.ndim > 1 else a.reshape(1, -1) for a in given], 0, **options)


@implements(np.hstack)
def hstack(tup: Sequence[Any], **options: Any) -> TracedArray:
    """np.hstack."""
    first = next(a for a in tup if isinstance(a, TracedArray))
    return concatenate(tup, 0 if first.ndim == 1 else 1, **options)


@implements(np.split, np.array_split)
def split(ary: TracedArray, indices_or_sections: Any, axis: int = 0) -> list[TracedArray]:
    """np.split into equal parts, or at indices."""
    at = axis_of(axis, ary.ndim)
    extent = ary.shape[at]
    if isinstance(indices_or_sections, int | np.integer):
        many = int(indices_or_sections)
        if extent % many:
            raise ValueError("array split does not result in an equal division")
        edges = [extent // many * n for n in range(many + 1)]
    else:
        edges = [0, *map(int, indices_or_sections), extent]
    before = (slice(None),) * at
    return [ary[(*before, slice(a, b))] for a, b in pairwise(edges)]


@implements(np.pad)
def pad(array: TracedArray, pad_width: Any, mode: str = "constant", **options: Any) -> TracedArray:
    """np.pad with a constant."""
    value = options.pop("constant_values", 0)
    _refuse(options, "np.pad")
    if mode != "constant" or not isinstance(value, bool | int | float):
        raise untraceable(f"np.pad with mode='{mode}'", "mode='constant' with one number works.")
    widths = np.broadcast_to(np.asarray(pad_width), (array.ndim, 2)).tolist()
    shape = [e + a + b for e, (a, b) in zip(array.shape, widths, strict=True)]
    if array.size == 0:
        places: list[Expr] = []
        inside: list[Expr] = [literal(False)]
    else:
        places, inside = _inside(array.shape, widths)
    filler = literal(array.step.dtype.numpy.type(value).item(), array.step.dtype)
    found: Expr = read(array.step, places) if places or array.ndim == 0 else filler
    if inside:
        found = choose(reduce(lambda a, b: apply("and", a, b), inside), found, filler)
    return TracedArray(array.graph, array.graph.map(shape, found))


def _inside(shape: Sequence[int], widths: list[list[int]]) -> tuple[list[Expr], list[Expr]]:
    """Where a padded array is read, and the conditions under which it is."""
    places: list[Expr] = []
    tests: list[Expr] = []
    for n, (extent, (before, after)) in enumerate(zip(shape, widths, strict=True)):
        total = extent + before + after
        places.append(_held(plus(label(n), index(-before)), extent, before, total))
        if before:
            tests.append(apply("le", index(before), label(n)))
        if after:
            tests.append(apply("lt", label(n), index(before + extent)))
    return places, tests


# ---- parts of matrices


def _triangle(m: Any, k: int, lower: bool) -> TracedArray:
    column, edge = label(m.ndim - 1), plus(label(m.ndim - 2), index(k))
    inside = apply("le", *((column, edge) if lower else (edge, column)))
    zero = literal(m.step.dtype.numpy.type(0).item(), m.step.dtype)
    return TracedArray(m.graph, m.graph.map(m.shape, choose(inside, elements(m, m.shape), zero)))


@implements(np.tril)
def tril(m: TracedArray, k: int = 0) -> TracedArray:
    """np.tril."""
    return _triangle(m, k, True)


@implements(np.triu)
def triu(m: TracedArray, k: int = 0) -> TracedArray:
    """np.triu."""
    return _triangle(m, k, False)


@implements(np.diagonal)
def diagonal(a: TracedArray, offset: int = 0, axis1: int = 0, axis2: int = 1) -> TracedArray:
    """np.diagonal."""
    m, n = axis_of(axis1, a.ndim), axis_of(axis2, a.ndim)
    rest = [k for k in range(a.ndim) if k not in (m, n)]
    down, right = max(0, -offset), max(0, offset)
    extent = max(0, min(a.shape[m] - down, a.shape[n] - right))
    places: list[Expr] = [ZERO] * a.ndim
    for k, axis in enumerate(rest):
        places[axis] = label(k)
    places[m] = plus(label(len(rest)), index(down))
    places[n] = plus(label(len(rest)), index(right))
    return moved(a, [*(a.shape[k] for k in rest), extent], places)


@implements(np.diag)
def diag(v: TracedArray, k: int = 0) -> TracedArray:
    """np.diag: a matrix's diagonal, or a matrix with one."""
    if v.ndim == 2:
        return diagonal(v, k)
    down, right = max(0, -k), max(0, k)
    side = v.shape[0] + down + right
    on = apply("eq", plus(label(0), index(right)), plus(label(1), index(down)))
    zero = literal(v.step.dtype.numpy.type(0).item(), v.step.dtype)
    if v.shape[0] == 0:
        return TracedArray(v.graph, v.graph.map((side, side), zero))
    held = _held(plus(label(0), index(-down)), v.shape[0], down, side)
    value = read(v.step, [held])
    return TracedArray(v.graph, v.graph.map((side, side), choose(on, value, zero)))


# ---- arrays of one number


def _filled(value: Callable[[DType], Any]) -> Callable[..., TracedArray]:
    def like(a: TracedArray, *args: Any, dtype: Any = None, shape: Any = None) -> TracedArray:
        from einsql.frontends.elementwise import dtype_of

        own = a.step.dtype if dtype is None else dtype_of(dtype)
        given = args[0] if args else value(own)
        filler = literal(own.numpy.type(given).item(), own)
        wanted = a.shape if shape is None else shape if isinstance(shape, tuple) else (shape,)
        return TracedArray(a.graph, a.graph.map(wanted, filler))

    return like


implements(np.zeros_like, np.empty_like)(_filled(lambda dtype: 0))
implements(np.ones_like)(_filled(lambda dtype: 1))
implements(np.full_like)(_filled(lambda dtype: 0))


@implements(np.copy)
def copy(a: TracedArray, order: str = "K", subok: bool = False) -> TracedArray:
    """np.copy: nothing changes elements here."""
    return TracedArray(a.graph, a.step)


implements(np.shape)(lambda a: a.shape)
implements(np.ndim)(lambda a: a.ndim)
implements(np.size)(lambda a, axis=None: a.size if axis is None else a.shape[axis])


def _refuse(options: dict[str, Any], what: str) -> None:
    given = [k for k, v in options.items() if v is not None]
    if given:
        raise untraceable(f"{what} with {', '.join(given)}", "Leave that out.")
