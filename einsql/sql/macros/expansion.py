"""Expansion of macro calls; calls of scalar macros are expanded before a SELECT is bound.

The body of a scalar macro may contain aggregates, which must be known before GROUP BY is bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING, Protocol

from sqlglot import exp

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.errors import ProgrammingError, suggest
from einsql.sql.macros.macros import CheckMacro, Macro
from einsql.sql.parser.aggregate_law import AggregateLaw, law_of
from einsql.sql.parser.positions import locate, positioned, unsupported
from einsql.sql.scope.scope import Scope

if TYPE_CHECKING:
    from einsql.sql.macros import arguments as _arguments
    from einsql.sql.macros import sharing as _sharing
    from einsql.sql.macros import substitution as _substitution
    from einsql.sql.macros.sharing import SharedArguments
    from einsql.sql.parser import column_names
else:  # loaded for macros
    _arguments = LazyModule("einsql.sql.macros.arguments")
    _sharing = LazyModule("einsql.sql.macros.sharing")
    _substitution = LazyModule("einsql.sql.macros.substitution")
    column_names = LazyModule("einsql.sql.parser.column_names")

MAX_EXPANDED = 50_000
"""Most syntax nodes that macros add to a statement; nested macros can grow exponentially.

Statements of this size are planned in a few seconds: benchmarks/nested_macros.py.
"""
_NODES_OF_QUERY = 100
"""The nodes for which a subquery of a scalar macro counts: planning it takes as long."""

_CLAUSES = ("expressions", "where", "group", "having", "qualify")


class Block(Protocol):
    """The interface of a SELECT that calls a macro."""

    @property
    def scope(self) -> Scope:
        """The scope of the SELECT."""

    @property
    def select(self) -> exp.Select:
        """The SELECT's syntax."""

    @property
    def parent(self) -> Block | None:
        """The enclosing SELECT, or None."""


