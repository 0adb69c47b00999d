"""Splits a SELECT whose tensor is aggregated by its join keys before DuckDB joins it.

`SELECT t.title, AVG(r.val) FROM r JOIN titles t ON r.i = t.id GROUP BY t.title` reads from r one
sum and one count for each i, and not all elements. This is the eager aggregation of Yan and Larson
("Eager Aggregation and Lazy Aggregation", VLDB 1995): rows of r with equal join keys meet the same
rows of the other relations, so their sums, counts and extrema are merged after the join.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

from sqlglot import exp

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.hybrid.split.blocks import Range, Reference
from einsql.hybrid.split.parts import PREFIX, shown
from einsql.hybrid.split.select_text import SelectText
from einsql.sql.parser.column_names import column_name
from einsql.sql.parser.dialect import EinSQL
from einsql.sql.scope.relation import Column

_MERGED = (exp.Sum, exp.Avg, exp.Count, exp.Min, exp.Max)
"""Aggregates that partial aggregates are merged to."""
_ONE_ARGUMENT = ("this", "big_int")
"""The parts of a call with one argument. MAX(x, n) has a further one."""
_NAME = f"{PREFIX}p"
"""The first letters of the columns of partial aggregates; a SELECT with such a column stays."""
_NAMED = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Paren, exp.Literal, exp.Column, exp.Identifier)
"""Nodes of items whose names `column_name` writes as DuckDB does."""
_EXCLUDED = (exp.Distinct, exp.Order, exp.Window, exp.Filter, exp.AggFunc)
"""Parts of an aggregate's argument that need all rows."""
_SUMMED = {
    DType.TINYINT: "BIGINT",
    DType.INTEGER: "BIGINT",
    DType.HALF: "DOUBLE",
    DType.BFLOAT16: "DOUBLE",
    DType.FLOAT: "DOUBLE",
    DType.DOUBLE: "DOUBLE",
}
"""The types in which values are added; DuckDB's sums are not more exact. A BIGINT holds the sum of
2^32 INTEGERs. Sums of BIGINTs may overflow, so DuckDB adds them."""
_CLAUSES = ("expressions", "from_", "joins", "where", "group", "having", "distinct")
"""The clauses in which all columns are known."""


@dataclass(frozen=True)
class _Tensor:
    """A tensor of FROM.

    Attributes:
        table: Its item of FROM.
        columns: Its columns by their names in lower case.
        others: The names of the other relations' columns in lower case; None if not known.
    """

    table: exp.Table
    columns: Mapping[str, Column]
    others: frozenset[str] | None

    def owns(self, column: exp.Column) -> bool | None:
        """Whether a column is the tensor's; None if that is not known."""
        name = column.name.lower()
        if column.table:
            is_own = column.table.lower() == self.table.alias_or_name.lower()
            return (
                None if column.args.get("db") or (is_own and name not in self.columns) else is_own
            )
        if name not in self.columns:
            return False
        return None if self.others is None or name in self.others else True


