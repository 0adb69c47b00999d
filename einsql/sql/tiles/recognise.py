"""Detects SELECTs over tiles before binding, by their syntax and the names in scope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.errors import Error
from einsql.sql.binder.context import Catalog
from einsql.sql.functions.tile_functions import SELECTING
from einsql.sql.macros.expansion import MacroExpander
from einsql.sql.macros.macros import FREE, identity_of
from einsql.sql.scope.relation import Relation, TileRelation

WITHIN = 8
"""Most nested expansions of one macro, which may read its own result."""

MOST = 200
"""Most expanded views and macros of a query; binding reports the error of a larger query."""


@dataclass
class TileQueries:
    """Decides which queries of a statement are over tiles, without binding them.

    Attributes:
        known: Whether a query is over tiles, by the query's id.
    """

    catalog: Catalog
    macros: MacroExpander
    known: dict[int, tuple[exp.Expr, bool]] = field(default_factory=dict)

    def over_tiles(
        self, node: exp.Expr, ctes: Sequence[Mapping[str, Relation | TileRelation]]
    ) -> bool:
        """True if a query's FROM contains TILES, or a relation that is over tiles.

        Args:
            node: The query.
            ctes: The relations of the enclosing WITH clauses, outermost first.
        """
        return _Look(self, ctes).query(node, {})


@dataclass
class _Look:
    """The examination of one query.

    Attributes:
        outer: Whether names of the enclosing WITH clauses are in scope; a view sees none.
        opened: The number of examined views and macros.
        calls: Whether a macro's query is over tiles, by the call and the names in its scope.
    """

    queries: TileQueries
    ctes: Sequence[Mapping[str, Relation | TileRelation]]
    outer: bool = True
    opened: int = 0
    calls: dict[tuple[object, ...], bool] = field(default_factory=dict)

    def query(self, node: exp.Expr, names: Mapping[str, bool]) -> bool:
        """Whether a query is over tiles; `names` has this flag for names of enclosing WITHs."""
        known = self.queries.known.get(id(node))
        if known is None:
            known = node, self._query(node, names)
            self.queries.known[id(node)] = known  # the reference keeps the id unique
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
        if not isinstance(item.this, exp.Identifier):
            return False
        return self._view(item.name) if FREE in item.meta else self._name(item.name, names)

    def _call(self, call: exp.Anonymous, names: Mapping[str, bool]) -> bool:
        name = call.name
        if name.lower() in SELECTING:
            return True
        macro = self.queries.macros.find(name)
        itself = call.meta.get("chain", ()).count(name.lower())
        if macro is None or not macro.is_table or itself > WITHIN or not self._open():
            return False
        key = (identity_of(call), self.outer, *sorted(names.items()))
        if key not in self.calls:
            try:
                self.calls[key] = self.query(self.queries.macros.body(macro, call), names)
            except Error:
                self.calls[key] = False  # binding reports the error of the call
        return self.calls[key]

    def _name(self, name: str, names: Mapping[str, bool]) -> bool:
        low = name.lower()
        if low in names:
            return names[low]
        for level in reversed(self.ctes if self.outer else []):
            if low in level:
                return isinstance(level[low], TileRelation)
        return self._view(name)

    def _view(self, name: str) -> bool:
        view = self.queries.catalog.view(name)
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
    """A FROM item and the items of its nested joins."""
    yield item
    for join in item.args.get("joins") or []:
        yield from _with_joins(join.this)
