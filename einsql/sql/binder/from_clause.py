"""FROM: tensors, subqueries, table functions and the joins between them.

An item with the joins behind it is a tree, and commas stand between trees. NATURAL and
USING see their own tree only; ON and the arguments of table functions also see what
stands further left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from sqlglot import exp

from einsql.core.schema import DType
from einsql.errors import (
    DataError,
    Error,
    ForeignNameError,
    ProgrammingError,
    UnknownHere,
    suggest,
)
from einsql.ir.einsum.graph import FALSE, TRUE, Label
from einsql.sql.binder.arguments import as_sql
from einsql.sql.binder.domain import Domain
from einsql.sql.binder.einsum_call import bind_einsum
from einsql.sql.binder.scalar import Environment, ScalarBinder, locate, position, unsupported
from einsql.sql.binder.scope import (
    Relation,
    Scope,
    Source,
    TileRelation,
    as_elements,
    deduplicated,
    read,
)
from einsql.sql.binder.typed_expr import Typed, apply, truth
from einsql.sql.parameters.runtime_bounds import Edge
from einsql.sql.tiles import names as tile_names

if TYPE_CHECKING:
    from einsql.sql.binder.query import QueryBinder

MAX_BOUND = 2**62
"""Bounds of a key; sums and differences of two of them still fit BIGINT."""

TABLE_FUNCTIONS = (
    "range", "generate_series", "einsum", "gradient", "read_tensor", *tile_names.TABLE_FUNCTIONS
)  # fmt: skip

TABLE_MACROS = ("attention", "layer_norm", "log_softmax", "rms_norm", "softmax")
"""Built-in macros that stand in FROM."""

MAY_CROSS = "may_cross"
"""Marks a NATURAL JOIN that joins all with all where no column is common, as standard SQL has it.

