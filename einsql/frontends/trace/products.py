"""Sums of products, such as einsum and matmul."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import Error
from einsql.frontends.trace.arguments import NO_VALUE
from einsql.frontends.trace.array import TracedArray, apply_, graph_of, implements, lifted
from einsql.frontends.trace.elementwise import met
from einsql.frontends.trace.expressions import ZERO, alone, apply, cast, label
from einsql.frontends.trace.nodes import Expr, Literal
from einsql.frontends.trace.reductions import axes_of
from einsql.frontends.trace.shapes import ravel
from einsql.frontends.trace.source import untraceable
from einsql.frontends.trace.steps import read
from einsql.ir.einsum.notation import parse_spec


def contract(
    arrays: Sequence[TracedArray], inputs: Sequence[Sequence[str]], output: Sequence[str]
) -> TracedArray:
    """The sum of products of arrays, whose axes have labels; axes of one element stretch.

    Raises:
        ValueError: A label has two extents.
    """
    extents: dict[str, int] = {}
    for a, names in zip(arrays, inputs, strict=True):
        for name, extent in zip(names, a.shape, strict=True):
            known = extents.get(name, 1)
            if known != extent and 1 not in (known, extent):
                raise ValueError(f"label {name} has the extents {known} and {extent}")
            extents[name] = extent if known == 1 else known
    order = [*output, *(n for n in extents if n not in output)]
    number = {name: at for at, name in enumerate(order)}
    dtype = met(*(a.step.dtype for a in arrays))
    if dtype.is_short:
        dtype = DType.FLOAT
    exact = dtype if dtype.is_float or dtype is DType.BOOLEAN else DType.BIGINT
    factors: list[Expr] = []
    for a, names in zip(arrays, inputs, strict=True):
        places = [ZERO if e == 1 else label(number[n]) for n, e in zip(names, a.shape, strict=True)]
        factors.append(cast(read(a.step, places), exact))
    times = "and" if dtype is DType.BOOLEAN else "mul"
    expr = reduce(lambda a, b: apply(times, a, b), factors)
    graph, sizes = arrays[0].graph, [extents[n] for n in order]
    summed = sizes[len(output) :]
    if 0 in summed:
        nothing = Literal(exact.numpy.type(0).item(), exact)
        return TracedArray(graph, graph.map(sizes[: len(output)], nothing))
    if all(e == 1 for e in summed):
        step = graph.map(sizes[: len(output)], alone(expr, len(output)))
    else:
        how = "BOOL_OR" if dtype is DType.BOOLEAN else "SUM"
        step = graph.reduce(sizes, len(output), how, expr, exact)
    product = TracedArray(graph, step)
    return product if exact is dtype else product.astype(dtype.numpy)


@implements(np.einsum)
def einsum(*operands: Any, optimize: Any = False, **options: Any) -> TracedArray:
    """np.einsum with its expression as text."""
    if not operands or not isinstance(operands[0], str) or any(options.values()):
        raise untraceable("This form of np.einsum", "Give the expression as text, and arrays.")
    graph = graph_of(operands[1:])
    arrays = [lifted(graph, o) for o in operands[1:]]
    try:
        spec = parse_spec(operands[0], [a.ndim for a in arrays])
    except Error as error:
        raise ValueError(error.reason) from error
    return contract(arrays, spec.inputs, spec.output)


def _lifted(a: Any, b: Any) -> tuple[TracedArray, TracedArray]:
    graph = graph_of((a, b))
    return lifted(graph, a), lifted(graph, b)


@implements(np.matmul)
def matmul(x1: Any, x2: Any) -> TracedArray:
    """x1 @ x2."""
    a, b = _lifted(x1, x2)
    if not a.ndim or not b.ndim:
        raise ValueError("matmul: an operand does not have enough dimensions")
    inner = (a.shape[-1], b.shape[-2] if b.ndim > 1 else b.shape[-1])
    if inner[0] != inner[1]:
        raise ValueError(
            f"matmul: {a.shape} and {b.shape} do not fit: {inner[0]} is not {inner[1]}"
        )
    stack = max(a.ndim, b.ndim) - 2
    batch = [f"b{n}" for n in range(max(stack, 0))]
    left = [*batch[max(stack, 0) - max(a.ndim - 2, 0) :], "m", "k"][-a.ndim :]
    right = [*batch[max(stack, 0) - max(b.ndim - 2, 0) :], "k", "n"]
    right = ["k"] if b.ndim == 1 else right[-b.ndim :]
    left = ["k"] if a.ndim == 1 else left
    output = [*batch, *(["m"] if a.ndim > 1 else []), *(["n"] if b.ndim > 1 else [])]
    return contract([a, b], [left, right], output)


@implements(np.dot)
def _dot(a: Any, b: Any, out: None = None) -> TracedArray:
    x, y = _lifted(a, b)
    if not x.ndim or not y.ndim:
        return apply_(np.multiply, x, y)
    return _summed(x, y, [x.ndim - 1], [max(0, y.ndim - 2)], "dot")


def _summed(
    x: TracedArray, y: TracedArray, first: Sequence[int], second: Sequence[int], what: str
) -> TracedArray:
    """The sums of products over pairs of axes; other axes follow each other."""
    left, right = [f"a{n}" for n in range(x.ndim)], [f"b{n}" for n in range(y.ndim)]
    for m, n in zip(first, second, strict=True):
        if x.shape[m] != y.shape[n]:
            raise ValueError(f"{what}: {plural(x.shape[m], 'element')} against {y.shape[n]}")
        right[n] = left[m]
    kept = [n for at, n in enumerate(left) if at not in first]
    kept += [n for at, n in enumerate(right) if at not in second]
    return contract([x, y], [left, right], kept)


@implements(np.inner)
def _inner(a: Any, b: Any) -> TracedArray:
    x, y = _lifted(a, b)
    return _summed(x, y, axes_of(-1, x.ndim), axes_of(-1, y.ndim), "inner")


@implements(np.vdot)
def _vdot(a: Any, b: Any) -> TracedArray:
    x, y = _lifted(a, b)
    return _inner(ravel(x), ravel(y))


@implements(np.vecdot)
def vecdot(x1: Any, x2: Any, axis: int = -1) -> TracedArray:
    """np.vecdot along the last axis."""
    if axis != -1:
        raise untraceable("np.vecdot with axis", "Move the axis to the end.")
    x, y = _lifted(x1, x2)
    return einsum("...k,...k->...", x, y)


@implements(np.outer)
def _outer(a: Any, b: Any, out: None = None) -> TracedArray:
    x, y = _lifted(a, b)
    return contract([ravel(x), ravel(y)], [["i"], ["j"]], ["i", "j"])


@implements(np.tensordot)
def _tensordot(a: Any, b: Any, axes: Any = 2) -> TracedArray:
    x, y = _lifted(a, b)
    if isinstance(axes, int | np.integer):
        many = int(axes)
        first, second = list(range(x.ndim - many, x.ndim)), list(range(many))
    else:
        sides = (s if isinstance(s, tuple | list) else (s,) for s in axes)
        first, second = (
            [axes_of(n, r)[0] for n in s] for s, r in zip(sides, (x.ndim, y.ndim), strict=True)
        )
    return _summed(x, y, first, second, "tensordot")


@implements(np.clip)
def _clip(a: Any, a_min: Any = None, a_max: Any = None, out: None = None, **options: Any) -> Any:
    low = options.pop("min", a_min)
    high = options.pop("max", a_max)
    clipped: Any = a
    if low is not None and low is not NO_VALUE:
        clipped = np.maximum(clipped, low)
    if high is not None and high is not NO_VALUE:
        clipped = np.minimum(clipped, high)
    return np.copy(a) if clipped is a else clipped
