"""PARTITION hints: into how many parts a SELECT cuts some of its keys over several sites.

`SELECT /*+ PARTITION(i=2, b.k=4) */ …`: sqlglot keeps such a comment as text without a
position, so hints are read here from the statement's own tokens. sqlglot sees their
numbers instead, and what was read takes the numbers' place in the tree.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from sqlglot import TokenType, exp

from einsql.core.schema import DType
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import TRUE, Label
from einsql.sql.binder.scalar import ScalarBinder, position
from einsql.sql.parser.lexical import QUIET
from einsql.sql.parser.tokens import TokenReader, tokenize

if TYPE_CHECKING:
    from einsql.sql.binder.select import SelectBinder

_HINTS = re.compile(rf"(?P<hint> /\*\+ .*? \*/ ) | {QUIET}", re.VERBOSE | re.DOTALL)
_OPEN, _CLOSE = "/*+", "*/"
_FORM = "Hints are PARTITION(key=parts, …), as in /*+ PARTITION(i=2, b.k=4) */."


@dataclass(frozen=True, slots=True)
class Hint:
    """A hint: where it stands, and equalities of a column and a number."""

    position: int
    items: list[exp.Expr]


def numbered(text: str, offset: int) -> tuple[str, list[Hint]]:
    """The text with each hint's number in its place, padded, and the hints.

    Args:
        text: SQL.
        offset: Where it starts; positions count from there.

    Raises:
        ProgrammingError: A hint is not PARTITION(key=parts, …).
    """
    if _OPEN not in text:
        return text, []
    hints: list[Hint] = []
    parts, last = [], 0
    for found in _HINTS.finditer(text):
        inside = found.start() + len(_OPEN), found.end() - len(_CLOSE)
        if found["hint"] is None or not text[slice(*inside)].strip():
            continue
        parts += [text[last : inside[0]], str(len(hints)).ljust(inside[1] - inside[0])]
        last = inside[1]
        try:
            items = _read(text[slice(*inside)], offset + inside[0])
        except ProgrammingError as error:
            error.hint = _FORM
            raise
        hints.append(Hint(offset + found.start(), items))
    return "".join(parts) + text[last:], hints


def _read(text: str, offset: int) -> list[exp.Expr]:
    inside = " " * offset + text
    reader = TokenReader(inside, tokenize(inside))
    found: list[exp.Expr] = []
    while not reader.ended:
        if reader.word() != "PARTITION" or reader.word(1) != "(":
            raise reader.error("Expected PARTITION(")
        reader.take("PARTITION", "(")
        while True:
            found.append(_equality(reader))
            if not reader.take(","):
                break
        reader.expect(")", "behind a hint")
        reader.take(",")
    return found


def _equality(reader: TokenReader) -> exp.Expr:
    at = reader.position()
    words = [_word(reader)]
    if reader.take("."):
        words.append(_word(reader))
    reader.expect("=", "behind a key")
    parts = reader.integer("a number of parts", least=1)
    column = exp.column(words[-1], table=words[0] if len(words) > 1 else None, quoted=True)
    column.this.meta["start"] = at
    return exp.EQ(this=column, expression=exp.Literal.number(parts))


def _word(reader: TokenReader) -> str:
    token = None if reader.ended else reader.tokens[reader.at]
    quoted = token is not None and token.token_type is TokenType.IDENTIFIER
    if token is None or not (quoted or re.fullmatch(r"[^\W\d][\w$]*", reader.word())):
        raise reader.error("Expected a key")
    reader.at += 1
    return str(token.text)


def placed(tree: exp.Expr, hints: Sequence[Hint]) -> None:
    """Puts what was read in the place of the numbers in a tree.

    Raises:
        ProgrammingError: A hint does not stand behind SELECT.
    """
    waiting = dict(enumerate(hints))
    for node in tree.find_all(exp.Hint) if hints else ():
        node.set("expressions", waiting.pop(int(str(node.expressions[0]))).items)
    for hint in waiting.values():
        raise ProgrammingError(
            "A hint stands right behind SELECT, one for each", hint=_FORM, position=hint.position
        )


def bind_hint(binder: SelectBinder, select: exp.Select) -> dict[str, int]:
    """Labels of a SELECT's domain with their parts, in the order of the hint.

    Raises:
        ProgrammingError: A column is unknown, no key, computed, too short or named twice,
            or all parts together ask for more calls than there are sites.
    """
    hint = select.args.get("hint")
    if hint is None:
        return {}
    parts: dict[str, int] = {}
    for item in hint.expressions:
        column, number = item.this, int(item.expression.name)
        label = _label(binder, column)
        lo, hi = binder.domain.axes[label]
        if label in parts:
            raise _wrong(column, "is named twice", "Name each key once.")
        if number > max(1, hi - lo):
            raise _wrong(column, f"has too few values for {number} parts: {hi - lo}",
                         f"At most {max(1, hi - lo)} parts are possible.")  # fmt: skip
        parts[label] = number
    sites, calls = binder.query.catalog.sites, prod(parts.values())
    if 1 < sites < calls:
        raise ProgrammingError(
            f"The hint asks for {calls} kernel calls, and there are {sites} sites",
            hint=f"Name parts whose product is at most {sites}, or SET sites = {calls}.",
            position=position(hint.expressions[0]),
        )
    return parts


def _label(binder: SelectBinder, column: exp.Column) -> str:
    bound = ScalarBinder(binder).bind(column)
    value = binder.domain.canonical(bound.value)
    if not isinstance(value, Label) or bound.type is not DType.BIGINT or bound.valid != TRUE:
        raise _wrong(column, "is no key", "Only keys, as FROM gives them, can be cut.")
    if value.name in binder.domain.defines:
        raise _wrong(column, "follows from other keys, which leaves it whole",
                     "Name the keys it is computed from.")  # fmt: skip
    return value.name


def _wrong(column: exp.Column, reason: str, hint: str) -> ProgrammingError:
    name = f"{column.table}.{column.name}" if column.table else column.name
    return ProgrammingError(f'"{name}" {reason}', hint=hint, position=position(column))
