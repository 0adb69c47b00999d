"""The derivative of an expression by a value in it, in reverse mode from the root."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from einsql.ir.autodiff.terms import Term, added, wider
from einsql.ir.einsum.graph import TRUE, Call, Const, Expr, Value, conj
from einsql.ir.einsum.graph_rewriting import negate
from einsql.ir.functions import SCALARS
from einsql.ir.functions.derivatives import still


def derivative(root: Expr, leaf: Value, adjoint: Term) -> Term | None:
    """The adjoint of a value, from the adjoint of an expression over it.

    Adjoints have the widest type on their path, because casts to narrower types, which might
    raise, are applied last.

    Args:
        root: A float expression.
        leaf: A float value, with all of its occurrences.
        adjoint: The adjoint of the root.

    Returns:
        The adjoint, or None if it is 0 for every value.
    """
    order = _towards(root, leaf)
    on_way = {id(e) for e in order}
    chosen, adjoint = _unchosen(adjoint)
    adjoints: dict[int, _Adjoint] = {id(root): {chosen: adjoint}}
    for e in reversed(order):
        if isinstance(e, Call):
            for condition, g in adjoints.get(id(e), {}).items():
                for arg, part in _flow(e, g):
                    if part is not None and id(arg) in on_way:
                        chosen, term = _unchosen(part)
                        into = adjoints.setdefault(id(arg), {})
                        _add(into, conj(condition, chosen), term)
    of_leaf: _Adjoint = {}
    for e in order:
        if not isinstance(e, Call):
            for condition, g in adjoints.get(id(e), {}).items():
                _add(of_leaf, condition, g)
    return added(Term(condition).choose(g, 0) for condition, g in of_leaf.items())


_Adjoint = dict[Expr, Term]
"""The summands of an adjoint, by the conditions that select them.

Unselected terms are not multiplied by 0, because they may be infinite.
"""


def _add(adjoint: _Adjoint, condition: Expr, term: Term) -> None:
    adjoint[condition] = adjoint[condition] + term if condition in adjoint else term


def _unchosen(term: Term) -> tuple[Expr, Term]:
    """Splits a term that is 0 unless a condition is true into the condition and the term."""
    e = term.expr
    if isinstance(e, Call) and e.fn == "if":
        condition, then, otherwise = e.args
        if Term(otherwise).number == 0:
            return condition, Term(then)
        if Term(then).number == 0:
            return negate(condition), Term(otherwise)
    return TRUE, term


def _towards(root: Expr, leaf: Value) -> list[Expr]:
    """The float subexpressions that read the leaf, each object once, arguments first."""
    order: list[Expr] = []
    reads: dict[int, bool] = {}
    stack = [(root, False)]
    while stack:
        e, opened = stack.pop()
        if id(e) in reads:
            continue
        args = [a for a in e.args if a.dtype.is_float] if _passes(e) else []
        if args and not opened:
            stack.append((e, True))
            stack += [(a, False) for a in args]
            continue
        reads[id(e)] = any(reads[id(a)] for a in args) if args else e == leaf
        if reads[id(e)]:
            order.append(e)
    return order


def _passes(e: Expr) -> TypeGuard[Call]:
    """True for calls that may contribute to the adjoints of their arguments."""
    return isinstance(e, Call) and (e.fn == "cast" or SCALARS[e.fn].derivative is not still)


def _flow(e: Call, g: Term) -> Iterator[tuple[Expr, Term | None]]:
    """The contributions of a call's adjoint to adjoints of its arguments or subexpressions."""
    exponent = _softplus(e)
    if exponent is None:
        yield from zip(e.args, _parts(e, g), strict=True)
    else:  # EXP may overflow, and infinity over infinity is NaN
        dtype = wider(g.dtype, e.dtype)
        yield exponent, g.cast(dtype) * Term(exponent).cast(dtype).call("sigmoid")


def _softplus(e: Call) -> Expr | None:
    """The argument x of a call LN(1 + EXP(x)); None for other calls."""
    (sum_, *_) = e.args
    if e.fn != "ln" or not (isinstance(sum_, Call) and sum_.fn == "add"):
        return None
    for one, power in (sum_.args, sum_.args[::-1]):
        while isinstance(power, Call) and power.fn == "cast":
            (power,) = power.args
        if _known(one).number == 1 and isinstance(power, Call) and power.fn == "exp":
            return power.args[0]
    return None


def _parts(e: Call, g: Term) -> tuple[Term | None, ...]:
    """The contributions of a call's adjoint to the adjoints of its arguments."""
    if e.fn == "cast":
        return (g.cast(wider(g.dtype, e.args[0].dtype)),)
    dtype = wider(g.dtype, e.dtype)
    args = (_known(a).cast(dtype) if a.dtype.is_float else Term(a) for a in e.args)
    return SCALARS[e.fn].derivative(g.cast(dtype), Term(e).cast(dtype), *args)


def _known(e: Expr) -> Term:
    """The expression, folded if it is a number in another type."""
    if isinstance(e, Call) and e.fn == "cast" and isinstance(e.args[0], Const):
        return Term(e.args[0]).cast(e.dtype)
    return Term(e)