Built-in macros use it: a statistic of a tensor with one key has no key.
"""

_ACCEPTED: dict[type[exp.Expr], set[str]] = {
    exp.From: {"this"},
    exp.Table: {"this", "alias", "joins", "db", "catalog"},
    exp.Subquery: {"this", "alias", "joins", "with_"},
    exp.TableAlias: {"this", "columns"},
    exp.Join: {"this", "kind", "side", "method", "on", "using"},
    exp.With: {"expressions", "recursive"},
    exp.CTE: {"this", "alias", "materialized"},
    exp.Star: {"except_", "replace", "rename"},
}
"""What may hang on a syntax node; sqlglot parses much more than einsql gives a meaning."""
_NAMES = {
    "sample": "TABLESAMPLE", "when": "AT (…)", "version": "FOR VERSION or TIMESTAMP",
    "ordinality": "WITH ORDINALITY", "hints": "A table hint", "hint": "A join hint",
    "pivots": "PIVOT", "key_expressions": "USING KEY", "ilike": "* ILIKE", "order": "ORDER BY",
}  # fmt: skip


class Joining(Environment, Protocol):
    """The SELECT whose FROM is bound: what its conditions see and narrow."""

    scope: Scope
    clause: str

    @property
    def domain(self) -> Domain:
        """The points FROM ranges over."""

    def knows(self, name: str, table: str | None) -> bool:
        """True if this SELECT or one around it has the column."""


def check_syntax(node: exp.Expr) -> None:
    """Refuses a part of a FROM item, WITH or `*` that would be ignored.

    Raises:
        NotSupportedError: It names the part.
    """
    for arg, value in node.args.items():
        if value and arg not in _ACCEPTED[type(node)]:
            raise unsupported(_NAMES.get(arg, arg.upper().replace("_", " ")), node)


def alias_columns(item: exp.Expr) -> list[str]:
    """The column names of an alias such as x(i, j).

    Raises:
        Error: They have types, or something else stands in the alias.
    """
    alias = item.args.get("alias")
    if alias is None:
        return []
    check_syntax(alias)
    for column in alias.args.get("columns") or []:
        if not isinstance(column, exp.Identifier):
            raise ProgrammingError(
                "The columns of an alias are names without types", position=position(column)
            )
    return [c.name for c in alias.args.get("columns") or []]


def bind_from(binder: FromBinder, node: exp.Select) -> None:
    """Adds every FROM item and join condition of a SELECT, left to right."""
    first = node.args.get("from_")
    if first is not None:
        bind_joined(binder, first, node.args.get("joins") or [])


def bind_joined(binder: FromBinder, clause: exp.Expr, joins: Sequence[exp.Join] = ()) -> None:
    """Adds the item of a FROM clause, with the joins that hang on it and on the statement."""
    check_syntax(clause)
    binder.bind(clause.this, [*(clause.this.args.get("joins") or []), *joins])


def find_relation(query: QueryBinder, name: str) -> Relation | TileRelation | None:
    """Resolves a relation by name: WITH, then view, then tensor or array."""
    for level in reversed(query.ctes):
        if name.lower() in level:
            return level[name.lower()]
    if query.ctes and name.lower() in query.changing:  # a view does not see the names of WITH
        raise ProgrammingError(
            f'"{name}" changes a tensor and gives no rows',
            hint="Read the tensor by its own name: every part of a statement reads what was there "
            "before it. What it will hold can be a SELECT of WITH that both parts read.",
        )
    if name.lower() in query.foreign:
        error = ForeignNameError(f'"{name}" is outside the tensor fragment')
        error.name, error.why = name, query.refused.get(name.lower())
        raise error
    return query.view(name) or query.catalog.relation(name)


def named_relation(query: QueryBinder, name: str, at: exp.Expr) -> Relation | TileRelation:
    """Resolves a relation by name.

    Raises:
        ProgrammingError: There is none.
        Error: An array or table of that name is no tensor.
    """
    try:
        found = find_relation(query, name)
    except Error as error:
        raise locate(error, at) from None
    if found is None:
        known = [n for level in query.ctes for n in level] + query.catalog.names()
        raise UnknownHere(
            f'There is no tensor "{name}"',
            hint=suggest(name, known, "tensors"),
            position=position(at),
        )
    return found


def call_function(query: QueryBinder, call: exp.Func) -> Relation | TileRelation:
    """Binds a table function or a table macro.

    Raises:
        Error: There is none of that name, or its arguments are wrong.
    """
    if not isinstance(call, exp.Anonymous):
        raise unsupported(f"The table function {call.sql_name()}", call)
    name = str(call.this)
    if name.lower() == "einsum":
        return bind_einsum(query, call)
    if name.lower() == "gradient":
        from einsql.sql.binder.gradient_call import bind_gradient  # few statements need it

        return bind_gradient(query, call)
    if name.lower() == "read_tensor":
        return _read_tensor(query, call)
    if name.lower() in tile_names.TABLE_FUNCTIONS:
        from einsql.sql.tiles.functions import bind_function  # as tiles.select

        return bind_function(query, call)
    found = query.macro(name, call)
    if found is None:
        raise UnknownHere(
            f"There is no table function {name}",
            hint=suggest(name, [*TABLE_FUNCTIONS, *TABLE_MACROS], "table functions"),
            position=position(call),
        )
    return found


def _read_tensor(query: QueryBinder, call: exp.Anonymous) -> Relation:
    """read_tensor(file) and read_tensor(file, name): an array of a file that may have several."""
    texts = [a.name for a in call.expressions if isinstance(a, exp.Literal) and a.is_string]
    if len(texts) != len(call.expressions) or len(texts) not in (1, 2):
        raise ProgrammingError(
            "read_tensor() takes a file name and the name of an array in it, both as text",
            position=position(call),
        )
    try:
        return query.catalog.file(*texts)
    except Error as error:
        raise locate(error, call) from None


@dataclass
class FromBinder:
    """Binds one FROM clause; every method gives the scope of the part it binds."""

    query: QueryBinder
    select: Joining
    unnamed: int = 0

    def bind(self, first: exp.Expr, joins: Sequence[exp.Join]) -> None:
        """Adds trees of joins with commas between them to the SELECT's scope."""
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
        """An item with the joins that are nested in it."""
        tree = self._item(item, left)
        for join in item.args.get("joins") or []:
            if _is_comma(join):
                raise ProgrammingError(
                    "A comma cannot stand within a join",
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
            source = self._scan(self.query.bind_any(item), item, item.alias or self._unnamed())
        elif item.args.get("db") is not None:
            raise UnknownHere(f"einsql has no schemas: {as_sql(item)}", position=position(item))
        elif isinstance(item.this, exp.GenerateSeries):
            source = self._range(item, item.this, left)
        elif isinstance(item.this, exp.Func):
            relation = call_function(self.query, item.this)
            source = self._scan(relation, item, item.alias or item.this.name)
        else:
            relation = self._named(item)
            source = self._scan(relation, item, item.alias or item.name)
        return Scope([source], left=left)

    def _unnamed(self) -> str:
        """The name DuckDB gives to the next subquery without an alias."""
        self.unnamed += 1
        return "unnamed_subquery" + (str(self.unnamed) if self.unnamed > 1 else "")

    def _scan(self, given: Relation | TileRelation, item: exp.Expr, name: str) -> Source:
        relation = self.query.renamed(as_elements(given, f"{name} in FROM", item), item)
        number, labels = self.select.domain.scan(relation.node)
        for key, e in relation.edges:
            if isinstance(e, Edge):  # a window is known by the node
                edges = self.select.domain.edges
                edges[labels[key]] = (*edges.get(labels[key], ()), e)
        return Source(name, read(relation, number, labels))

    def _named(self, item: exp.Table) -> Relation | TileRelation:
        """A relation by name, or else a file if the name is quoted and looks like a path."""
        name = item.name
        is_path = bool(item.this.args.get("quoted")) and any(c in name for c in "./\\")
        if not is_path:
            return self.query.named(name, item)
        try:
            found = find_relation(self.query, name)
            if found is None and self.query.catalog.is_table_file(name):
                raise UnknownHere(
                    f"'{name}' is a table, which has rows",
                    hint="read_tensor(…) makes a tensor of a file's rows; so does COPY … FROM.",
                )
            return found or self.query.catalog.file(name)
        except Error as error:
            raise locate(error, item) from None

    def _range(self, item: exp.Table, call: exp.GenerateSeries, left: Scope) -> Source:
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
        # The key of range(n) AS t is shown as t, but still answers to range.
        unlisted = [(function, typed)] if item.alias and not names else []
        return Source(item.alias or function, [(name, typed)], unlisted)

    def _constant(self, node: exp.Expr, function: str) -> int | None:
        """The value of an integer expression without columns; None for NULL."""
        bound = ScalarBinder(self.select).bind(node)
        bound = replace(bound, value=self.select.parameters.constants(bound.value))
        if bound.type is None or bound.valid == FALSE:
            return None
        whole = isinstance(bound.type, DType) and bound.type.is_integer
        found = self.select.domain.interval(bound.value) if whole else None
        if found is None or found[0] != found[1] or bound.valid != TRUE:
            raise ProgrammingError(
                f"{function}() needs constant integers as bounds", position=position(node)
            )
        return found[0]

    def _join(self, tree: Scope, join: exp.Join) -> Scope:
        method = _join_method(join)
        self.select.scope = tree  # what a subquery to the right might mean to read
        right = self._tree(join.this, tree)
        both = tree.joined(right, join)
        names = [n.name for n in join.args.get("using") or []]
        if method == "NATURAL":
            names = self._natural(tree, right, join)
        for name in {n.lower(): n for n in names}.values():
            try:
                left_owner, right_owner = _owners(tree, right, name)
            except Error as error:
                raise locate(error, join) from None
            self._equate(left_owner, right_owner, name)
            both.merge(name, left_owner, right_owner)
        if join.args.get("on") is not None:
            self.select.scope = both
            self.select.clause = "a join condition"
            condition = ScalarBinder(self.select).condition(join.args["on"])
            try:
                self.select.domain.require(truth(condition))
            except Error as error:
                raise locate(error, join.args["on"]) from None
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
    # sqlglot looks for a PIVOT behind every written JOIN, never behind a comma.
    return set(join.args) <= {"this"}


def _join_method(join: exp.Join) -> str:
    """NATURAL, or an empty string for any other written join.

    Raises:
        Error: The join is no inner join, or its condition is missing or misplaced.
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
    """The sources whose columns USING (name) equates."""
    found = []
    for side, scope in (("left", left), ("right", right)):
        owner = scope.owner(name)
        if owner is None:
            raise ProgrammingError(
                f'No table on the {side} has a column "{name}"',
                hint=suggest(name, [n for s in scope.sources for n, _ in s.columns], "columns"),
            )
        found.append(owner)
    return found[0], found[1]


def _as_one(inner: Scope, item: exp.Subquery) -> Source:
    """The columns of a join in parentheses under the alias behind it."""
    columns = inner.listed()
    names = alias_columns(item)
    if len(names) > len(columns):
        raise ProgrammingError(
            f"{len(names)} column names for {len(columns)} columns", position=position(item)
        )
    names += [n for _, n, _ in columns[len(names) :]]
    values = [t for _, _, t in columns]
    return Source(item.alias, list(zip(deduplicated(names), values, strict=True)))
