"""The structure of queries by their tokens: WITH, operands of set operations, SELECT clauses.

Parsing uses only parentheses and the words that begin clauses. It therefore reads every query of
DuckDB, and each part has its position in the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field

from sqlglot import Token, TokenType

from einsql.core.records import dataclass
from einsql.sql.parser.tokens import word_of

_SET = ("UNION", "EXCEPT", "INTERSECT")
_CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP BY", "HAVING", "WINDOW", "QUALIFY", "USING SAMPLE")
_MODIFIERS = ("ORDER BY", "LIMIT", "OFFSET", "FETCH")
STARTS = ("SELECT", "WITH", "FROM", "VALUES", "TABLE", "PIVOT", "UNPIVOT", "SUMMARIZE", "DESCRIBE")
"""First words of a query in parentheses."""


@dataclass(frozen=True, slots=True)
class Range:
    """The tokens `[first, last)`."""

    first: int
    last: int


@dataclass(slots=True)
class Block:
    """A SELECT, VALUES or TABLE.

    Attributes:
        range: The tokens.
        clauses: The tokens of each clause, with its keyword.
        children: The outermost queries in parentheses, in text order.
    """

    range: Range
    clauses: dict[str, Range]
    children: list[QueryText]


@dataclass(slots=True)
class Cte:
    """A name of WITH.

    Attributes:
        name: The name.
        range: The tokens from the name to the closing parenthesis.
        query: The query in the parentheses.
        plain: Whether only a column list precedes AS.
    """

    name: str
    range: Range
    query: QueryText
    plain: bool


@dataclass(slots=True)
class QueryText:
    """A query.

    Attributes:
        range: The tokens.
        body: The tokens after WITH, with the modifiers.
        recursive: Whether WITH is RECURSIVE.
        ctes: The names of WITH.
        operands: The operands of set operations; one operand if there are none.
        modifiers: The ORDER BY, LIMIT, OFFSET and FETCH that follow the operands.
        children: Queries in parentheses inside the modifiers.
    """

    range: Range
    body: Range
    recursive: bool = False
    ctes: list[Cte] = field(default_factory=list)
    operands: list[Block | QueryText] = field(default_factory=list)
    modifiers: dict[str, Range] = field(default_factory=dict)
    children: list[QueryText] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Reference:
    """The relation, file or function call that a FROM item reads.

    Attributes:
        range: The name, with the arguments of a function.
        name: The name.
        is_text: Whether the name is a string, as for files.
        is_call: Whether the reference is a function call.
        qualified: Whether the name has a schema.
        aliased: Whether an alias follows.
    """

    range: Range
    name: str
    is_text: bool
    is_call: bool
    qualified: bool
    aliased: bool


class Structure:
    """Reads the structure of a statement's tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.closes: dict[int, int] = {}
        stack: list[int] = []
        for n, token in enumerate(tokens):
            if token.token_type is TokenType.L_PAREN:
                stack.append(n)
            elif token.token_type is TokenType.R_PAREN and stack:
                self.closes[stack.pop()] = n

    def word(self, at: int) -> str:
        """Returns a token in upper case, or "" for quoted text and beyond the end."""
        return word_of(self.tokens[at]) if 0 <= at < len(self.tokens) else ""

    def span(self, part: Range) -> tuple[int, int]:
        """Returns the offsets of the text of some tokens."""
        if part.first >= part.last:
            at = self.tokens[part.first].start if part.first < len(self.tokens) else 0
            return at, at
        return self.tokens[part.first].start, self.tokens[part.last - 1].end + 1

    def outer(self, first: int, last: int) -> Iterator[int]:
        """Yields the tokens outside parentheses, including opening parentheses."""
        at = first
        while at < last:
            yield at
            at = self.closes.get(at, at) + 1

    def call_end(self, close: int) -> int:
        """Returns the end of a call with its FILTER, given its closing parenthesis."""
        if self.word(close + 1) == "FILTER":
            close = self.closes.get(close + 2, close)
        return close + 1

    # ---- queries

    def query(self, first: int, last: int) -> QueryText:
        """Parses some tokens as a query."""
        query_text = QueryText(Range(first, last), Range(first, last))
        at = self._with(query_text, first) if self.word(first) == "WITH" else first
        query_text.body = Range(at, last)
        starts = [at]
        end = last
        for n in self.outer(at, last):
            word = self.word(n)
            if word in _SET:
                while self.word(n + 1) in ("ALL", "DISTINCT", "BY", "NAME", "BY NAME"):
                    n += 1
                starts.append(n + 1)
                end = last
            elif word in _MODIFIERS and end == last:
                end = n
        stops = [self._before(s) for s in starts[1:]] + [end]
        query_text.operands = [
            self._operand(a, b) for a, b in zip(starts, stops, strict=True) if a < b
        ]
        query_text.modifiers = self._split(end, last, _MODIFIERS)
        query_text.children = list(self.children(end, last))
        return query_text

    def _before(self, start: int) -> int:
        at = start - 1
        while self.word(at) not in _SET:
            at -= 1
        return at

    def _with(self, query_text: QueryText, first: int) -> int:
        at = first + 1
        if self.word(at) == "RECURSIVE":
            query_text.recursive = True
            at += 1
        while at < query_text.range.last:
            start, plain = at, True
            at += 1
            if self.closes.get(at):
                at = self.closes[at] + 1
            while at < query_text.range.last and self.word(at) != "AS":
                at, plain = self.closes.get(at, at) + 1, False
            at += 1
            while at < query_text.range.last and at not in self.closes:
                at += 1
            close = self.closes.get(at, query_text.range.last - 1)
            inner = self.query(at + 1, close)
            name = self.tokens[start].text
            query_text.ctes.append(Cte(name, Range(start, close + 1), inner, plain))
            at = close + 1
            if self.word(at) != ",":
                break
            at += 1
        return at

    def _operand(self, first: int, last: int) -> Block | QueryText:
        if self.closes.get(first) == last - 1:
            return self.query(first + 1, last - 1)
        clauses = self._split(first, last, _CLAUSES)
        return Block(Range(first, last), clauses, list(self.children(first, last)))

    def _split(self, first: int, last: int, words: tuple[str, ...]) -> dict[str, Range]:
        marks: list[tuple[str, int]] = []
        for n in self.outer(first, last):
            word = self.word(n)
            if word == "USING" and self.word(n + 1) == "SAMPLE":
                word = "USING SAMPLE"
            is_clause = word in words and not self._is_other(word, n)
            if is_clause and word not in dict(marks):
                marks.append((word, n))
        ends = [*(n for _, n in marks), last][1:]
        return {w: Range(n, e) for (w, n), e in zip(marks, ends, strict=False)}

    def _is_other(self, word: str, at: int) -> bool:
        """Returns True if the word does not begin a clause here."""
        if word == "FROM":
            return self.word(at - 1) == "DISTINCT" and self.word(at - 2) in ("IS", "NOT")
        if word == "WINDOW":
            return self.word(at + 2) != "AS"
        return self.word(at - 1) == "."

    def children(self, first: int, last: int) -> Iterator[QueryText]:
        """Yields the outermost queries in parentheses among some tokens."""
        at = first
        while at < last:
            if at in self.closes and self.word(at + 1) in STARTS and not self._is_call(at):
                yield self.query(at + 1, self.closes[at])
                at = self.closes[at]
            at += 1

    def _is_call(self, at: int) -> bool:
        """Returns True if `(FROM`, `(VALUES` … are arguments of EXTRACT, TRIM or a similar call."""
        return self.word(at + 1) not in ("SELECT", "WITH", "FROM") and self.word(at - 1) in (
            "EXTRACT",
            "TRIM",
            "SUBSTRING",
            "OVERLAY",
        )

    # ---- FROM

    def references(self, clause: Range) -> Iterator[Reference]:
        """Yields the references of a FROM clause, except queries in parentheses."""
        yield from self._items(clause.first + 1, clause.last)

    def _items(self, first: int, last: int) -> Iterator[Reference]:
        at, expected = first, True
        while at < last:
            word, close = self.word(at), self.closes.get(at)
            if not expected:
                expected = word in (",", "JOIN")
                at = (at if close is None else close) + 1
                continue
            if word == "LATERAL":
                at += 1
                continue
            expected = False
            if close is not None:
                if self.word(at + 1) not in STARTS:
                    yield from self._items(at + 1, close)
                at = close + 1
                continue
            reference = self._reference(at, last)
            if reference is not None:
                yield reference
                at = reference.range.last
                continue
            at += 1

    def _reference(self, at: int, last: int) -> Reference | None:
        start, qualified = at, False
        while self.word(at + 1) == "." and at + 2 < last:
            at, qualified = at + 2, True
        token = self.tokens[at]
        is_text = token.token_type is TokenType.STRING
        is_call = at + 1 in self.closes and not is_text
        end = self.closes[at + 1] + 1 if is_call else at + 1
        after = self.tokens[end] if end < last else None
        names = after is not None and (
            after.token_type in (TokenType.VAR, TokenType.IDENTIFIER, TokenType.ALIAS)
        )
        return Reference(Range(start, end), token.text, is_text, is_call, qualified, names)
