"""Writes the work of nodes as Python source: calls and lookups dominate the time of short work.

The runner of a node may write its work as lines of source over names. A repeated program joins
the lines of all its nodes into one function, see `engine/program_writer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from einsql.core.records import dataclass


class FieldSource(Protocol):
    """The fields of a relation, as expressions in a generated function."""

    def array(self, field: str) -> str:
        """The variable of a field's array; the first call writes the line that reads it."""

    @property
    def whole(self) -> str:
        """An expression for the mapping of all fields by their names."""


class Page:
    """The body of a generated function.

    Attributes:
        lines: The lines of the body, without indentation.
        names: The values of the function's global names.
        made: The variables that the lines set, in order.
        tick: The name of the callback with the completed fraction, 0 to 1.
    """

    def __init__(self, tick: str) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"asarray": np.asarray}
        self.made: list[str] = []
        self.tick = tick
        self._count = 0

    def held(self, value: object, stem: str = "c") -> str:
        """Adds a global name for a value and returns the name."""
        self._count += 1
        self.names[name := f"{stem}{self._count}"] = value
        return name

    def line(self, text: str) -> str:
        """Adds a line that assigns an expression to a new variable; returns the variable."""
        self._count += 1
        self.lines.append(f"{(name := f'v{self._count}')} = {text}")
        self.made.append(name)
        return name

    def function(self, head: str, *more: str) -> Any:
        """Compiles the lines to a function.

        Args:
            head: The function's name and parameters, as in `f(x)`.
            more: Further lines at the end of the body.
        """
        text = "".join(f"\n    {line}" for line in (*self.lines, *more))
        exec(compile(f"def {head}:{text}", "<einsql run>", "exec"), self.names)
        return self.names[head.partition("(")[0]]


Write = Callable[[Page, Sequence[FieldSource]], Mapping[str, str] | None]
"""Writes the work of a node over its operands; returns the variables of its fields by name, or
None if the node cannot be written. The lines written before a None have no effect."""


def write_of(run: object) -> Write | None:
    """The function that writes a runner's work as source, or None if the runner has none."""
    write: Write | None = getattr(run, "write", None)
    return write


def bare_of(run: object) -> object:
    """The runner of a node for contexts that ignore floating-point conditions already."""
    return getattr(run, "bare", run)


@dataclass(slots=True)
class TakenField:
    """Fields of a mapping, each of which the generated code reads at most once.

    Attributes:
        page: The body that reads the fields.
        name: The variable of the mapping.
        plain: Whether all values of the mapping are known to be `numpy.ndarray`s.
        read: The variables of the fields that the body has read, by field.
    """

    page: Page
    name: str
    plain: bool = False
    read: dict[str, str] = field(default_factory=dict)

    def array(self, field: str) -> str:
        """See `FieldSource.array`."""
        if field not in self.read:
            text = f"{self.name}[{field!r}]"
            self.read[field] = self.page.line(text if self.plain else f"asarray({text})")
        return self.read[field]

    @property
    def whole(self) -> str:
        """See `FieldSource.whole`."""
        return self.name


@dataclass(frozen=True, slots=True)
class ShownField:
    """Fields that are variables of the generated function.

    Attributes:
        names: The variables by the names of the fields.
    """

    names: Mapping[str, str]

    def array(self, field: str) -> str:
        """See `FieldSource.array`."""
        return self.names[field]

    @property
    def whole(self) -> str:
        """See `FieldSource.whole`."""
        return f"{{{', '.join(f'{field!r}: {name}' for field, name in self.names.items())}}}"
