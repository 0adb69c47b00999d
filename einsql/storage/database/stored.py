"""Fields in a payload file, mapped at their first read after a verification of their checksums."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import IO

import numpy as np

from einsql.core.schema import Schema
from einsql.errors import OperationalError
from einsql.storage.database.checks import CHUNK, checksums, chunks_of
from einsql.storage.database.layout import CSR, Layout, Part
from einsql.storage.database.payload import SLAB, Progress, frame_of, tile_text
from einsql.storage.fields import Fields, LocalFields, RemoteFields
from einsql.storage.files.drafts import write_all
from einsql.storage.files.regular_files import open_regular

_FRAME = "the checksum of its frame is wrong"


class StoredFields(RemoteFields):
    """The fields of a tensor in a payload file.

    Reading a field verifies all of it; `verified` and `window` verify only a box.

    Attributes:
        layout: The offsets of the fields in the file.
        path: The payload's path.
        schema: The keys and fields.
    """

    layout: Layout

    def __init__(self, path: str, layout: Layout, schema: Schema, title: str) -> None:
        """Describes the fields; no file is opened.

        Args:
            path: The payload's path.
            layout: The catalog's layout of the payload.
            schema: The keys and fields.
            title: The tensor's name, for messages.
        """
        self.path = path
        self.layout = layout
        self.schema = schema
        self._title = title
        self._parts = {p.name: p for p in layout.parts}
        self._arrays = LocalFields()
        self._data: dict[str, memoryview] = {}
        self._known: dict[str, np.ndarray] = {}
        self._sums = np.zeros(0, np.uint32)
        self._memory: mmap.mmap | None = None
        self._mapping = threading.Lock()
        self._verified = False
        """Whether every chunk has been verified."""

    def local(self) -> Mapping[str, np.ndarray]:
        """The arrays, if the file is mapped."""
        return self._arrays

    def __getitem__(self, name: str) -> np.ndarray:
        array = self._mapped()[name]
        if not self._verified:
            self._verify(self._parts[name], None)
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    def window(self, at: Sequence[slice], axes: Sequence[int]) -> Fields:
        """See `Fields.window`; reads of the part are verified."""
        lows = np.array([k.lo for k in self.schema.keys], np.int64)
        box = np.array([(s.start, s.stop) for s in at], np.int64).reshape(-1, 2)
        return self.verified(box + lows[:, None]).window(at, axes)

    def verified(self, box: np.ndarray) -> LocalFields:
        """Returns arrays of all keys, of which only a box may be read; see `Fields.verified`."""
        arrays = self._mapped()
        if not self._verified:
            lows = np.array([k.lo for k in self.schema.keys], np.int64).reshape(-1, 1)
            for part in self._parts.values():
                self._verify(part, box - lows)
        return arrays

    def _mapped(self) -> LocalFields:
        if self._arrays:
            return self._arrays
        with self._mapping:  # after one session has mapped it, the file may be unlinked
            return self._arrays or self._opened()

    def copy(self, target: int, tick: Progress) -> None:
        """Copies the payload into another file; each piece is verified before its copy.

        An unmapped payload is read without mapping it, because a mapping would stay open.

        Args:
            target: The descriptor of an empty file, open for writing.
            tick: Callback with the number of bytes after each piece.

        Raises:
            OperationalError: The payload is missing, truncated or damaged.
            OSError: The target cannot be written.
        """
        with self._reading() as read:
            self._copy_frame(read, target)
            sums = np.frombuffer(read(self.layout.sums, 4 * self.layout.count), "<u4")
            for part in self.layout.parts:
                nbytes = prod(part.shape) * self.schema.dtype(part.name).numpy.itemsize
                for start in range(0, nbytes, SLAB):
                    slab = memoryview(read(part.offset + start, min(SLAB, nbytes - start)))
                    sizes = range(0, len(slab), CHUNK)
                    actual = checksums([slab[n : n + CHUNK] for n in sizes])
                    first = start // CHUNK
                    stored = sums[part.first + first :][: len(actual)]
                    wrong = np.flatnonzero(stored != np.array(actual, np.uint32))
                    if len(wrong):
                        raise self._wrong(part, first + int(wrong[0]))
                    write_all(target, slab, part.offset + start)
                    tick(len(slab))

    def _copy_frame(self, read: Callable[[int, int], bytes], target: int) -> None:
        """Copies all bytes outside of the fields' elements."""

        def copied(lo: int, hi: int) -> bytes:
            between = read(lo, hi - lo)
            write_all(target, memoryview(between), lo)
            return between

        if frame_of(self.layout, self.schema, copied) != self.layout.frame:
            raise self._damaged(_FRAME)

    @contextmanager
    def _reading(self) -> Iterator[Callable[[int, int], bytes]]:
        """Yields a function that reads a number of bytes at an offset."""
        try:
            file = None if self._arrays else self._file()
        except OperationalError:
            if not self._arrays:  # another session has mapped and unlinked it
                raise
            file = None
        if file is None:
            assert self._memory is not None
            memory = self._memory
            yield lambda at, size: memory[at : at + size]
            return

        def read(at: int, size: int) -> bytes:
            pieces = list[bytes]()
            while size:
                try:
                    pieces.append(os.pread(file.fileno(), size, at))
                except OSError as error:
                    raise self._unreadable(error) from None
                if not pieces[-1]:
                    raise self._damaged("it has become shorter")
                at, size = at + len(pieces[-1]), size - len(pieces[-1])
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)

        with file:
            yield read

    def _file(self) -> IO[bytes]:
        """Opens the payload for reading.

        Raises:
            OperationalError: The payload is missing, or has another size.
        """
        try:
            file = open_regular(self.path)
        except OSError as error:
            raise self._unreadable(error) from None
        size = os.fstat(file.fileno()).st_size
        if size != self.layout.size:
            file.close()
            raise self._damaged(f"it has {size:,} bytes, and should have {self.layout.size:,}")
        return file

    def _unreadable(self, error: OSError) -> OperationalError:
        return OperationalError(
            f"'{self.path}', which holds {self._title}, cannot be read: {error.strerror}",
            hint="The database and its payload directory belong together.",
        )

    def _opened(self) -> LocalFields:
        layout = self.layout
        with self._file() as file:
            try:
                memory = mmap.mmap(file.fileno(), layout.size, access=mmap.ACCESS_READ)
            except OSError as error:
                raise self._unreadable(error) from None
        if frame_of(layout, self.schema, lambda lo, hi: memory[lo:hi]) != layout.frame:
            raise self._damaged(_FRAME)
        arrays = LocalFields()
        for part in layout.parts:
            dtype = self.schema.dtype(part.name).numpy
            stored = np.ndarray(part.shape, dtype, memory, part.offset)
            is_full = stored.shape == self.schema.shape or layout.format == CSR
            arrays[part.name] = stored if is_full else np.broadcast_to(stored, self.schema.shape)
            count = -(-prod(part.shape) * dtype.itemsize // CHUNK)
            self._data[part.name] = stored.reshape(-1).view(np.uint8).data
            self._known[part.name] = np.zeros(count, np.bool_)
        self._sums = np.ndarray((layout.count,), "<u4", memory, layout.sums)
        self._memory = memory
        self._arrays = arrays
        return arrays

    def _verify(self, part: Part, box: np.ndarray | None) -> None:
        """Verifies the unverified chunks of a box of positions, or all chunks."""
        known = self._known[part.name]
        dtype = self.schema.dtype(part.name).numpy
        if box is None:
            wanted = np.arange(len(known))
        else:
            repeated = np.array(part.shape, np.int64) != self.schema.shape
            stored = np.where(repeated[:, None], (box[:, 1:] > box[:, :1]) * (0, 1), box)
            wanted = chunks_of(part.shape, dtype.itemsize, stored)
        wanted = wanted[~known[wanted]]
        if len(wanted):
            data = self._data[part.name]
            actual = checksums([data[n * CHUNK : (n + 1) * CHUNK] for n in wanted.tolist()])
            right = self._sums[part.first + wanted] == np.array(actual, np.uint32)
            if not right.all():
                raise self._wrong(part, int(wanted[~right][0]))
            known[wanted] = True
        self._verified = all(k.all() for k in self._known.values())

    def _damaged(self, why: str) -> OperationalError:
        return OperationalError(
            f"'{self.path}', which holds {self._title}, is damaged: {why}",
            hint="Restore it from a copy of the database, or DROP TENSOR and make it again.",
        )

    def _wrong(self, part: Part, chunk: int) -> OperationalError:
        where = tile_text(part, self.schema, chunk)
        return self._damaged(f"the checksum of tile {chunk} of {part.name} is wrong ({where})")
