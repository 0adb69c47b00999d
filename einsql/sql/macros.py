"""Macros: named SQL with parameters, expanded by substitution in the syntax tree."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import ParseError

from einsql.errors import ProgrammingError, suggest
from einsql.sql.aggregates import AGGREGATES
from einsql.sql.dialect import EinSQL
from einsql.sql.functions import NAMED
from einsql.sql.scalar import position, unsupported
from einsql.sql.sources import TABLE_FUNCTIONS
from einsql.sql.tiles.names import FUNCTIONS as TILE_FUNCTIONS

OF_MACRO = "of_macro"
"""Marks columns and subqueries of a scalar macro's body with the macros they came through."""


@dataclass(frozen=True, slots=True)
class Macro:
    """A scalar or table macro.

    Attributes:
        body: An expression, or a query for a table macro.
        text: The CREATE MACRO statement's text.
        defaults: What the last parameters are where a call does not say it.
    """

    name: str
    parameters: tuple[str, ...]
    body: exp.Expr
    is_table: bool
    text: str
    defaults: tuple[exp.Expr, ...] = ()

    @property
    def call(self) -> str:
        """How it is called, as `layer_norm(x, axis, eps := 0.00001)`."""
        first = len(self.parameters) - len(self.defaults)
        shown = list(self.parameters)
        for n, value in enumerate(self.defaults, first):
            shown[n] += f" := {value.sql(dialect=EinSQL)}"
        return f"{self.name}({', '.join(shown)})"

    @property
    def table_parameters(self) -> tuple[str, ...]:
        """The parameters from which its body reads in FROM."""
        named = _from_names(self.body)
        return tuple(p for p in self.parameters if p.lower() in named)


# ---- definition


def is_function(name: str, arity: int, is_table: bool) -> bool:
    """True if a call of that name means a function, so that a macro would never be called."""
    known = TABLE_FUNCTIONS if is_table else {*NAMED, *AGGREGATES, *_INLINED, *TILE_FUNCTIONS}
    if name.lower() in known:
        return True
    word = name if re.fullmatch(r"\w+", name) else exp.to_identifier(name, quoted=True).sql()
    call = f"{word}({', '.join(f'a{n}' for n in range(arity))})"
    try:
        tree = sqlglot.parse_one(f"SELECT {'* FROM ' * is_table}{call}", dialect=EinSQL)
    except ParseError:  # it is a function of another arity, or a keyword
        return True
    found = tree.args["from_"].this.this if is_table else tree.expressions[0]
    return not isinstance(found, exp.Anonymous)


_INLINED = ("sigmoid", "square", "stop_gradient")
"""Functions the scalar binder spells out itself."""


def check_parameters(body: exp.Expr, parameters: tuple[str, ...]) -> None:
    """Requires that an expression reads its parameters only; subqueries have columns too.

    Raises:
        ProgrammingError: A column is no parameter.
    """
    known = {p.lower() for p in parameters}
    for node in body.walk(prune=lambda n: isinstance(n, exp.Query)):
        if isinstance(node, exp.Column) and (node.table or node.name).lower() not in known:
            name = node.table or node.name
            raise ProgrammingError(
                f'There is no parameter "{name}"',
                hint=suggest(name, parameters, "parameters"),
                position=position(node),
            )


# ---- expansion


