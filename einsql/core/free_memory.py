"""The free memory of the machine, and refusals of arrays that do not fit into it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from einsql.core.units import data_size
from einsql.errors import OperationalError

SMALLER = "Narrow its keys with WHERE, or aggregate."

NOTICED = 2**30
"""Results of fewer bytes are created without a check of the free memory."""


class _Thread(threading.local):
    """The memory of the statement that a thread runs.

    Attributes:
        room: Returns the bytes that the statement may take; None without a limit.
        noticed: Bytes below which a result needs no check.
    """

    room: Callable[[], int] | None = None
    noticed = NOTICED


_thread = _Thread()


class Within:
    """Context in which `require` also obeys the memory limit of a statement, on this thread.

    Args:
        room: Returns the bytes that the statement may take.
        noticed: Bytes below which a result needs no check.
    """

    __slots__ = ("_before", "_limits")

    def __init__(self, room: Callable[[], int], noticed: int) -> None:
        self._limits = room, noticed

    def __enter__(self) -> None:
        self._before = _thread.room, _thread.noticed
        _thread.room, _thread.noticed = self._limits

    def __exit__(self, *_: object) -> None:
        _thread.room, _thread.noticed = self._before


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
        OperationalError: Fewer bytes than needed are available, or left of the memory limit.
    """
    if nbytes < _thread.noticed:
        return
    room = None if _thread.room is None else _thread.room()
    if room is not None and nbytes > room:
        raise OperationalError(
            f"There is not enough memory: a result takes {data_size(nbytes)}, and "
            f"{data_size(room)} of memory_limit are left",
            hint=f"SET memory_limit to a greater value. {SMALLER}",
        )
    free = available()
    if free is not None and nbytes > free:
        raise OperationalError(
            f"There is not enough memory: a result takes {nbytes / 2**30:,.1f} GiB, and "
            f"{free / 2**30:,.1f} are free",
            hint=SMALLER,
        )


def fits(nbytes: int) -> bool:
    """Whether a result of some bytes fits into memory; see `require`."""
    try:
        require(nbytes)
    except OperationalError:
        return False
    return True


def require_dense(nbytes: int, shape: Sequence[int]) -> None:
    """Refuses to make a sparse tensor dense if the array does not fit into memory.

    Args:
        nbytes: The bytes of the array, and of its flags.
        shape: The number of values of each key.

    Raises:
        OperationalError: Fewer bytes than needed are available.
    """
    free = available() if nbytes >= NOTICED else None
    if free is not None and nbytes > free:
        raise OperationalError(
            "There is not enough memory: the statement needs a sparse tensor of "
            f"{' × '.join(f'{extent:,}' for extent in shape)} as an array of "
            f"{nbytes / 2**30:,.1f} GiB, and {free / 2**30:,.1f} are free",
            hint="WHERE narrows its keys, and fetch_arrow_table() returns its rows. Sums of "
            "products, other aggregates and joins on keys read it as it is stored.",
        )
