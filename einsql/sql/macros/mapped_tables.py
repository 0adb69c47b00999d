"""f(z) in FROM for a function of numbers: the table z with f of its value in place of the value."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import exp

from einsql.errors import ProgrammingError
from einsql.sql.functions.scalar_functions import FUNCTION_OF_NODE, NAMED
from einsql.sql.macros.macros import called_name
from einsql.sql.parser.positions import position

_NODES = (
    *(*FUNCTION_OF_NODE, exp.Round, exp.Greatest, exp.Least, exp.Coalesce, exp.Nullif, exp.If),
    exp.Log,
)
_NAMES = frozenset(
    {*NAMED, "sigmoid", "square", "log10"}
    | {n.lower() for node in _NODES if issubclass(node, exp.Func) for n in node.sql_names()}
)


def is_function_of_numbers(name: str) -> bool:
    """True for the name of a built-in scalar function, other than a macro."""
    return name.lower() in _NAMES


def table_in(call: exp.Func) -> exp.Subquery:
    """The first argument of a call, which is a table, as a query.

    Raises:
        ProgrammingError: The argument is no table.
    """
    table: exp.Expr | None = None
    match _first(call):
        case exp.Subquery() as query:
            return exp.Subquery(this=query.this)
        case exp.Column(table="") as column:
            table = exp.Table(this=column.this.copy())
            table.meta.update(column.meta)
        case exp.Literal(is_string=True) as path:
            table = exp.Table(this=exp.to_identifier(path.name, quoted=True))
        case exp.Func() as inner:
            table = exp.Table(this=inner.copy())
    if table is None:
        raise ProgrammingError(
            f"{called_name(call)}() in FROM needs a table",
            hint="Give the name of a tensor, or a subquery in parentheses.",
            position=position(call),
        )
    return exp.Subquery(this=exp.Select(expressions=[exp.Star()], from_=exp.From(this=table)))


def _first(call: exp.Func) -> exp.Expr | None:
    """The first argument of a call as written; log2(x) and log10(x) have a node with two."""
    if isinstance(call, exp.Anonymous):
        return next(iter(call.expressions), None)
    is_second = str(call.meta.get("name")).lower() in ("log2", "log10")
    argument: exp.Expr | None = call.args.get("expression" if is_second else "this")
    return argument


def mapped(call: exp.Func, table: exp.Expr, values: Sequence[str]) -> exp.Select:
    """The SELECT of a call: all columns of its table, with the function of the value.

    Args:
        call: The call.
        table: The table as an item of FROM.
        values: The names of the table's value columns; `val`, or the only one, is the value.

    Raises:
        ProgrammingError: The table has another number of value columns.
    """
    name = next((v for v in values if v.lower() == "val"), values[0] if values else "")
    function = called_name(call)
    if not values or (len(values) > 1 and name.lower() != "val"):
        has = f"has {', '.join(values)}" if values else "has none"
        raise ProgrammingError(
            f"{function}() in FROM needs a table with one value column, and this one {has}",
            hint=f"Write SELECT …, {function}(column) AS val FROM ….",
            position=position(call),
        )
    column = exp.Column(this=exp.to_identifier(name, quoted=True))
    mapped = call.copy()
    first = _first(mapped)
    assert first is not None
    first.replace(column)
    star = exp.Star(replace=[exp.Alias(this=mapped, alias=exp.to_identifier(name, quoted=True))])
    return exp.Select(expressions=[star], from_=exp.From(this=table))
