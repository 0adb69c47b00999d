"""SELECT items: the expansion of `*`, and the aliases for other expressions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.errors import ProgrammingError
from einsql.sql.binder.calls import is_aggregate
from einsql.sql.parser.positions import position, positioned
from einsql.sql.scope.scope import Scope

if TYPE_CHECKING:
    from einsql.sql.binder import star as star_items
    from einsql.sql.parser import column_names
else:  # loaded for SELECT *
    star_items = LazyModule("einsql.sql.binder.star")
    column_names = LazyModule("einsql.sql.parser.column_names")


@dataclass(frozen=True, slots=True)
class Item:
    """A SELECT item: its column name and its expression.

    Attributes:
        named: True if the name is an alias, which other expressions may use.
    """

    name: str
    node: exp.Expr
    named: bool = False


def expand(select: exp.Select, scope: Scope) -> list[Item]:
    """The items of a SELECT, with `*` expanded.

    Raises:
        ProgrammingError: A `*` names unknown columns, or has no columns.
    """
    items: list[Item] = []
    for node in select.expressions:
        star = node.this if isinstance(node, exp.Column) else node
        if isinstance(star, exp.Star):
            items += [Item(name, value) for name, value in star_items.expand_star(scope, node)]
        elif isinstance(node, exp.Alias):
            items.append(Item(node.alias, node.this, named=True))
        else:
            items.append(Item(_name(node, scope), node))
    if not items:
        raise ProgrammingError("SELECT * found no columns", position=position(select))
    return items


def _name(node: exp.Expr, scope: Scope) -> str:
    """The name of an item without an alias; a column's name has its table's spelling."""
    if isinstance(node, exp.Column):
        with positioned(node):
            column = scope.resolve(node.name, node.table or None)
        if column is not None:
            return column[0]
    return column_names.column_name(node)


def find_alias(items: Sequence[Item], name: str) -> int | None:
    """The index of the last item with an alias, or None."""
    for n in reversed(range(len(items))):
        if items[n].named and items[n].name.lower() == name.lower():
            return n
    return None


def within(node: exp.Expr) -> Iterator[exp.Expr]:
    """The nodes of an expression; a subquery's inner nodes are omitted."""
    stack = [node]
    while stack:
        n = stack.pop()
        yield n
        if not isinstance(n, exp.Query):
            stack.extend(n.iter_expressions())


def has_window(node: exp.Expr) -> bool:
    """True if an expression contains a window call of its own SELECT."""
    return any(isinstance(n, exp.Window) for n in within(node))


def keys_of_all(items: Sequence[Item], scope: Scope) -> list[int]:
    """The items of GROUP BY ALL: the items that read columns and contain no aggregate."""
    keys: list[int] = []
    for n in range(len(items)):
        nodes = list(_meaning(items, n, scope))
        aggregated = any(isinstance(x, exp.Window) or is_aggregate(x) for x in nodes)
        if not aggregated and any(isinstance(x, exp.Column | exp.Query) for x in nodes):
            keys.append(n)
    return keys


def _meaning(items: Sequence[Item], n: int, scope: Scope) -> Iterator[exp.Expr]:
    """The nodes of an item; the nodes of earlier items replace their aliases."""
    for node in within(items[n].node):
        named = None
        plain = isinstance(node, exp.Column) and not node.table
        if plain and all(s.get(node.name) is None for s in scope.sources):
            named = find_alias(items, node.name)
        if named is not None and named < n:
            yield from _meaning(items, named, scope)
        else:
            yield node
