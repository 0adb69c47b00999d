"""Reads hints: the number of parts into which a SELECT cuts some of its keys.

`SELECT /*+ PARTITION(i=2, b.k=4) */ …`, or RING(b.k=4) for parts that pass from site to site.
sqlglot keeps such a comment as text without a position, so this module reads hints from the
statement's tokens. For sqlglot a number replaces the text of each hint. In the tree the hint then
replaces the number.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sqlglot import TokenType, exp

from einsql.core.records import dataclass
from einsql.errors import ProgrammingError
from einsql.sql.parser.lexical import QUIET
from einsql.sql.parser.tokens import TokenReader, tokenize

_HINTS = re.compile(rf"(?P<hint> /\*\+ .*? \*/ ) | {QUIET}", re.VERBOSE | re.DOTALL)
_OPEN, _CLOSE = "/*+", "*/"
KIND = "hint"
"""The entry of a column's `meta` with the kind of its hint."""
PARTITION, RING = KINDS = ("PARTITION", "RING")
"""The kinds of hints."""
_FORM = "Hints are PARTITION(key=parts, …) and RING(key=parts), as in /*+ PARTITION(i=2, b.k=4) */."


@dataclass(frozen=True, slots=True)
class Hint:
    """A hint: its position, and for each key an equality of a column and a number."""

    position: int
    items: list[exp.Expr]


def numbered(text: str, offset: int) -> tuple[str, list[Hint]]:
    """Replaces each hint in a text by its padded number; returns the new text and the hints.

    Args:
        text: The SQL text.
        offset: The offset of the text in the statement, which is added to positions.

    Raises:
        ProgrammingError: A hint does not have the form PARTITION(key=parts, …).
    """
    if _OPEN not in text:
        return text, []
    hints: list[Hint] = []
    parts, last = [], 0
    for match in _HINTS.finditer(text):
        inside = match.start() + len(_OPEN), match.end() - len(_CLOSE)
        if match["hint"] is None or not text[slice(*inside)].strip():
            continue
        parts += [text[last : inside[0]], str(len(hints)).ljust(inside[1] - inside[0])]
        last = inside[1]
        try:
            items = _read(text[slice(*inside)], offset + inside[0])
        except ProgrammingError as error:
            error.hint = _FORM
            raise
        hints.append(Hint(offset + match.start(), items))
    return "".join(parts) + text[last:], hints


def _read(text: str, offset: int) -> list[exp.Expr]:
    inside = " " * offset + text
    reader = TokenReader(inside, tokenize(inside))
    equalities: list[exp.Expr] = []
    while not reader.ended:
        kind = reader.word()
        if kind not in KINDS or reader.word(1) != "(":
            raise reader.error("Expected PARTITION( or RING(")
        reader.take(kind, "(")
        while True:
            equalities.append(_equality(reader, kind))
            if not reader.take(","):
                break
        reader.expect(")", "behind a hint")
        reader.take(",")
    return equalities


def _equality(reader: TokenReader, kind: str) -> exp.Expr:
    at = reader.position()
    words = [_word(reader)]
    if reader.take("."):
        words.append(_word(reader))
    reader.expect("=", "behind a key")
    parts = reader.integer("a number of parts", least=1)
    column = exp.column(words[-1], table=words[0] if len(words) > 1 else None, quoted=True)
    column.this.meta["start"] = at
    column.meta[KIND] = kind
    return exp.EQ(this=column, expression=exp.Literal.number(parts))


def _word(reader: TokenReader) -> str:
    token = None if reader.ended else reader.tokens[reader.at]
    quoted = token is not None and token.token_type is TokenType.IDENTIFIER
    if token is None or not (quoted or re.fullmatch(r"[^\W\d][\w$]*", reader.word())):
        raise reader.error("Expected a key")
    reader.at += 1
    return str(token.text)


def placed(tree: exp.Expr, hints: Sequence[Hint]) -> None:
    """Replaces the numbers in a tree by their hints.

    Raises:
        ProgrammingError: A hint does not follow SELECT.
    """
    waiting = dict(enumerate(hints))
    for node in tree.find_all(exp.Hint) if hints else ():
        node.set("expressions", waiting.pop(int(str(node.expressions[0]))).items)
    for hint in waiting.values():
        raise ProgrammingError(
            "A hint must directly follow SELECT, at most one for each",
            hint=_FORM,
            position=hint.position,
        )
