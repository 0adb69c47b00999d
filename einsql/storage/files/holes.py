"""Arrow files whose elements are left out: pyarrow writes the rest, and they follow in place."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def room(nbytes: int) -> pa.Buffer:
    """A placeholder buffer for bytes that are written later.

    It is never touched, so it takes no memory; only its address is wanted.
    """
    import pyarrow as pa  # 60 ms, and only these files need it

    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return pa.py_buffer(mmap.mmap(-1, max(1, nbytes), flags=flags, prot=mmap.PROT_READ))


class Holes:
    """A file for pyarrow that leaves holes where some buffers would be written.

    Attributes:
        starts: Where each of them begins in the file, in bytes, by its address in memory;
            none for what has no bytes.
    """

    closed = False

    def __init__(self, file: IO[bytes], left_out: Iterable[pa.Buffer]) -> None:
        self._file = file
        self._left_out = frozenset(buffer.address for buffer in left_out)
        self.starts: dict[int, int] = {}

    def write(self, data: bytes | pa.Buffer) -> int:
        """Writes, or skips a buffer that is left out."""
        if isinstance(data, bytes) or data.address not in self._left_out:
            return self._file.write(data)
        self.starts[data.address] = self._file.tell()
        self._file.seek(data.size, 1)
        return int(data.size)

    def tell(self) -> int:
        """Bytes so far."""
        return self._file.tell()

    def flush(self) -> None:
        """Nothing; the file is flushed when it is complete."""

    def close(self) -> None:
        """Does nothing; the opener closes the file."""
