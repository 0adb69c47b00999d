"""A file whose bytes can be seen as arrays, every bound checked."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from typing import IO

import numpy as np

from einsql.core.schema import DType
from einsql.core.units import data_size
from einsql.errors import Error, OperationalError
from einsql.storage.files.regular_files import check_regular, open_regular
from einsql.storage.out_of_memory import Room, require
from einsql.storage.relation import MAX_AXES

LARGEST = 2**63 - 1
"""NumPy counts bytes and elements in 64 bits with a sign."""


class Found:
    """A regular file that is there, and what is said of wrong ones.

    Attributes:
        path: As given by the user, for messages.
        absolute: The same, whatever the working directory becomes.
        size: Bytes in the file when it was found.
        mtime_ns: When it had last been changed then, in nanoseconds.
    """

    def __init__(self, path: str, within: str = "", memory: Room | None = None) -> None:
        """Finds a file.

        Args:
            path: What messages name.
            within: The file's path in it, if it is a directory.
            memory: What its reader may take; None for all there is.
        """
        self.path = path
        self.absolute = os.path.abspath(path)
        self._within = within
        self._memory = memory
        if not os.path.exists(path):
            relative = not os.path.isabs(path) and "://" not in path
            raise OperationalError(
                f"There is no file '{path}'",
                hint=f"Looked for '{self.absolute}', from the current directory." * relative,
            )
        status = os.stat(os.path.join(self.absolute, within) if within else path)
        with refusing(path):
            check_regular(status.st_mode, path)
        self.size = status.st_size
        self.mtime_ns = status.st_mtime_ns

    def refusal(self, why: str, hint: str = "") -> OperationalError:
        """An error that names the file."""
        return OperationalError(f"'{self.path}' {why}", hint=hint)

    def open(self) -> IO[bytes]:
        """The file, for reading; raises OSError."""
        return open_regular(self.path)

    def require(self, nbytes: int) -> None:
        """Refuses an array that does not fit into the memory that is free.

        Raises:
            OperationalError: It does not; a header may say that without a file of it.
        """
        try:
            require(nbytes)
        except OperationalError as error:
            raise self.refusal(f"does not fit in memory: {error.reason}") from None

    def require_inflated(self, nbytes: int) -> None:
        """Refuses what would take more memory than the session may, once it is decompressed.

        Raises:
            OperationalError: It would.
        """
        self.require(nbytes)
        memory = self._memory
        if memory is not None and nbytes > memory.sure and not memory.allows(nbytes):
            raise self.refusal(
                f"does not fit in memory: decompressed it has {data_size(nbytes)}, and "
                f"memory_limit leaves {data_size(memory.room)}",
                "SET memory_limit allows more. Arrays that are not compressed are mapped: .npy, "
                ".safetensors, or an .npz of numpy.savez.",
            )

    def lending(self, nbytes: int) -> AbstractContextManager[None]:
        """Meanwhile an array of so many bytes goes to a temporary file if it does not fit."""
        memory = self._memory
        if memory is None or nbytes <= memory.sure or memory.allows(nbytes):
            return nullcontext()
        return memory.lending()

    def tensor_type(self, dtype: np.dtype) -> DType:
        """The tensor type of a NumPy dtype.

        Raises:
            OperationalError: There is none.
        """
        tensor_dtype = DType.of(dtype)
        if tensor_dtype is None:
            raise self.no_type(str(dtype))
        return tensor_dtype

    def no_type(self, name: str) -> OperationalError:
        """An error saying that elements of this kind are no tensor's."""
        known = ", ".join(t.numpy_name for t in DType)
        return self.refusal(f"holds {name}, which is no tensor type", f"dtypes are {known}.")

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuses a shape that no array has.

        Raises:
            OperationalError: With what is wrong.
        """
        if len(shape) > MAX_AXES:
            raise self.refusal(f"holds an array with {len(shape)} axes, more than {MAX_AXES}")
        if any(n < 0 for n in shape) or prod(max(n, 1) for n in shape) > LARGEST // 16:
            raise self.refusal(f"is damaged: it gives the shape {tuple(shape)}")

    def check_current(self) -> None:
        """Refuses a file that is no longer what it was when it was opened.

        Who reads a mapped page beyond the end of a file is killed, and a changed file gives
        a mixture of two tensors.

        Raises:
            OperationalError: The file has changed.
        """
        try:
            status = os.stat(os.path.join(self.absolute, self._within).rstrip(os.sep))
        except OSError as error:
            raise self.refusal(f"is gone: {error.strerror}") from None
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise self.refusal("has changed while it was read", "Run the statement again.")


class Mapped(Found):
    """A regular file, mapped for reading.

    Attributes:
        memory: The mapping; a page is read when it is first touched.
    """

    def __init__(self, path: str, memory: Room | None = None) -> None:
        super().__init__(path, memory=memory)
        with self.open() as file:
            status = os.fstat(file.fileno())
            self.size = status.st_size
            self.mtime_ns = status.st_mtime_ns
            if not self.size:
                raise self.refusal("is empty: its first bytes are wrong")
            self.memory = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)

    def view(
        self, offset: int, dtype: np.dtype, shape: Sequence[int], columns_first: bool = False
    ) -> np.ndarray:
        """Bytes of the file as a read-only array, perhaps not aligned; none is read.

        Args:
            offset: Where the first element lies, in bytes.
            dtype: Of the elements in the file, with their byte order.
            shape: Non-negative extents.
            columns_first: True for Fortran's order of the elements.

        Raises:
            OperationalError: It would lie beyond the file, or has too many axes.
        """
        self.check_shape(shape)
        end = offset + prod(shape) * dtype.itemsize
        if offset < 0 or end > self.size:
            raise self.refusal(f"is truncated: it has {self.size} bytes, and should have {end}")
        if columns_first:
            return np.ndarray(tuple(shape), dtype, self.memory, offset, order="F")
        return np.ndarray(tuple(shape), dtype, self.memory, offset)


def pick(file: Found, names: Sequence[str], member: str | None) -> str:
    """The name of the array to read.

    Raises:
        OperationalError: It is not there, or none is named and there are several.
    """
    if member is None and len(names) == 1:
        return names[0]
    if member is None or member not in names:
        asked = f"has {len(names)} arrays" if member is None else f"has no array '{member}'"
        more = ", …" if len(names) > 12 else ""
        raise file.refusal(
            asked,
            "Name one, with (TENSOR 'name') in COPY or read_tensor('file', 'name') in FROM: "
            f"{', '.join(names[:12])}{more}."
            if names
            else "",
        )
    return member


@contextmanager
def refusing(path: str) -> Iterator[None]:
    """Makes an OperationalError of whatever goes wrong with a file."""
    try:
        yield
    except Error:
        raise
    except MemoryError as error:
        raise OperationalError(f"'{path}' does not fit in memory") from error
    except OSError as error:
        why = error.strerror or error
        raise OperationalError(f"'{path}' cannot be opened: {why}") from error
