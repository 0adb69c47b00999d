"""Splits a SELECT: its relation, otherwise its groups, become a fragment."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp
from sqlglot.errors import ParseError

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.hybrid.split.blocks import Block, Range
from einsql.hybrid.split.edits import Edits
from einsql.hybrid.split.split import Scope, Splitter, Why, changed, shown
from einsql.sql.functions.aggregate_functions import AGGREGATES
from einsql.sql.parser.column_names import column_name
from einsql.sql.parser.dialect import parsed

_NAMES = frozenset(
    {n.upper() for n in AGGREGATES if isinstance(n, str)}
    | {
        n
        for c in AGGREGATES
        if isinstance(c, type) and issubclass(c, exp.Func)
        for n in c.sql_names()
    }
)


def split_block(
    splitter: Splitter, block: Block, modifiers: dict[str, Range], scope: Scope, tree: exp.Select
) -> bool:
    """Makes the largest part of a SELECT a fragment.

    Returns:
        False, without a change, if no part is tensor work.
    """
    return Core(splitter, block, modifiers, scope, tree).split()


@dataclass
class Core:
    """Splits one SELECT.

    Attributes:
        modifiers: The ORDER BY, LIMIT and OFFSET that follow the SELECT.
        tree: The SELECT without modifiers.
    """

    splitter: Splitter
    block: Block
    modifiers: dict[str, Range]
    scope: Scope
    tree: exp.Select

    def split(self) -> bool:
        """Splits the SELECT. Returns False, without a change, if no part is tensor work."""
        distinct = self.tree.args.get("distinct")
        if "USING SAMPLE" in self.block.clauses or self.tree.args.get("sample"):
            return False
        if distinct is not None and distinct.args.get("on") is not None:
            return False
        return self._relation(distinct is not None) or self._groups()

    # ---- the relation, in another order or without duplicates

    def _relation(self, distinct: bool) -> bool:
        splitter = self.splitter
        start, end = splitter.structure.span(self.block.range)
        plain = changed(self.tree, distinct=None)
        binding = splitter.bound(plain, self.scope, start)
        if binding is None:
            return False
        columns = binding[2]
        hidden: list[tuple[Range, exp.Expr]] = []
        for item in self._orders():
            verdict = self._order(item, columns)
            if verdict is False or (verdict is not True and distinct):
                return False
            if isinstance(verdict, exp.Expr):
                hidden.append((item, verdict))
        if hidden:
            items = [*plain.expressions, *(e for _, e in hidden)]
            binding = splitter.bound(changed(plain, expressions=items), self.scope, start)
            if binding is None or len(binding[2]) != len(columns) + len(hidden):
                return False
        if not distinct:
            binding = self._first_rows(binding)
        name = splitter.parts.add(*binding, splitter.sql[start:end])
        text = shown(name, columns)
        if distinct:
            text = text.replace("SELECT", "SELECT DISTINCT", 1)
            splitter.parts.why.append(Why(start, "DISTINCT runs in DuckDB"))
        splitter.edits.replace(start, end, text)
        for n, (item, _) in enumerate(hidden):
            a, b = splitter.structure.span(item)
            splitter.edits.replace(a, b, f"{name}.c{len(columns) + n}")
        for word, part in self.modifiers.items():
            splitter.parts.why.append(
                Why(splitter.structure.span(part)[0], f"{word} runs in DuckDB")
            )
        return True

    def _first_rows(
        self, binding: tuple[exp.Expr, frozenset[str], list[str]]
    ) -> tuple[exp.Expr, frozenset[str], list[str]]:
        """A bound SELECT with no other rows than those that ORDER BY and LIMIT may return.

        QUALIFY selects them by their ROW_NUMBER, if the SELECT binds with it.
        """
        tree, foreign, names = binding
        assert isinstance(tree, exp.Select)
        clause, most = self.modifiers.get("ORDER BY"), self._most()
        if clause is None or most is None or tree.args.get("qualify") is not None:
            return binding
        ordered = self.splitter.tree(*self.splitter.structure.span(clause), "SELECT 1 ")
        order = None if ordered is None else ordered.args.get("order")
        if order is None:
            return binding
        for term in order.expressions:
            meant = _meant(term.this, tree.expressions)
            if meant is None:
                return binding
            term.set("this", meant.copy())
        window = exp.Window(this=exp.RowNumber(), order=order.copy(), over="OVER")
        limit = exp.LTE(this=window, expression=exp.Literal.number(most))
        limited = changed(tree, qualify=exp.Qualify(this=limit))
        bound = self.splitter.parts.bind(limited, foreign)
        return (limited, foreign, names) if isinstance(bound, list) else binding

    def _most(self) -> int | None:
        """The number of rows up to the end of LIMIT and OFFSET; None if it is no literal."""
        structure, most = self.splitter.structure, 0
        for word, clause in self.modifiers.items():
            if word == "ORDER BY":
                continue
            number = structure.tokens[clause.last - 1].text
            if word not in ("LIMIT", "OFFSET") or clause.last - clause.first != 2:
                return None
            if not number.isdecimal():
                return None
            most += int(number)
        return most if "LIMIT" in self.modifiers and most > 0 else None

    def _orders(self) -> Iterator[Range]:
        """Yields the token ranges of ORDER BY's expressions."""
        clause = self.modifiers.get("ORDER BY")
        if clause is None:
            return
        word = self.splitter.structure.word
        for item in self.items(clause.first + 1, clause.last):
            last = item.last
            while word(last - 1) in ("ASC", "DESC", "FIRST", "LAST", "NULLS"):
                last -= 1
            yield Range(item.first, last)

    def items(self, first: int, last: int) -> Iterator[Range]:
        """Splits tokens at commas outside parentheses."""
        structure = self.splitter.structure
        start = first
        for at in structure.outer(first, last):
            if structure.word(at) in (",", "[", "{"):
                if structure.word(at) != ",":  # excludes commas in lists and structs
                    yield Range(first, first)
                    return
                yield Range(start, at)
                start = at + 1
        yield Range(start, last)

    def _order(self, item: Range, columns: list[str]) -> exp.Expr | bool:
        """Decides on an ORDER BY expression.

        Returns:
            True to keep the expression, the expression of a hidden column, or False if the SELECT
            cannot be a fragment.
        """
        structure, tokens = self.splitter.structure, self.splitter.structure.tokens
        if item.first >= item.last:
            return False
        known = [c.lower() for c in columns]
        if item.last - item.first == 1:
            token = tokens[item.first]
            if structure.word(item.first) == "ALL" or token.text.isdecimal():
                return True
            if token.text.lower() in known:
                return known.count(token.text.lower()) == 1
        start, end = structure.span(item)
        select = self.splitter.tree(start, end, "SELECT ")
        if not isinstance(select, exp.Select) or len(select.expressions) != 1:
            return False
        expression = select.expressions[0]
        if expression.find(exp.Query, exp.Window) is not None:
            return False
        aliases = {
            e.alias.lower(): e.this for e in self.tree.expressions if isinstance(e, exp.Alias)
        }
        names = list(expression.find_all(exp.Column))
        for column in names:
            alias = None if column.table else aliases.get(column.name.lower())
            if alias is not None and column_name(alias).lower() != column.name.lower():
                # The alias may hide a column; DuckDB and einsql resolve that differently.
                return all(not n.table and known.count(n.name.lower()) == 1 for n in names) and (
                    expression.find(exp.AggFunc) is None and not self._is_column(column.name)
                )
        group = self.tree.args.get("group")
        if group is not None and group.args.get("all"):
            return False
        assert isinstance(expression, exp.Expr)
        return expression

    def _is_column(self, name: str) -> bool:
        """Returns True if a column in FROM may have the alias's name."""
        probe = changed(self.tree, distinct=None, group=None, having=None, qualify=None)
        probe.set("expressions", [exp.column(exp.to_identifier(name, quoted=True))])
        return isinstance(self.splitter.parts.bind(probe, frozenset()), list)

    # ---- the groups, which the rest of the SELECT reads

    def _groups(self) -> bool:
        clauses = self.block.clauses
        if next(iter(clauses), "") != "SELECT" or "FROM" not in clauses:
            return False
        outer = [c for c in ("SELECT", "HAVING", "WINDOW", "QUALIFY") if c in clauses]
        ranges = [*(clauses[c] for c in outer), *self.modifiers.values()]
        if any(r.first <= c.range.first < r.last for r in ranges for c in self.block.children):
            return False
        keys = self._keys()
        if keys is None:
            return False
        calls = [c for r in ranges for c in self._calls(r)]
        dependent = [c for r in ranges for c in self._dependent(r, keys)]
        if not calls and not keys:
            return False
        if _Groups(self, keys, [*calls, *dependent], ranges).split():
            return True
        self._read_any_values([node for node, _, _ in keys], dependent)
        return False

    def _keys(self) -> list[tuple[exp.Expr, Range, int | None]] | None:
        """Returns each key of GROUP BY, its tokens, and the index of its SELECT item, if any."""
        group = self.tree.args.get("group")
        if group is None:
            return []
        if any(v for a, v in group.args.items() if a != "expressions"):
            return None
        clause = self.block.clauses["GROUP BY"]
        ranges = list(self.items(clause.first + 1, clause.last))
        if len(ranges) != len(group.expressions):
            return None
        keys: list[tuple[exp.Expr, Range, int | None]] = []
        items = self.tree.expressions
        aliases = [e.alias.lower() if isinstance(e, exp.Alias) else "" for e in items]
        for node, part in zip(group.expressions, ranges, strict=True):
            n: int | None = None
            if isinstance(node, exp.Literal):
                n = int(node.name) - 1 if node.name.isdecimal() else -1
            elif isinstance(node, exp.Column) and not node.table:
                name = node.name.lower()
                n = aliases.index(name) if name in aliases else None
                if n is not None and self._is_column(name):
                    n = None
            if n is not None and not 0 <= n < len(items):
                return None
            keys.append((node if n is None else items[n].unalias(), part, n))
        return keys

    def _calls(self, part: Range) -> Iterator[Range]:
        """Yields calls of aggregates, with FILTER and fields, that are not window functions."""
        structure = self.splitter.structure
        at = part.first
        while at < part.last:
            close = structure.closes.get(at + 1)
            if close is None or not self._is_aggregate(at):
                at += 1
                continue
            end = structure.call_end(close)
            if structure.word(end) == ".":  # the field of a result
                end += 2
                if structure.word(end) == "FILTER":
                    end = structure.closes[end + 1] + 1
            if structure.word(end) == "OVER":
                at += 2
                continue
            yield Range(at, end)
            at = end

    def _dependent(
        self, part: Range, keys: Sequence[tuple[exp.Expr, Range, int | None]]
    ) -> list[Range]:
        """The columns `table.name` beside aggregates, which GROUP BY has to determine."""
        structure, word = self.splitter.structure, self.splitter.structure.word
        named = {node.name.lower() for node, _, _ in keys if isinstance(node, exp.Column)}
        taken = {n for _, key, _ in keys for n in range(key.first, key.last)}
        aggregates = self.splitter.parts.aggregates()
        columns, at = [], part.first
        while keys and at < part.last:
            close = structure.closes.get(at + 1)
            name = structure.tokens[at].text.lower()
            if close is not None and (name in aggregates or self._is_aggregate(at)):
                at = structure.call_end(close)
                continue
            is_qualified = word(at + 1) == "." and word(at - 1) != "."
            if is_qualified and at not in taken and word(at + 3) not in (".", "("):
                if structure.tokens[at + 2].text.lower() not in {*named, "*"}:
                    columns.append(Range(at, at + 3))
                at += 2
            at += 1
        return columns

    def _read_any_values(self, keys: list[exp.Expr], columns: list[Range]) -> None:
        """Writes ANY_VALUE for columns that GROUP BY determines, because DuckDB requires it."""
        splitter = self.splitter
        for part in columns:
            start, end = splitter.structure.span(part)
            select = splitter.tree(start, end, "SELECT ")
            if not isinstance(select, exp.Select):
                continue
            group = exp.Group(expressions=[k.copy() for k in keys])
            dropped = dict.fromkeys(("distinct", "having", "qualify", "windows"))
            probe = changed(self.tree, **dropped, expressions=select.expressions, group=group)
            if splitter.binds(probe, self.scope):
                splitter.edits.replacements += [(start, start, "ANY_VALUE("), (end, end, ")")]

    def _is_aggregate(self, at: int) -> bool:
        """Returns whether a token is the name of an aggregate, of CREATE AGGREGATE included."""
        structure = self.splitter.structure
        return structure.word(at) in _NAMES or self.splitter.parts.is_aggregate(
            structure.tokens[at].text
        )


