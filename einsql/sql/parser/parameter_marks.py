"""Parameters: `?`, `?1`, `$1` and `$name` in a statement's text, and their places in its tree.

sqlglot reads `?1` as an alias and `$1,$2` as a quoted text, and refuses `?::INT`. So each parameter
is replaced by a name of the same length. The name consists of a private character that SQL text
contains nowhere else. In the tree it is a column reference, which becomes a Parameter.
"""

from __future__ import annotations

import re
from dataclasses import field

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.errors import ProgrammingError
from einsql.sql.parser.lexical import QUIET

_MARK = "\ue000"
_PARTS = re.compile(
    rf"""
    (?P<quiet> {QUIET} )
    | (?P<parameter> (?: \? | (?<![\w$])\$(?=\d) ) (?P<digits>[0-9]*) )
    | (?P<named> (?<![\w$])\$(?P<name>[^\W\d]\w*) )
    | (?P<mark> \ue000 )
    """,
    re.VERBOSE | re.DOTALL,
)
_FOLLOWED = re.compile(r"[\w$?]")
_HINT = "Parameters are all ?, or all $1, $2 and so on, or all names such as $rate."
MOST = 65535
"""The highest number of a parameter, as in DuckDB."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A statement's text in which names of the same length replace the parameters.

    Attributes:
        numbers: The number of each parameter from 1, by its offset.
        names: The numbers of named parameters by lower-case name, in order of occurrence.
    """

    text: str
    numbers: dict[int, int]
    names: dict[str, int] = field(default_factory=dict)


def mark(sql: str) -> Marked:
    """Replaces the parameters of a statement outside of quotes and comments by names.

    Raises:
        ProgrammingError: `?`, numbered and named parameters are mixed, a number is out of range, or
            no blank separates a parameter from the next word.
    """
    numbers: dict[int, int] = {}
    names: dict[str, int] = {}
    if "?" not in sql and "$" not in sql and _MARK not in sql:
        return Marked(sql, numbers)
    parts, last = [], 0
    forms = set()
    for match in _PARTS.finditer(sql):
        at = match.start()
        if match["mark"]:
            raise ProgrammingError("The character U+E000 is no SQL", position=at)
        if not match["parameter"] and not match["named"]:
            continue
        if (at and _FOLLOWED.match(sql, at - 1)) or _FOLLOWED.match(sql, match.end()):
            raise ProgrammingError(
                "Syntax error: a parameter needs a blank beside a word", position=at
            )
        forms.add("named" if match["named"] else "numbered" if match["digits"] else "?")
        if len(forms) > 1:
            shown = " and ".join(sorted(forms))
            raise ProgrammingError(f"{shown} parameters cannot be mixed", hint=_HINT, position=at)
        if match["named"]:
            numbers[at] = names.setdefault(match["name"].lower(), len(names) + 1)
        else:
            numbers[at] = _number(match["digits"], len(numbers) + 1, at)
        parts += [sql[last:at], _MARK * len(match[0])]
        last = match.end()
    return Marked("".join(parts) + sql[last:], numbers, names)


def _number(digits: str, following: int, at: int) -> int:
    if not digits:
        return following
    if len(digits) > len(str(MOST)) or not 1 <= int(digits) <= MOST:
        raise ProgrammingError(f"Parameters are numbered from 1 to {MOST}", position=at)
    return int(digits)


def place(tree: exp.Expr, numbers: dict[int, int]) -> exp.Expr:
    """Replaces each marked name in a tree by a numbered Parameter.

    Args:
        tree: Parsed from a marked text; its positions are offsets into that text.
        numbers: The numbers of the parameters in the parsed part, by offset.

    Raises:
        ProgrammingError: A parameter is not used as a value, for example as a table's name.
    """
    placed: dict[int, exp.Expr] = {}
    for node in list(tree.find_all(exp.Column)):
        name = node.this
        if len(node.parts) > 1 or not name.name.startswith(_MARK):
            continue
        at = name.meta["start"]
        placed[at] = exp.Parameter(this=exp.Literal.number(numbers[at]))
        placed[at].meta.update(name.meta)
        if node is tree:
            tree = placed[at]
        else:
            node.replace(placed[at])
    for at in sorted(numbers):
        if at not in placed:
            raise ProgrammingError(
                "Syntax error: a parameter is not allowed here",
                hint="It takes the place of a number, not of a name.",
                position=at,
            )
    return tree
