"""Aggregate calls inside syntax trees."""

from __future__ import annotations

from sqlglot import exp

from einsql.errors import ProgrammingError
from einsql.sql.binder.arguments import surplus
from einsql.sql.functions.aggregate_functions import AGGREGATES, CHOOSING, OF_PAIRS
from einsql.sql.parser.aggregate_law import law_of
from einsql.sql.parser.positions import unsupported


def is_aggregate(node: exp.Expr) -> bool:
    """True for an aggregate call, with or without FILTER."""
    if isinstance(node, exp.Filter):
        node = node.this
    if isinstance(node, exp.Anonymous):
        return law_of(node) is not None or str(node.this).lower() in AGGREGATES
    return type(node) in AGGREGATES


def aggregate_name(node: exp.Expr) -> str:
    """The canonical name of an aggregate call."""
    if isinstance(node, exp.Anonymous):
        return AGGREGATES.get(str(node.this).lower(), str(node.this).lower())
    return AGGREGATES.get(type(node), node.key)


def aggregate_arguments(node: exp.Expr, name: str) -> list[exp.Expr]:
    """The arguments of an aggregate call; COUNT(*) has none.

    Raises:
        Error: The call has DISTINCT, ORDER BY or a wrong number of arguments.
    """
    extra = surplus(node)
    if extra is not None:
        raise unsupported(extra, node)
    args = list(node.expressions)
    if not isinstance(node, exp.Anonymous):
        args = [a for a in (node.this, node.args.get("expression"), *args) if a is not None]
    if name == "count" and (not args or (len(args) == 1 and _is_star(args[0]))):
        return []
    for a in args:
        match a:
            case exp.Column() if _is_star(a):
                raise ProgrammingError(
                    f"{name.upper()}() takes no {a.table}.*", hint="Only COUNT() counts whole rows."
                )
            case exp.Distinct():
                raise unsupported(f"{name.upper()}(DISTINCT …)", node)
            case exp.Order():
                raise unsupported(f"{name.upper()}(… ORDER BY …)", node)
    want = 2 if name in CHOOSING | OF_PAIRS else 1
    if len(args) != want:
        raise ProgrammingError(
            f"{name.upper()}() takes {want} argument{'s' * (want > 1)}, not {len(args)}"
        )
    return args


def _is_star(node: exp.Expr) -> bool:
    return isinstance(node.this if isinstance(node, exp.Column) else node, exp.Star)


def aggregates_in(node: exp.Expr) -> list[exp.Expr]:
    """The aggregate calls of this SELECT, with their FILTERs.

    The call of a window is not included, but its arguments may contain aggregate calls.
    """
    calls: list[exp.Expr] = []
    stack: list[exp.Expr] = [node]
    while stack:
        n = stack.pop()
        if isinstance(n, exp.Query | exp.Subquery):
            continue
        if isinstance(n, exp.Window):
            call = n.this
            if isinstance(call, exp.Filter):
                stack.append(call.expression)
                call = call.this
            stack.extend(call.iter_expressions())
            stack.extend(n.args.get("partition_by") or [])
        elif is_aggregate(n):
            calls.append(n)
        else:
            stack.extend(n.iter_expressions())
    return calls
