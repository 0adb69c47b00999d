"""Raises einsql's error if memory is predicted or reported to be insufficient."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Protocol

from einsql.core.free_memory import NOTICED as NOTICED  # re-exported for readers of files
from einsql.core.free_memory import SMALLER as SMALLER
from einsql.core.free_memory import available as available
from einsql.core.free_memory import require as require
from einsql.errors import OperationalError

_TOO_LARGE = re.compile(r"too big|too large|[Mm]aximum (allowed|supported) dimension")


class _EnoughMemory:
    """A context without state, as every statement enters it."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, MemoryError):
            raise OperationalError(
                "There is not enough memory for this statement", hint=SMALLER
            ) from error
        if isinstance(error, ValueError) and _TOO_LARGE.search(str(error)):
            raise OperationalError(
                "The statement needs an array larger than any memory",
                hint=SMALLER,
            ) from error


enough_memory = _EnoughMemory()
"""Translates lack of memory, or a shape beyond NumPy's index type, into an OperationalError."""


class Room(Protocol):
    """The interface of a session's memory budget for readers of files."""

    @property
    def room(self) -> int:
        """Bytes that a statement may take."""

    @property
    def sure(self) -> int:
        """Bytes that a statement may take without a check."""

    def allows(self, nbytes: int) -> bool:
        """True if a statement may take this number of bytes."""

    def lending(self) -> AbstractContextManager[None]:
        """A context in which new large arrays go to files if they do not fit."""
