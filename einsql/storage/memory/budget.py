"""The memory budget of a session: its limit, its use, and spilling to files.

A statement that needs few bytes runs without a check of the limit.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import numpy as np

from einsql.core import buffer_pool
from einsql.core.free_memory import Within
from einsql.core.settings import Settings
from einsql.storage.array_ownership import distinct, owner
from einsql.storage.fields import Fields, LocalFields
from einsql.storage.memory.spill_files import Space, is_mapped, sweep
from einsql.storage.memory.spillable import Spillable
from einsql.storage.memory.temp_directory import default_directory
from einsql.storage.out_of_memory import NOTICED, available

SURE = 16
"""A statement that needs less than 1/16 of the limit runs without an estimate of its memory."""
REMEMBERED = 8
"""Pooled blocks for the next statement take at most 1/8 of the limit."""
WORKING = 2
"""A kernel, with copies of its operands, takes at most 1/2 of the available memory."""
HELD = 4
"""Intermediate results take at most 1/4 of the available memory; the rest goes to files."""
LEAST = 4
"""A statement may use at least 1/4 of the limit, independent of the stored tensors."""

States = Callable[[], Iterable[Mapping[str, Spillable]]]
"""Returns the objects by name in every state of a database that a session may still read."""


class Memory:
    """The memory of a session.

    Attributes:
        space: The temporary files.
        limit: Memory limit in bytes of statements and stored tensors; None for no limit.
    """

    def __init__(
        self, settings: Settings, states: States = lambda: (), database: str | None = None
    ) -> None:
        """Creates an unused budget.

        Args:
            settings: The settings with the limits.
            states: Returns the stored objects.
            database: The path of the database file; None in memory.
        """
        self._states = states
        # The working directory may change.
        self._database = None if database is None else os.path.realpath(database)
        self._share = 0.0
        self.space = Space(lambda: None)
        self.change(settings)
        if database is not None:
            sweep(default_directory(self._database))

    def change(self, settings: Settings) -> None:
        """Applies new settings; existing temporary files stay."""
        self.limit = settings.memory_limit
        where = settings.temp_directory
        database = self._database
        self.space.find = lambda: default_directory(database) if where is None else where or None
        self.space.most = settings.max_temp_directory_size
        few = None if self.limit is None else self.limit // REMEMBERED
        buffer_pool.bound(self, few if few is not None and few < buffer_pool.KEPT else None)

    @property
    def temp_directory(self) -> str:
        """The directory of new temporary files; empty if there is none."""
        return self.space.find() or ""

    def close(self) -> None:
        """Releases the stored objects; arrays in temporary files keep their files."""
        self._states = lambda: ()
        buffer_pool.bound(self, None)

    def lend(self, share: float = 0.5) -> int | None:
        """Reserves a part of the limit for DuckDB until the session is closed.

        Args:
            share: The fraction of the limit, 0 to 1; replaces an earlier one.

        Returns:
            DuckDB's memory limit in bytes; None for no limit.
        """
        self._share = share
        return None if self.limit is None else self._lent

    @property
    def _lent(self) -> int:
        return int((self.limit or 0) * self._share)

    @property
    def sure(self) -> int:
        """Bytes that a statement may take without a check."""
        return NOTICED if self.limit is None else min(NOTICED, self.limit // SURE)

    @property
    def stored(self) -> int:
        """Bytes of stored tensors that are in memory and not in files."""
        return anonymous(
            stored.owned_fields for objects in self._states() for stored in objects.values()
        )

    @property
    def room(self) -> int:
        """Bytes that a statement may take."""
        free = available()
        if self.limit is None:
            return 2**63 if free is None else free
        most = max(self.limit - self._lent - self.stored, self.limit // LEAST)
        return most if free is None else max(1, min(most, free))

    @property
    def obeyed(self) -> AbstractContextManager[None]:
        """A context in which results whose size is found at run time obey the limit."""
        if self.limit is None:
            return nullcontext()
        return Within(lambda: self.room, self.sure)

    def allows(self, nbytes: int) -> bool:
        """True if a statement may take this number of bytes; frees pooled blocks if necessary."""
        if nbytes + buffer_pool.KEPT <= self.room:
            return True
        buffer_pool.release()
        return nbytes <= self.room

    def lending(self) -> AbstractContextManager[None]:
        """A context in which new large arrays go to files if they do not fit."""
        return _lending(self.space, self.room // HELD)

    def keeps(self, nbytes: int) -> bool:
        """True if this number of further bytes may be stored in memory, not in files."""
        if self.limit is None or nbytes < self.limit // SURE:
            return True
        return self.stored + nbytes <= self.limit // WORKING

    def settled(self, fields: Fields) -> Fields:
        """Fields to be stored, moved to files if they would take most of the limit."""
        if self.limit is None or not fields.is_local or self.keeps(anonymous([fields])):
            return fields
        return LocalFields({name: self.moved(array) for name, array in fields.items()})

    def moved(self, array: np.ndarray) -> np.ndarray:
        """An array moved to a file if it is not in one; axes of stride 0 are stored once."""
        if is_mapped(owner(array)):
            return array
        few = distinct(array)
        spilled = self.space.empty(few.shape, few.dtype)
        spilled[...] = few
        spilled.flags.writeable = array.flags.writeable
        return spilled if spilled.shape == array.shape else np.broadcast_to(spilled, array.shape)

    def copied(self, array: np.ndarray) -> np.ndarray:
        """A copy of an array, in a file if it does not fit."""
        few = distinct(array)
        with self.lending():
            copy = buffer_pool.empty(few.shape, few.dtype)
        copy[...] = few
        return copy if copy.shape == array.shape else np.broadcast_to(copy, array.shape)


@contextmanager
def _lending(space: Space, most: int) -> Iterator[None]:
    lent = [0]

    def lend(nbytes: int) -> np.ndarray:
        if lent[0] + nbytes > most:
            return space.block(nbytes)[:nbytes]
        lent[0] += nbytes
        return np.empty(nbytes, np.uint8)

    with buffer_pool.lending(lend):
        yield


def anonymous(relations: Iterable[Any], excluded: Iterable[int] = ()) -> int:
    """Bytes in memory and not in files that fields refer to, each counted once.

    Args:
        relations: Fields of relations; those without arrays in this process count 0.
        excluded: Ids of owners of memory that are not counted.
    """
    skipped = set(excluded)
    sizes: dict[int, int] = {}
    for fields in relations:
        if not isinstance(fields, dict):
            continue
        for array in fields.values():
            base = owner(array)
            if id(base) not in skipped and not is_mapped(base):
                nbytes = base.nbytes if isinstance(base, np.ndarray) else distinct(array).nbytes
                sizes[id(base)] = nbytes
    return sum(sizes.values())


def trim() -> None:
    """Returns free memory to the system, as far as the C library can."""
    give_back = _trimming()
    if give_back is not None:
        give_back(0)


@cache
def _trimming() -> Callable[[int], int] | None:
    try:
        malloc_trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    malloc_trim.argtypes, malloc_trim.restype = [ctypes.c_size_t], ctypes.c_int
    return lambda kept: int(malloc_trim(kept))
