"""Recognition of sums of products of one or two operands' values."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, prod

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Call, Const, EinSum, Expr, Output, Value
from einsql.ir.functions.casts import cast_failure

LABELS = 26
"""Greatest number of labels of an operand: NumPy's einsum has 52 letters for two operands."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A field of an operand, cast without failure to the type of the product."""

    operand: int
    field: str


@dataclass(frozen=True, slots=True)
class Product:
    """The product Σ scale · factors · scalars, with the factors of one operand on each side.

    A scalar is known only at run time, and may be 0 or not finite.
    """

    left: tuple[Factor, ...]
    right: tuple[Factor, ...]
    scale: float
    scalars: tuple[Factor, ...] = ()


def product_of(node: EinSum, output: Output) -> Product | None:
    """Matches an output that sums a float product; None for other outputs."""
    if (
        output.reduction != "sum"
        or _refused_type(output) is not None
        or output.where != TRUE
        or node.guard != TRUE
        or any(a.define is not None for a in node.axes)
    ):
        return None
    values: list[Factor] = []
    scale = 1.0
    for term in _factors(output.args[0], output.dtype):
        if isinstance(term, Const):
            if not is_safe_scale(scale := scale * float(term.value), output.dtype):
                return None
            continue
        value = _uncast(term)
        if value is None:
            return None
        values.append(Factor(value.operand, value.field))
    scalars = tuple(v for v in values if not node.operands[v.operand].labels)
    if len(scalars) < len(values):
        values = [v for v in values if v not in scalars]
    else:
        scalars = ()
    owners = list(dict.fromkeys(v.operand for v in values))
    if not owners or _refused_operands(node, owners) is not None:
        return None
    if len(owners) == 1:  # x·x is a product of two sides, too
        return Product(tuple(values[:1]), tuple(values[1:]), scale, scalars)
    left = tuple(v for v in values if v.operand == owners[0])
    return Product(left, tuple(v for v in values if v.operand == owners[1]), scale, scalars)


def refused_product(node: EinSum) -> str | None:
    """Why BLAS cannot compute a sum of a product of several operands; None for other nodes.

    A mask, or a label that is computed, is no reason here.
    """
    for output in node.outputs:
        if output.reduction != "sum":
            continue
        product = output.args[0]
        while isinstance(product, Call) and product.fn == "cast":
            product = product.args[0]
        terms = map(_uncast, _factors(product, product.dtype))
        owners = list(dict.fromkeys(t.operand for t in terms if t is not None))
        wide = [o for o in owners if node.operands[o].labels]
        if len(wide) > 1:
            return _refused_type(output) or _refused_operands(node, wide)
    return None


def _refused_type(output: Output) -> str | None:
    """Why BLAS has no type for a sum; None if it has one."""
    dtype, product = output.dtype, output.args[0].dtype
    if not dtype.is_float:
        return f"the sum is {dtype.value}, and BLAS adds floats"
    if product is not dtype:
        return f"products are {product.value} and their sum is {dtype.value}"
    return None


def _refused_operands(node: EinSum, owners: Sequence[int]) -> str | None:
    """Why BLAS cannot multiply some operands; None if it can."""
    if len(owners) > 2:
        return f"{len(owners)} operands are multiplied at once"
    if any(len(node.operands[o].labels) > LABELS for o in owners):
        return f"an operand has more than {LABELS} keys"
    return None


def two_values(output: Output) -> tuple[Value, Value, float] | None:
    """Splits a product of two values of its type into values and a constant.

    Returns:
        The values from left to right, and the constant, which is finite and not 0; None for any
        other argument of the output.
    """
    factors = _factors(output.args[0], output.dtype)
    values = [f for f in factors if isinstance(f, Value)]
    scale = prod((float(f.value) for f in factors if isinstance(f, Const)), start=1.0)
    plain = all(isinstance(f, Value | Const) and f.dtype is output.dtype for f in factors)
    if not plain or len(values) != 2 or not is_safe_scale(scale, output.dtype):
        return None
    return values[0], values[1], scale


def is_safe_scale(scale: float, dtype: DType) -> bool:
    """True if the scale is finite and not 0, so that Σ scale·x = scale·Σ x for infinite x too."""
    with np.errstate(all="ignore"):
        rounded = float(np.asarray(scale).astype(dtype.numpy))
    return isfinite(rounded) and rounded != 0.0


def _factors(expr: Expr, dtype: DType) -> list[Expr]:
    """The factors of a product computed in `dtype`, left to right."""
    if isinstance(expr, Call) and expr.fn == "mul" and expr.dtype is dtype:
        return [f for a in expr.args for f in _factors(a, dtype)]
    return [expr]


def _uncast(expr: Expr) -> Value | None:
    """The operand value under casts that are exact and cannot fail."""
    while isinstance(expr, Call) and expr.fn == "cast":
        source, target = expr.args[0].dtype, expr.dtype
        widens = np.can_cast(source.numpy, target.numpy, "safe")
        if cast_failure(source, target) is not None or not widens:
            return None
        expr = expr.args[0]
    return expr if isinstance(expr, Value) else None
