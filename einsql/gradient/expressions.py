"""The derivative of one expression by a value in it: reverse mode from the root down."""

from __future__ import annotations

from einsql.algebra import SCALARS
from einsql.einsum import Call, Const, Expr, Value
from einsql.errors import ProgrammingError
from einsql.gradient.terms import Term, wider


def derivative(root: Expr, leaf: Value, adjoint: Term) -> Term | None:
    """The adjoint of a value, from that of an expression over it.

    Adjoints are as wide as what they pass through, so that casts to narrower types, which
    might raise, remain for the end.

    Args:
        root: A float expression.
        leaf: A float value; every occurrence counts.
        adjoint: Of the root.

    Returns:
        None where it is 0 for every value.

    Raises:
        ProgrammingError: A function on the way has no derivative.
    """
    order = _towards(root, leaf)
    on_way = {id(e) for e in order}
    found: dict[int, Term] = {id(root): adjoint}
    total: Term | None = None
    for e in reversed(order):
        g = found.get(id(e))
        if g is None:
            continue
        if not isinstance(e, Call):
            total = g if total is None else total + g
            continue
        for arg, part in zip(e.args, _parts(e, g), strict=True):
            if part is not None and id(arg) in on_way:
                known = found.get(id(arg))
                found[id(arg)] = part if known is None else known + part
    return total


def _towards(root: Expr, leaf: Value) -> list[Expr]:
    """The float subexpressions that read the leaf, each object once, arguments first."""
    order: list[Expr] = []
    reads: dict[int, bool] = {}
    stack = [(root, False)]
    while stack:
        e, opened = stack.pop()
        if id(e) in reads:
            continue
        args = [a for a in e.args if a.dtype.is_float] if isinstance(e, Call) else []
        if args and not opened:
            stack.append((e, True))
            stack += [(a, False) for a in args]
            continue
        reads[id(e)] = any(reads[id(a)] for a in args) if args else e == leaf
        if reads[id(e)]:
            order.append(e)
    return order


def _parts(e: Call, g: Term) -> tuple[Term | None, ...]:
    """What the arguments of a call get of its adjoint."""
    if e.fn == "cast":
        return (g.cast(wider(g.dtype, e.args[0].dtype)),)
    rule = SCALARS[e.fn].derivative
    if isinstance(rule, str):
        raise ProgrammingError(
            f"There is no gradient through {e.fn.upper()}: {rule}",
            hint="STOP_GRADIENT(…) around it makes it count as a constant.",
        )
    dtype = wider(g.dtype, e.dtype)
    args = (_known(a).cast(dtype) if a.dtype.is_float else Term(a) for a in e.args)
    return rule(g.cast(dtype), Term(e).cast(dtype), *args)


def _known(e: Expr) -> Term:
    """The expression, folded if it is a number in another type."""
    if isinstance(e, Call) and e.fn == "cast" and isinstance(e.args[0], Const):
        return Term(e.args[0]).cast(e.dtype)
    return Term(e)
