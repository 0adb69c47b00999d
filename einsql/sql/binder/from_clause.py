"""FROM: tensors, subqueries, table functions and the joins between them.

An item with its joins is a tree; commas separate trees. NATURAL and USING refer to their own tree
only. ON and the arguments of table functions also refer to the preceding items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import (
    DataError,
    ProgrammingError,
    UnknownHere,
    suggest,
)
from einsql.ir.einsum.graph import FALSE, TRUE, Label
from einsql.sql.binder.context import Binder, Joining
from einsql.sql.binder.scalar import ScalarBinder
from einsql.sql.binder.syntax import alias_columns, check_syntax, renamed
from einsql.sql.macros.macros import MAY_CROSS, called_name
from einsql.sql.parameters.windows import Edge
from einsql.sql.parser.positions import position, positioned, unsupported
from einsql.sql.parser.sql_text import as_sql
from einsql.sql.scope.relation import Relation, TileRelation, as_elements, deduplicated
from einsql.sql.scope.scope import Scope, Source, read
from einsql.sql.typing.typed_expr import Typed, apply, truth

MAX_BOUND = 2**62
"""Largest magnitude of a key's bound; the sum and difference of two bounds then fit BIGINT."""


def bind_from(binder: FromBinder, node: exp.Select) -> None:
    """Adds every FROM item and join condition of a SELECT, left to right.

    Raises:
        Error: An item or a condition is wrong; the error has a position.
    """
    first = node.args.get("from_")
    with binder.query.around(binder.select), positioned(node):
        if first is not None:
            bind_joined(binder, first, node.args.get("joins") or [])


def bind_joined(binder: FromBinder, clause: exp.Expr, joins: Sequence[exp.Join] = ()) -> None:
    """Adds the item of a FROM clause, with its own joins and the statement's joins."""
    check_syntax(clause)
    binder.bind(clause.this, [*(clause.this.args.get("joins") or []), *joins])