def _meant(term: exp.Expr, items: Sequence[exp.Expr]) -> exp.Expr | None:
    """The expression of a term of ORDER BY, in which the names of SELECT items precede columns.

    Returns:
        None if a name inside of an expression may be that of an item.
    """
    if isinstance(term, exp.Literal) and term.name.isdecimal():
        number = int(term.name)
        return items[number - 1].unalias() if 0 < number <= len(items) else None
    aliases: dict[str, exp.Expr] = {
        e.alias.lower(): e.this for e in items if isinstance(e, exp.Alias)
    }
    if isinstance(term, exp.Column) and not term.table:
        return aliases.get(term.name.lower(), term)
    columns = term.find_all(exp.Column)
    return None if any(not c.table and c.name.lower() in aliases for c in columns) else term


def _is_starred(node: exp.Expr) -> bool:
    return isinstance(node.this if isinstance(node, exp.Column) else node, exp.Star)


@dataclass
class _Groups:
    core: Core
    keys: list[tuple[exp.Expr, Range, int | None]]
    calls: list[Range]
    ranges: list[Range]

    def split(self) -> bool:
        core, splitter = self.core, self.core.splitter
        structure = splitter.structure
        trees = []
        for call in self.calls:
            select = splitter.tree(*structure.span(call), "SELECT ")
            if not isinstance(select, exp.Select) or len(select.expressions) != 1:
                return False
            trees.append(select.expressions[0])
        keys = [node for node, _, _ in self.keys]
        items = [
            exp.Alias(this=node.copy(), alias=exp.to_identifier(f"c{n}"))
            for n, node in enumerate([*keys, *trees])
        ]
        group = exp.Group(expressions=[k.copy() for k in keys]) if keys else None
        plain = changed(
            core.tree,
            distinct=None,
            having=None,
            qualify=None,
            windows=None,
            expressions=items,
            group=group,
        )
        start, end = structure.span(core.block.range)
        binding = splitter.bound(plain, core.scope, start)
        if binding is None:
            return False
        name = splitter.parts.next_name
        edits = self._edits(name)
        if edits is None or not self._closed(name, edits):
            return False
        splitter.parts.add(*binding, splitter.sql[start:end])
        splitter.edits.replacements += edits
        return True

    def _edits(self, name: str) -> list[tuple[int, int, str]] | None:
        core, structure = self.core, self.core.splitter.structure
        clauses = core.block.clauses
        edits = [
            (*structure.span(call), f"{name}.c{len(self.keys) + n}")
            for n, call in enumerate(self.calls)
        ]
        first = clauses["SELECT"].first + 1
        while structure.word(first) in ("DISTINCT", "ALL"):
            first += 1
        ranges = list(core.items(first, clauses["SELECT"].last))
        nodes = core.tree.expressions
        if len(ranges) != len(nodes) or any(map(_is_starred, nodes)):
            return None
        key_of_item = {n: k for k, (_, _, n) in enumerate(self.keys) if n is not None}
        outputs = {(n.alias or column_name(n)).lower() for n in nodes}
        for n, (part, node) in enumerate(zip(ranges, nodes, strict=True)):
            a, b = structure.span(part)
            if n in key_of_item:
                shown_as = node.alias if isinstance(node, exp.Alias) else column_name(node)
                edits.append((a, b, f"{name}.c{key_of_item[n]} AS {in_quotes(shown_as)}"))
                continue
            edits += self._matches(part, name, frozenset())
            if not isinstance(node, exp.Alias):
                edits.append((b, b, f" AS {in_quotes(column_name(node))}"))
        for clause in self.ranges[1:]:
            is_order = clause in core.modifiers.values()
            edits += self._matches(clause, name, frozenset(outputs if is_order else ()))
        last = max(c.last for w, c in clauses.items() if w in ("FROM", "WHERE", "GROUP BY"))
        span = structure.span(Range(clauses["FROM"].first, last))
        edits.append((*span, f"FROM {name}"))
        if "HAVING" in clauses:
            token = structure.tokens[clauses["HAVING"].first]
            edits.append((token.start, token.end + 1, "WHERE"))
        return edits

    def _matches(
        self, part: Range, name: str, outputs: frozenset[str]
    ) -> list[tuple[int, int, str]]:
        """Returns edits that replace the keys' expressions but no aliases, longest match first."""
        structure = self.core.splitter.structure
        tokens = structure.tokens
        edits: list[tuple[int, int, str]] = []
        taken = [n for c in self.calls for n in range(c.first, c.last)]
        keys = [(k, p) for k, (_, p, n) in enumerate(self.keys) if n is None]
        at = part.first
        while at < part.last:
            best: tuple[int, int] | None = None
            is_name = structure.word(at + 1) not in ("(", ".") and structure.word(at - 1) != "."
            for k, p in keys:
                size = p.last - p.first
                same = at + size <= part.last and all(
                    tokens[at + n].text.lower() == tokens[p.first + n].text.lower()
                    for n in range(size)
                )
                tail = tokens[p.last - 1].text.lower()
                is_column = isinstance(self.keys[k][0], exp.Column)
                if same and size == 1 and not is_name:
                    same = False
                if not same and is_column and size == 3 and is_name:
                    same, size = tokens[at].text.lower() == tail, 1
                elif not same and is_column and size == 1 and structure.word(at + 1) == ".":
                    same = at + 2 < part.last and tokens[at + 2].text.lower() == tail
                    size = 3
                if same and (best is None or size > best[1]):
                    best = k, size
            if best is None or at in taken:
                at += 1
                continue
            k, size = best
            if not (size == 1 and tokens[at].text.lower() in outputs):
                a, b = structure.span(Range(at, at + size))
                edits.append((a, b, f"{name}.c{k}"))
            at += size
        return edits

    def _closed(self, name: str, replacements: list[tuple[int, int, str]]) -> bool:
        """Returns True if the remaining text reads only groups, and aggregates only in windows."""
        core, splitter = self.core, self.core.splitter
        structure = splitter.structure
        edits = Edits(splitter.sql, list(replacements))
        last = max(r.last for r in (core.block.range, *core.modifiers.values()))
        a, b = structure.span(Range(core.block.range.first, last))
        try:
            tree = parsed(edits.result(a, b).text)
        except ParseError:
            return False
        aliases = {e.alias.lower() for e in tree.expressions if isinstance(e, exp.Alias)}
        for column in tree.find_all(exp.Column):
            known = column.table == name if column.table else column.name.lower() in aliases
            if not known and not isinstance(column.parent, exp.Lambda):
                return False
        aggregates = splitter.parts.aggregates()
        for r in self.ranges:
            for at in range(r.first, r.last):
                called = structure.closes.get(at + 1)
                if called is None or edits.covers(structure.tokens[at].start):
                    continue
                is_aggregate = structure.tokens[at].text.lower() in aggregates
                if is_aggregate and structure.word(structure.call_end(called)) != "OVER":
                    return False
        return True
