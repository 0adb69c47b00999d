"""Parameters: `?`, `?1` and `$1` in a statement's text, and their places in its tree.

sqlglot reads `?1` as an alias, `$1,$2` as a quoted text and `?::INT` not at all. So each
parameter becomes a name of the same length, made of a private character that no SQL text
may hold elsewhere; in the tree it is a column reference, which is replaced.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot import exp

from einsql.errors import NotSupportedError, ProgrammingError
from einsql.sql.lexical import QUIET

_MARK = "\ue000"
_PARTS = re.compile(
    rf"""
    (?P<quiet> {QUIET} )
    | (?P<parameter> (?: \? | (?<![\w$])\$(?=\d) ) (?P<digits>[0-9]*) )
    | (?P<named> (?<![\w$])\$[^\W\d]\w* )
    | (?P<mark> \ue000 )
    """,
    re.VERBOSE | re.DOTALL,
)
_FOLLOWED = re.compile(r"[\w$?]")
_NAMED_HINT = "Parameters are ?, or $1, $2 and so on."
_PREPARE = re.compile(r"\s*PREPARE\b", re.IGNORECASE)
MOST = 65535
"""The highest number a parameter may have, as in DuckDB."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A statement's text with its parameters as names of the same length.

    Attributes:
        numbers: Offset of each parameter to its number, counted from 1.
    """

    text: str
    numbers: dict[int, int]


def mark(sql: str) -> Marked:
    """Finds the parameters of a statement outside of quotes and comments.

    Raises:
        ProgrammingError: `?` and numbered parameters are mixed, a number is out of range
            or a parameter runs into the next word.
        NotSupportedError: A parameter has a name.
    """
    numbers: dict[int, int] = {}
    if "?" not in sql and "$" not in sql and _MARK not in sql:
        return Marked(sql, numbers)
    parts, last = [], 0
    numbered = set()
    for found in _PARTS.finditer(sql):
        at = found.start()
        if found["named"]:
            raise NotSupportedError("Parameters have no names", hint=_NAMED_HINT, position=at)
        if found["mark"]:
            raise ProgrammingError("The character U+E000 is no SQL", position=at)
        if not found["parameter"]:
            continue
        if (at and _FOLLOWED.match(sql, at - 1)) or _FOLLOWED.match(sql, found.end()):
            raise ProgrammingError(
                "Syntax error: a parameter needs a blank beside a word", position=at
            )
        numbered.add(bool(found["digits"]))
        if len(numbered) > 1:
            raise ProgrammingError(
                "? and numbered parameters cannot be mixed", hint=_NAMED_HINT, position=at
            )
        numbers[at] = _number(found["digits"], len(numbers) + 1, at)
        parts += [sql[last:at], _MARK * len(found[0])]
        last = found.end()
    return Marked("".join(parts) + sql[last:], numbers)


def _number(digits: str, following: int, at: int) -> int:
    if not digits:
        return following
    if len(digits) > len(str(MOST)) or not 1 <= int(digits) <= MOST:
        raise ProgrammingError(f"Parameters are numbered from 1 to {MOST}", position=at)
    return int(digits)


def check_given(sql: str, given: int) -> None:
    """Requires a value for each parameter, and a parameter for each value.

    Raises:
        ProgrammingError: With both counts, and the place of the first one without a value.
    """
    numbers = mark(sql).numbers
    used = set(numbers.values())
    have = f"The statement has {len(used)} parameter{'' if len(used) == 1 else 's'}"
    were = f"{given} {'was' if given == 1 else 'were'} given"
    highest = max(used, default=0)
    for at, number in sorted(numbers.items()):
        if number > given:
            hint = f"{have}; {were}." if highest == len(used) else f"{were} of ${highest}."
            if _PREPARE.match(sql):
                hint = "PREPARE takes none: execute(sql, parameters) keeps plans by itself."
            raise ProgrammingError(f"Parameter {number} has no value", hint=hint, position=at)
    surplus = sorted(set(range(1, given + 1)) - used)
    if surplus:
        raise ProgrammingError(
            f"{have}, but {were}", hint=f"Nothing takes value {surplus[0]}.", position=0
        )


def place(tree: exp.Expr, numbers: dict[int, int]) -> exp.Expr:
    """The tree with a numbered Parameter for each marked name.

    Args:
        tree: Parsed from a marked text; its positions are offsets into that text.
        numbers: The parameters that stand in the parsed part.

    Raises:
        ProgrammingError: A parameter stands where no value may, as a table's name.
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
                "Syntax error: a parameter cannot stand here",
                hint="It takes the place of a number, not of a name.",
                position=at,
            )
    return tree
