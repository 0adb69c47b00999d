"""Scalar macros in a SELECT: expanded before it is bound, for they may hold aggregates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from sqlglot import exp

from einsql.errors import Error, ProgrammingError
from einsql.sql.binder.names import column_name
from einsql.sql.binder.scalar import locate, unsupported
from einsql.sql.binder.scope import Scope
from einsql.sql.macros.macros import Macro
from einsql.sql.macros.substitution import OF_MACRO, expand, expanded_size

if TYPE_CHECKING:
    from einsql.sql.binder.query import QueryBinder

MAX_EXPANDED = 50_000
"""Syntax nodes that macros may add to a statement; two that double each other reach any number."""


class Block(Protocol):
    """What is read of the SELECT that calls a macro."""

    @property
    def query(self) -> QueryBinder:
        """The statement's binder."""

    @property
    def scope(self) -> Scope:
        """The columns in reach."""

    @property
    def select(self) -> exp.Select:
        """Its syntax."""

    @property
    def parent(self) -> Block | None:
        """The SELECT around it."""


_CLAUSES = ("expressions", "where", "group", "having", "qualify")


def expanded(binder: Block, select: exp.Select) -> exp.Select:
    """The SELECT without calls of scalar macros; items keep the names they were written with.

    Raises:
        Error: A call is wrong, or a macro refers to itself.
    """
    if binder.query.expanded_nodes:
        _check_columns(binder, select)
    if not any(_calls(binder.query, root) for root in _roots(select)):
        return select
    select = select.copy()
    for item in select.expressions:
        if not isinstance(item, exp.Alias | exp.Star) and _calls(binder.query, item):
            name = exp.to_identifier(column_name(item), quoted=True)
            item.replace(exp.Alias(this=item.copy(), alias=name))
    literals = [n for n in _group_items(select) if isinstance(n, exp.Literal)]
    for root in _roots(select):
        expand_calls(binder, root)
    for node in _group_items(select):
        # A number in GROUP BY would count SELECT items; a macro's number is a mere constant.
        if isinstance(node, exp.Literal) and not any(node is n for n in literals):
            node.replace(exp.Add(this=node.copy(), expression=exp.Literal.number(0)))
    return select


def _roots(select: exp.Select) -> list[exp.Expr]:
    roots: list[exp.Expr] = []
    for clause in _CLAUSES:
        found = select.args.get(clause)
        roots += found if isinstance(found, list) else [] if found is None else [found]
    return roots


def _group_items(select: exp.Select) -> list[exp.Expr]:
    group = select.args.get("group")
    return [] if group is None else list(group.expressions)


def _check_columns(binder: Block, select: exp.Select) -> None:
    """Refuses columns of a macro's subquery that only its caller has."""
    for root in _roots(select):
        for node in root.walk(prune=lambda n: isinstance(n, exp.Query)):
            if isinstance(node, exp.Column) and OF_MACRO in node.meta:
                _check_column(binder, node)


def _check_column(binder: Block, column: exp.Column) -> None:
    here: Block | None = binder
    while here is not None and here.select.meta.get(OF_MACRO) == column.meta[OF_MACRO]:
        if _has(here, column):
            return
        here = here.parent
    raise locate(binder.scope.unknown(column.name, column.table or None), column)


def _has(binder: Block, column: exp.Column) -> bool:
    """True if a SELECT has the column itself, or an item of that name."""
    name, table = column.name.lower(), column.table.lower()
    if table or isinstance(column.this, exp.Star):
        return not table or any(s.alias.lower() == table for s in binder.scope.sources)
    aliases = (e.alias.lower() for e in binder.select.expressions if isinstance(e, exp.Alias))
    return name in aliases or any(s.get(name) is not None for s in binder.scope.sources)


def _calls(query: QueryBinder, root: exp.Expr) -> bool:
    nodes = root.walk(prune=lambda n: isinstance(n, exp.Query))
    return any(_macro(query, n) is not None for n in nodes)


def _macro(query: QueryBinder, node: exp.Expr) -> Macro | None:
    return query.catalog.macro(str(node.this)) if isinstance(node, exp.Anonymous) else None


def expand_calls(binder: Block, root: exp.Expr) -> exp.Expr:
    """Expands every call of a scalar macro below a node, in place; subqueries are left out.

    Returns:
        The node, or what it became.

    Raises:
        Error: A call is wrong, or a macro refers to itself.
    """
    stack = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, exp.Query):
            continue
        macro = _macro(binder.query, node)
        if macro is None:
            stack.extend(node.iter_expressions())
            continue
        assert isinstance(node, exp.Anonymous)
        try:
            _check_call(binder.query, macro, node)
            body = expand(macro, node, lambda value: qualified(binder, value))
        except Error as error:
            raise locate(error, node) from None
        node.replace(body)
        root = body if node is root else root
        stack.append(body)
    return root


def _check_call(query: QueryBinder, macro: Macro, call: exp.Anonymous) -> None:
    if macro.is_table:
        raise ProgrammingError(f"{macro.name} is a table macro; it stands in FROM")
    if macro.name.lower() in call.meta.get("chain", ()):
        raise ProgrammingError(f"The macro {macro.name} refers to itself")
    count_expansion(query, macro, call)
    if call.arg_key == "this" and isinstance(call.parent, exp.Filter | exp.Window):
        word = "FILTER" if isinstance(call.parent, exp.Filter) else "OVER"
        raise unsupported(f"{word} behind a macro", call, f"Write {word} inside the macro.")


def count_expansion(query: QueryBinder, macro: Macro, call: exp.Anonymous) -> None:
    """Counts what a call will add to the statement.

    Raises:
        ProgrammingError: It is too much.
    """
    query.expanded_nodes += expanded_size(macro, call)
    if query.expanded_nodes > MAX_EXPANDED:
        raise ProgrammingError(
            f"Macros make this statement more than {MAX_EXPANDED:,} nodes long",
            hint="Name repeated parts in WITH.",
        )


def qualified(binder: Block, value: exp.Expr) -> exp.Expr:
    """An argument with the caller's table before each column, so that no other can take it.

    Raises:
        Error: There is no such column in the caller's FROM.
    """
    for column in list(value.find_all(exp.Column)):
        if column.table:
            continue
        owner = _owner(binder, column)
        new = exp.Column(this=column.this, table=exp.to_identifier(owner, quoted=True))
        new.meta.update(column.meta)
        column.replace(new)
        value = new if column is value else value
    return value


def _owner(binder: Block, column: exp.Column) -> str:
    name = column.name.lower()
    aliases = (e.alias.lower() for e in binder.select.expressions if isinstance(e, exp.Alias))
    here: Block | None = binder
    while here is not None:
        scope: Scope | None = here.scope
        while scope is not None:
            try:
                owner = scope.owner(name)
            except Error as error:
                raise locate(error, column) from None
            if owner is not None:
                return owner.alias
            scope = scope.left
        if here is binder and name in aliases:
            raise unsupported(
                "An alias as an argument of a macro with a subquery",
                column,
                "Write the expression itself.",
            )
        here = here.parent
    raise locate(binder.scope.unknown(column.name, None), column)
