"""Expands calls of macros: replaces parameters by arguments in a copy of the body."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from einsql.errors import ProgrammingError
from einsql.sql.macros.macros import PARAMETER_OF, Macro, is_passed_on
from einsql.sql.parser.positions import position, unsupported

OF_MACRO = "of_macro"
"""Marks columns and subqueries of a scalar macro's body with the macros that contain them."""


def expand(macro: Macro, call: exp.Anonymous, qualify: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Expands a call: a copy of the macro's body with arguments in place of parameters.

    If FROM reads a parameter, its argument has to be a table: a name, a subquery or a file. An
    argument of a table macro that is a name also replaces the name of a column. Everywhere else
    the argument is a value of the caller.

    A SELECT as an argument is not copied in FROM or in a call of another table macro: all these
    places share one object (see `selects`).

    Args:
        macro: The called macro.
        call: The call, whose position errors in the body get.
        qualify: Function that adds the caller's tables to an argument moved into a subquery.

    Raises:
        ProgrammingError: The arguments do not match the parameters.
    """
    return _Expansion(macro, call, qualify).copied(macro.body)


def expanded_size(macro: Macro, call: exp.Anonymous) -> int:
    """Estimates the number of syntax nodes in the expansion of a call."""
    sizes = {
        p.lower(): sum(1 for _ in arg.walk())
        for p, arg in zip(macro.parameters, call.expressions, strict=False)
    }
    return macro.names.size + sum(sizes.get(name, 1) - 1 for name in macro.names.columns)


def selects(call: exp.Anonymous) -> Iterator[exp.Select]:
    """The arguments of a call that are a SELECT."""
    for arg in call.expressions:
        value = arg.expression if isinstance(arg, exp.PropertyEQ) else arg
        if isinstance(value, exp.Subquery) and isinstance(value.this, exp.Select):
            yield value.this


def _copy(node: exp.Expr) -> exp.Expr:
    """A recursive copy, much faster than sqlglot's, which supports deeper trees."""
    return _rebuilt(node, _copy, dict(node.meta))


def _rebuilt(
    node: exp.Expr, change: Callable[[exp.Expr], exp.Expr], meta: dict[str, object]
) -> exp.Expr:
    """A node of the same kind over the changed children."""
    new = node.__class__()
    for key, value in node.args.items():
        if isinstance(value, exp.Expr):
            new.set(key, change(value))
        elif isinstance(value, list):
            new.set(key, [change(v) if isinstance(v, exp.Expr) else v for v in value])
        else:
            new.args[key] = value
    new.comments = node.comments
    new.meta.update(meta)
    return new


class _Expansion:
    """One substitution of arguments for parameters."""

    def __init__(
        self, macro: Macro, call: exp.Anonymous, qualify: Callable[[exp.Expr], exp.Expr]
    ) -> None:
        self.macro = macro
        self.call = call
        self.qualify = qualify
        self.values = _arguments(macro, call)
        self.types = dict(zip(map(str.lower, macro.parameters), macro.types, strict=False))
        self.tables = macro.names.tables & self.values.keys()
        self.aliases = macro.names.aliases - self.tables
        self.start = position(call)
        self.chain = (*call.meta.get("chain", ()), macro.name.lower())

    def copied(self, node: exp.Expr) -> exp.Expr:
        """A copy of a node of the body with arguments in place of parameters."""
        new = self._substitute(node)
        if new is not None:
            return new
        meta = {k: v for k, v in node.meta.items() if k != "start"}
        if self.start is not None:
            meta["start"] = self.start
        if isinstance(node, exp.Anonymous):
            meta["chain"] = self.chain
        elif not self.macro.is_table and (
            isinstance(node, exp.Select)
            or (isinstance(node, exp.Column) and not self._is_callers(node.args.get("table")))
        ):
            meta[OF_MACRO] = self.chain
        return _rebuilt(node, self.copied, meta)

    def _substitute(self, node: exp.Expr) -> exp.Expr | None:
        """The replacement of a node with its children, or None."""
        name = (
            node.name.lower() if isinstance(node, exp.Table | exp.Column | exp.Identifier) else ""
        )
        match node:
            case exp.Table(this=exp.Identifier()) if name in self.tables:
                return self._table(node)
            case exp.Column() if not node.table and name in self.values:
                return self._column(node)
            case exp.Identifier() if name in self.values and name not in self.tables:
                return self._identifier(node)
        return None

    def _column(self, node: exp.Column) -> exp.Expr | None:
        name = node.name.lower()
        if isinstance(node.parent, exp.Star):
            return exp.Column(this=self._name(node.this))
        if is_passed_on(node):
            argument = self._uncaptured(self.values[name])
            if isinstance(argument, exp.Subquery) and isinstance(argument.this, exp.Select):
                return exp.Subquery(this=argument.this)
            return _copy(argument)
        return None if name in self.tables else self._typed(name, self._value(node))

    def _typed(self, name: str, argument: exp.Expr) -> exp.Expr:
        """The argument, cast to the type of its parameter: implicitly, except for aggregates."""
        to = self.types.get(name)
        if to is None:
            return argument
        cast = exp.Cast(this=argument, to=to.copy())
        if self.macro.law is None:
            cast.meta[PARAMETER_OF] = self.macro.call
        start = position(argument)
        cast.meta.update({} if start is None else {"start": start})
        return cast

    def _table(self, node: exp.Table) -> exp.Expr:
        """The argument as an item of FROM with the parameter's name as its alias."""
        argument = self._uncaptured(self.values[node.name.lower()])
        others = _rebuilt(node, self.copied, {}).args
        del others["this"]
        alias = others.setdefault("alias", None) or exp.TableAlias()
        if alias.this is None:
            alias.set("this", _copy(node.this))
        others["alias"] = alias
        if isinstance(argument, exp.Subquery):
            argument = argument.this
        match argument:
            case exp.Select():
                return exp.Subquery(this=argument, **others)
            case exp.Query():
                return exp.Subquery(this=argument.copy(), **others)
            case exp.Column() if not argument.table:
                return exp.Table(this=_copy(argument.this), **others)
            case exp.Literal() if argument.is_string:
                return exp.Table(this=exp.to_identifier(argument.name, quoted=True), **others)
        raise ProgrammingError(
            f"{self.macro.name}() needs a table as {node.name}",
            hint="Give the name of a tensor, or a subquery in parentheses.",
            position=position(argument),
        )

    def _value(self, node: exp.Column) -> exp.Expr:
        argument = self.values[node.name.lower()]
        if self.macro.is_table:
            return _copy(self._uncaptured(argument))
        argument = _copy(argument)
        if not self._is_in_query(node):
            return argument
        if argument.find(exp.Query) is not None:
            raise unsupported(
                f"A subquery as an argument of {self.macro.name}(), which has a subquery itself,",
                self.call,
            )
        argument = self.qualify(argument)
        for column in argument.find_all(exp.Column):
            self._refuse_hidden(column.table, f"{column.table}.{column.name}")
        return argument

    def _identifier(self, node: exp.Identifier) -> exp.Expr | None:
        """The replacement of a parameter in USING, EXCLUDE, an alias, or before a column."""
        parent = node.parent
        if isinstance(parent, exp.Join):
            return self._name(node)
        if not isinstance(parent, exp.Column):
            return self._name(node) if self._renames(node) else None
        if not self._is_callers(node):
            return None
        new = self._name(node)
        if not self.macro.is_table and self._is_in_query(node):
            self._refuse_hidden(new.name, f"{new.name}.{parent.name}")
        return new

    def _renames(self, node: exp.Identifier) -> bool:
        """True if an argument replaces a name by a name."""
        argument = self.values[node.name.lower()]
        return self.macro.is_table and isinstance(argument, exp.Column) and not argument.table

    def _is_callers(self, node: exp.Identifier | None) -> bool:
        """True if the table of a column belongs to the caller."""
        name = "" if node is None else node.name.lower()
        if node is None or node.arg_key != "table" or name not in self.values.keys() - self.tables:
            return False
        return name not in self.aliases or self._renames(node)

    def _is_in_query(self, node: exp.Expr) -> bool:
        """True if a node of the body is part of a query in the body."""
        here: exp.Expr | None = node
        while here is not None and not isinstance(here, exp.Query):
            here = None if here is self.macro.body else here.parent
        return here is not None

    def _name(self, node: exp.Identifier) -> exp.Identifier:
        argument = self.values[node.name.lower()]
        if not isinstance(argument, exp.Column) or argument.table:
            raise ProgrammingError(
                f"{self.macro.name}() needs a name as {node.name}", position=position(argument)
            )
        identifier: exp.Identifier = argument.this.copy()
        return identifier

    def _uncaptured(self, argument: exp.Expr) -> exp.Expr:
        """Refuses an argument with a table whose name the body's own WITH redefines."""
        local = self.macro.names.local
        if local:
            named = [t.name for t in argument.find_all(exp.Table)]
            named += [argument.name] if isinstance(argument, exp.Column) else []
            for name in named:
                if name.lower() in local:
                    self._refuse_hidden(name, name)
        return argument

    def _refuse_hidden(self, table: str, argument: str) -> None:
        if table.lower() in self.aliases:
            raise ProgrammingError(
                f"{self.macro.name}() has a table named {table} itself, "
                f"which hides the argument {argument}",
                hint="Give the table another name with AS where the macro is called.",
                position=position(self.call),
            )


def _arguments(macro: Macro, call: exp.Anonymous) -> dict[str, exp.Expr]:
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
