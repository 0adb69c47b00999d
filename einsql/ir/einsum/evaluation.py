"""Evaluation of expressions over NumPy arrays, with the failures of the selected elements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from einsql.core.schema import DType
from einsql.errors import DataError, InternalError
from einsql.ir.einsum.graph import Call, Const, Expr, Label, Param, Value
from einsql.ir.functions import SCALARS
from einsql.ir.functions.casts import evaluated, failure_of
from einsql.ir.functions.python_functions import at_selected


def wide(dtype: DType) -> DType:
    """The type in which the interpreter computes."""
    return DType.DOUBLE if dtype.is_float else dtype


def same(dtype: DType) -> DType:
    """The type itself, for results that are rounded as those of kernels are."""
    return dtype


def expression_value(
    expr: Expr,
    leaf: Callable[[Label | Value], np.ndarray],
    selected: np.ndarray,
    computed: Callable[[DType], DType] = wide,
) -> np.ndarray:
    """Evaluates an expression at every element.

    Args:
        expr: The expression.
        leaf: Returns the array of a label or of an operand's field.
        selected: The elements whose failures are raised.
        computed: The type in which a type is computed.

    Raises:
        DataError: A selected element overflows, divides by zero or cannot be cast.
    """

    def value(e: Expr, mask: np.ndarray) -> np.ndarray:
        match e:
            case Const():
                return np.asarray(e.value, dtype=computed(e.dtype).carrier)
            case Label() | Value():
                return leaf(e)
            case Call():
                return apply(e, mask)
            case Param():
                raise InternalError("A node reads a parameter without a ParameterInput")

    def apply(e: Call, mask: np.ndarray) -> np.ndarray:
        if e.fn in ("and", "or", "if"):  # the right-hand sides are evaluated only where needed
            first = value(e.args[0], mask)
            then = mask & (first if e.fn != "or" else ~first)
            args = [first, value(e.args[1], then)]
            if e.fn == "if":
                args.append(value(e.args[2], mask & ~first))
        else:
            args = [value(a, mask) for a in e.args]
        if e.fn in SCALARS and SCALARS[e.fn].opaque:
            return np.asarray(at_selected(SCALARS[e.fn], args, np.asarray(mask)))
        source = e.args[0].dtype
        failure = failure_of(e.fn, source if e.fn == "cast" else computed(source), e.dtype)
        if failure is not None and np.any(failure.numpy(*args) & mask):
            raise DataError(failure.reason)
        return np.asarray(evaluated(e.fn, args, computed(e.dtype)))

    return value(expr, selected)