@dataclass
class PartialAggregates:
    """Replaces one tensor of FROM by its aggregates.

    Attributes:
        text: The SELECT.
        items: The aggregates of the tensor by their column names.
        edits: The replacements of calls.
    """

    text: SelectText
    items: dict[str, exp.Expr] = field(default_factory=dict)
    edits: list[tuple[int, int, str]] = field(default_factory=list)

    def split(self) -> bool:
        """Splits the SELECT. Returns False, without a change, if no tensor can be aggregated."""
        clauses = self.text.block.clauses
        is_select = next(iter(clauses), "") == "SELECT" and "FROM" in clauses
        if self.text.block.children or not is_select or self._is_in_expression():
            return False
        children = self.text.splitter.structure.children
        if any(True for r in self.text.modifiers.values() for _ in children(r.first, r.last)):
            return False  # aggregates of a query in it are not those of the SELECT
        tables = self._tables() if self._is_plain() else []
        if not tables:
            return False
        structure = self.text.splitter.structure
        references = list(structure.references(clauses["FROM"]))
        if len(tables) != len(references):
            return False
        for table, reference in zip(tables, references, strict=True):
            tensor = self._tensor(table, reference, tables)
            if tensor is not None and self._aggregate(tensor, reference):
                for other in references:
                    if other is not reference:
                        self.text.splitter.refer(other, self.text.scope)
                return True
        return False

    def _is_in_expression(self) -> bool:
        """Whether the SELECT is a subquery of an expression, whose text may name a column."""
        structure, at = self.text.splitter.structure, self.text.block.range.first
        around = [a for a, b in structure.closes.items() if a < at < b]
        before = ("FROM", "JOIN", "AS", "MATERIALIZED", "(")
        return bool(around) and structure.word(max(around) - 1) not in before

    def _is_plain(self) -> bool:
        tree = self.text.tree
        stars = [s for s in tree.find_all(exp.Star) if not isinstance(s.parent, exp.Count)]
        others = [clause for name, clause in tree.args.items() if clause and name not in _CLAUSES]
        return not stars and not others and tree.find(exp.Subquery, exp.Lambda) is None

    def _tables(self) -> list[exp.Table]:
        """The tables of inner and left joins in the order of the text; none for other joins."""
        tree = self.text.tree
        tables, joins = [tree.args["from_"].this], tree.args.get("joins") or []
        for join in joins:
            words = {w for w in (join.side, join.args.get("kind")) if w}
            is_known = words <= {"LEFT", "OUTER", "INNER", "CROSS"}
            if not is_known or join.args.get("using") or join.args.get("method"):
                return []
            tables.append(join.this)
        named = {"this", "alias", "db", "catalog"}
        plain = all(
            isinstance(t, exp.Table) and not any(v for k, v in t.args.items() if k not in named)
            for t in tables
        )
        return tables if plain and joins else []

    def _tensor(
        self, table: exp.Table, reference: Reference, tables: Sequence[exp.Table]
    ) -> _Tensor | None:
        """A tensor or a view of one, unless a left join extends it by NULLs."""
        parts, alias = self.text.splitter.parts, table.args.get("alias")
        is_name = not (reference.is_call or reference.is_text or reference.qualified)
        if not is_name or (alias is not None and alias.args.get("columns")):
            return None
        if isinstance(table.parent, exp.Join) and table.parent.side:
            return None
        if reference.name.lower() in self.text.scope or parts.kind(reference.name) is None:
            return None
        columns = parts.columns(exp.select("*").from_(table.copy()))
        if columns is None:
            return None
        others = set[str]()
        for other in tables:
            known = parts.names(other) if other is not table else []
            if known is None:
                return _Tensor(table, {c.name.lower(): c for c in columns}, None)
            others |= {n.lower() for n in known}
        return _Tensor(table, {c.name.lower(): c for c in columns}, frozenset(others))

    def _aggregate(self, tensor: _Tensor, reference: Reference) -> bool:
        self.items.clear()
        self.edits.clear()
        taken = {*tensor.columns, *(tensor.others or ())}
        if any(name.startswith(_NAME) for name in taken) or not self._merge_calls(tensor):
            return False
        conditions = self._conditions()
        if conditions is None:
            return False
        pushed = [(part, c) for part, c in conditions if self._is_within(tensor, c)]
        rest = [c for part, c in conditions if (part, c) not in pushed]
        read = self._read(tensor, rest)
        keys = {name for name, c in tensor.columns.items() if c.key is not None}
        if not read or not read < keys:
            return False
        return self._replace(tensor, reference, sorted(read), pushed)

    # ---- aggregates

    def _merge_calls(self, tensor: _Tensor) -> bool:
        """Replaces the aggregates of the tensor. Returns False if one needs all rows."""
        splitter, structure = self.text.splitter, self.text.splitter.structure
        clauses = self.text.block.clauses
        parts = [clauses[c] for c in ("SELECT", "HAVING") if c in clauses]
        for part in (*parts, *self.text.modifiers.values()):
            for call in self.text.calls(part):
                start, end = structure.span(call)
                select = splitter.tree(start, end, "SELECT ")
                if not isinstance(select, exp.Select) or len(select.expressions) != 1:
                    return False
                merged = self._merged(select.expressions[0], tensor)
                if merged is None:
                    return False
                if merged:
                    self.edits.append((start, end, merged))
        aggregates = splitter.parts.aggregates()
        for tree in (self.text.tree, *self._modifiers()):
            for node in tree.find_all(exp.Func):
                name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
                is_aggregate = isinstance(node, exp.AggFunc) or name.lower() in aggregates
                is_window = isinstance(node.parent, exp.Window)
                if is_aggregate and not is_window and not isinstance(node, _MERGED):
                    return False
        return bool(self.edits) and self._keep_names()

    def _merged(self, call: exp.Expr, tensor: _Tensor) -> str | None:
        """The text that merges partial aggregates to a call.

        Returns:
            An empty text for an extremum of other relations, which stays; None if the call needs
            all rows.
        """
        others = any(part for name, part in call.args.items() if name not in _ONE_ARGUMENT)
        argument = call.this
        if not isinstance(call, _MERGED) or others or argument is None:
            return None
        if isinstance(call, exp.Count) and isinstance(argument, exp.Star):
            return self._count(call)
        if argument.find(*_EXCLUDED) is not None:
            return None
        owned = [tensor.owns(c) for c in argument.find_all(exp.Column)]
        if not owned or None in owned:
            return None
        if not all(owned):
            is_extremum = isinstance(call, exp.Min | exp.Max)
            return "" if is_extremum and not any(owned) else None
        if isinstance(call, exp.Count):
            return self._count(call)
        if isinstance(call, exp.Min | exp.Max):
            return f"{call.sql_name()}({self._item(call)})"
        probe = exp.select(exp.alias_(argument.copy(), "x")).from_(tensor.table.copy())
        columns = self.text.splitter.parts.columns(probe)
        kind = None if columns is None else _SUMMED.get(columns[0].dtype)
        if kind is None:
            return None
        total = f"SUM({self._item(exp.Sum(this=exp.cast(argument.copy(), kind)))})"
        if isinstance(call, exp.Sum):
            return total
        count = self._item(exp.Count(this=argument.copy()))
        return f"(CAST({total} AS DOUBLE) / SUM({count}))"

    def _count(self, call: exp.Expr) -> str:
        """The sum of a count: 0 for the group of everything if there are no rows."""
        return f"CAST(COALESCE(SUM({self._item(call)}), 0) AS BIGINT)"

    def _item(self, aggregate: exp.Expr) -> str:
        """The column name of an aggregate of the tensor."""
        for name, known in self.items.items():
            if known == aggregate:
                return name
        name = f"{_NAME}{len(self.items) + 1}"
        self.items[name] = aggregate.copy()
        return name

    def _keep_names(self) -> bool:
        """Names items without aliases as before. Returns False if the items are not known."""
        structure, nodes = self.text.splitter.structure, self.text.tree.expressions
        clause = self.text.block.clauses["SELECT"]
        first = clause.first + 1
        while structure.word(first) in ("DISTINCT", "ALL"):
            first += 1
        parts = list(self.text.items(first, clause.last))
        if len(parts) != len(nodes) or any(p.first >= p.last for p in parts):
            return False
        for part, node in zip(parts, nodes, strict=True):
            start, end = structure.span(part)
            is_edited = any(start <= a < end for a, _, _ in self.edits)
            if is_edited and not isinstance(node, exp.Alias):
                if not _has_known_name(node):
                    return False
                self.edits.append((end, end, f" AS {in_quotes(column_name(node))}"))
        return True

    # ---- conditions and keys

    def _conditions(self) -> list[tuple[Range, exp.Expr]] | None:
        """The conditions of WHERE that AND connects, with their tokens; None if not known."""
        clause = self.text.block.clauses.get("WHERE")
        if clause is None:
            return []
        splitter, structure = self.text.splitter, self.text.splitter.structure
        words = [(at, structure.word(at)) for at in structure.outer(clause.first + 1, clause.last)]
        is_split = not any(word in ("OR", "CASE") for _, word in words)
        parts, first, is_between = [], clause.first + 1, False
        for at, word in words if is_split else ():
            if word == "AND" and not is_between:
                parts.append(Range(first, at))
                first = at + 1
            is_between = word == "BETWEEN" or (is_between and word != "AND")
        conditions = []
        for part in (*parts, Range(first, clause.last)):
            select = splitter.tree(*structure.span(part), "SELECT ")
            if not isinstance(select, exp.Select) or len(select.expressions) != 1:
                return None
            conditions.append((part, select.expressions[0]))
        return conditions

    def _is_within(self, tensor: _Tensor, condition: exp.Expr) -> bool:
        columns = list(condition.find_all(exp.Column))
        return bool(columns) and all(tensor.owns(c) for c in columns)

    def _read(self, tensor: _Tensor, conditions: Sequence[exp.Expr]) -> set[str]:
        """The tensor's columns that the rest reads, in lower case; empty if not known."""
        tree = self.text.tree
        trees: list[exp.Expr] = [*tree.expressions, *tree.args["joins"], *conditions]
        trees += [tree.args[clause] for clause in ("group", "having") if tree.args.get(clause)]
        aliases = {e.alias.lower() for e in tree.expressions if isinstance(e, exp.Alias)}
        columns = [(c, False) for t in trees for c in t.find_all(exp.Column)]
        columns += [(c, True) for t in self._modifiers() for c in t.find_all(exp.Column)]
        read = set[str]()
        for column, is_order in columns:
            if is_order and not column.table and column.name.lower() in aliases:
                if isinstance(column.parent, exp.Ordered):
                    continue
                return set()  # the alias or the column
            owned = tensor.owns(column)
            if owned is None:
                return set()
            call = column.find_ancestor(*_MERGED)
            if owned and (call is None or isinstance(call.parent, exp.Window)):
                read.add(column.name.lower())
        return read

    def _modifiers(self) -> Iterator[exp.Expr]:
        splitter = self.text.splitter
        for clause in self.text.modifiers.values():
            tree = splitter.tree(*splitter.structure.span(clause), "SELECT 1 ")
            if tree is not None:
                yield tree

    # ---- the fragment

    def _replace(
        self,
        tensor: _Tensor,
        reference: Reference,
        keys: list[str],
        pushed: list[tuple[Range, exp.Expr]],
    ) -> bool:
        splitter, structure = self.text.splitter, self.text.splitter.structure
        alias = tensor.table.alias_or_name
        names = [tensor.columns[k].name for k in keys]
        grouped = [exp.column(n, alias, quoted=True) for n in names]
        items = [exp.alias_(tree, name) for name, tree in self.items.items()]
        tree = exp.select(*grouped, *items).from_(tensor.table.copy()).group_by(*grouped)
        for _, condition in pushed:
            tree = tree.where(condition.copy())
        # The aggregates see elements that the join may exclude.
        if not splitter.binds(tree, self.text.scope) or not splitter.parts.never_raises(tree):
            return False
        start, end = structure.span(reference.range)
        binding = splitter.bound(tree, self.text.scope, start)
        if binding is None:
            return False
        name = splitter.parts.add(*binding, tree.sql(dialect=EinSQL))
        after = "" if reference.aliased else f" AS {in_quotes(alias)}"
        query = shown(name, [*names, *self.items])
        splitter.edits.replacements += [(start, end, f"({query}){after}"), *self.edits]
        for part, _ in pushed:
            splitter.edits.replace(*structure.span(part), "TRUE")
        return True


def _has_known_name(node: exp.Expr) -> bool:
    """Whether `column_name` writes the name of an item as DuckDB does."""
    if isinstance(node, _MERGED):
        return node.find(exp.Parameter, exp.Placeholder) is None
    return isinstance(node, _NAMED) and all(map(_has_known_name, node.iter_expressions()))
