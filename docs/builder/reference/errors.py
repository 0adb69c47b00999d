"""The page of errors."""

from __future__ import annotations

import inspect
import re
from textwrap import fill
from typing import Any

import numpy as np

import einsql
from docs.builder.reference.tables import NOTICE
from einsql import errors

_HEAD = """# Errors

{notice}
Every error of a statement is an `einsql.Error`. Its classes are those of Python's DB-API 2.0
(PEP 249).

{tree}
| attribute | meaning |
| --- | --- |
| `reason` | one sentence that describes the error |
| `hint` | an alternative that works, or an empty text |
| `sql`, `position` | the text of the statement, and the offset of the character in it, or None |
| `line` | the line of the position, counted from 1, or None |

The text of an error has the reason, the hint, and the line with a caret. A statement that fails has
changed nothing. The examples begin with:

```python
>>> import einsql, numpy as np
>>> con = einsql.connect()
>>> _ = con.execute("CREATE TENSOR w (i DIM(3), val INTEGER); INSERT INTO w VALUES (0, 7)")

```
"""
_EXAMPLES = {
    "InterfaceError": [
        "closed = con.execute('SELECT i, val FROM w')",
        "closed.close()",
        "closed.fetchall()",
    ],
    "DataError": ['con.execute("SELECT i, val * 1000000000 AS val FROM w").fetchall()'],
    "OperationalError": ["con.execute(\"COPY w TO '/nowhere/w.csv'\")"],
    "IntegrityError": ['con.execute("INSERT INTO w VALUES (0, 8)")'],
    "ProgrammingError": ['con.execute("SELECT i, value FROM w")'],
    "NotSupportedError": [
        "strict = einsql.connect(config={'fallback': 'off'})",
        'strict.execute("SELECT i FROM range(3) AS r(i) ORDER BY random()")',
    ],
}
"""For each class lines of Python, the last of which raises it."""


def page() -> str:
    """The text of errors.md."""
    con = einsql.connect()
    con.execute("CREATE TENSOR w (i DIM(3), val INTEGER); INSERT INTO w VALUES (0, 7)")
    names = {"einsql": einsql, "np": np, "con": con}
    sections = [_section(cls, names) for cls in _classes(errors.DatabaseError)]
    sections.insert(0, _section(errors.InterfaceError, names))
    return _HEAD.format(notice=NOTICE, tree=_tree(errors.Error)) + "".join(sections)


def _classes(cls: type[errors.Error]) -> list[type[errors.Error]]:
    """A class with the public ones below it."""
    below = [c for sub in cls.__subclasses__() for c in _classes(sub)]
    return [c for c in (cls, *below) if hasattr(einsql, c.__name__)]


def _tree(cls: type[errors.Error], depth: int = 0) -> str:
    """A class and those below it, as a nested list."""
    summary, _ = _described(cls)
    line = f"{'  ' * depth}- `{cls.__name__}`: {summary[0].lower()}{summary[1:]}\n"
    below = [c for c in cls.__subclasses__() if hasattr(einsql, c.__name__)]
    return line + "".join(_tree(c, depth + 1) for c in below)


def _described(cls: type[errors.Error]) -> tuple[str, str]:
    """When a class is raised, and the way out."""
    summary, *rest = (inspect.getdoc(cls) or "").split("\n\n")
    way_out = rest[0] if rest and not rest[0].startswith("Attributes:") else ""
    return " ".join(summary.split()), way_out


def _section(cls: type[errors.Error], names: dict[str, Any]) -> str:
    summary, way_out = _described(cls)
    text = f"\n## {cls.__name__}\n\n{fill(f'{summary} {way_out}', 100)}\n"
    lines = _EXAMPLES.get(cls.__name__)
    return text + (_example(lines, cls, names) if lines else "")


def _example(lines: list[str], cls: type[errors.Error], names: dict[str, Any]) -> str:
    """Runs lines and shows them with the error of the last one.

    Raises:
        LookupError: The last line raises no such error.
    """
    *before, last = lines
    for line in before:
        exec(line, names)
    try:
        eval(last, names)
    except cls as error:
        message = re.sub(r"^$", "<BLANKLINE>", str(error), flags=re.MULTILINE)
        raised = f"{type(error).__module__}.{type(error).__name__}: {message}"
    else:
        raise LookupError(f"{last} raises no {cls.__name__}")
    shown = "".join(f">>> {line}\n" for line in lines)
    return f"\n```python\n{shown}Traceback (most recent call last):\n    ...\n{raised}\n\n```\n"