@dataclass
class MacroExpander:
    """Expands the macro calls of one statement.

    Attributes:
        find: Function that returns the macro of a name, or None.
        check: Function that raises an error if a macro may not be called.
        added_nodes: The number of syntax nodes that macros have added to the statement.
        bodies: The calls of table macros and their expansions, by the id of the call.
    """

    find: Callable[[str], Macro | None]
    check: CheckMacro
    added_nodes: int = 0
    bodies: dict[int, tuple[exp.Anonymous, exp.Expr]] = field(default_factory=dict)

    def admit(self, macro: Macro, call: exp.Anonymous, shares: bool = False) -> None:
        """Checks that a call may be expanded, and counts the syntax nodes that it adds.

        Args:
            macro: The called macro.
            call: The call.
            shares: Whether arguments in several places are shared.

        Raises:
            ProgrammingError: The statement becomes too large, or the macro may not be called.
        """
        self.check(macro, self.find)
        self.added_nodes += _substitution.expanded_size(macro, call, shares)
        if not macro.is_table:
            self.added_nodes += _NODES_OF_QUERY * macro.names.queries
        if self.added_nodes > MAX_EXPANDED:
            raise ProgrammingError(
                f"Macros make this statement more than {MAX_EXPANDED:,} nodes long",
                hint="Name repeated parts in WITH.",
            )

    def body(self, macro: Macro, call: exp.Anonymous) -> exp.Expr:
        """The expansion of a call of a table macro, computed once.

        Raises:
            ProgrammingError: The arguments do not match the parameters.
        """
        if id(call) not in self.bodies:  # the stored reference keeps the id unique
            _arguments.name_calls(macro, call, self.find)
            self.bodies[id(call)] = call, _substitution.expand(macro, call, self.find, lambda v: v)
        return self.bodies[id(call)][1]

    def scalar(self, name: str, args: list[exp.Expr], block: Block) -> exp.Expr | None:
        """Expands a call of a scalar macro; None if no macro has the name."""
        if self.find(name) is None:
            return None
        written = args[0].parent if args else None  # the syntax node with the position
        call = exp.Anonymous(this=name) if written is None else written.copy()
        return self.expand_calls(block, call)

    def call(self, call: exp.Anonymous) -> exp.Expr:
        """Expands a call of a scalar macro outside of a SELECT; its arguments name their tables."""
        return self.expand_calls(None, call)

    def expanded(self, block: Block, select: exp.Select, shares: bool = False) -> exp.Select:
        """Expands the calls of scalar macros in a SELECT; items keep their original names.

        Args:
            block: The SELECT's binder, whose FROM is bound.
            select: The SELECT's syntax.
            shares: Whether the binder can bind shared arguments.

        Raises:
            Error: A call is invalid, or a macro is recursive.
        """
        if self.added_nodes:
            _check_columns(block, select)
        if not any(self._has_call(root) for root in _roots(select)):
            return select
        select = select.copy()
        for item in select.expressions:
            if not isinstance(item, exp.Alias | exp.Star) and self._has_call(item):
                name = exp.to_identifier(column_names.column_name(item), quoted=True)
                item.replace(exp.Alias(this=item.copy(), alias=name))
        literals = [n for n in _group_items(select) if isinstance(n, exp.Literal)]
        shared = _sharing.SharedArguments(self.find) if shares else None
        for root in _roots(select):
            self.expand_calls(block, root, shared)
        for argument in [] if shared is None else shared.arguments:  # an expansion adds arguments
            self.expand_calls(block, argument.tree, shared)
        for node in _group_items(select):
            # A number in GROUP BY refers to a SELECT item, but the number of a macro is a constant.
            if isinstance(node, exp.Literal) and not any(node is n for n in literals):
                node.replace(exp.Add(this=node.copy(), expression=exp.Literal.number(0)))
        return select

    def expand_calls(
        self, block: Block | None, root: exp.Expr, shared: SharedArguments | None = None
    ) -> exp.Expr:
        """Expands every call of a scalar macro below a node in place, except in subqueries.

        Args:
            block: The SELECT's binder; None outside of a SELECT.
            root: The node.
            shared: The shared arguments, to which arguments are added; None to copy arguments.

        Returns:
            The node, or its replacement.

        Raises:
            Error: A call is invalid, or a macro is recursive.
        """
        stack = [root]
        while stack:
            node = stack.pop()
            if isinstance(node, exp.Query):
                continue
            macro = self._called(node)
            if macro is None:
                stack.extend(node.iter_expressions())
                continue
            assert isinstance(node, exp.Anonymous)
            with positioned(node):
                place = None if shared is None else shared.place
                self._check_call(macro, node, shares=place is not None)
                _arguments.name_calls(macro, node, self.find)
                body = _substitution.expand(
                    macro, node, self.find, lambda value: qualified(block, value), place
                )
                if macro.law is not None:
                    node, body = _aggregated(macro.law, node, body)
            node.replace(body)
            root = body if node is root else root
            stack.append(body)
        return root

    def _has_call(self, root: exp.Expr) -> bool:
        nodes = root.walk(prune=lambda n: isinstance(n, exp.Query))
        return any(self._called(n) is not None for n in nodes)

    def _called(self, node: exp.Expr) -> Macro | None:
        return self.find(node.name) if isinstance(node, exp.Anonymous) else None

    def _check_call(self, macro: Macro, call: exp.Anonymous, shares: bool) -> None:
        if macro.is_table:
            raise ProgrammingError(
                f"{macro.name} is a table macro; call it in FROM",
                hint=f"Write SELECT * FROM {macro.call}.",
            )
        if macro.name.lower() in call.meta.get("chain", ()):
            raise ProgrammingError(f"The {macro.kind} {macro.name} refers to itself")
        self.admit(macro, call, shares)
        if (
            macro.law is None
            and call.arg_key == "this"
            and isinstance(call.parent, exp.Filter | exp.Window)
        ):
            word = "FILTER" if isinstance(call.parent, exp.Filter) else "OVER"
            raise unsupported(f"{word} behind a macro", call, f"Write {word} inside the macro.")


def _aggregated(law: AggregateLaw, call: exp.Expr, body: exp.Expr) -> tuple[exp.Expr, exp.Expr]:
    """Moves FILTER and OVER behind a call to the state calls in its expansion.

    Returns:
        The syntax node that the expansion replaces, and the expansion.

    Raises:
        ProgrammingError: The aggregate has several results, and none is chosen.
    """
    outer = call
    while isinstance(outer.parent, exp.Filter | exp.Window) and outer.arg_key == "this":
        outer = outer.parent
    holder = outer.parent
    while isinstance(holder, exp.Paren):
        holder = holder.parent
    wanted = holder.expression.name if isinstance(holder, exp.Dot) else ""
    chosen = outer
    if isinstance(body, exp.Tuple):
        named = {e.alias.lower(): e.this for e in body.expressions}
        if wanted.lower() not in named:
            raise ProgrammingError(
                f"{law.name}() has the results {', '.join(named)}"
                + (f', and no "{wanted}"' if wanted else ""),
                hint=suggest(wanted, named, "results")
                if wanted
                else f"Write {law.name}(…).{next(iter(named))}.",
            )
        assert holder is not None
        body, chosen = named[wanted.lower()], holder
    elif wanted:
        raise ProgrammingError(
            f'{law.name}() has one result, without a name, and no "{wanted}"',
            hint=f"Write {law.name}(…) alone.",
        )
    if isinstance(body, exp.Array):
        chosen, body = _element(law, chosen, body)
    if outer is not call:
        around = outer.copy()
        (hole,) = (n for n in around.walk() if n == call)
        for state in [n for n in body.walk() if law_of(n) is not None]:
            hole.replace(state.copy())
            placed = around.copy()
            hole = next(n for n in around.walk() if law_of(n) is law)
            if state is body:
                body = placed
            else:
                state.replace(placed)
    return chosen, body


