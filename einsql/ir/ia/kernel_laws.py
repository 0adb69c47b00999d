"""Laws of kernels: which kernels may run on partial values."""

from __future__ import annotations

import math
from collections.abc import Callable

from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Call, Const, EinSum, Expr, Value
from einsql.ir.functions import REDUCTIONS
from einsql.ir.tra.kernels import Merge, reductions

JOINTLY = frozenset({"add", "sub", "neg"})
"""Functions that are linear in all of their arguments at once."""


def distributes(kernel: EinSum, merge: Merge) -> bool:
    """True if f(x ⊕ y) = f(x) ⊕ f(y) for a kernel f of one array."""
    if len(kernel.outputs) != 1 or len(reductions(merge)) != 1:
        return False
    (output,), (reduce,) = kernel.outputs, reductions(merge)
    plain = kernel.guard == TRUE and output.where == TRUE
    if not plain or len(kernel.operands) != 1 or any(a.define for a in kernel.axes):
        return False
    if output.reduction not in (None, reduce):
        return False
    (value,) = output.args
    if isinstance(value, Call) and value.fn in REDUCTIONS[reduce].over:
        # Integers may overflow in one order and not in the other.
        exact = value.dtype.is_float or value.dtype is DType.BOOLEAN
        constants = [a for a in value.args if isinstance(a, Const)]
        return exact and len(constants) == 1 and any(isinstance(a, Value) for a in value.args)
    return isinstance(value, Value)


def is_linear(kernel: EinSum, is_sum: Callable[[Value], bool] = lambda value: True) -> bool:
    """True if every output is a linear map of sums of floats, in all operands jointly.

    f(x + x', y + y') = f(x, y) + f(x', y'): Σₛ f(xₛ, yₛ) = f(Σₛ xₛ, Σₛ yₛ).

    Args:
        kernel: The kernel, over one or more operands.
        is_sum: True for operands whose parts are merged by a sum.
    """
    if not kernel.is_elementwise or kernel.guard != TRUE or any(a.define for a in kernel.axes):
        return False
    return all(o.where == TRUE and all(_linear(a, is_sum) for a in o.args) for o in kernel.outputs)


def _linear(expr: Expr, is_sum: Callable[[Value], bool]) -> bool:
    match expr:
        case Value():
            return expr.dtype.is_float and is_sum(expr)
        case Call(fn, args) if fn in JOINTLY:
            return all(_linear(a, is_sum) for a in args)
        case Call("mul", (a, b)):
            return (_scales(a) and _linear(b, is_sum)) or (_scales(b) and _linear(a, is_sum))
        case Call("div", (a, b)):
            return _scales(b) and _linear(a, is_sum)
    return False


def _scales(expr: Expr) -> bool:
    """True for finite factors other than 0, which give no NaN for a part but not for the sum."""
    return isinstance(expr, Const) and math.isfinite(expr.value) and expr.value != 0
