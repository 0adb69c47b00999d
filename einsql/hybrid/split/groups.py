"""Splits a SELECT whose groups are a fragment."""

from __future__ import annotations

from collections.abc import Container

from sqlglot import Token, TokenType, exp
from sqlglot.errors import ParseError

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.hybrid.split.blocks import Range
from einsql.hybrid.split.edits import Edits
from einsql.hybrid.split.parts import column_of
from einsql.hybrid.split.select_text import SelectText
from einsql.hybrid.split.split import changed
from einsql.sql.parser.column_names import column_name
from einsql.sql.parser.dialect import parsed

_GROUPINGS = ("grouping", "grouping_id")
"""Functions of the keys of GROUP BY itself."""
_TEXTS = frozenset(
    {
        TokenType.STRING,
        TokenType.NATIONAL_STRING,
        TokenType.RAW_STRING,
        TokenType.HEREDOC_STRING,
        TokenType.NUMBER,
        TokenType.PLACEHOLDER,
    }
)
_AFTER_NAMES = frozenset({"(", ".", ":=", "=>", "->", ":"})
"""Tokens behind a name of a function, a table, an argument, a parameter of a lambda, a field."""
_EDGES = frozenset(
    {"(", ")", "[", "]", "{", "}", ",", "SELECT", "DISTINCT", "HAVING", "QUALIFY", "ORDER BY",
     "PARTITION BY", "CASE", "WHEN", "THEN", "ELSE", "END", "AS", "ASC", "DESC", "NULLS"}
)  # fmt: skip
"""Tokens beside a complete expression."""
_COMPARISONS = frozenset({"=", "==", "<>", "!=", "<", ">", "<=", ">=", "AND", "OR", "NOT", "IS",
                          "IN", "BETWEEN"})  # fmt: skip
"""Operators that bind less than arithmetic."""
_ARITHMETIC = frozenset({"+", "-", "*", "/", "//", "%", "^", "**", "::", "(", ")", ",", "."})
_LOGIC = _COMPARISONS | {"CASE", "LIKE", "ILIKE", "SIMILAR", "GLOB", "COLLATE", "AT"}


def _is_same(one: Token, other: Token) -> bool:
    """True for equal tokens; names in any letter case. Parameters without a number are unlike."""
    if one.token_type in _TEXTS or other.token_type in _TEXTS:
        same_type = one.token_type == other.token_type != TokenType.PLACEHOLDER
        return same_type and one.text == other.text
    return one.text.lower() == other.text.lower()


def _is_starred(node: exp.Expr) -> bool:
    return isinstance(node.this if isinstance(node, exp.Column) else node, exp.Star)


def _sources(select: exp.Expr) -> frozenset[str]:
    """The lower-case names of the tables and subqueries of FROM, which qualify columns."""
    clauses = [select.args.get("from_"), *(select.args.get("joins") or ())]
    return frozenset(c.this.alias_or_name.lower() for c in clauses if c is not None)


def _is_item_of_order(name: exp.Expr) -> bool:
    """Whether a name is a complete item of the ORDER BY of a SELECT."""
    item = name.parent
    while isinstance(item, exp.Paren):
        item = item.parent
    order = item.parent if isinstance(item, exp.Ordered) else None
    return order is not None and isinstance(order.parent, exp.Select)


