"""Writes runs as Python source, because calls and lookups dominate the time of short work.

The runner of a node may give its work as lines of source over names. A repeated program joins
the lines of all its nodes into one function, see `engine/program_writer.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np


class FieldSource(Protocol):
    """What a function has of a relation's fields."""

    def array(self, field: str) -> str:
        """The name of a field's array; it is read now if it has not been."""

    @property
    def whole(self) -> str:
        """Text that gives all fields by their names."""


class Page:
    """The lines of a function's body.

    Attributes:
        lines: They, without indentation.
        names: What is there before the function runs.
        made: Variables that lines have set, in order.
        tick: The name of the function that takes the fraction done.
    """

    def __init__(self, tick: str) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {"asarray": np.asarray}
        self.made: list[str] = []
        self.tick = tick
        self._count = 0

    def held(self, value: object, stem: str = "c") -> str:
        """A name for a value that exists before the function runs."""
        self._count += 1
        self.names[name := f"{stem}{self._count}"] = value
        return name

    def line(self, text: str) -> str:
        """A new variable for what an expression gives."""
        self._count += 1
        self.lines.append(f"{(name := f'v{self._count}')} = {text}")
        self.made.append(name)
        return name

    def function(self, head: str, *more: str) -> Any:
        """The function of a head, as in `f(x)`, and of what has been written.

        Args:
            head: Its name and parameters.
            more: Lines behind the others.
        """
        text = "".join(f"\n    {line}" for line in (*self.lines, *more))
        exec(compile(f"def {head}:{text}", "<einsql run>", "exec"), self.names)
        return self.names[head.partition("(")[0]]


Write = Callable[[Page, Sequence[FieldSource]], Mapping[str, str] | None]
"""Writes what a node does with its operands; gives the names of its fields, or None, having
written nothing that counts, where that is not known."""


def write_of(run: object) -> Write | None:
    """How what runs a node is written, if it says so."""
    write: Write | None = getattr(run, "write", None)
    return write


def bare_of(run: object) -> object:
    """What runs a node where floating-point conditions are ignored already."""
    return getattr(run, "bare", run)


@dataclass(slots=True)
class TakenField:
    """Fields that are looked up in a mapping, each once.

    Attributes:
        page: Where they are read.
        name: The mapping's.
        plain: Whether its values are surely arrays of NumPy's own type.
        read: Names of those that have been read.
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
    """Fields that are variables.

    Attributes:
        names: Theirs by those of the fields.
    """

    names: Mapping[str, str]

    def array(self, field: str) -> str:
        """See `FieldSource.array`."""
        return self.names[field]

    @property
    def whole(self) -> str:
        """See `FieldSource.whole`."""
        return f"{{{', '.join(f'{field!r}: {name}' for field, name in self.names.items())}}}"
