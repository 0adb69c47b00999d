"""The memory budget of a session: its limit, its use, and spilling to files.

A statement that surely fits runs as if there were no limit; the others run by `within`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np

from einsql.core import buffer_pool
from einsql.core.settings import Settings
from einsql.storage.array_ownership import distinct, owner
from einsql.storage.fields import Fields, LocalFields
from einsql.storage.memory.spill_files import Space, is_mapped, sweep
from einsql.storage.memory.spillable import Spillable
from einsql.storage.memory.temp_directory import default_directory
from einsql.storage.out_of_memory import NOTICED, available

SURE = 16
"""A statement that takes less than this part of the limit is not asked what it takes."""
REMEMBERED = 8
"""The part of the limit that blocks for the next statement take at most."""
WORKING = 2
"""The part of the room that a kernel takes at a time, with its operands' copies."""
HELD = 4
"""The part of the room that results between two steps take; the rest goes to files."""
LEAST = 4
"""The part of the limit that a statement has in any case, whatever is stored."""

States = Callable[[], Iterable[Mapping[str, Spillable]]]
"""Gives the objects by name in every state of a database that a session may still read."""


class Memory:
    """The memory of a session.

    Attributes:
        space: The temporary files.
        limit: Bytes that its statements may take, with what is stored; None for all there is.
    """

    def __init__(
        self, settings: Settings, states: States = lambda: (), database: str | None = None
    ) -> None:
        """Nothing is taken yet.

        Args:
            settings: Which limits hold.
            states: What is stored.
            database: The path of the database's file; None for one in memory.
        """
        self._states = states
        # The working directory may become another one.
        self._database = None if database is None else os.path.realpath(database)
        self._share = 0.0
        self.space = Space(lambda: None)
        self.change(settings)
        if database is not None:
            sweep(default_directory(self._database))

    def change(self, settings: Settings) -> None:
        """Goes on under other settings; files that are there stay."""
        self.limit = settings.memory_limit
        where = settings.temp_directory
        database = self._database
        self.space.find = lambda: default_directory(database) if where is None else where or None
        self.space.most = settings.max_temp_directory_size
        few = None if self.limit is None else self.limit // REMEMBERED
        buffer_pool.bound(self, few if few is not None and few < buffer_pool.KEPT else None)

    def close(self) -> None:
        """Forgets what is stored; arrays that show files keep them."""
        self._states = lambda: ()
        buffer_pool.bound(self, None)

    def lend(self, share: float = 0.5) -> int | None:
        """Leaves a part of the limit to DuckDB for as long as the session lasts.

        Args:
            share: Which part, from 0 to 1; another one replaces it.

        Returns:
            The bytes that DuckDB may take; None for as many as it likes.
        """
        self._share = share
        return None if self.limit is None else self._lent

    @property
    def _lent(self) -> int:
        return int((self.limit or 0) * self._share)

    @property
    def sure(self) -> int:
        """Bytes that a statement may take without asking."""
        return NOTICED if self.limit is None else min(NOTICED, self.limit // SURE)

    @property
    def stored(self) -> int:
        """Bytes of stored tensors that are in memory and in no file."""
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

    def allows(self, nbytes: int) -> bool:
        """True if a statement may take so many bytes; frees pooled blocks if need be."""
        if nbytes + buffer_pool.KEPT <= self.room:
            return True
        buffer_pool.release()
        return nbytes <= self.room

    def lending(self) -> AbstractContextManager[None]:
        """Large arrays that are made meanwhile go to files where they do not fit."""
        return _lending(self.space, self.room // HELD)

    def keeps(self, nbytes: int) -> bool:
        """True if so many bytes more may be stored in memory; else they go to files."""
        if self.limit is None or nbytes < self.limit // SURE:
            return True
        return self.stored + nbytes <= self.limit // WORKING

    def settled(self, fields: Fields) -> Fields:
        """Fields that are to be stored: in files if they would take most of the limit."""
        if self.limit is None or not fields.is_local or self.keeps(anonymous([fields])):
            return fields
        return LocalFields({name: self.moved(array) for name, array in fields.items()})

    def moved(self, array: np.ndarray) -> np.ndarray:
        """An array in a file, unless it is in one; where it repeats, it does so there."""
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


def anonymous(several: Iterable[Any], foreign: Iterable[int] = ()) -> int:
    """Bytes of what fields show that is in memory and in no file, each once.

    Args:
        several: Fields; those that are no arrays of this process take nothing.
        foreign: Ids of owners of memory that are not counted.
    """
    skipped = set(foreign)
    sizes: dict[int, int] = {}
    for fields in several:
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