@dataclass
class Groups:
    """Makes FROM, WHERE and GROUP BY of a SELECT a fragment; DuckDB runs the rest over its rows.

    Attributes:
        keys: Each key of GROUP BY, its tokens, and the index of its SELECT item, if any.
        calls: The tokens of aggregates, and of columns that the keys determine.
        ranges: The tokens of SELECT, HAVING, WINDOW, QUALIFY and of the modifiers.
    """

    core: SelectText
    keys: list[tuple[exp.Expr, Range, int | None]]
    calls: list[Range]
    ranges: list[Range]

    def split(self) -> bool:
        """Splits the SELECT. Returns False, without a change, if its groups do not bind."""
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
            exp.Alias(this=node.copy(), alias=exp.to_identifier(column_of(n)))
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
            (*structure.span(call), f"{name}.{column_of(len(self.keys) + n)}")
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
                edits.append((a, b, f"{name}.{column_of(key_of_item[n])} AS {in_quotes(shown_as)}"))
                continue
            matches = self._matches(part, name, frozenset())
            edits += matches
            is_alias = isinstance(node, exp.Column) and not matches  # of an item before it
            if not isinstance(node, exp.Alias) and not is_alias:
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
        outer = {*structure.outer(part.first, part.last)}
        sources = _sources(self.core.tree)
        at = part.first
        while at < part.last:
            best: tuple[int, int] | None = None
            is_name = tokens[at].token_type not in _TEXTS
            is_name &= structure.word(at + 1) not in _AFTER_NAMES
            is_name &= structure.word(at - 1) not in (".", "AS")
            for k, p in keys:
                size = p.last - p.first
                same = at + size <= part.last and all(
                    _is_same(tokens[at + n], tokens[p.first + n]) for n in range(size)
                )
                same = same and self._is_operand(part, at, p)
                tail = tokens[p.last - 1].text.lower()
                is_column = isinstance(self.keys[k][0], exp.Column)
                if same and size == 1 and not is_name:
                    same = False
                if not same and is_column and size == 3 and is_name:
                    same, size = tokens[at].text.lower() == tail, 1
                elif not same and is_column and size == 1 and structure.word(at + 1) == ".":
                    same = at + 2 < part.last and tokens[at + 2].text.lower() == tail
                    same &= tokens[at].text.lower() in sources and structure.word(at - 1) != "."
                    size = 3
                if same and (best is None or size > best[1]):
                    best = k, size
            if best is None or at in taken:
                at += 1
                continue
            k, size = best
            is_output = size == 1 and tokens[at].text.lower() in outputs
            if not (is_output and self._is_item(part, at, outer)):
                a, b = structure.span(Range(at, at + size))
                edits.append((a, b, f"{name}.{column_of(k)}"))
            at += size
        return edits

    def _is_item(self, part: Range, at: int, outer: Container[int]) -> bool:
        """True if a name is a complete item of ORDER BY, where aliases precede columns.

        Args:
            part: The clause.
            at: The name, which may be in parentheses.
            outer: The tokens of the clause that are in no parentheses.
        """
        structure = self.core.splitter.structure
        word, first, last = structure.word, at, at + 1
        while first > part.first and structure.closes.get(first - 1) == last:
            first, last = first - 1, last + 1
        begins = first in outer and (first == part.first or word(first - 1) in ("ORDER BY", ","))
        return begins and (last == part.last or word(last) in (",", "ASC", "DESC", "NULLS"))

    def _is_operand(self, part: Range, at: int, key: Range) -> bool:
        """True if the tokens of a key at a place are an expression of their own.

        `i + 1` is no part of `2 * i + 1`. A key of operators must stand between parentheses,
        commas or keywords; one of arithmetic alone may also stand beside comparisons.
        """
        structure = self.core.splitter.structure
        words = [structure.word(n) for n in range(key.first, key.last)]
        if structure.closes.get(key.first + 1) == key.last - 1 or "." in words[1:2]:
            return structure.word(at - 1) != "."  # a call, or a column of a table
        if len(words) == 1 or structure.closes.get(key.first) == key.last - 1:
            return True
        after = at + len(words)
        simple = _ARITHMETIC.issuperset(w for w in words if not w[:1].isalnum() and w != "")
        simple = simple and not any(w in _LOGIC for w in words)
        beside = _EDGES | _COMPARISONS if simple else _EDGES
        begins = at == part.first or structure.word(at - 1) in beside
        return begins and (after == part.last or structure.word(after) in beside)

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
        grouped = {c.name.lower() for key, _, _ in self.keys for c in key.find_all(exp.Column)}
        for column in tree.find_all(exp.Column):
            own = column.name.lower()
            known = column.table == name if column.table else own in aliases
            # A column precedes an alias of its name, except as an item of ORDER BY.
            known &= bool(column.table) or own not in grouped or _is_item_of_order(column)
            if not known and not isinstance(column.parent, exp.Lambda):
                return False
        aggregates = splitter.parts.aggregates()
        for r in self.ranges:
            for at in range(r.first, r.last):
                called = structure.closes.get(at + 1)
                if called is not None and structure.tokens[at].text.lower() in _GROUPINGS:
                    return False  # DuckDB needs its GROUP BY
                if called is None or edits.covers(structure.tokens[at].start):
                    continue
                is_aggregate = structure.tokens[at].text.lower() in aggregates
                if is_aggregate and structure.word(structure.call_end(called)) != "OVER":
                    return False
        return True
