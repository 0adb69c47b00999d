"""Expands calls of macros: replaces parameters by arguments in a copy of the body."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from einsql.errors import ProgrammingError
from einsql.sql.macros.arguments import arguments_of, is_table_argument, reads_table
from einsql.sql.macros.macros import FREE, PARAMETER_OF, Macro, call_of, is_passed_on
from einsql.sql.parser.positions import position, unsupported

OF_MACRO = "of_macro"
"""Marks columns and subqueries of a scalar macro's body with the macros that contain them."""


def expand(
    macro: Macro,
    call: exp.Anonymous,
    find: Callable[[str], Macro | None],
    qualify: Callable[[exp.Expr], exp.Expr],
    place: Callable[[exp.Expr], exp.Expr | None] | None = None,
) -> exp.Expr:
    """Expands a call: a copy of the macro's body with arguments in place of parameters.

    If FROM reads a parameter, its argument has to be a table: a name, a subquery or a file. An
    argument of a table macro that is a name also replaces the name of a column. Everywhere else
    the argument is a value of the caller.

    Names that the body defines get another name if an argument has the same one. So the body
    captures no name of an argument.

    A SELECT as an argument is not copied in FROM or in a call of another table macro: all these
    places share one object (see `selects`).

    Args:
        macro: The called macro.
        call: The call, whose position errors in the body get.
        find: Function that returns the macro of a name, or None.
        qualify: Function that adds the caller's tables to an argument moved into a subquery.
        place: Function that shares an argument with several places; None to copy it.

    Raises:
        ProgrammingError: The arguments do not match the parameters.
    """
    return _Expansion(macro, call, find, qualify, place).copied(macro.body)