@dataclass
class FromBinder:
    """Binds one FROM clause; the methods return the scope of the part that they bind."""

    query: Binder
    select: Joining
    unnamed: int = 0

    def bind(self, first: exp.Expr, joins: Sequence[exp.Join]) -> None:
        """Adds trees of joins, which commas separate, to the SELECT's scope."""
        done = self.select.scope
        tree = self._item(first, done)
        for join in joins:
            if _is_comma(join):
                self.select.scope = done = done.joined(tree, join)
                tree = self._tree(join.this, done)
            else:
                tree = self._join(tree, join)
        self.select.scope = done.joined(tree, first)

    def _tree(self, item: exp.Expr, left: Scope) -> Scope:
        """Binds an item with its nested joins."""
        tree = self._item(item, left)
        for join in item.args.get("joins") or []:
            if _is_comma(join):
                raise ProgrammingError(
                    "A comma is not allowed within a join",
                    hint="Write CROSS JOIN.",
                    position=position(join),
                )
            tree = self._join(tree, join)
        return tree

    def _item(self, item: exp.Expr, left: Scope) -> Scope:
        if isinstance(item, exp.Values):
            raise unsupported("VALUES", item, "INSERT INTO a tensor … VALUES works.")
        if not isinstance(item, exp.Table | exp.Subquery):
            raise unsupported(f"{item.key.upper()} in FROM", item)
        check_syntax(item)
        if isinstance(item, exp.Subquery) and isinstance(item.this, exp.Table | exp.Subquery):
            if not item.alias:
                return self._tree(item.this, left)
            inner = type(self)(self.query, self.select)._tree(item.this, left)
            return Scope([_as_one(inner, item)], left=left)
        if isinstance(item, exp.Subquery):
            source = self.scan(self.query.bind_any(item), item, item.alias or self._unnamed())
        elif item.args.get("db") is not None:
            raise UnknownHere(f"einsql has no schemas: {as_sql(item)}", position=position(item))
        elif isinstance(item.this, exp.GenerateSeries):
            source = self.key_range(item, item.this, left)
        elif isinstance(item.this, exp.Func):
            relation = self.query.table_function(item.this)
            name = item.alias or called_name(item.this)
            source = self.scan(relation, item, name)
        else:
            relation = self._named(item)
            source = self.scan(relation, item, item.alias or item.name)
            source.replaced = item.name if item.alias else ""
        return Scope([source], left=left)

    def _unnamed(self) -> str:
        """DuckDB's name of the next subquery without an alias."""
        self.unnamed += 1
        return "unnamed_subquery" + (str(self.unnamed) if self.unnamed > 1 else "")

    def scan(self, bound: Relation | TileRelation, item: exp.Expr, name: str) -> Source:
        """Adds the relation of an item to the domain, as an operand with labels of its own."""
        relation = renamed(as_elements(bound, f"{name} in FROM", item), item)
        number, labels = self.select.domain.scan(relation.node)
        for key, e in relation.edges:
            if isinstance(e, Edge):  # the node has been restricted to its windows
                edges = self.select.domain.edges
                edges[labels[key]] = (*edges.get(labels[key], ()), e)
        return Source(name, read(relation, number, labels))

    def _named(self, item: exp.Table) -> Relation | TileRelation:
        """A relation by name; otherwise a file, if the name is quoted and has a path's form."""
        name = item.name
        is_path = bool(item.this.args.get("quoted")) and any(c in name for c in "./\\")
        if not is_path:
            return self.query.named(name, item)
        with positioned(item):
            relation = self.query.find(name)
            if relation is None and self.query.catalog.is_table_file(name):
                raise UnknownHere(
                    f"'{name}' is a table, which has rows",
                    hint="read_tensor(…) makes a tensor of a file's rows; so does COPY … FROM.",
                )
            return relation or self.query.catalog.file(name)

    def key_range(self, item: exp.Table, call: exp.GenerateSeries, left: Scope) -> Source:
        """range(n) and range(lo, hi): a key without data."""
        exclusive = call.args.get("is_end_exclusive")
        function = "range" if exclusive else "generate_series"
        self.select.scope = left
        lo = self._constant(call.args["start"], function)
        end = self._constant(call.args["end"], function)
        step = call.args.get("step")
        by = 1 if step is None else self._constant(step, function)
        if by == 0:
            raise ProgrammingError(f"The step of {function}() is 0", position=position(item))
        if by not in (1, None):
            raise unsupported(f"{function}() with a step", item, "Multiply the key instead.")
        hi = 0 if end is None else end + (0 if exclusive else 1)
        if lo is None or end is None or by is None:
            lo, hi = 0, 0
        if max(abs(lo), abs(hi)) > MAX_BOUND:
            raise DataError(
                f"The bounds of {function}() lie beyond ±2^62",
                hint="Add the offset to the key instead.",
                position=position(item),
            )
        names = alias_columns(item)
        if len(names) > 1:
            raise ProgrammingError(
                f"{len(names)} column names for 1 column", position=position(item)
            )
        name = names[0] if names else item.alias or function
        typed = Typed(Label(self.select.domain.fresh(name, lo, hi)), DType.BIGINT)
        # The key of range(n) AS t is the column t, which expressions can also name range.
        unlisted = [(function, typed)] if item.alias and not names else []
        return Source(item.alias or function, [(name, typed)], unlisted)

    def _constant(self, node: exp.Expr, function: str) -> int | None:
        """The value of an integer expression without columns; None for NULL."""
        bound = ScalarBinder(self.select).bind(node)
        bound = replace(bound, value=self.select.parameters.constants(bound.value))
        if bound.type is None or bound.valid == FALSE:
            return None
        is_integer = isinstance(bound.type, DType) and bound.type.is_integer
        bounds = self.select.domain.interval(bound.value) if is_integer else None
        if is_integer and (bounds is None or bounds[0] != bounds[1] or bound.valid != TRUE):
            raise unsupported(
                f"{function}() with bounds that are no constants",
                node,
                "Compare the key instead: range(n) r(k) … WHERE k < x.i.",
            )
        if bounds is None:
            raise ProgrammingError(
                f"{function}() needs constant integers as bounds", position=position(node)
            )
        return bounds[0]

    def _join(self, tree: Scope, join: exp.Join) -> Scope:
        method = _join_method(join)
        self.select.scope = tree  # a LATERAL subquery to the right would read it
        right = self._tree(join.this, tree)
        both = tree.joined(right, join)
        names = [n.name for n in join.args.get("using") or []]
        if method == "NATURAL":
            names = self._natural(tree, right, join)
        for name in {n.lower(): n for n in names}.values():
            with positioned(join):
                left_owner, right_owner = _owners(tree, right, name)
            self._equate(left_owner, right_owner, name)
            both.merge(name, left_owner, right_owner)
        if join.args.get("on") is not None:
            self.select.scope = both
            self.select.clause = "a join condition"
            condition = ScalarBinder(self.select).condition(join.args["on"])
            with positioned(join.args["on"]):
                self.select.domain.require(truth(condition))
        return both

    def _natural(self, tree: Scope, right: Scope, join: exp.Join) -> list[str]:
        known = {n.lower() for s in tree.sources for n, _ in s.columns}
        names = [n for s in right.sources for n, _ in s.columns if n.lower() in known]
        if not names and not join.meta.get(MAY_CROSS):
            raise ProgrammingError(
                "NATURAL JOIN finds no common column",
                hint="CROSS JOIN needs none.",
                position=position(join),
            )
        keys = {n for s in right.sources for n, t in s.columns if isinstance(t.value, Label)}
        values = [n for n in names if n not in keys]
        if values:
            self.query.notices.append(
                f"NATURAL JOIN also joins on the value column {', '.join(values)}; "
                "write USING to choose the columns."
            )
        return names

    def _equate(self, left: Source, right: Source, name: str) -> None:
        a, b = left.get(name), right.get(name)
        assert a is not None
        assert b is not None
        same = apply("eq", [a, b], True)
        self.select.domain.require(truth(same) if same.type is not None else TRUE)


