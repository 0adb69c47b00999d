"""Parameters: `?`, `?1`, `$1` and `$name` in a statement's text, and their places in its tree.

sqlglot reads `?1` as an alias, `$1,$2` as a quoted text and `?::INT` not at all. So each
parameter becomes a name of the same length, made of a private character that no SQL text
may hold elsewhere; in the tree it is a column reference, which is replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sqlglot import exp

from einsql.errors import ProgrammingError, nearest
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
_NAME = re.compile(r"\$[^\W\d]")
_HINT = "Parameters are all ?, or all $1, $2 and so on, or all names such as $rate."
_PLACEHOLDER = re.compile(r"\?(?!\d)")
_PREPARE = re.compile(r"\s*PREPARE\b", re.IGNORECASE)
MOST = 65535
"""The highest number a parameter may have, as in DuckDB."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A statement's text with its parameters as names of the same length.

    Attributes:
        numbers: Offset of each parameter to its number, counted from 1.
        names: The numbers of those with names, by the names in small letters, as first read.
    """

    text: str
    numbers: dict[int, int]
    names: dict[str, int] = field(default_factory=dict)


def mark(sql: str) -> Marked:
    """Finds the parameters of a statement outside of quotes and comments.

    Raises:
        ProgrammingError: `?`, numbered and named parameters are mixed, a number is out of range
            or a parameter runs into the next word.
    """
    numbers: dict[int, int] = {}
    names: dict[str, int] = {}
    if "?" not in sql and "$" not in sql and _MARK not in sql:
        return Marked(sql, numbers)
    parts, last = [], 0
    forms = set()
    for found in _PARTS.finditer(sql):
        at = found.start()
        if found["mark"]:
            raise ProgrammingError("The character U+E000 is no SQL", position=at)
        if not found["parameter"] and not found["named"]:
            continue
        if (at and _FOLLOWED.match(sql, at - 1)) or _FOLLOWED.match(sql, found.end()):
            raise ProgrammingError(
                "Syntax error: a parameter needs a blank beside a word", position=at
            )
        forms.add("named" if found["named"] else "numbered" if found["digits"] else "?")
        if len(forms) > 1:
            shown = " and ".join(sorted(forms))
            raise ProgrammingError(f"{shown} parameters cannot be mixed", hint=_HINT, position=at)
        if found["named"]:
            numbers[at] = names.setdefault(found["name"].lower(), len(names) + 1)
        else:
            numbers[at] = _number(found["digits"], len(numbers) + 1, at)
        parts += [sql[last:at], _MARK * len(found[0])]
        last = found.end()
    return Marked("".join(parts) + sql[last:], numbers, names)


def values_by_name(sql: str, given: Mapping[str, object]) -> tuple[object, ...]:
    """Values by their parameters' numbers; `$1` takes that of "1", and case does not matter.

    Raises:
        ProgrammingError: A name has no value, or a value no name.
    """
    marked = _marked(sql)
    known = {str(name).lower(): value for name, value in given.items()}
    wanted = marked.names or {str(n): n for n in sorted(set(marked.numbers.values()))}
    if marked.numbers and not marked.names and _PLACEHOLDER.match(sql, min(marked.numbers)):
        raise ProgrammingError(
            "? takes its values in their order, not by names",
            hint="Give a list, or write $name in the statement.",
            position=min(marked.numbers), sql=sql,
        )  # fmt: skip
    for at, number in sorted(marked.numbers.items()):
        name = next(n for n, known_number in wanted.items() if known_number == number)
        if name not in known:
            told = nearest(name, [n for n in map(str, given) if n.lower() not in wanted])
            were = ", ".join(map(str, given)) or "none"
            raise ProgrammingError(
                f"Parameter ${name} has no value",
                hint=f"Did you mean {told}? " * (told is not None) + f"Values given: {were}.",
                position=at, sql=sql,
            )  # fmt: skip
    surplus = next((str(n) for n in given if str(n).lower() not in wanted), None)
    if surplus is not None:
        have = ", ".join(f"${n}" for n in wanted) or "none"
        raise ProgrammingError(
            f"The statement has no parameter ${surplus}",
            hint=f"Its parameters: {have}.", position=0, sql=sql,
        )  # fmt: skip
    return tuple(known[name] for name in wanted)


def _marked(sql: str) -> Marked:
    try:
        return mark(sql)
    except ProgrammingError as error:
        raise error.locate(sql) from None


@lru_cache(maxsize=512)  # of texts that have none; one that is repeated is long
def refuse_names(sql: str) -> None:
    """Requires that no parameter has a name, for values in an order.

    Raises:
        ProgrammingError: One has.
    """
    if _NAME.search(sql) is None:
        return
    marked = _marked(sql)
    if marked.names:
        shown = ", ".join(f'"{name}": …' for name in marked.names)
        raise ProgrammingError(
            "Parameters with names take their values by them",
            hint=f"Give a dict: {{{shown}}}.",
            position=min(marked.numbers), sql=sql,
        )  # fmt: skip


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
    marked = mark(sql)
    numbers = marked.numbers
    used = set(numbers.values())
    have = f"The statement has {len(used)} parameter{'' if len(used) == 1 else 's'}"
    were = f"{given} {'was' if given == 1 else 'were'} given"
    highest = max(used, default=0)
    for at, number in sorted(numbers.items()):
        if number > given:
            hint = f"{have}; {were}." if highest == len(used) else f"{were} of ${highest}."
            name = str(number)
            if marked.names:
                name = next(f"${n}" for n, k in marked.names.items() if k == number)
                hint = f'Give a dict: {{"{name[1:]}": …}}.'
            if _PREPARE.match(sql):
                hint = "PREPARE takes none: execute(sql, parameters) keeps plans by itself."
            raise ProgrammingError(f"Parameter {name} has no value", hint=hint, position=at)
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