def expanded_size(macro: Macro, call: exp.Anonymous, shares: bool = False) -> int:
    """Estimates the number of syntax nodes in the expansion of a call.

    Args:
        macro: The called macro.
        call: The call.
        shares: Whether an argument is counted once.
    """
    sizes = {
        p.lower(): sum(1 for _ in arg.walk())
        for p, arg in zip(macro.parameters, call.expressions, strict=False)
    }
    if shares:
        return macro.names.size + sum(sizes.values())
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
        self,
        macro: Macro,
        call: exp.Anonymous,
        find: Callable[[str], Macro | None],
        qualify: Callable[[exp.Expr], exp.Expr],
        place: Callable[[exp.Expr], exp.Expr | None] | None,
    ) -> None:
        self.macro = macro
        self.call = call
        self.find = find
        self.qualify = qualify
        self.place = place
        self.values = arguments_of(macro, call)
        self.types = dict(zip(map(str.lower, macro.parameters), macro.types, strict=False))
        self.tables = macro.names.tables & self.values.keys()
        self.aliases = macro.names.aliases - self.tables
        self.start = position(call)
        self.chain = (*call.meta.get("chain", ()), macro.name.lower())
        self.moved = self._moved()
        self.renamed = self._renamed()

    def _moved(self) -> dict[str, exp.Expr]:
        """The arguments of a scalar macro in its queries, with the tables of their columns."""
        if self.macro.is_table:
            return {}
        moved: dict[str, exp.Expr] = {}
        for name in self.macro.names.nested & self.values.keys():
            if reads_table(self.macro, name, self.find):
                continue
            argument = _copy(self.values[name])
            if argument.find(exp.Query) is not None:
                raise unsupported(
                    f"A subquery as an argument of {self.macro.name}(), which has a subquery "
                    "itself,",
                    self.call,
                )
            moved[name] = self.qualify(argument)
        return moved

    def _renamed(self) -> dict[str, str]:
        """New names for names of the body that arguments also have, by the names in lower case."""
        names = self.macro.names
        tables, tables_of_columns = set[str](), set[str]()
        for name, argument in self.values.items():
            nodes = list(self.moved.get(name, argument).walk())
            columns = [n for n in nodes if isinstance(n, exp.Column)]
            tables |= {n.name.lower() for n in nodes if isinstance(n, exp.Table)}
            tables |= {c.name.lower() for c in columns if call_of(c) is not None}
            tables_of_columns |= {n.table.lower() for n in columns if n.table}
            if isinstance(argument, exp.Column) and not argument.table:
                tables.add(argument.name.lower())
                if name in names.qualifiers - names.tables:
                    tables_of_columns.add(argument.name.lower())
        taken = names.aliases | names.local | tables | tables_of_columns | self.values.keys()
        renamed: dict[str, str] = {}
        for name in sorted((tables & names.local) | (tables_of_columns & names.aliases)):
            numbered = (f"{name}_{n}" for n in range(1, len(taken) + 2))
            renamed[name] = next(new for new in numbered if new not in {*taken, *renamed.values()})
        return renamed

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
        new = _rebuilt(node, self.copied, meta)
        if isinstance(node, exp.Table) and self.renamed:
            self._rename_table(node, new)
        elif isinstance(node, exp.Column) and call_of(node) is not None:
            self._rename_argument(node, new)
        return new

    def _rename_table(self, node: exp.Table, new: exp.Expr) -> None:
        """Renames the table of a WITH in the body, and the alias of any table."""
        old = self.renamed.get(node.name.lower())
        alias = self.renamed.get(node.alias_or_name.lower())
        if alias is not None:
            named = new.args.get("alias") or exp.TableAlias()
            named.set("this", exp.to_identifier(alias, quoted=True))
            new.set("alias", named)
        if old is not None and FREE not in node.meta and isinstance(node.this, exp.Identifier):
            new.set("this", exp.to_identifier(old, quoted=True))

    def _rename_argument(self, node: exp.Column, new: exp.Expr) -> None:
        """Renames the table of a WITH in the body that a call reads by name."""
        if not is_table_argument(node, self.find):
            new.meta.pop(FREE, None)
        elif FREE not in node.meta and node.name.lower() in self.renamed:
            new.set("this", exp.to_identifier(self.renamed[node.name.lower()], quoted=True))

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
                replaced = self._identifier(node)
                if replaced is not None:
                    return replaced
        if isinstance(node, exp.Identifier) and name in self.renamed:
            of_column = isinstance(node.parent, exp.Column) and node.arg_key == "table"
            if of_column or (isinstance(node.parent, exp.TableAlias) and node.arg_key == "this"):
                return exp.to_identifier(self.renamed[name], quoted=True)
        return None

    def _column(self, node: exp.Column) -> exp.Expr | None:
        name = node.name.lower()
        if isinstance(node.parent, exp.Star):
            return exp.Column(this=self._name(node.this))
        is_table = name in self.tables and is_table_argument(node, self.find)
        if is_table or is_passed_on(node):
            argument = self.values[name]
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
        argument = self.values[node.name.lower()]
        others = _rebuilt(node, self.copied, {}).args
        del others["this"]
        alias = others.setdefault("alias", None) or exp.TableAlias()
        if alias.this is None:
            name = self.renamed.get(node.name.lower())
            alias.set("this", _copy(node.this) if name is None else exp.to_identifier(name, True))
        others["alias"] = alias
        if isinstance(argument, exp.Subquery):
            argument = argument.this
        match argument:
            case exp.Select():
                return exp.Subquery(this=argument, **others)
            case exp.Query():
                return exp.Subquery(this=argument.copy(), **others)
            case exp.Column() if not argument.table:
                table = exp.Table(this=_copy(argument.this), **others)
                table.meta.update({FREE: True} if FREE in argument.meta else {})
                return table
            case exp.Literal() if argument.is_string:
                return exp.Table(this=exp.to_identifier(argument.name, quoted=True), **others)
        raise ProgrammingError(
            f"{self.macro.name}() needs a table as {node.name}",
            hint="Give the name of a tensor, or a subquery in parentheses.",
            position=position(argument),
        )

    def _value(self, node: exp.Column) -> exp.Expr:
        name = node.name.lower()
        if self._is_in_query(node):
            return _copy(self.moved.get(name, self.values[name]))
        if self.place is not None and self.macro.law is None:
            is_repeated = self.macro.names.columns.count(name) > 1
            shared = self.place(self.values[name]) if is_repeated else None
            if shared is not None:
                return _copy(shared)
        return _copy(self.values[name])

    def _identifier(self, node: exp.Identifier) -> exp.Expr | None:
        """The replacement of a parameter in USING, EXCLUDE, an alias, or before a column."""
        parent = node.parent
        if isinstance(parent, exp.Join):
            return self._name(node)
        if not isinstance(parent, exp.Column):
            return self._name(node) if self._renames(node) else None
        if not self._is_callers(node):
            return None
        return self._name(node)

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
