"""Raises einsql's error if memory is predicted or reported to be insufficient."""

from __future__ import annotations

import os
import re
from contextlib import AbstractContextManager
from typing import Protocol

from einsql.errors import OperationalError

SMALLER = "Narrow its keys with WHERE, or aggregate."

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


NOTICED = 2**30
"""Results of fewer bytes are created without a check of the free memory."""


def available() -> int | None:
    """Bytes of memory that are available without swapping; None if they are unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def require(nbytes: int) -> None:
    """Refuses a result that does not fit into memory, as the system would kill the process.

    Raises:
        OperationalError: Fewer bytes than needed are available.
    """
    free = available() if nbytes >= NOTICED else None
    if free is not None and nbytes > free:
        raise OperationalError(
            f"There is not enough memory: a result takes {nbytes / 2**30:,.1f} GiB, and "
            f"{free / 2**30:,.1f} are free",
            hint=SMALLER,
        )