def _element(law: AggregateLaw, call: exp.Expr, array: exp.Array) -> tuple[exp.Expr, exp.Expr]:
    """The element of an array that is read, or the array if UNNEST or GENERATE_SUBSCRIPTS reads it.

    Returns:
        The syntax node that the expansion replaces, and the expansion.

    Raises:
        ProgrammingError: The array is read as a number, or it has no such element.
    """
    reader, count = call.parent, len(array.expressions)
    while isinstance(reader, exp.Paren):
        reader = reader.parent
    if isinstance(reader, exp.Explode) or is_subscripts(reader):
        return call, array
    index = reader.expressions[0] if isinstance(reader, exp.Bracket) else None
    if not isinstance(index, exp.Literal) or index.is_string or int(index.name) >= count:
        raise ProgrammingError(
            f"{law.name}() is a list of {count} numbers, and read as one",
            hint=f"Read {law.name}(…)[1] to [{count}], or rows by UNNEST({law.name}(…)).",
        )
    assert reader is not None
    element: exp.Expr = array.expressions[int(index.name)]
    element.pop()
    return reader, element


def is_subscripts(node: exp.Expr | None) -> bool:
    """True for GENERATE_SUBSCRIPTS(list, 1): the positions of the elements that UNNEST returns."""
    return isinstance(node, exp.Anonymous) and node.name.lower() == "generate_subscripts"


def _roots(select: exp.Select) -> list[exp.Expr]:
    roots: list[exp.Expr] = []
    for clause in _CLAUSES:
        nodes = select.args.get(clause)
        roots += nodes if isinstance(nodes, list) else [] if nodes is None else [nodes]
    return roots


def _group_items(select: exp.Select) -> list[exp.Expr]:
    group = select.args.get("group")
    return [] if group is None else list(group.expressions)


def _check_columns(block: Block, select: exp.Select) -> None:
    """Refuses columns in a macro's subquery that only the caller has."""
    for root in _roots(select):
        for node in root.walk(prune=lambda n: isinstance(n, exp.Query)):
            if isinstance(node, exp.Column) and _substitution.OF_MACRO in node.meta:
                _check_column(block, node)


def _check_column(block: Block, column: exp.Column) -> None:
    here: Block | None = block
    while (
        here is not None
        and here.select.meta.get(_substitution.OF_MACRO) == column.meta[_substitution.OF_MACRO]
    ):
        if _has(here, column):
            return
        here = here.parent
    raise locate(block.scope.unknown(column.name, column.table or None), column)


def _has(block: Block, column: exp.Column) -> bool:
    """True if a SELECT's own scope has the column, or an item of its name."""
    name, table = column.name.lower(), column.table.lower()
    if table or isinstance(column.this, exp.Star):
        return not table or any(s.alias.lower() == table for s in block.scope.sources)
    aliases = (e.alias.lower() for e in block.select.expressions if isinstance(e, exp.Alias))
    return name in aliases or any(s.get(name) is not None for s in block.scope.sources)


def qualified(block: Block | None, value: exp.Expr) -> exp.Expr:
    """Qualifies each column of an argument with the caller's table to prevent capture.

    Outside of a SELECT all columns have a table.

    Raises:
        Error: The caller's FROM has no such column.
    """
    for column in list(value.find_all(exp.Column)):
        if column.table or block is None:
            continue
        owner = _owner(block, column)
        new = exp.Column(this=column.this, table=exp.to_identifier(owner, quoted=True))
        new.meta.update(column.meta)
        column.replace(new)
        value = new if column is value else value
    return value


def _owner(block: Block, column: exp.Column) -> str:
    name = column.name.lower()
    aliases = (e.alias.lower() for e in block.select.expressions if isinstance(e, exp.Alias))
    here: Block | None = block
    while here is not None:
        scope: Scope | None = here.scope
        while scope is not None:
            with positioned(column):
                owner = scope.owner(name)
            if owner is not None:
                return owner.alias
            scope = scope.left
        if here is block and name in aliases:
            raise unsupported(
                "An alias as an argument of a macro with a subquery",
                column,
                "Write the expression itself.",
            )
        here = here.parent
    raise locate(block.scope.unknown(column.name, None), column)