def expand(macro: Macro, call: exp.Anonymous, qualify: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """The body with arguments in place of parameters.

    Where a parameter is read from in FROM, its argument has to be a table: a name, a
    subquery or a file. An argument of a table macro that is a name also takes the place
    of a column's name. Everywhere else the argument is a value of the caller.

    Args:
        macro: What is called.
        call: The call; errors in the body will point at it.
        qualify: Names the caller's tables in an argument that moves into a subquery.

    Raises:
        ProgrammingError: The arguments do not fit.
    """
    body: exp.Expr = macro.body.copy()
    chain = (*call.meta.get("chain", ()), macro.name.lower())
    start = position(call)
    for node in body.walk():
        node.meta.pop("start", None)
        if start is not None:
            node.meta["start"] = start
        if isinstance(node, exp.Anonymous):
            node.meta["chain"] = chain
        elif isinstance(node, exp.Column | exp.Select) and not macro.is_table:
            node.meta[OF_MACRO] = chain
    return _Expansion(macro, call, body, qualify).run()


def expanded_size(macro: Macro, call: exp.Anonymous) -> int:
    """How many syntax nodes the expansion of a call has, at least."""
    sizes = {
        p.lower(): sum(1 for _ in arg.walk())
        for p, arg in zip(macro.parameters, call.expressions, strict=False)
    }
    return sum(
        sizes.get(n.name.lower(), 1) if isinstance(n, exp.Column) else 1 for n in macro.body.walk()
    )


class _Expansion:
    """One substitution of arguments for parameters, in place."""

    def __init__(
        self,
        macro: Macro,
        call: exp.Anonymous,
        body: exp.Expr,
        qualify: Callable[[exp.Expr], exp.Expr],
    ) -> None:
        self.macro = macro
        self.call = call
        self.body = body
        self.qualify = qualify
        self.values = _arguments(macro, call)
        self.tables = _from_names(body) & set(self.values)
        self.aliases = {
            s.alias_or_name.lower() for s in body.find_all(exp.Table, exp.Subquery, exp.CTE)
        } - self.tables
        queries = body.find_all(exp.Query)
        self.in_query = {id(n) for q in queries for n in q.walk()}

    def run(self) -> exp.Expr:
        """The body, changed."""
        for node in list(self.body.walk()):
            new = self._changed(node)
            if new is not node:
                node.replace(new)
                self.body = new if node is self.body else self.body
        return self.body

    def _changed(self, node: exp.Expr) -> exp.Expr:
        name = node.name.lower()
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            return self._table(node) if name in self.tables else node
        if isinstance(node, exp.Column) and not node.table and name in self.values:
            if isinstance(node.parent, exp.Star):
                return exp.Column(this=self._name(node.this))
            if isinstance(node.parent, exp.Anonymous) and isinstance(node.parent.parent, exp.Table):
                return self._uncaptured(self.values[name].copy())
            return node if name in self.tables else self._value(node)
        if isinstance(node, exp.Identifier) and name in set(self.values) - self.tables:
            return self._identifier(node)
        return node

    def _table(self, node: exp.Table) -> exp.Expr:
        """The argument as an item of FROM, still called by the parameter's name."""
        value = self._uncaptured(self.values[node.name.lower()].copy())
        alias = node.args.get("alias") or exp.TableAlias()
        if alias.this is None:
            alias.set("this", node.this.copy())
        others = {k: v for k, v in node.args.items() if k not in ("this", "alias")}
        if isinstance(value, exp.Subquery):
            value = value.this
        if isinstance(value, exp.Query):
            return exp.Subquery(this=value, alias=alias, **others)
        if isinstance(value, exp.Column) and not value.table:
            return exp.Table(this=value.this, alias=alias, **others)
        if isinstance(value, exp.Literal) and value.is_string:
            path = exp.to_identifier(value.name, quoted=True)
            return exp.Table(this=path, alias=alias, **others)
        raise ProgrammingError(
            f"{self.macro.name}() needs a table as {node.name}",
            hint="Give the name of a tensor, or a subquery in parentheses.",
            position=position(value),
        )

    def _value(self, node: exp.Column) -> exp.Expr:
        value = self.values[node.name.lower()].copy()
        if self.macro.is_table:
            return self._uncaptured(value)
        if id(node) not in self.in_query:
            return value
        if value.find(exp.Query) is not None:
            raise unsupported(
                f"A subquery as an argument of {self.macro.name}(), which has a subquery itself,",
                self.call,
            )
        value = self.qualify(value)
        for column in value.find_all(exp.Column):
            self._refuse_hidden(column.table, f"{column.table}.{column.name}")
        return value

    def _identifier(self, node: exp.Identifier) -> exp.Expr:
        """A parameter that names: in USING, EXCLUDE, an alias, or before a column."""
        parent, name = node.parent, node.name.lower()
        if isinstance(parent, exp.Join):
            return self._name(node)
        value = self.values[name]
        renames = self.macro.is_table and isinstance(value, exp.Column) and not value.table
        if not isinstance(parent, exp.Column):
            return self._name(node) if renames else node
        if node.arg_key != "table" or (name in self.aliases and not renames):
            return node
        new = self._name(node)
        if not self.macro.is_table and id(node) in self.in_query:
            self._refuse_hidden(new.name, f"{new.name}.{parent.name}")
        parent.meta.pop(OF_MACRO, None)
        return new

    def _name(self, node: exp.Identifier) -> exp.Identifier:
        value = self.values[node.name.lower()]
        if not isinstance(value, exp.Column) or value.table:
            raise ProgrammingError(
                f"{self.macro.name}() needs a name as {node.name}", position=position(value)
            )
        identifier: exp.Identifier = value.this.copy()
        return identifier

    def _uncaptured(self, value: exp.Expr) -> exp.Expr:
        """Refuses an argument whose tables the body's own WITH would redefine."""
        local = {c.alias.lower() for c in self.body.find_all(exp.CTE)}
        named = [t.name for t in value.find_all(exp.Table)]
        named += [value.name] if isinstance(value, exp.Column) else []
        for name in named:
            if name.lower() in local:
                self._refuse_hidden(name, name)
        return value

    def _refuse_hidden(self, table: str, argument: str) -> None:
        if table.lower() in self.aliases:
            raise ProgrammingError(
                f"{self.macro.name}() has a table named {table} itself, "
                f"which hides the argument {argument}",
                hint="Give the table another name with AS where the macro is called.",
                position=position(self.call),
            )


def _from_names(body: exp.Expr) -> set[str]:
    """The bare names in FROM, in small letters."""
    names = [t for t in body.find_all(exp.Table) if isinstance(t.this, exp.Identifier)]
    return {t.name.lower() for t in names if t.args.get("db") is None}


def _arguments(macro: Macro, call: exp.Anonymous) -> dict[str, exp.Expr]:
    """The argument of each parameter, by its name in lower case."""
    parameters = [p.lower() for p in macro.parameters]
    found: dict[str, exp.Expr] = {}
    for arg in call.expressions:
        at = position(arg) or position(call)
        if isinstance(arg, exp.Star | exp.Distinct | exp.Order | exp.Kwarg):
            raise ProgrammingError(f"{macro.name}() takes values only", position=at)
        name, value = "", arg
        if isinstance(arg, exp.PropertyEQ):
            name, value = arg.this.name.lower(), arg.expression
        elif len(found) < len(parameters):
            name = parameters[len(found)]
        if name not in parameters or name in found:
            if isinstance(arg, exp.PropertyEQ):
                what = "twice" if name in found else "there is none of that name"
                raise ProgrammingError(f"{macro.call} gets {arg.this.name}: {what}", position=at)
            raise _wrong_number(macro, call)
        found[name] = value
    first = len(parameters) - len(macro.defaults)
    for name, value in zip(parameters[first:], macro.defaults, strict=True):
        found.setdefault(name, value.copy())
    if len(found) < len(parameters):
        raise _wrong_number(macro, call)
    return found


def _wrong_number(macro: Macro, call: exp.Anonymous) -> ProgrammingError:
    most, given = len(macro.parameters), len(call.expressions)
    least = most - len(macro.defaults)
    count = f"{least} to {most}" if macro.defaults else f"{most}"
    return ProgrammingError(
        f"{macro.call} takes {count} argument{'s' * (count != '1')}, not {given}",
        position=position(call),
    )
