"""Several arrays as one, one as several, and borders: concatenate, stack, split, pad."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np

from einsql.frontends.trace.arguments import refuse_options
from einsql.frontends.trace.array import TracedArray, graph_of, implements, lifted
from einsql.frontends.trace.elementwise import choose, literal, met
from einsql.frontends.trace.expressions import apply, cast, clamped, index, label, plus
from einsql.frontends.trace.nodes import Affine, Expr
from einsql.frontends.trace.shapes import axis_of, ravel
from einsql.frontends.trace.source import untraceable
from einsql.frontends.trace.steps import read


@implements(np.concatenate, np.concat)
def concatenate(arrays: Sequence[Any], axis: int | None = 0, **options: Any) -> TracedArray:
    """np.concatenate: each point reads the array whose interval contains it."""
    refuse_options("np.concatenate", options, "Leave that out.")
    graph = graph_of(arrays)
    operands = [lifted(graph, a) for a in arrays]
    if axis is None:
        operands, axis = [ravel(a) for a in operands], 0
    at = axis_of(axis, operands[0].ndim)
    rest = {(*a.shape[:at], *a.shape[at + 1 :]) for a in operands}
    if len(rest) != 1:
        raise ValueError(
            "all the input array dimensions except for the concatenation axis must match exactly"
        )
    dtype = met(*(a.step.dtype for a in operands))
    operands = [a for a in operands if a.shape[at]] or operands[:1]
    total = sum(a.shape[at] for a in operands)
    shape = [total if n == at else e for n, e in enumerate(operands[0].shape)]
    parts: list[Expr] = []
    start = 0
    for a in operands:
        places: list[Expr] = [label(n) for n in range(len(shape))]
        places[at] = clamped(
            plus(label(at), index(-start)),
            a.shape[at],
            below=start > 0,
            above=start + a.shape[at] < total,
        )
        parts.append(cast(read(a.step, places), dtype))
        start += a.shape[at]
    element = _chosen(parts, [a.shape[at] for a in operands], label(at))
    return TracedArray(graph, graph.map(shape, element))


def _chosen(parts: Sequence[Expr], extents: Sequence[int], at: Affine) -> Expr:
    """The part whose interval contains a label."""
    element = parts[-1]
    for n in reversed(range(len(parts) - 1)):
        below = apply("lt", at, index(sum(extents[: n + 1])))
        element = choose(below, parts[n], element)
    return element


@implements(np.stack)
def _stack(arrays: Sequence[Any], axis: int = 0, **options: Any) -> TracedArray:
    refuse_options("np.stack", options, "Leave that out.")
    graph = graph_of(arrays)
    operands = [lifted(graph, a) for a in arrays]
    if len({a.shape for a in operands}) != 1:
        raise ValueError("all input arrays must have the same shape")
    at, dtype = axis_of(axis, operands[0].ndim + 1), met(*(a.step.dtype for a in operands))
    shape = [*operands[0].shape[:at], len(operands), *operands[0].shape[at:]]
    rest: list[Expr] = [label(n) for n in range(len(shape)) if n != at]
    parts = [cast(read(a.step, rest), dtype) for a in operands]
    return TracedArray(graph, graph.map(shape, _chosen(parts, [1] * len(parts), label(at))))


@implements(np.vstack)
def _vstack(tup: Sequence[Any], **options: Any) -> TracedArray:
    graph = graph_of(tup)
    operands = [lifted(graph, a) for a in tup]
    return concatenate([a if a.ndim > 1 else a.reshape(1, -1) for a in operands], 0, **options)


@implements(np.hstack)
def _hstack(tup: Sequence[Any], **options: Any) -> TracedArray:
    first = next(a for a in tup if isinstance(a, TracedArray))
    return concatenate(tup, 0 if first.ndim == 1 else 1, **options)


@implements(np.split)
def split(ary: TracedArray, indices_or_sections: Any, axis: int = 0) -> list[TracedArray]:
    """np.split into equal parts, or at indices."""
    extent, parts = ary.shape[axis_of(axis, ary.ndim)], indices_or_sections
    if isinstance(parts, int | np.integer) and parts > 0 and extent % parts:
        raise ValueError("array split does not result in an equal division")
    return array_split(ary, indices_or_sections, axis)


@implements(np.array_split)
def array_split(ary: TracedArray, indices_or_sections: Any, axis: int = 0) -> list[TracedArray]:
    """np.array_split: the first parts are longer by one."""
    at = axis_of(axis, ary.ndim)
    extent = ary.shape[at]
    if isinstance(indices_or_sections, int | np.integer):
        many = int(indices_or_sections)
        if many <= 0:
            raise ValueError("number sections must be larger than 0.")
        size, longer = divmod(extent, many)
        edges = [size * n + min(n, longer) for n in range(many + 1)]
    else:
        edges = [0, *map(operator.index, indices_or_sections), extent]
    before = (slice(None),) * at
    return [ary[(*before, slice(a, b))] for a, b in pairwise(edges)]


@implements(np.pad)
def pad(array: TracedArray, pad_width: Any, mode: str = "constant", **options: Any) -> TracedArray:
    """np.pad with a constant."""
    value = options.pop("constant_values", 0)
    refuse_options("np.pad", options, "Leave that out.")
    if mode != "constant" or not isinstance(value, bool | int | float):
        raise untraceable(f"np.pad with mode='{mode}'", "mode='constant' with one number works.")
    sides = np.asarray(pad_width)
    if sides.dtype.kind not in "iu":
        raise TypeError("`pad_width` must be of integral type.")
    if (sides < 0).any():
        raise ValueError("index can't contain negative values")
    widths = np.broadcast_to(sides, (array.ndim, 2)).tolist()
    shape = [e + a + b for e, (a, b) in zip(array.shape, widths, strict=True)]
    if array.size == 0:
        places: list[Expr] = []
        inside: list[Expr] = [literal(False)]
    else:
        places, inside = _inside(array.shape, widths)
    filler = literal(array.step.dtype.numpy.type(value).item(), array.step.dtype)
    element: Expr = read(array.step, places) if places or array.ndim == 0 else filler
    if inside:
        element = choose(reduce(lambda a, b: apply("and", a, b), inside), element, filler)
    return TracedArray(array.graph, array.graph.map(shape, element))


def _inside(shape: Sequence[int], widths: list[list[int]]) -> tuple[list[Expr], list[Expr]]:
    """The index at which a padded array is read, and the conditions for reading it."""
    places: list[Expr] = []
    tests: list[Expr] = []
    for n, (extent, (before, after)) in enumerate(zip(shape, widths, strict=True)):
        at = plus(label(n), index(-before))
        places.append(clamped(at, extent, below=before > 0, above=after > 0))
        if before:
            tests.append(apply("le", index(before), label(n)))
        if after:
            tests.append(apply("lt", label(n), index(before + extent)))
    return places, tests
