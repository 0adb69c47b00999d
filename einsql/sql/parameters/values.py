"""The assignment of values to the parameters of a statement, by number and by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from einsql.errors import ProgrammingError, nearest
from einsql.sql.parser.parameter_marks import Marked, mark

_NAME = re.compile(r"\$[^\W\d]")
_PLACEHOLDER = re.compile(r"\?(?!\d)")
_PREPARE = re.compile(r"\s*PREPARE\b", re.IGNORECASE)


def values_by_name(sql: str, values: Mapping[str, object]) -> tuple[object, ...]:
    """The values in the order of the parameters' numbers; names ignore case, `$1` has the name "1".

    Raises:
        ProgrammingError: A parameter has no value, or a value has no parameter.
    """
    marked = _marked(sql)
    known = {str(name).lower(): value for name, value in values.items()}
    wanted = marked.names or {str(n): n for n in sorted(set(marked.numbers.values()))}
    if marked.numbers and not marked.names and _PLACEHOLDER.match(sql, min(marked.numbers)):
        raise ProgrammingError(
            "? takes its values in their order, not by names",
            hint="Give a list, or write $name in the statement.",
            position=min(marked.numbers),
            sql=sql,
        )
    names = {number: name for name, number in wanted.items()}
    for at, number in sorted(marked.numbers.items()):
        name = names[number]
        if name not in known:
            meant = nearest(name, [n for n in map(str, values) if n.lower() not in wanted])
            were = ", ".join(map(str, values)) or "none"
            raise ProgrammingError(
                f"Parameter ${name} has no value",
                hint=f"Did you mean {meant}? " * (meant is not None) + f"Values given: {were}.",
                position=at,
                sql=sql,
            )
    surplus = next((str(n) for n in values if str(n).lower() not in wanted), None)
    if surplus is not None:
        have = ", ".join(f"${n}" for n in wanted) or "none"
        raise ProgrammingError(
            f"The statement has no parameter ${surplus}",
            hint=f"Its parameters: {have}.",
            position=0,
            sql=sql,
        )
    return tuple(known[name] for name in wanted)


def _marked(sql: str) -> Marked:
    try:
        return mark(sql)
    except ProgrammingError as error:
        raise error.locate(sql) from None


@lru_cache(maxsize=512)  # results are cached for texts without names only
def refuse_names(sql: str) -> None:
    """Requires that no parameter has a name, because the values are a sequence.

    Raises:
        ProgrammingError: A parameter has a name.
    """
    if _NAME.search(sql) is None:
        return
    marked = _marked(sql)
    if marked.names:
        shown = ", ".join(f'"{name}": …' for name in marked.names)
        raise ProgrammingError(
            "Parameters with names take their values by them",
            hint=f"Give a dict: {{{shown}}}.",
            position=min(marked.numbers),
            sql=sql,
        )


def check_given(sql: str, given: int) -> None:
    """Requires a value for each parameter, and a parameter for each value.

    Raises:
        ProgrammingError: The counts differ; the position is the first parameter without a value.
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
