"""Binds one SELECT block: FROM and WHERE give a domain, the rest outputs over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.einsum import TRUE, Call, Const, Expr, Label, Output, Value, conj, labels_of, renumber
from einsql.errors import Error, ProgrammingError
from einsql.schema import PRESENT, DType, valid
from einsql.sql.aggregates import Aggregation
from einsql.sql.calls import (
    aggregate_arguments,
    aggregate_name,
    aggregates_in,
    column_name,
    is_aggregate,
)
from einsql.sql.domain import Domain, affine
from einsql.sql.project import project
from einsql.sql.scalar import ScalarBinder, locate, position, unsupported
from einsql.sql.scope import Relation, Scope
from einsql.sql.typed import Decimal, Typed, convert, truth

if TYPE_CHECKING:
    from einsql.sql.query import QueryBinder

_HANDLED = {
    "expressions", "from_", "joins", "where", "group", "having", "qualify", "with_", "hint",
    "kind", "operation_modifiers",
}  # fmt: skip
_NAMES = {
    "order": "ORDER BY", "limit": "LIMIT", "offset": "OFFSET", "distinct": "DISTINCT",
    "sample": "SAMPLE", "windows": "WINDOW", "laterals": "LATERAL", "pivots": "PIVOT",
    "into": "INTO",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Item:
    """One SELECT item: its column name and its expression."""

    name: str
    node: exp.Expr


@dataclass(frozen=True, slots=True)
class Group:
    """A GROUP BY item: its syntax, its value over the rows, and its value over the groups."""

    node: exp.Expr
    row_value: Expr
    typed: Typed


class SelectBinder:
    """Binds a SELECT; also the environment its expressions are bound in."""

    def __init__(self, query: QueryBinder, parent: SelectBinder | None = None) -> None:
        self.query = query
        self.parent = parent
        self.scope: Scope = Scope()
        self.domain = Domain()
        self.rows = self.domain
        self.clause = "FROM"
        self.float_stays = query.catalog.float_stays
        self.parameters: Sequence[object] = query.parameters
        self.correlated: dict[str, str] = {}
        """Label here → label of the enclosing SELECT that it stands for."""
        self.groups: list[Group] = []
        self.aggregates: dict[exp.Expr, Typed] = {}
        self.grouped = False
        self.select = exp.Select()
        self.items: list[Item] = []
        self._aliases: list[str] = []

    # ---- the SELECT, in the order SQL evaluates it

    def bind(self, select: exp.Select) -> Relation:
        """Binds the block.

        Raises:
            Error: Something is wrong or outside the fragment.
        """
        for arg, present in select.args.items():
            if present and arg not in _HANDLED:
                name = _NAMES.get(arg, arg.upper())
                at = present if isinstance(present, exp.Expr) else select
                raise unsupported(name, at)
        if select.args.get("kind"):
            raise unsupported(f"SELECT AS {select.args['kind']}", select)
        self.select = select
        self.query.bind_from(self, select)
        self._bind_where(select)
        self.items = self._expand(select)
        if self._is_grouped(select):
            self._aggregate(select)
        self.clause = "SELECT"
        having, qualify = select.args.get("having"), select.args.get("qualify")
        if having is not None:
            if not self.grouped:
                raise ProgrammingError(
                    "HAVING needs a GROUP BY or an aggregate", position=position(having)
                )
            self.domain.require(truth(ScalarBinder(self).condition(having.this)))
        binder = ScalarBinder(self)
        columns = []
        for item in self.items:
            columns.append((item.name, binder.bind(item.node), item.node))
            self._aliases.append(item.name)
        if qualify is not None:
            self.domain.require(truth(binder.condition(qualify.this)))
        return project(self.domain, columns, self.correlated)

    def _bind_where(self, select: exp.Select) -> None:
        where = select.args.get("where")
        if where is not None:
            self.clause = "WHERE"
            self.domain.require(truth(ScalarBinder(self).condition(where.this)))

    def _expand(self, select: exp.Select) -> list[Item]:
        items: list[Item] = []
        for node in select.expressions:
            star = node.this if isinstance(node, exp.Column) else node
            if isinstance(star, exp.Star):
                table = node.table if isinstance(node, exp.Column) else None
                items += self._expand_star(star, table or None, node)
            elif isinstance(node, exp.Alias):
                items.append(Item(node.alias, node.this))
            else:
                items.append(Item(column_name(node), node))
        if not items:
            raise ProgrammingError("SELECT * found no columns", position=position(select))
        return items

    def _expand_star(self, star: exp.Star, table: str | None, at: exp.Expr) -> list[Item]:
        dropped = {e.name.lower() for e in star.args.get("except_") or []}
        replaced = {e.alias.lower(): e.this for e in star.args.get("replace") or []}
        renamed = {e.this.name.lower(): e.alias for e in star.args.get("rename") or []}
        items: list[Item] = []
        seen: set[str] = set()
        try:
            for s in self.scope.sources:
                if table is not None and s.alias.lower() != table.lower():
                    continue
                for name, _ in s.columns:
                    low = name.lower()
                    seen.add(low)
                    if low in dropped or (table is None and low in s.merged):
                        continue
                    column = exp.column(
                        exp.to_identifier(name, quoted=True),
                        exp.to_identifier(s.alias, quoted=True),
                    )
                    items.append(Item(renamed.get(low, name), replaced.get(low, column)))
            if table is not None and not seen:
                raise self.scope.unknown("*", table)
            for name in (*dropped, *replaced, *renamed):
                if name not in seen:
                    raise self.scope.unknown(name, table)
        except Error as error:
            raise locate(error, at) from None
        return items

    # ---- grouping

    def _is_grouped(self, select: exp.Select) -> bool:
        nodes = [i.node for i in self.items]
        having = select.args.get("having")
        if having is not None:
            nodes.append(having.this)
        return select.args.get("group") is not None or any(aggregates_in(n) for n in nodes)

    def _aggregate(self, select: exp.Select) -> None:
        group = select.args.get("group")
        self.clause = "GROUP BY"
        keys: list[str] = [] if group is None else self._group_keys(group)
        keys += [k for k in self.correlated if k not in keys]
        grouped = group is not None
        aggregation = Aggregation(self.domain, tuple(keys), grouped, self.float_stays)
        self.clause = "an aggregate"
        binder = ScalarBinder(self)
        having = select.args.get("having")
        nodes = [i.node for i in self.items] + ([] if having is None else [having.this])
        for node in nodes:
            for call in aggregates_in(node):
                self.aggregates[call] = self._bind_aggregate(aggregation, binder, call)
        passes = aggregation.finish()
        bounds = {k: self.domain.axes[k] for k in keys}
        self.rows = self.domain
        self.domain = Domain(bounds, outer=frozenset(self.correlated))
        self.domain.attach(passes[0], tuple(keys))
        for later in passes[1:]:
            self.domain.lookup(later, tuple(keys))
        self.grouped = True

    def _group_keys(self, group: exp.Group) -> list[str]:
        for arg in ("grouping_sets", "cube", "rollup", "totals"):
            if group.args.get(arg):
                raise unsupported(arg.replace("_", " ").upper(), group)
        nodes = list(group.expressions)
        if group.args.get("all"):
            nodes = [
                i.node
                for i in self.items
                if not aggregates_in(i.node) and not i.node.find(exp.Window)
            ]
        keys: list[str] = []
        for node in nodes:
            node = self._resolve_group(node)
            bound = ScalarBinder(self).bind(node)
            label = self._group_label(node, bound)
            if label is None:
                continue
            value: Expr = Label(label)
            if bound.type is DType.BOOLEAN:
                value = Call("eq", (value, Const(1, DType.BIGINT)), DType.BOOLEAN)
            elif isinstance(bound.type, DType) and not isinstance(bound.value, Label):
                value = value if bound.type is DType.BIGINT else Call("cast", (value,), bound.type)
            original = self.domain.canonical(bound.value)
            self.groups.append(Group(node, original, Typed(value, bound.type)))
            if label not in keys:
                keys.append(label)
        return keys

    def _resolve_group(self, node: exp.Expr) -> exp.Expr:
        """Ordinals and aliases of SELECT items stand for the items."""
        if isinstance(node, exp.Paren):
            return self._resolve_group(node.this)
        if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
            index = int(node.name) - 1
            if not 0 <= index < len(self.items):
                raise ProgrammingError(
                    f"GROUP BY {node.name} names no SELECT item",
                    hint=f"There are {len(self.items)}.",
                    position=position(node),
                )
            return self.items[index].node
        if isinstance(node, exp.Column) and not node.table:
            try:
                known = self.scope.find(node.name, None)
            except Error as error:
                raise locate(error, node) from None
            if known is None:
                for item in self.items:
                    if item.name.lower() == node.name.lower():
                        return item.node
        return node

    def _group_label(self, node: exp.Expr, bound: Typed) -> str | None:
        value = self.domain.canonical(bound.value)
        if isinstance(value, Label):
            return value.name
        if isinstance(value, Const) and bound.valid == TRUE and not isinstance(bound.type, Decimal):
            self.groups.append(Group(node, value, bound))
            return None
        if bound.valid != TRUE:
            raise unsupported("GROUP BY of a value that may be NULL", node)
        if isinstance(bound.type, Decimal) or bound.type is None or bound.type.is_float:
            name = "NULL" if bound.type is None else bound.type.value
            raise unsupported(f"GROUP BY of a {name}", node, "Group by an integer expression.")
        wide = convert(bound, DType.BIGINT).value
        shift = affine(wide)
        if shift is not None and self._may_rekey(shift[0]):
            return self.domain.rekey(*shift, hint=column_name(node))
        lo, hi = self._bounds(wide)
        return self.domain.derive(column_name(node), wide, lo, hi)

    def _may_rekey(self, label: str) -> bool:
        taken = any(label in labels_of(g.row_value) for g in self.groups)
        return label in self.domain.free and label not in self.correlated and not taken

    def _bounds(self, value: Expr) -> tuple[int, int]:
        """`[lo, hi)` of an integer expression: proven from it, else found in the data."""
        found = self.domain.interval(value)
        if found is not None and found[1] - found[0] < 2**20:  # no mere range of a type
            return found[0], found[1] + 1
        outputs = [
            Output("lo", (value,), DType.BIGINT, "min"),
            Output("hi", (value,), DType.BIGINT, "max"),
            Output("some", (TRUE,), DType.BOOLEAN, "bool_or"),
        ]
        return self.query.catalog.probe(self.domain.node((), outputs))

    def _bind_aggregate(
        self,
        aggregation: Aggregation,
        binder: ScalarBinder,
        call: exp.Expr,
    ) -> Typed:
        where = None
        if isinstance(call, exp.Filter):
            call, where = call.this, call.expression.this
        name = aggregate_name(call)
        try:
            args = [binder.bind(a) for a in aggregate_arguments(call, name)]
            condition = TRUE if where is None else truth(binder.condition(where))
            return aggregation.bind(name, args, condition)
        except Error as error:
            raise locate(error, call) from None

    # ---- the environment of expressions

    def match(self, node: exp.Expr) -> Typed | None:
        """GROUP BY items and bound aggregates, once grouping is done."""
        if not self.grouped:
            return None
        if is_aggregate(node) and node in self.aggregates:
            return self.aggregates[node]
        for group in self.groups:
            if node == group.node:
                return group.typed
        return None

    def column(self, node: exp.Column) -> Typed:
        """Resolves a column here, as a SELECT alias, or as a key of the outer SELECT."""
        name, table = node.name, node.table or None
        found = self.scope.find(name, table)
        if found is None and table is None and self.clause in ("SELECT", "WHERE"):
            for item in self._visible_aliases():
                if item.name.lower() == name.lower():
                    return ScalarBinder(self).bind(item.node)
        if found is None:
            return self._outer(node, name, table)
        if not self.grouped:
            return found
        value = self.rows.canonical(found.value)
        for group in self.groups:
            if group.row_value == value:
                return group.typed
        raise ProgrammingError(
            f'Column "{name}" must be in GROUP BY or inside an aggregate',
            hint=f"Write GROUP BY {name} (or GROUP BY ALL), or MIN({name}).",
        )

    def _visible_aliases(self) -> list[Item]:
        """Aliases an expression may use: all in WHERE, the earlier ones in SELECT."""
        if self.clause == "SELECT":
            return [i for i in self.items if i.name in self._aliases]
        nodes = [e for e in self.select.expressions if isinstance(e, exp.Alias)]
        return [Item(e.alias, e.this) for e in nodes]

    def _outer(self, node: exp.Column, name: str, table: str | None) -> Typed:
        if self.parent is None or not self.parent.knows(name, table):
            raise self.scope.unknown(name, table)
        outer = self.parent.domain.canonical(self.parent.column(node).value)
        if not isinstance(outer, Label):
            raise unsupported("A subquery that reads a value of the outer SELECT", node)
        for here, there in self.correlated.items():
            if there == outer.name:
                return Typed(Label(here), DType.BIGINT)
        here = self.domain.fresh(f"{outer.name}_outer", *self.parent.domain.axes[outer.name])
        self.correlated[here] = outer.name
        self.domain.outer = frozenset(self.correlated)
        return Typed(Label(here), DType.BIGINT)

    def knows(self, name: str, table: str | None) -> bool:
        """True if this SELECT or one around it has the column."""
        if self.scope.find(name, table) is not None:
            return True
        return self.parent is not None and self.parent.knows(name, table)

    def aggregate(self, node: exp.Expr, where: exp.Expr | None) -> Typed:
        """Refuses an aggregate where `match` knows none."""
        raise ProgrammingError(
            f"{aggregate_name(node).upper()}() cannot stand in {self.clause}",
            hint="Aggregates belong into SELECT or HAVING.",
        )

    def window(self, node: exp.Window) -> Typed:
        """Aggregates over the rows that share the partition keys, joined back."""
        if self.clause != "SELECT":
            raise ProgrammingError(f"A window aggregate cannot stand in {self.clause}")
        for arg in ("order", "spec", "first"):
            if node.args.get(arg):
                raise unsupported("A window with ORDER BY or a frame", node)
        if node.args.get("alias"):
            raise unsupported("A named window", node)
        call = node.this
        if not is_aggregate(call):
            raise unsupported(f"The window function {column_name(call)}", node)
        binder = ScalarBinder(self)
        keys = tuple(
            dict.fromkeys(
                self._partition_label(p, binder.bind(p))
                for p in node.args.get("partition_by") or []
            )
        )
        aggregation = Aggregation(self.domain, keys, True, self.float_stays)
        typed = self._bind_aggregate(aggregation, binder, call)
        numbers = {n: self.domain.lookup(made, keys) for n, made in enumerate(aggregation.finish())}
        return replace(
            typed, value=renumber(typed.value, numbers), valid=renumber(typed.valid, numbers)
        )

    def _partition_label(self, node: exp.Expr, bound: Typed) -> str:
        value = self.domain.canonical(bound.value)
        if isinstance(value, Label):
            return value.name
        whole = isinstance(bound.type, DType) and (
            bound.type.is_integer or bound.type is DType.BOOLEAN
        )
        if bound.valid != TRUE or not whole:
            raise unsupported("PARTITION BY of a value that is no integer", node)
        wide = convert(bound, DType.BIGINT).value
        return self.domain.derive(column_name(node), wide, *self._bounds(wide))

    def subquery(self, node: exp.Expr) -> Typed:
        """A scalar subquery: an operand without keys, or keyed by the outer labels."""
        child = SelectBinder(self.query, self)
        select = node.this
        if not isinstance(select, exp.Select):
            raise unsupported("This subquery", node)
        relation = self.query.with_ctes(select, lambda: child.bind(select))
        if len(relation.columns) != 1:
            raise ProgrammingError(
                f"A subquery used as a value has {len(relation.columns)} columns",
                hint="Select one.",
            )
        keys = [k.name for k in relation.node.schema.keys]
        if set(keys) != set(child.correlated) or (child.correlated and not child.grouped):
            raise unsupported(
                "A subquery that may give several rows",
                node,
                "Aggregate it to one value, or join with it.",
            )
        column = relation.columns[0]
        if column.field is None:
            raise unsupported("A subquery that selects a key", node)
        labels = tuple(child.correlated[k] for k in keys)
        number = self.domain.lookup(relation.node, labels)
        flags = [f for f in (PRESENT, valid(column.field)) if relation.node.schema.has(f)]
        known = conj(*(Value(number, f, DType.BOOLEAN) for f in flags))
        return Typed(Value(number, column.field, column.dtype), column.dtype, known)

    def macro(self, name: str, args: list[exp.Expr]) -> exp.Expr | None:
        """The expansion of a scalar macro."""
        return self.query.scalar_macro(name, args)
