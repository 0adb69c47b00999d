"""Constant arrays of a program, such as np.arange(n) or a triangular mask.

Arrays that follow a rule become expressions of keys; other arrays are tensors of the program.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.frontends.trace.elementwise import computed, dtype_of, literal
from einsql.frontends.trace.expressions import apply, cast, label
from einsql.frontends.trace.nodes import Affine, Expr, Literal, Step
from einsql.frontends.trace.source import untraceable, users_frame
from einsql.frontends.trace.steps import Graph
from einsql.storage.host_arrays import as_numpy

FEW = 4096
"""The number of elements above which a corner is tested before the complete array."""


def constant(graph: Graph, value: object) -> Step:
    """The step of a number or of an array that the program brings along.

    Raises:
        NotSupportedError: The value is neither, or tensors lack its type.
    """
    if isinstance(value, bool | int | float | np.generic):
        return graph.map((), literal(value))
    array = _array(value)
    if not isinstance(array, np.ndarray):
        raise untraceable(f"A {type(value).__name__}", "Give arrays and numbers.")
    dtype = dtype_of(array.dtype)
    ruled = _ruled(array, dtype)
    if ruled is not None:
        return graph.map(array.shape, ruled)
    return graph.constant(_variable(value), array, dtype)


def _array(value: Any) -> Any:
    if isinstance(value, list | tuple):
        try:
            return np.asarray(value)
        except (TypeError, ValueError):
            return None
    if hasattr(value, "detach"):  # a parameter of a torch module
        return as_numpy(value)
    return value


def _variable(value: object) -> str:
    """The name of the user's variable for an array, in the frame of the line that reads it."""
    frame = users_frame()
    if frame is not None:
        for names in (frame.f_locals, frame.f_globals):
            for name, variable in names.items():
                if variable is value and not name.startswith("_"):
                    return str(name)
    return "constant"


def _ruled(array: np.ndarray, dtype: DType) -> Expr | None:
    """The rule that an array's elements follow, as an expression of its labels."""
    if array.size == 0:
        return Literal(computed(dtype).type(0).item(), dtype)
    first = array.flat[0]
    if dtype.is_short or first != first:
        return None
    if dtype.is_float and bool((np.signbit(array) & (array == 0)).any()):
        return None  # a rule has 0.0 for -0.0
    if array.size > FEW and _ruled(array[(slice(0, 3),) * array.ndim], dtype) is None:
        return None
    if (array == first).all():
        return Literal(first.item(), dtype)
    if not dtype.is_float and bool((np.abs(array.astype(np.float64)) >= 2.0**62).any()):
        return None  # steps between such integers may not fit BIGINT
    return _progression(array, dtype) or _diagonals(array, dtype)


def _progression(array: np.ndarray, dtype: DType) -> Expr | None:
    """Integers that grow by a constant step along each axis, as an affine expression."""
    integers = array
    if dtype.is_float:
        if not (np.isfinite(array).all() and (np.abs(array) < 2**24).all()):
            return None
        integers = array.astype(np.int64)
        if (integers != array).any():
            return None
    if dtype is DType.BOOLEAN:
        return None
    origin = (0,) * array.ndim
    start = int(integers[origin])
    terms, expected = [], np.full(array.shape, start, np.int64)
    for n, extent in enumerate(array.shape):
        if extent > 1:
            step = int(integers[(*origin[:n], 1, *origin[n + 1 :])]) - start
            along = np.arange(extent, dtype=np.int64) * step
            expected += along.reshape([-1 if m == n else 1 for m in range(array.ndim)])
            terms += [(n, step)] if step else []
    if (expected != integers).any():
        return None
    return cast(Affine(tuple(terms), start), dtype)


def _diagonals(array: np.ndarray, dtype: DType) -> Expr | None:
    """One number below a diagonal of the last two axes and another above, or on it alone."""
    if array.ndim < 2 or (
        array.strides[:-2] != (0,) * (array.ndim - 2) and array[..., 0, 0].size > 1
    ):
        return None
    matrix = array.reshape(-1, *array.shape[-2:])[0]
    apart = np.arange(matrix.shape[1]) - np.arange(matrix.shape[0])[:, None]
    row, column = label(array.ndim - 2), label(array.ndim - 1)
    low, high = matrix[-1, 0], matrix[0, -1]
    if low != low or high != high:
        return None
    where = [Literal(v.item(), dtype) for v in (low, high)]
    if low == high:
        inside = matrix != low
        offsets = apart[inside]
        if (offsets != offsets[0]).any() or inside.sum() != (apart == offsets[0]).sum():
            return None
        values = matrix[inside]
        if (values != values[0]).any():
            return None
        shifted = apply("add", row, Affine((), int(offsets[0])))
        return _chosen(apply("eq", column, shifted), Literal(values[0].item(), dtype), where[0])
    most = int(apart[matrix == low].max())
    if not np.array_equal(matrix, np.where(apart <= most, low, high)):
        return None
    shifted = apply("add", row, Affine((), most))
    return _chosen(apply("le", column, shifted), where[0], where[1])


def _chosen(condition: Expr, then: Literal, otherwise: Literal) -> Expr:
    if then.dtype is DType.BOOLEAN:
        return condition if then.value else apply("not", condition)
    return apply("if", condition, then, otherwise)