def _is_comma(join: exp.Join) -> bool:
    # For a written JOIN sqlglot sets more arguments, such as pivots.
    return set(join.args) <= {"this"}


def _join_method(join: exp.Join) -> str:
    """NATURAL, or an empty string for any other written join.

    Raises:
        Error: The join is not an inner join, or its condition is missing or misplaced.
    """
    check_syntax(join)
    method, side, kind = (str(join.args.get(a) or "") for a in ("method", "side", "kind"))
    if side or kind not in ("", "INNER", "CROSS") or method not in ("", "NATURAL"):
        words = " ".join(w for w in (method, side, kind) if w)
        raise unsupported(f"{words} JOIN", join, "Inner joins are tensor work.")
    conditions = [a for a in ("on", "using") if join.args.get(a)]
    plain = method == "" and kind != "CROSS"
    if method and kind == "CROSS":
        raise ProgrammingError("A join is NATURAL or CROSS, not both", position=position(join))
    if plain and not conditions:
        raise ProgrammingError(
            "JOIN needs a condition",
            hint="Write ON or USING, or CROSS JOIN for every pair.",
            position=position(join),
        )
    if not plain and conditions:
        raise ProgrammingError(
            f"{method or kind} JOIN has no {conditions[0].upper()}",
            hint="A JOIN with a condition is written without that word.",
            position=position(join),
        )
    return method


def _owners(left: Scope, right: Scope, name: str) -> tuple[Source, Source]:
    """The sources of the columns that USING (name) equates."""
    owners = []
    for side, scope in (("left", left), ("right", right)):
        owner = scope.owner(name)
        if owner is None:
            raise ProgrammingError(
                f'No table on the {side} has a column "{name}"',
                hint=suggest(name, [n for s in scope.sources for n, _ in s.columns], "columns"),
            )
        owners.append(owner)
    return owners[0], owners[1]


def _as_one(inner: Scope, item: exp.Subquery) -> Source:
    """The columns of a join in parentheses, under the join's alias."""
    columns = inner.listed()
    names = alias_columns(item)
    if len(names) > len(columns):
        raise ProgrammingError(
            f"{plural(len(names), 'column name')} for {plural(len(columns), 'column')}",
            position=position(item),
        )
    names += [n for _, n, _ in columns[len(names) :]]
    values = [t for _, _, t in columns]
    return Source(item.alias, list(zip(deduplicated(names), values, strict=True)))
