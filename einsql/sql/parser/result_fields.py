"""Fields of an aggregate's result between its call and FILTER or OVER: `f(x).v OVER (…)`.

sqlglot reads a field only behind OVER: `f(x) OVER (…).v`. So blanks replace the field in the text,
and it moves behind OVER in the tree.
"""

from __future__ import annotations

import re

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.errors import ProgrammingError
from einsql.sql.parser.lexical import QUIET

_FIELD = (
    r"""\) \s* (?P<field> \. \s* (?P<name> \w+ | "(?:[^"]|"")+" ) ) \s* (?= (?:OVER|FILTER)\b )"""
)
_ANY = re.compile(_FIELD, re.VERBOSE | re.IGNORECASE)
_PARTS = re.compile(
    rf"(?P<quiet> {QUIET} ) | (?P<open> \( ) | {_FIELD} | (?P<close> \) )",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ResultField:
    """A field: its name, its offset, and the offset of the parenthesis behind the function."""

    name: exp.Identifier
    at: int
    opening: int


def blanked(text: str, offset: int) -> tuple[str, list[ResultField]]:
    """Replaces each field before FILTER or OVER by blanks; returns the new text and the fields.

    Args:
        text: The SQL text.
        offset: The offset of the text in the statement, which is added to positions.
    """
    if _ANY.search(text) is None:
        return text, []
    fields: list[ResultField] = []
    parts, last = list[str](), 0
    openings: list[int] = []
    for match in _PARTS.finditer(text):
        if match["open"]:
            openings.append(match.start())
        elif match["quiet"] is None:
            opening = openings.pop() if openings else 0
            if match["field"]:
                start, end = match.span("field")
                parts += [text[last:start], " " * (end - start)]
                last = end
                written = match["name"]
                quoted = written.startswith('"')
                name = written[1:-1].replace('""', '"') if quoted else written
                identifier = exp.to_identifier(name, quoted=quoted)
                fields.append(ResultField(identifier, offset + start, offset + opening))
    return "".join(parts) + text[last:], fields


def place(tree: exp.Expr, fields: list[ResultField]) -> None:
    """Reads the fields from the calls in a tree, behind FILTER and OVER.

    Raises:
        ProgrammingError: No function is called before a field.
    """
    for f in fields:
        calls = [n for n in tree.find_all(exp.Anonymous) if n.meta.get("start", f.at) < f.opening]
        call = max(calls, key=lambda n: n.meta["start"], default=None)
        outer: exp.Expr | None = call
        while outer is not None and isinstance(outer.parent, exp.Filter | exp.Window):
            outer = outer.parent
        if outer is None or outer is call:
            raise ProgrammingError(
                "Only an aggregate of CREATE AGGREGATE has fields", position=f.at
            )
        outer.replace(exp.Dot(this=outer.copy(), expression=f.name))
