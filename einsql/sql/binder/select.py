"""Binds one SELECT block: a domain from FROM and WHERE, and outputs over the domain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.lazy_module import LazyModule
from einsql.core.schema import PRESENT, DType, valid
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import TRUE, Label, Value, conj
from einsql.ir.einsum.graph_rewriting import renumber
from einsql.sql.binder.aggregates import Aggregation
from einsql.sql.binder.best_rows import BestRows, best_rows, in_order, limits_of_derived
from einsql.sql.binder.bind_bounds import settle
from einsql.sql.binder.calls import (
    aggregate_call,
    aggregate_name,
    aggregates_in,
    is_aggregate,
    list_call,
)
from einsql.sql.binder.context import Binder
from einsql.sql.binder.dependent_values import DependentValues, SharedValues
from einsql.sql.binder.domain import Domain
from einsql.sql.binder.frames import FUNCTIONS, bind_function, frame_of
from einsql.sql.binder.from_clause import FromBinder, bind_from
from einsql.sql.binder.grouping import Grouping, check_group, key_label
from einsql.sql.binder.hints import bind_hint
from einsql.sql.binder.items import (
    Item,
    ListElements,
    expand,
    find_alias,
    has_window,
    keys_of_all,
)
from einsql.sql.binder.list_aggregates import ListAggregates
from einsql.sql.binder.project import project
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.binder.syntax import check_clauses
from einsql.sql.binder.user_aggregates import bind_state_call
from einsql.sql.functions.aggregate_functions import OF_ROWS
from einsql.sql.macros.sharing import SharedArgument
from einsql.sql.parser.aggregate_law import law_of
from einsql.sql.parser.positions import position, positioned, unsupported
from einsql.sql.parser.sql_text import as_sql, kind
from einsql.sql.scope.relation import Relation
from einsql.sql.scope.scope import Scope
from einsql.sql.typing.typed_expr import Typed, truth

if TYPE_CHECKING:
    from einsql.sql.parser import column_names
else:  # loaded for columns without a name
    column_names = LazyModule("einsql.sql.parser.column_names")


class SelectBinder:
    """Binds a SELECT; it is also the environment of the SELECT's expressions."""

    def __init__(self, query: Binder, parent: SelectBinder | None = None) -> None:
        self.query = query
        self.parent = parent
        self.scope: Scope = Scope()
        self.domain = Domain(
            windows=query.windows, ranges=query.catalog.ranges, origins=query.origins
        )
        self.clause = "FROM"
        self.float_stays = query.catalog.float_stays
        self.parameters = query.parameters
        self.correlated: dict[str, str] = {}
        """The equal label of the enclosing SELECT by the label of this SELECT."""
        self.select = exp.Select()
        self.items: list[Item] = []
        self.grouping: Grouping | None = None
        """The rows and GROUP BY items; None before the domain is the domain of the groups."""
        self.dependent: DependentValues | None = None
        """The columns that a written GROUP BY determines."""
        self.aggregates: dict[exp.Expr, Typed] = {}
        self.lists = ListAggregates()
        self.numbered: tuple[exp.Window, Typed] | None = None
        """The ROW_NUMBER by which QUALIFY has selected rows."""
        self._aliases: int | None = None
        """The number of items whose aliases expressions may use; None forbids aliases."""
        self._reads_own = self._reads_outer = False
        self._shared = SharedValues()

    # ---- the SELECT, in the order SQL evaluates it

    def bind(self, select: exp.Select) -> Relation:
        """Binds the block.

        Raises:
            Error: The SELECT is wrong or outside the fragment.
        """
        check_clauses(select)
        self.select = select
        limit = self.query.row_limits.get(id(select))
        self.query.row_limits.update(limits_of_derived(select, self.query.arguments))
        bind_from(FromBinder(self.query, self), select)
        self.select = select = self.query.macros.expanded(self, select, shares=True)
        where, having, qualify = (select.args.get(c) for c in ("where", "having", "qualify"))
        self.items = expand(select, self.scope)
        if limit is not None and [i.name.lower() for i in self.items].count(limit.name) != 1:
            limit = None  # a column of `*` has the name, too
        if where is not None:
            self._require("WHERE", where.this)
        settle(self.domain)
        with self._within("a hint", len(self.items)):
            self.domain.hint = bind_hint(self, select, self.query.catalog.sites)
        if self._is_grouped(select):
            self._group(select)
        if having is not None:
            self._require("HAVING", having.this)
        best = limit
        if qualify is not None:
            best = best_rows(qualify.this, self.items, self.scope)
        if best is not None and not self.lists.lists:
            self._narrow(best)
        values: list[Typed] = []
        elements = ListElements()
        over: dict[int, str] = {}
        """The label of the places of each LIST, by the number of its item."""
        for n, item in enumerate(self.items):
            with self._within("SELECT", n):
                listed = self.lists.column(item.node, self.domain)
                if listed is None:
                    values.append(elements.bind(n, item.node, ScalarBinder(self).bind))
                else:
                    values.append(listed[0])
                    over[n] = listed[1]
        if qualify is not None:
            if not any(has_window(n) for n in (qualify.this, *(i.node for i in self.items))):
                raise ProgrammingError(
                    "QUALIFY needs a window",
                    hint="WHERE filters rows, HAVING groups.",
                    position=position(qualify),
                )
            self._require("QUALIFY", qualify.this)
        self.lists.restrict(self.domain, bool(over), select)
        if elements.size and self.lists.lists:
            raise unsupported("UNNEST of [a, b, …] beside a LIST", select)
        columns = [
            (item.name, elements.value(n, self.domain, typed), item.node)
            for n, (item, typed) in enumerate(zip(self.items, values, strict=True))
        ]
        return project(self.domain, columns, self.correlated, over)

    def _require(self, clause: str, condition: exp.Expr) -> None:
        with self._within(clause, len(self.items)):
            self.domain.require(truth(ScalarBinder(self).condition(condition)))
            settle(self.domain)

    @contextmanager
    def _within(self, clause: str, aliases: int | None) -> Iterator[None]:
        """A context for binding a clause that may use the aliases of the first items."""
        before = self.clause, self._aliases
        self.clause, self._aliases = clause, aliases
        try:
            yield
        finally:
            self.clause, self._aliases = before

    def _narrow(self, best: BestRows) -> None:
        """Narrows the domain to the first rows of each partition, if a value orders them."""
        with self._within("QUALIFY", len(self.items)):
            labels = self._partition_labels(best.window.args.get("partition_by") or [])
            keys = tuple(dict.fromkeys((*labels, *self.correlated)))
            with positioned(best.window):
                narrowed = in_order(best, self.domain, keys, ScalarBinder(self).bind)
        if narrowed is not None:
            self.domain, number = narrowed
            self.numbered = best.window, number

    # ---- grouping

    def _is_grouped(self, select: exp.Select) -> bool:
        if self._group_nodes(select) or select.args.get("having") is not None:
            return True
        qualify = select.args.get("qualify")
        nodes = [i.node for i in self.items] + ([] if qualify is None else [qualify.this])
        return any(aggregates_in(n) for n in nodes)

    def _group(self, select: exp.Select) -> None:
        """Replaces the domain of rows by the domain of groups, with the aggregates as operands."""
        grouping = Grouping(self.domain, self.scope, self.float_stays, self.parameters)
        nodes = self._group_nodes(select)
        labels = [self._group_label(grouping, *node) for node in nodes]
        aggregation = Aggregation(self.domain, (), bool(nodes), self.float_stays)
        for n, item in enumerate(self.items):
            self._bind_aggregates(aggregation, item.node, n)
        for clause in ("having", "qualify"):
            if select.args.get(clause) is not None:
                self._bind_aggregates(aggregation, select.args[clause].this, None)
        # The aggregates are bound, so the labels of the outer SELECT in them are known.
        known = [label for label in labels if label is not None]
        keys = aggregation.keys = tuple(dict.fromkeys((*known, *self.correlated)))
        axes = {k: self.domain.axes[k] for k in keys}
        hint = {k: parts for k, parts in self.domain.hint.items() if k in axes}
        groups = Domain(
            axes,
            outer=frozenset(self.correlated),
            hint=hint,
            windows=self.domain.windows,
            edges={k: self.domain.edges_of(k) for k in keys},
            origins=self.domain.origins,
        )
        if aggregation.grouped or aggregation.outputs:
            first, *later = aggregation.finish()
            groups.attach(first, keys)
            for node in later:
                groups.lookup(node, keys)
        self.lists.attach(aggregation.domain, keys, [i.node for i in self.items])
        if nodes:
            self.dependent = DependentValues(self.domain, keys)
        self.domain, self.grouping = groups, grouping

    def _group_nodes(self, select: exp.Select) -> list[tuple[exp.Expr, int | None]]:
        """The expressions of GROUP BY, each with the number of items whose aliases it may use."""
        group = select.args.get("group")
        if group is None:
            return []
        check_group(group)
        if group.args.get("all"):
            return [(self.items[n].node, n) for n in keys_of_all(self.items, self.scope)]
        return [self._resolve_group(node) for node in group.expressions]

    def _group_label(self, grouping: Grouping, node: exp.Expr, aliases: int | None) -> str | None:
        with self._within("GROUP BY", aliases):
            bound = ScalarBinder(self).bind(node)
        return grouping.add(node, bound, self.query.catalog.probe)

    def _resolve_group(self, node: exp.Expr) -> tuple[exp.Expr, int | None]:
        """Replaces ordinals and aliases of SELECT items by the items."""
        if isinstance(node, exp.Paren):
            return self._resolve_group(node.this)
        number = node.this if isinstance(node, exp.Neg) else node
        if isinstance(number, exp.Literal) and not number.is_string and number.name.isdigit():
            index = int(number.name) - 1 if number is node else -1
            if not 0 <= index < len(self.items):
                raise ProgrammingError(
                    f"GROUP BY {as_sql(node)} names no SELECT item",
                    hint=f"There are {len(self.items)}.",
                    position=position(node),
                )
            return self.items[index].node, index
        if isinstance(node, exp.Column) and not node.table:
            with positioned(node):
                known = self.scope.find(node.name, None)
            alias = find_alias(self.items, node.name)
            if known is None and alias is not None:
                return self.items[alias].node, alias
        return node, None

    def _bind_aggregates(
        self, aggregation: Aggregation, node: exp.Expr, aliases: int | None
    ) -> None:
        with self._within("an aggregate", aliases):
            for call in aggregates_in(node):
                self._reads_own = self._reads_outer = False
                if list_call(call) is not None:
                    with positioned(call):
                        self.lists.bind(aggregation, call, ScalarBinder(self).bind)
                else:
                    self.aggregates[call] = self._bind_aggregate(aggregation, call)
                if self._reads_outer and not self._reads_own:
                    raise unsupported(
                        "An aggregate that reads columns of the outer SELECT only", call
                    )

    def _bind_aggregate(self, aggregation: Aggregation, call: exp.Expr) -> Typed:
        binder = ScalarBinder(self)
        where = None
        if isinstance(call, exp.Filter):
            call, where = call.this, call.expression.this
        with positioned(call):
            if isinstance(call.this, exp.Column) and isinstance(call.this.this, exp.Star):
                self._check_table(call.this)
            condition = TRUE if where is None else truth(binder.condition(where))
            if isinstance(call, exp.Anonymous) and law_of(call) is not None:
                macros = self.query.macros
                return bind_state_call(call, aggregation, binder.bind, macros, condition)
            name, arguments = aggregate_call(call)
            args = [binder.bind(a) for a in arguments]
            return aggregation.bind(name, args, condition)

    def _check_table(self, star: exp.Column) -> None:
        """Requires the table of a `table.*` in FROM."""
        if not any(s.answers_to(star.table) for s in self.scope.sources):
            raise self.scope.unknown("*", star.table)

    # ---- the environment of expressions

    def match(self, node: exp.Expr) -> Typed | None:
        """The value of a GROUP BY item or a bound aggregate after grouping, else None."""
        if self.grouping is None:
            return None
        if is_aggregate(node) and node in self.aggregates:
            return self.aggregates[node]
        listed = self.lists.match(node, self.domain)
        return self.grouping.match(node) if listed is None else listed

    def column(self, node: exp.Column) -> Typed:
        """Resolves a column of this SELECT, an alias of an item, or a key of the outer SELECT."""
        name, table = node.name, node.table or None
        resolved = self.scope.find(name, table)
        if resolved is not None:
            self._reads_own = True
            if self.grouping is None:
                return resolved
            grouped = self.grouping.column(resolved)
            if grouped is not None:
                return grouped
        # In HAVING only, an alias hides a column that is not in GROUP BY.
        if table is None and (resolved is None or self.clause == "HAVING"):
            alias = self._alias(name)
            if alias is not None:
                return alias
        if resolved is None:
            return self._outer(node, name, table)
        assert self.grouping is not None
        if not self.grouping.groups and not self.aggregates:
            raise ProgrammingError(f'HAVING needs a GROUP BY with "{name}", or an aggregate of it')
        hint = f"Write GROUP BY {name} (or GROUP BY ALL), or MIN({name})."
        if self.dependent is not None:
            dependent = self.dependent.column(resolved, self.domain)
            if dependent is not None:
                return dependent
            free = self.dependent.free_keys(resolved, self.scope)
            if free and not isinstance(resolved.value, Label):
                hint += f" A group has several {name}s: {', '.join(free)} is not in GROUP BY."
        raise ProgrammingError(
            f'Column "{name}" must be in GROUP BY or inside an aggregate', hint=hint
        )

    def _alias(self, name: str) -> Typed | None:
        """The item of an alias; an item may use the aliases of earlier items only."""
        index = None if self._aliases is None else find_alias(self.items, name)
        if index is None or self._aliases is None:
            return None
        if index >= self._aliases:
            raise ProgrammingError(
                f'"{name}" is the alias of a later item', hint="Put that item first."
            )
        with self._within(self.clause, index):
            return ScalarBinder(self).bind(self.items[index].node)

    def _outer(self, node: exp.Column, name: str, table: str | None) -> Typed:
        if self.parent is None or not self.parent.knows(name, table):
            if any(around.knows(name, table) for around in self.query.joining):
                raise unsupported("A derived table that reads its neighbours (LATERAL)", node)
            raise self.scope.unknown(name, table)
        self._reads_outer = True
        refusal = unsupported("A subquery that reads a value of the outer SELECT", node)
        try:
            bound = self.parent.column(node)
        except ProgrammingError:
            if self.parent.grouping is None:
                raise
            raise refusal from None  # it may be part of an expression of GROUP BY
        outer = self.parent.domain.canonical(bound.value)
        key = bound.type is DType.BIGINT and bound.valid == TRUE
        if not isinstance(outer, Label) or not key:
            raise refusal
        for here, there in self.correlated.items():
            if there == outer.name:
                return Typed(Label(here), DType.BIGINT)
        here = self.domain.fresh(f"{outer.name}_outer", *self.parent.domain.axes[outer.name])
        self.correlated[here] = outer.name
        self.domain.outer = frozenset(self.correlated)
        return Typed(Label(here), DType.BIGINT)

    def knows(self, name: str, table: str | None) -> bool:
        """True if this SELECT or an enclosing one has the column, or an alias for a subquery."""
        if self.scope.find(name, table) is not None:
            return True
        aliases = table is None and self._aliases is not None and self.clause != "HAVING"
        if aliases and find_alias(self.items, name) is not None:
            return True
        return self.parent is not None and self.parent.knows(name, table)

    def aggregate(self, node: exp.Expr, where: exp.Expr | None) -> Typed:
        """Refuses an aggregate that `match` has not resolved."""
        if not is_aggregate(node):
            raise unsupported(column_names.column_name(node), node)
        raise ProgrammingError(
            f"{_shown_aggregate(node)}() is not allowed in {self.clause}",
            hint="Aggregates belong into SELECT or HAVING.",
        )

    def window(self, node: exp.Window) -> Typed:
        """Binds an aggregate over the rows of a window, and joins it to the rows.

        Raises:
            NotSupportedError: The window is ordered by no key, or its function is not one of keys.
                `hybrid/` then runs the query in DuckDB.
        """
        if self.clause not in ("SELECT", "QUALIFY"):
            raise ProgrammingError(f"A window aggregate is not allowed in {self.clause}")
        if node.args.get("alias") or node.args.get("first"):
            raise unsupported("A named window", node)
        if self.lists.lists:
            raise unsupported("A window beside a LIST", node)
        if self.numbered is not None:
            if node == self.numbered[0]:
                return self.numbered[1]
            raise unsupported("A window beside the best rows", node)
        call = node.this
        if isinstance(call, exp.IgnoreNulls | exp.RespectNulls) and not is_aggregate(call):
            raise unsupported(kind(call), node)
        bind: Callable[[Aggregation], Typed] = partial(self._bind_aggregate, call=call)
        with self._within("a window", self._aliases):
            labels = self._partition_labels(node.args.get("partition_by") or [])
            # The keys of the outer SELECT separate its windows.
            keys = tuple(dict.fromkeys((*labels, *self.correlated)))
            frame = frame_of(node, ScalarBinder(self).bind, self.domain, keys)
            if frame is not None and isinstance(call, FUNCTIONS):
                frame, bind = bind_function(call, frame, ScalarBinder(self).bind, self.domain)
            elif frame is not None and aggregate_name(call) in OF_ROWS:
                raise unsupported(f"{aggregate_name(call).upper()}() of an ordered window", node)
            elif not is_aggregate(call):
                raise unsupported(f"The window function {column_names.column_name(call)}", node)
            has_rows = frame is None or frame.is_never_empty
            aggregation = Aggregation(self.domain, keys, has_rows, self.float_stays)
            typed = bind(aggregation)
        if frame is not None:
            aggregation.domain, key = frame.running(self.domain)
            aggregation.keys, keys = (*keys, key), (*keys, frame.label)
        numbers = {n: self.domain.lookup(s, keys) for n, s in enumerate(aggregation.finish())}
        return replace(
            typed, value=renumber(typed.value, numbers), valid=renumber(typed.valid, numbers)
        )

    def _partition_labels(self, nodes: Sequence[exp.Expr]) -> list[str]:
        free = set(self.domain.free)
        probe = self.query.catalog.probe
        bound = [(node, ScalarBinder(self).bind(node)) for node in nodes]
        labels = (key_label(self.domain, b, n, "PARTITION BY", probe, free) for n, b in bound)
        return [label for label in labels if label is not None]

    def subquery(self, node: exp.Expr) -> Typed:
        """Binds a scalar subquery: an operand without keys, or with the outer labels as keys."""
        child = SelectBinder(self.query, self)
        select = node.this
        if not isinstance(select, exp.Select):
            raise unsupported("This subquery", node)
        with self.query.around(self):
            relation = self.query.with_ctes(select, lambda: child.bind(select))
        if len(relation.columns) != 1:
            raise ProgrammingError(
                f"A subquery used as a value has {len(relation.columns)} columns",
                hint="Select one.",
            )
        keys = [k.name for k in relation.node.schema.keys]
        if set(keys) != set(child.correlated) or (child.correlated and child.grouping is None):
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
        return self.query.macros.scalar(name, args, self)

    def shared(self, node: exp.Expr, argument: SharedArgument) -> Typed:
        """The value of an argument that several places of expanded macros read."""
        place = (self.clause, self._aliases)
        typed = self._shared.bind(argument, self.domain, place, ScalarBinder(self).bind)
        own = [self._is_own(c) for c in node.expressions]
        self._reads_own |= any(own)
        self._reads_outer |= not all(own)
        return typed

    def _is_own(self, column: exp.Expr) -> bool:
        """True for a column of this SELECT, or an alias of an item."""
        assert isinstance(column, exp.Column)
        name, table = column.name, column.table or None
        if self.scope.find(name, table) is not None:
            return True
        return table is None and find_alias(self.items, name) is not None


def _shown_aggregate(node: exp.Expr) -> str:
    """The name of an aggregate in errors: a user's aggregate as the definition spells it."""
    law = law_of(node)
    return aggregate_name(node).upper() if law is None else law.name
