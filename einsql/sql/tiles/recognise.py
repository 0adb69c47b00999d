"""Tells a SELECT over tiles from one over elements by its text and the names in reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.errors import Error
from einsql.sql.binder.scope import TileRelation
from einsql.sql.tiles.names import SELECTING

if TYPE_CHECKING:
    from einsql.sql.binder.query import QueryBinder

WITHIN = 8
"""How often a macro is looked into inside itself: it may read its own result."""

MOST = 200
"""Views and macros that are looked into; with more, binding will say what is wrong."""


def over_tiles(query: QueryBinder, node: exp.Expr) -> bool:
    """True if a query's FROM has TILES, or something that is over tiles itself."""
    return _Look(query).query(node, {})


class _Look:
    """One look at a query; nothing is bound."""

    def __init__(self, query: QueryBinder) -> None:
        self.binder = query
        self.outer = True
        """Whether names of the enclosing WITH clauses are in reach; a view has none."""
        self.opened = 0
        """Views and macros that were looked into."""

    def query(self, node: exp.Expr, names: Mapping[str, bool]) -> bool:
        """Whether a query is over tiles, given what the WITH clauses around it hold."""
        known = self.binder.recognised.get(id(node))
        if known is None:
            known = node, self._query(node, names)
            self.binder.recognised[id(node)] = known  # kept, so that its id stays its own
        return known[1]

    def _query(self, node: exp.Expr, names: Mapping[str, bool]) -> bool:
        clause = node.args.get("with_")
        if clause is not None:
            names = dict(names)
            for cte in clause.expressions:
                names[cte.alias.lower()] = self.query(cte.this, names)
        if isinstance(node, exp.Subquery):
            return self.query(node.this, names)
        if not isinstance(node, exp.Select):
            return False
        return any(self._item(item, names) for item in _items(node))

    def _item(self, item: exp.Expr, names: Mapping[str, bool]) -> bool:
        if isinstance(item, exp.Subquery):
            if isinstance(item.this, exp.Table | exp.Subquery):
                return any(self._item(i, names) for i in _with_joins(item.this))
            return self.query(item, names)
        if not isinstance(item, exp.Table):
            return False
        if isinstance(item.this, exp.Anonymous):
            return self._call(item.this, names)
        return isinstance(item.this, exp.Identifier) and self._name(item.name, names)

    def _call(self, call: exp.Anonymous, names: Mapping[str, bool]) -> bool:
        name = str(call.this)
        if name.lower() in SELECTING:
            return True
        macro = self.binder.catalog.macro(name)
        itself = call.meta.get("chain", ()).count(name.lower())
        if macro is None or not macro.is_table or itself > WITHIN or not self._open():
            return False
        try:
            return self.query(self.binder.expansion(macro, call), names)
        except Error:
            return False  # binding will say what is wrong with the call

    def _name(self, name: str, names: Mapping[str, bool]) -> bool:
        low = name.lower()
        if low in names:
            return names[low]
        for level in reversed(self.binder.ctes if self.outer else []):
            if low in level:
                return isinstance(level[low], TileRelation)
        view = self.binder.catalog.view(name)
        if view is None or not self._open():
            return False
        before, self.outer = self.outer, False
        try:
            return self.query(view, {})
        finally:
            self.outer = before

    def _open(self) -> bool:
        self.opened += 1
        return self.opened <= MOST


def _items(select: exp.Select) -> Iterator[exp.Expr]:
    clause = select.args.get("from_")
    if clause is not None:
        yield from _with_joins(clause.this)
    for join in select.args.get("joins") or []:
        yield from _with_joins(join.this)


def _with_joins(item: exp.Expr) -> Iterator[exp.Expr]:
    """A FROM item and those joined to it in parentheses."""
    yield item
    for join in item.args.get("joins") or []:
        yield from _with_joins(join.this)
