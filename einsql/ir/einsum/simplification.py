"""Simplification of expressions: constants, identities, and comparisons that bounds decide."""

from __future__ import annotations

import numpy as np

from einsql.core.schema import DType
from einsql.core.unknowns import computed
from einsql.ir.einsum.graph import FALSE, TRUE, Call, Const, Expr, Scalar, rewrite
from einsql.ir.einsum.intervals import Bounds, can_raise, fits, interval
from einsql.ir.functions import SCALARS
from einsql.ir.functions.casts import evaluated, failure_of

_NEGATED = {"eq": "ne", "ne": "eq"}
_TURNED = {"lt": "le", "le": "lt"}  # NOT a < b is b <= a: floats are totally ordered


def simplify(expr: Expr, bounds: Bounds) -> Expr:
    """An equal expression, simplified by laws, constants and label bounds.

    A call that would raise is never folded to a value. A part without effect may be dropped
    together with its error.
    """
    return rewrite(expr, lambda e: _step(e, bounds) if isinstance(e, Call) else e)


def _step(e: Call, bounds: Bounds) -> Expr:
    if all(isinstance(a, Const) for a in e.args):
        return _constant(e)
    match e.fn:
        case "cast":
            return _cast(e)
        case "not":
            return _negation(e)
        case "if":
            return _choice(e)
        case "eq" | "ne" | "lt" | "le":
            return _comparison(e, bounds)
    if SCALARS[e.fn].transparent:
        return e.args[0]
    if e.dtype.is_integer:
        known = interval(e, bounds)
        # The interval is valid only if nothing raises, so calls that may raise must stay.
        if known is not None and known[0] == known[1] and not can_raise(e, bounds):
            return Const(known[0], e.dtype)
    return _neutral(e, bounds) if len(e.args) == 2 else e


def _constant(e: Call) -> Expr:
    """A call of constants, evaluated unless it raises."""
    if e.fn in SCALARS and SCALARS[e.fn].opaque:  # it is called for selected points only
        return e
    constants = [a for a in e.args if isinstance(a, Const)]

    def value(*numbers: Scalar) -> Scalar | None:
        pairs = zip(numbers, constants, strict=True)
        args = [np.asarray(number, a.dtype.carrier) for number, a in pairs]
        failure = failure_of(e.fn, e.args[0].dtype, e.dtype)
        with np.errstate(all="ignore"):
            if failure is not None and np.any(failure.numpy(*args)):
                return None
            number: Scalar = evaluated(e.fn, args, e.dtype).item()
            return number

    folded = computed(value, *(a.value for a in constants))
    return e if folded is None else Const(folded, e.dtype)


def _cast(e: Call) -> Expr:
    (arg,) = e.args
    if arg.dtype is e.dtype:
        return arg
    if isinstance(arg, Call) and arg.fn == "cast":
        (inner,) = arg.args
        if _embeds(inner.dtype, arg.dtype) and (
            inner.dtype is e.dtype or _embeds(inner.dtype, e.dtype)
        ):
            return inner if inner.dtype is e.dtype else Call("cast", (inner,), e.dtype)
    return e


def _embeds(narrow: DType, wide: DType) -> bool:
    """True if every value of one numeric type is a value of the other."""
    if narrow.is_integer and wide.is_integer:
        return fits(narrow.range, *wide.range)
    if narrow.is_float and wide.is_float:
        return narrow is wide or narrow.numpy.itemsize < wide.numpy.itemsize
    return False


def _negation(e: Call) -> Expr:
    match e.args[0]:
        case Call("not", (arg,)):
            return arg
        case Call(fn, args, dtype) if fn in _NEGATED:
            return Call(_NEGATED[fn], args, dtype)
        case Call(fn, args, dtype) if fn in _TURNED:
            return Call(_TURNED[fn], args[::-1], dtype)
    return e


def _choice(e: Call) -> Expr:
    condition, then, other = e.args
    if isinstance(condition, Const):
        return then if condition.value else other
    if then == other:
        return then
    if (then, other) == (TRUE, FALSE):
        return condition
    return e


def _comparison(e: Call, bounds: Bounds) -> Expr:
    a, b = e.args
    if can_raise(e, bounds):
        return e
    if a == b:  # NaN equals NaN
        return TRUE if e.fn in ("eq", "le") else FALSE
    if not (a.dtype.is_integer and b.dtype.is_integer):
        return e
    x, y = interval(a, bounds), interval(b, bounds)
    if x is None or y is None:
        return e
    if e.fn in _NEGATED:
        if x[1] < y[0] or y[1] < x[0]:
            return FALSE if e.fn == "eq" else TRUE
        return e
    below, above = (x[1] < y[0], y[1] <= x[0]) if e.fn == "lt" else (x[1] <= y[0], y[1] < x[0])
    return TRUE if below else FALSE if above else e


def _neutral(e: Call, bounds: Bounds) -> Expr:
    """Folds identity and annihilating arguments of a binary function."""
    function = SCALARS[e.fn]
    for this, other in ((1, 0), (0, 1)):
        constant, kept = e.args[this], e.args[other]
        if not isinstance(constant, Const) or (this == 0 and not function.commutative):
            continue
        if function.identity == constant.value and kept.dtype is e.dtype:
            return kept
        exact = e.dtype is DType.BOOLEAN or e.dtype.is_integer
        annihilates = exact and function.annihilator == constant.value
        if annihilates and constant.dtype is e.dtype and not can_raise(kept, bounds):
            return constant
    if e.fn in ("and", "or") and e.args[0] == e.args[1]:
        return e.args[0]
    return e
