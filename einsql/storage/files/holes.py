"""Arrow files with holes for the elements, which are written later in place."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def room(nbytes: int) -> pa.Buffer:
    """A placeholder buffer for bytes that are written later.

    The buffer is never accessed, so it takes no memory; it is identified by its address.
    """
    import pyarrow as pa  # takes 60 ms, and few files need it

    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return pa.py_buffer(mmap.mmap(-1, max(1, nbytes), flags=flags, prot=mmap.PROT_READ))


class Holes:
    """A file for pyarrow that ignores `close` and leaves holes in place of some buffers.

    Attributes:
        starts: The offset of each hole in bytes, by the buffer's address; none for empty buffers.
    """

    closed = False

    def __init__(self, file: IO[bytes], left_out: Iterable[pa.Buffer] = ()) -> None:
        self._file = file
        self._left_out = frozenset(buffer.address for buffer in left_out)
        self.starts: dict[int, int] = {}

    def write(self, data: bytes | pa.Buffer) -> int:
        """Writes bytes, or skips a buffer that is left out."""
        if isinstance(data, bytes) or data.address not in self._left_out:
            return self._file.write(data)
        self.starts[data.address] = self._file.tell()
        self._file.seek(data.size, 1)
        return int(data.size)

    def tell(self) -> int:
        """The current offset in bytes."""
        return self._file.tell()

    def flush(self) -> None:
        """Does nothing; the opener flushes the file."""

    def close(self) -> None:
        """Does nothing; the opener closes the file."""
