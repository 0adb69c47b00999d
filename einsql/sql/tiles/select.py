"""Binds one SELECT over tiles to an expression of the tensor-relational algebra.

FROM and ON become joins of relations of blocks, and WHERE becomes filters. The array expression of
SELECT becomes the kernels of joins and transforms. GROUP BY with an aggregate such as tensor_sum
becomes an aggregation. Computed, dropped and reordered keys become a ReKey.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.schema import DType, Field, Schema
from einsql.errors import ProgrammingError, suggest
from einsql.ir.einsum.graph import TRUE, Call, Expr, Label, cast, labels_of, operands_of
from einsql.ir.tra import plan as ra
from einsql.ir.tra.kernels import VALUE
from einsql.sql.binder.context import Binder
from einsql.sql.binder.from_clause import bind_from
from einsql.sql.binder.grouping import check_group
from einsql.sql.binder.items import Item, expand, find_alias
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.binder.syntax import check_clauses
from einsql.sql.functions.tile_functions import FUNCTIONS, PREFIX, suffix
from einsql.sql.macros.sharing import SharedArgument
from einsql.sql.parser.positions import position, positioned, unsupported
from einsql.sql.parser.sql_text import text
from einsql.sql.scope.relation import TileColumn, TileRelation, deduplicated
from einsql.sql.scope.scope import Scope
from einsql.sql.tiles.calls import Calls, aggregates
from einsql.sql.tiles.free_tiling import require_one_kind
from einsql.sql.tiles.kernels import Leaf, Leaves
from einsql.sql.tiles.keys import KeyDomain, filtered, over_positions
from einsql.sql.tiles.sources import TileFrom
from einsql.sql.typing.casts import Decimal
from einsql.sql.typing.typed_expr import Typed, truth

if TYPE_CHECKING:
    from einsql.sql.binder.select import SelectBinder


class TileSelect:
    """Binds a SELECT; it is also the environment of the SELECT's expressions."""

    parent: SelectBinder | None = None

    def __init__(self, query: Binder) -> None:
        self.query = query
        self.scope = Scope()
        self.domain = KeyDomain()
        self.clause = "FROM"
        self.float_stays = query.catalog.float_stays
        self.parameters = replace(query.parameters, late=False)
        self.select = exp.Select()
        self.leaves = Leaves()
        self.items: list[Item] = []
        self.groups: dict[str, Expr] | None = None
        """Label and expression of each GROUP BY item; None without groups."""
        self.late: list[Expr] = []
        """Conditions on the keys of several FROM items."""
        self._everything: frozenset[int] = frozenset()
        self._rows: dict[Expr, Leaf] = {}
        self._calls = Calls(self)

    def bind(self, select: exp.Select) -> TileRelation:
        """Binds the block.

        Raises:
            Error: The SELECT is wrong or outside of the algebra.
        """
        check_clauses(select)
        for clause in ("having", "qualify"):
            if select.args.get(clause) is not None:
                raise unsupported(
                    f"{clause.upper()} over tiles", select.args[clause], "WHERE selects blocks."
                )
        hint = select.args.get("hint")
        if hint is not None:
            raise unsupported(
                "A PARTITION hint over tiles",
                hint.expressions[0].this,
                "TILES(x, 4, 2) says into how many parts keys are cut.",
            )
        self.select = select
        bind_from(TileFrom(self.query, self), select)
        require_one_kind([leaf.node for leaf in self.leaves.all])
        self.select = select = self.query.macros.expanded(self, select)
        self.items = expand(select, self.scope)
        where = select.args.get("where")
        with positioned(select if where is None else where):
            if where is not None:
                with self.within("WHERE"):
                    condition = ScalarBinder(self).condition(where.this)
                    self.domain.require(truth(condition))
            self._solve()
        if select.args.get("group") is not None or any(aggregates(i.node) for i in self.items):
            self.groups = self._grouping(select)
        with self.within("SELECT"):
            return self._result()

    @contextmanager
    def within(self, clause: str) -> Iterator[None]:
        """Sets the clause that error messages name."""
        before, self.clause = self.clause, clause
        try:
            yield
        finally:
            self.clause = before

    # ---- rows

    def _solve(self) -> None:
        """Sets the labels of joined keys in FROM items, and adds their filters."""
        waiting = [self.domain.canonical(g) for g in self.domain.guards]
        for n, leaf in enumerate(self.leaves.all):
            labels = [self.domain.find(x) for x in leaf.labels]
            node, distinct = ra.diagonal(leaf.node, labels)
            own = [g for g in waiting if labels_of(g) and labels_of(g) <= set(distinct)]
            waiting = [g for g in waiting if g not in own]
            self.leaves.all[n] = Leaf(filtered(node, distinct, own), distinct, leaf.items)
        self.late = waiting
        self._everything = frozenset(range(len(self.leaves.all)))

    def rows(self, typed: Typed, node: exp.Expr) -> Leaf:
        """The arrays of an expression, one for each row of FROM and WHERE.

        Raises:
            Error: The expression reads no tile, or tiles that are incompatible.
        """
        expr = self.array(typed, node)
        if expr not in self._rows:
            read = self.leaves.read(expr)
            covered = frozenset[int]().union(*(leaf.items for leaf in read))
            also = [self.leaves.all[n] for n in sorted(self._everything - covered)]
            leaf = self.leaves.arrays(expr, also)
            selected = filtered(leaf.node, leaf.labels, self.late)
            self._rows[expr] = Leaf(selected, leaf.labels, leaf.items)
        return self._rows[expr]

    def array(self, typed: Typed, node: exp.Expr) -> Expr:
        """The expression of an array.

        Raises:
            Error: The value is a key or a constant, may be NULL, or is a DECIMAL.
        """
        if labels_of(typed.value) and operands_of(typed.value):
            raise ProgrammingError(
                "An expression reads keys of blocks and elements of tiles",
                hint="ELEMENTS((SELECT …)) gives elements with keys of their own.",
                position=position(node),
            )
        if not operands_of(typed.value):
            raise ProgrammingError("An array is wanted here", position=position(node))
        if isinstance(typed.type, Decimal) or typed.type is None:
            raise unsupported(
                "A DECIMAL tile", node, "CAST it to DOUBLE, or write 0.5::FLOAT for 0.5."
            )
        if typed.valid != TRUE:
            raise unsupported("A tile with NULLs", node, "CASE needs an ELSE.")
        return typed.value

    # ---- groups

    def _grouping(self, select: exp.Select) -> dict[str, Expr]:
        groups: dict[str, Expr] = {}
        with self.within("GROUP BY"):
            for node in self._group_nodes(select):
                bound = ScalarBinder(self).bind(node)
                expr = self.key(bound, node)
                if isinstance(expr, Label):
                    groups[expr.name] = expr
                elif expr not in groups.values():
                    groups[self.domain.fresh("group", 0, 0)] = expr
        return groups

    def _group_nodes(self, select: exp.Select) -> list[exp.Expr]:
        group = select.args.get("group")
        if group is None:
            return []
        check_group(group)
        if group.args.get("all"):
            return [i.node for i in self.items if not aggregates(i.node)]
        return [self._group_node(node) for node in group.expressions]

    def _group_node(self, node: exp.Expr) -> exp.Expr:
        """Replaces an ordinal by its SELECT item."""
        if isinstance(node, exp.Literal) and not node.is_string and node.name.isdigit():
            if not 1 <= int(node.name) <= len(self.items):
                raise ProgrammingError(
                    f"GROUP BY {node.name} names no SELECT item",
                    hint=f"There are {len(self.items)}.",
                    position=position(node),
                )
            return self.items[int(node.name) - 1].node
        return node

    def key(self, typed: Typed, node: exp.Expr) -> Expr:
        """A key computed from keys.

        Raises:
            ProgrammingError: The expression reads arrays, or is not an integer.
        """
        is_integer = isinstance(typed.type, DType) and typed.type.is_integer and typed.valid == TRUE
        if operands_of(typed.value) or not is_integer:
            raise ProgrammingError(
                f"A key of blocks is an integer computed from keys, which {text(node)} is not",
                position=position(node),
            )
        return cast(self.domain.canonical(typed.value), DType.BIGINT)

    def over_groups(self, expr: Expr, node: exp.Expr) -> Expr:
        """A key expression over the labels of groups.

        Raises:
            ProgrammingError: The expression reads a key that is not in GROUP BY.
        """
        assert self.groups is not None
        for label, group in self.groups.items():
            if expr == group:
                return Label(label)
        if isinstance(expr, Label):
            name = self.domain.written[expr.name]
            raise ProgrammingError(
                f"{name} must be in GROUP BY",
                hint=f"Write GROUP BY {name}.",
                position=position(node),
            )
        if isinstance(expr, Call):
            args = tuple(self.over_groups(a, node) for a in expr.args)
            return Call(expr.fn, args, expr.dtype)
        return expr

    # ---- the result

    def _result(self) -> TileRelation:
        keys: list[Expr] = []
        numbers: list[int | None] = []
        arrays: list[tuple[Typed, exp.Expr]] = []
        for item in self.items:
            typed = ScalarBinder(self).bind(item.node)
            if operands_of(typed.value):
                arrays.append((typed, item.node))
                numbers.append(None)
                continue
            expr = self.key(typed, item.node)
            numbers.append(len(keys))
            keys.append(expr if self.groups is None else self.over_groups(expr, item.node))
        if len(arrays) != 1:
            raise ProgrammingError(
                f"A SELECT over tiles selects one array beside its keys, not {len(arrays)}",
                hint="Add a tile column." if not arrays else "Select the others on their own.",
                position=position(arrays[1][1] if arrays else self.select),
            )
        typed, node = arrays[0]
        with positioned(self.select):
            leaf = self.rows(typed, node) if self.groups is None else self._grouped(typed, node)
            blocks = leaf.node
            if keys != [Label(x) for x in leaf.labels]:
                blocks = ra.ReKey(blocks, tuple(over_positions(k, leaf.labels) for k in keys))
        names = deduplicated([i.name for i in self.items])
        columns = (TileColumn(name, n) for name, n in zip(names, numbers, strict=True))
        return TileRelation(blocks, tuple(columns))

    def _grouped(self, typed: Typed, node: exp.Expr) -> Leaf:
        """The arrays of an expression over aggregates."""
        expr = self.array(typed, node)
        read = self.leaves.read(expr)
        if any(leaf.items for leaf in read):
            raise ProgrammingError(
                "A tile must be inside an aggregate, for there is a GROUP BY or another aggregate",
                hint="tensor_sum(…) adds up the arrays of a group.",
                position=position(node),
            )
        return self.leaves.arrays(expr)

    # ---- the environment of expressions

    def match(self, node: exp.Expr) -> Typed | None:
        """Binds a function over tiles; None for other expressions."""
        if not isinstance(node, exp.Anonymous):
            return None
        called = node.name.lower()
        name = suffix(called)
        if name is not None:
            return self._calls.bind(name, node)
        if called.startswith(PREFIX) and self.query.catalog.macro(called) is None:
            raise ProgrammingError(
                f"There is no function {called}",
                hint=suggest(called, FUNCTIONS, "functions of tiles"),
            )
        return None

    def column(self, node: exp.Column) -> Typed:
        """Resolves a column or, in GROUP BY, an alias."""
        name, table = node.name, node.table or None
        typed = self.scope.find(name, table)
        if typed is not None:
            return typed
        alias = find_alias(self.items, name) if self.clause == "GROUP BY" else None
        if alias is None or table is not None:
            raise self.scope.unknown(name, table)
        with self.within("an alias"):
            return ScalarBinder(self).bind(self.items[alias].node)

    def knows(self, name: str, table: str | None) -> bool:
        """True if a FROM item has the column."""
        return self.scope.find(name, table) is not None

    def aggregate(self, node: exp.Expr, where: exp.Expr | None) -> Typed:
        """Refuses aggregates over elements."""
        if where is not None:
            raise unsupported("FILTER over tiles", node, "WHERE selects blocks.")
        raise ProgrammingError(
            "This aggregates elements; tiles are merged by tensor_sum and its like",
            hint="ELEMENTS(…) reads tiles as a tensor.",
        )

    def window(self, node: exp.Window) -> Typed:
        """Refuses windows."""
        raise unsupported("A window over tiles", node, "Join with an aggregating subquery.")

    def subquery(self, node: exp.Expr) -> Typed:
        """Binds (SELECT …) over elements as a number that is combined with every array."""
        relation = self.query.bind(node)
        if len(relation.columns) != 1 or relation.node.schema.keys:
            raise unsupported(
                "A subquery that may give several rows", node, "Aggregate it to one value."
            )
        schema = Schema((), (Field(VALUE, relation.columns[0].dtype),))
        return self.leaves.value(Leaf(ra.Scan(self.query.catalog.part(relation, schema), ()), ()))

    def macro(self, name: str, args: list[exp.Expr]) -> exp.Expr | None:
        """The expansion of a scalar macro."""
        return self.query.macros.scalar(name, args, self)

    def shared(self, node: exp.Expr, argument: SharedArgument) -> Typed:
        """Binds an argument of a macro; macros of tiles copy their arguments."""
        return ScalarBinder(self).bind(argument.tree)
