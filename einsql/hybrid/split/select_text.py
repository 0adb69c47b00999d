"""A SELECT by its text and its tree."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.hybrid.split.blocks import Block, Range
from einsql.hybrid.split.scopes import Scope
from einsql.hybrid.split.split import Splitter
from einsql.sql.functions.aggregate_functions import AGGREGATES

_NAMES = frozenset(
    {n.upper() for n in AGGREGATES if isinstance(n, str)}
    | {
        n
        for c in AGGREGATES
        if isinstance(c, type) and issubclass(c, exp.Func)
        for n in c.sql_names()
    }
)


@dataclass
class SelectText:
    """A SELECT that is to be split.

    Attributes:
        modifiers: The ORDER BY, LIMIT and OFFSET that follow the SELECT.
        tree: The SELECT without modifiers.
    """

    splitter: Splitter
    block: Block
    modifiers: dict[str, Range]
    scope: Scope
    tree: exp.Select

    def items(self, first: int, last: int) -> Iterator[Range]:
        """Splits tokens at commas outside parentheses, lists and structs."""
        structure = self.splitter.structure
        start, depth = first, 0
        for at in structure.outer(first, last):
            word = structure.word(at)
            depth += (word in ("[", "{")) - (word in ("]", "}"))
            if word == "," and not depth:
                yield Range(start, at)
                start = at + 1
        yield Range(start, last)

    def calls(self, part: Range) -> Iterator[Range]:
        """Yields calls of aggregates, with FILTER and fields, that are not window functions."""
        structure = self.splitter.structure
        at = part.first
        while at < part.last:
            close = structure.closes.get(at + 1)
            if close is None or not self.is_aggregate(at):
                at += 1
                continue
            end = self.call_end(close)
            if structure.word(end) == "OVER":
                at += 2
                continue
            yield Range(at, end)
            at = end

    def call_end(self, close: int) -> int:
        """The token behind a call of an aggregate, its field and FILTER included."""
        structure = self.splitter.structure
        end = structure.call_end(close)
        if structure.word(end) == ".":  # the field of a result
            end += 2
            if structure.word(end) == "FILTER":
                end = structure.closes[end + 1] + 1
        return end

    def is_aggregate(self, at: int) -> bool:
        """Returns whether a token is the name of an aggregate, of CREATE AGGREGATE included."""
        structure = self.splitter.structure
        return structure.word(at) in _NAMES or self.splitter.parts.is_aggregate(
            structure.tokens[at].text
        )
