"""The text of a plan file, as the setting `plan` keeps it."""

from __future__ import annotations

import os
from dataclasses import field

from einsql.core.records import dataclass

Stamp = tuple[int, int, int]
"""The inode, the size in bytes and the time of the last change in nanoseconds of a file."""


@dataclass(frozen=True, slots=True)
class PlanText:
    """A plan file that a session has set.

    Attributes:
        path: The path as SET has it.
        real: The absolute path, which later changes of the working directory leave as it is.
        text: The content; empty if the file was not read.
        problem: The reason why the file cannot be read; empty if it was read.
        stamp: The state of the file that was read; None if the file must be read again.
    """

    path: str
    real: str
    text: str = ""
    problem: str = ""
    stamp: Stamp | None = field(default=None, compare=False)

    @classmethod
    def at(cls, path: str) -> PlanText:
        """The plan file of a path, which is not read yet."""
        return cls(path, os.path.abspath(os.path.expanduser(path)))
