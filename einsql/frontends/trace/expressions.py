"""Builds, inspects and rewrites the scalar expressions of a traced program."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from einsql.core.schema import DType
from einsql.errors import InternalError
from einsql.frontends.trace.nodes import Affine, Apply, Expr, Literal, Read
from einsql.ir.functions import SCALARS

ZERO = Affine((), 0)


def label(n: int) -> Affine:
    """A label by itself."""
    return Affine(((n, 1),), 0)


def index(n: int) -> Affine:
    """A constant index."""
    return Affine((), n)


# ---- building


def cast(e: Expr, dtype: DType) -> Expr:
    """The expression in another type; numbers are converted at once."""
    if e.dtype is dtype:
        return e
    if isinstance(e, Affine) and not e.terms:
        e = Literal(e.constant, DType.BIGINT)
    if isinstance(e, Literal) and not dtype.is_short:
        return Literal(dtype.numpy.type(e.value).item(), dtype)
    return Apply("cast", (e,), dtype)


def apply(fn: str, *args: Expr) -> Expr:
    """A function call whose arguments are cast to the function's types.

    Raises:
        InternalError: The arguments do not match the function.
    """
    if fn in _INDEX and all(isinstance(a, Affine) for a in args):
        affine = _affine(fn, args)
        if affine is not None:
            return affine
    typing = SCALARS[fn].types(tuple(a.dtype for a in args), True)
    if typing is None:
        raise InternalError(f"{fn} does not take {[a.dtype.value for a in args]}")
    return Apply(fn, tuple(map(cast, args, typing.args)), typing.result)


_INDEX = ("add", "sub", "mul", "neg")


def _affine(fn: str, args: Sequence[Expr]) -> Affine | None:
    """Arithmetic of labels and constants that stays affine."""
    parts = [a for a in args if isinstance(a, Affine)]
    if fn == "neg":
        return scaled(parts[0], -1)
    a, b = parts
    if fn == "mul":
        if not a.terms:
            return scaled(b, a.constant)
        return scaled(a, b.constant) if not b.terms else None
    return plus(a, b if fn == "add" else scaled(b, -1))


def plus(a: Affine, b: Affine) -> Affine:
    """The sum."""
    coefficients = dict(a.terms)
    for n, c in b.terms:
        coefficients[n] = coefficients.get(n, 0) + c
    return Affine(
        tuple(sorted((n, c) for n, c in coefficients.items() if c)), a.constant + b.constant
    )


def scaled(a: Affine, by: int) -> Affine:
    """The product with a number."""
    return Affine(tuple((n, c * by) for n, c in a.terms if by), a.constant * by)


def shifted(e: Expr, by: int) -> Expr:
    """An index plus a number."""
    return apply("add", e, index(by)) if by else e


def times(e: Expr, by: int) -> Expr:
    """An index times a number."""
    return e if by == 1 else apply("mul", e, index(by))


def clamped(e: Expr, extent: int, *, below: bool, above: bool) -> Expr:
    """An index clamped to an axis, at points that do not use it.

    Args:
        e: The index.
        extent: The extent of the axis.
        below: Whether the index can be negative.
        above: Whether the index can exceed the last label.
    """
    if above:
        e = apply("least", e, index(extent - 1))
    return apply("greatest", e, index(0)) if below else e


def alone(e: Expr, rank: int) -> Expr:
    """The expression with 0 for every label from `rank` on, whose axes have one element."""
    count = max(max(labels(e), default=-1) + 1, rank)
    return substituted(e, [label(n) if n < rank else ZERO for n in range(count)])


def quotient(e: Expr, by: int, extents: Sequence[int]) -> Expr:
    """E // by, for an index that is not negative."""
    return _divided(e, by, extents)[0]


def remainder(e: Expr, by: int, extents: Sequence[int]) -> Expr:
    """E % by, for an index that is not negative."""
    return _divided(e, by, extents)[1]


def _divided(e: Expr, by: int, extents: Sequence[int]) -> tuple[Expr, Expr]:
    if by == 1:
        return e, ZERO
    if isinstance(e, Affine):
        high = Affine(tuple((n, c // by) for n, c in e.terms if c % by == 0), e.constant // by)
        low = Affine(tuple((n, c) for n, c in e.terms if c % by), e.constant % by)
        least, most = bounds(low, extents)
        if least >= 0 and most < by:
            return high, low
    return apply("idiv", e, index(by)), apply("mod", e, index(by))


def bounds(e: Affine, extents: Sequence[int]) -> tuple[int, int]:
    """The least and the greatest value over labels from 0 to below their extents."""
    ends = [(c * (extents[n] - 1), c) for n, c in e.terms]
    least = e.constant + sum(end for end, c in ends if c < 0)
    return least, e.constant + sum(end for end, c in ends if c > 0)


# ---- looking


def parts(e: Expr) -> Iterator[Expr]:
    """The expression and all below it, indexes of reads among them."""
    waiting = [e]
    while waiting:
        here = waiting.pop()
        yield here
        if isinstance(here, Apply):
            waiting += reversed(here.args)
        elif isinstance(here, Read):
            waiting += reversed(here.index)


def reads(e: Expr) -> list[Read]:
    """The reads in an expression, in the order of the text."""
    return [p for p in parts(e) if isinstance(p, Read)]


def labels(e: Expr) -> set[int]:
    """The labels it depends on."""
    return {n for p in parts(e) if isinstance(p, Affine) for n, _ in p.terms}


def size(e: Expr) -> int:
    """The number of functions that it calls."""
    return sum(isinstance(p, Apply) and p.fn != "cast" for p in parts(e))


# ---- changing


def rewrite(e: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The expression with parts replaced by `change`, which returns None to keep a part."""
    changed = change(e)
    if changed is not None:
        return changed
    if isinstance(e, Apply):
        args = tuple(rewrite(a, change) for a in e.args)
        if args == e.args:
            return e
        return apply(e.fn, *args) if e.fn in _INDEX else Apply(e.fn, args, e.dtype)
    if isinstance(e, Read):
        return Read(e.step, tuple(rewrite(i, change) for i in e.index))
    return e


def substituted(e: Expr, index: Sequence[Expr]) -> Expr:
    """The expression with an index in the place of each label."""

    def change(part: Expr) -> Expr | None:
        if not isinstance(part, Affine):
            return None
        total: Expr = Affine((), part.constant)
        for n, c in part.terms:
            term = times(index[n], c)
            total = term if total == ZERO else apply("add", term, total)
        return total

    return rewrite(e, change)
