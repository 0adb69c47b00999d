"""Aggregate calls inside syntax trees."""

from __future__ import annotations

from sqlglot import exp

from einsql.errors import ProgrammingError
from einsql.sql.functions.aggregate_functions import (
    AGGREGATES,
    CHOOSING,
    DISTINCT,
    OF_PAIRS,
    QUANTILES,
)
from einsql.sql.parser.aggregate_law import law_of
from einsql.sql.parser.arguments import surplus
from einsql.sql.parser.positions import unsupported

MOST_BEST = 1_000_000
"""The count from which DuckDB refuses a list of best values."""


def is_aggregate(node: exp.Expr) -> bool:
    """True for an aggregate call, with or without FILTER."""
    node = _bare(node)
    if isinstance(node, exp.Anonymous):
        return law_of(node) is not None or node.name.lower() in AGGREGATES
    return type(node) in AGGREGATES


def _bare(node: exp.Expr) -> exp.Expr:
    """An aggregate call without what surrounds it: FILTER, WITHIN GROUP; ANY_VALUE ignores NULL."""
    if isinstance(node, exp.Filter):
        node = node.this
    ignores = isinstance(node, exp.IgnoreNulls) and isinstance(node.this, exp.AnyValue)
    inner: exp.Expr = node.this if ignores or isinstance(node, exp.WithinGroup) else node
    return inner


def aggregate_name(node: exp.Expr) -> str:
    """The canonical name of an aggregate call."""
    node = _bare(node)
    if isinstance(node, exp.Anonymous):
        return AGGREGATES.get(node.name.lower(), node.name.lower())
    return AGGREGATES.get(type(node), node.key)


def aggregate_call(node: exp.Expr) -> tuple[str, list[exp.Expr]]:
    """The canonical name of an aggregate call without FILTER, and its arguments.

    COUNT(*) has no arguments. COUNT(DISTINCT x) is a COUNT_DISTINCT of x.

    Raises:
        Error: The call has ORDER BY, a DISTINCT that is not supported, or a wrong number of
            arguments.
    """
    name = aggregate_name(node)
    if isinstance(node, exp.WithinGroup):
        return name, _ordered_arguments(node, name)
    node = _bare(node)
    if isinstance(node.this, exp.Distinct):
        values = node.this.expressions
        if name in DISTINCT and len(values) == 1 and not node.this.args.get("on"):
            node = node.copy()
            node.set("this", values[0])
            if not isinstance(values[0], exp.Tuple) and not _is_star(values[0]):
                return DISTINCT[name], _arguments(node, name)
    return name, _arguments(node, name)


def _ordered_arguments(node: exp.WithinGroup, name: str) -> list[exp.Expr]:
    """The arguments of PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY x), and of MODE()."""
    call, order = node.this, node.expression
    ordered = order.expressions if isinstance(order, exp.Order) else []
    plain = len(ordered) == 1 and not ordered[0].args.get("desc")
    if not plain or name not in QUANTILES | {"mode"} or (name == "mode") != (call.this is None):
        raise unsupported(f"{name.upper()}() WITHIN GROUP", node)
    return [ordered[0].this, *([] if call.this is None else [call.this])]


def _arguments(node: exp.Expr, name: str) -> list[exp.Expr]:
    extra = surplus(node)
    if extra is not None:
        raise unsupported(extra, node)
    args = list(node.expressions)
    if not isinstance(node, exp.Anonymous):
        second = node.args.get("expression") or node.args.get("quantile")
        args = [a for a in (node.this, second, *args) if a is not None]
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
    want = 2 if name in CHOOSING | OF_PAIRS | QUANTILES else 1
    if len(args) != want:
        raise ProgrammingError(
            f"{name.upper()}() takes {want} argument{'s' * (want > 1)}, not {len(args)}",
            hint=f"{name.upper()}(key, value) returns the key." if name in CHOOSING else "",
        )
    return args


def _is_star(node: exp.Expr) -> bool:
    return isinstance(node.this if isinstance(node, exp.Column) else node, exp.Star)


def is_count(node: exp.Expr) -> bool:
    """True for a literal that is the greatest length of a list of best values."""
    is_whole = isinstance(node, exp.Literal) and not node.is_string and node.name.isdecimal()
    return is_whole and 0 < int(node.name) < MOST_BEST


def list_slice(node: exp.Expr) -> tuple[exp.Expr, exp.Expr] | None:
    """LIST(a ORDER BY v) and k of its first k values, `LIST(a ORDER BY v)[1:k]`; or None."""
    match node:
        case exp.Bracket(this=called, expressions=[exp.Slice() as part]):
            first, last = part.this, part.args.get("expression")
            bare = called.unnest()
            bare = bare.this if isinstance(bare, exp.Filter) else bare
            ordered = isinstance(bare, exp.ArrayAgg) and isinstance(bare.this, exp.Order)
            starts = first is None or (isinstance(first, exp.Literal) and first.name == "1")
            if ordered and starts and last is not None and part.args.get("step") is None:
                return (called.unnest(), last) if is_count(last) else None
    return None


def list_call(node: exp.Expr) -> exp.Expr | None:
    """The call of an aggregate of n values, with its FILTER, without parentheses; or None."""
    node = node.unnest()
    if list_slice(node) is not None:
        return node
    bare = node.this if isinstance(node, exp.Filter) else node
    counts = isinstance(bare, exp.Max | exp.Min | exp.ArgMax | exp.ArgMin)
    return node if counts and bare.args.get("count") is not None else None


def aggregates_in(node: exp.Expr) -> list[exp.Expr]:
    """The aggregate calls of this SELECT, with their FILTERs.

    The call of a window is not included, but its arguments and clauses may contain aggregate calls.
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
            stack.extend(_bare(call).iter_expressions())
            stack.extend(n.args.get("partition_by") or [])
            order = n.args.get("order")
            stack.extend([] if order is None else order.expressions)
        elif is_aggregate(n) or list_slice(n) is not None:
            calls.append(n)
        else:
            stack.extend(n.iter_expressions())
    return calls
