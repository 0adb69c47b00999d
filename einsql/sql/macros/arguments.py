"""The arguments of a macro's call, and which of them the macro reads as tables."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from einsql.errors import ProgrammingError
from einsql.sql.functions.table_functions import TABLE_FUNCTIONS
from einsql.sql.macros.macros import Macro, call_of
from einsql.sql.parser.positions import position

_WRITTEN = "written"
"""In the meta of a subquery: the call in whose place it is."""


def name_calls(macro: Macro, call: exp.Anonymous, find: Callable[[str], Macro | None]) -> None:
    """Writes `(SELECT * FROM f(…))` for a call f(…) that is the argument of a table parameter.

    The tree may be bound again after a macro was replaced, so a call that a former macro read as
    a table is written alone again.

    Args:
        macro: The called macro.
        call: The call, which is changed.
        find: Function that returns the macro of a name, or None.
    """
    for name, argument in arguments_of(macro, call).items():
        written = argument.meta.get(_WRITTEN)
        if written is not None and not reads_table(macro, name, find):
            argument.replace(written)
            continue
        is_call = isinstance(argument, exp.Func) and not isinstance(argument, exp.Query)
        if is_call and argument.parent is not None and reads_table(macro, name, find):
            query = exp.Select(expressions=[exp.Star()])
            subquery = exp.Subquery(this=query)
            subquery.meta[_WRITTEN] = argument
            argument.replace(subquery)
            query.set("from_", exp.From(this=exp.Table(this=argument)))


def reads_table(
    macro: Macro,
    name: str,
    find: Callable[[str], Macro | None],
    seen: set[tuple[str, str]] | None = None,
) -> bool:
    """True if a macro reads a parameter as a table, itself or by a call in its body.

    Args:
        macro: The macro.
        name: The parameter in lower case.
        find: Function that returns the macro of a name, or None.
        seen: The macros and parameters that the search has visited.
    """
    if name in macro.names.tables:
        return True
    seen = set() if seen is None else seen
    if (macro.name.lower(), name) in seen:
        return False
    seen.add((macro.name.lower(), name))
    columns = [c for c in macro.body.find_all(exp.Column) if c.name.lower() == name]
    return any(is_table_argument(c, find, seen) for c in columns)


def is_table_argument(
    node: exp.Expr,
    find: Callable[[str], Macro | None],
    seen: set[tuple[str, str]] | None = None,
) -> bool:
    """True for a name or a call that a function of FROM or a macro reads as a table.

    Args:
        node: A column, whose name may be that of a table, or a call.
        find: Function that returns the macro of a name, or None.
        seen: The macros and parameters that a search has visited.
    """
    call = call_of(node)
    if call is None or (isinstance(node, exp.Column) and node.table):
        return False
    macro, is_first = None, True
    if isinstance(call, exp.Anonymous):
        macro, is_first = find(call.name), call.expressions[0] is node
        if macro is not None and _fills_table(macro, call, node, find, seen):
            return True
    is_function = macro is None and call.name.lower() in TABLE_FUNCTIONS
    if not (is_function or (is_first and (macro is None or not macro.is_table))):
        return False
    return isinstance(call.parent, exp.Table) or is_table_argument(call, find, seen)


def free_tables(macro: Macro, find: Callable[[str], Macro | None]) -> list[exp.Expr]:
    """The nodes of a macro's body that name tables of the catalog.

    Args:
        macro: The macro.
        find: Function that returns the macro of a name, or None.
    """
    own = {p.lower() for p in macro.parameters}
    return [
        node
        for node in macro.names.free
        if node.name.lower() not in own
        and not node.args.get("db")
        and (isinstance(node, exp.Table) or is_table_argument(node, find))
    ]


def _fills_table(
    macro: Macro,
    call: exp.Anonymous,
    argument: exp.Expr,
    find: Callable[[str], Macro | None],
    seen: set[tuple[str, str]] | None,
) -> bool:
    """True if the macro that a call calls reads an argument of the call as a table."""
    try:
        passed = arguments_of(macro, call).items()
    except ProgrammingError:
        return False  # the expansion of the call reports the error
    return any(a is argument and reads_table(macro, name, find, seen) for name, a in passed)


def arguments_of(macro: Macro, call: exp.Anonymous) -> dict[str, exp.Expr]:
    """The argument of each parameter, by its name in lower case."""
    parameters = [p.lower() for p in macro.parameters]
    arguments: dict[str, exp.Expr] = {}
    for arg in call.expressions:
        at = position(arg) or position(call)
        if isinstance(arg, exp.Star | exp.Distinct | exp.Order | exp.Kwarg):
            raise ProgrammingError(f"{macro.name}() takes values only", position=at)
        name, argument = "", arg
        if isinstance(arg, exp.PropertyEQ):
            name, argument = arg.this.name.lower(), arg.expression
        elif len(arguments) < len(parameters):
            name = parameters[len(arguments)]
        if name not in parameters or name in arguments:
            if isinstance(arg, exp.PropertyEQ):
                what = "twice" if name in arguments else "there is none of that name"
                raise ProgrammingError(f"{macro.call} gets {arg.this.name}: {what}", position=at)
            raise _wrong_number(macro, call)
        arguments[name] = argument
    first = len(parameters) - len(macro.defaults)
    for name, argument in zip(parameters[first:], macro.defaults, strict=True):
        arguments.setdefault(name, argument.copy())
    if len(arguments) < len(parameters):
        raise _wrong_number(macro, call)
    return arguments


def _wrong_number(macro: Macro, call: exp.Anonymous) -> ProgrammingError:
    most, passed = len(macro.parameters), len(call.expressions)
    least = most - len(macro.defaults)
    count = f"{least} to {most}" if macro.defaults else f"{most}"
    return ProgrammingError(
        f"{macro.call} takes {count} argument{'s' * (count != '1')}, not {passed}",
        position=position(call),
    )
