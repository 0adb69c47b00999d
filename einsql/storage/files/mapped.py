"""Files whose bytes can be viewed as arrays, with checks of all bounds."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from math import prod
from typing import IO, Literal

import numpy as np

from einsql.core.schema import DType
from einsql.core.units import data_size
from einsql.errors import Error, OperationalError
from einsql.storage.files.regular_files import check_regular, open_regular
from einsql.storage.out_of_memory import Room, require
from einsql.storage.relation import MAX_AXES
from einsql.storage.widened_fields import WIDER, wider

LARGEST = 2**63 - 1
"""Greatest number of bytes or elements, as NumPy uses signed 64-bit integers."""


class RegularFile:
    """An existing regular file, with its checks and errors.

    Attributes:
        path: The path as written by the user, for messages.
        absolute: The absolute path, independent of the working directory.
        size: The size in bytes at the creation of this object.
        mtime_ns: The time of the last change at that time, in nanoseconds.
    """

    def __init__(self, path: str, within: str = "", memory: Room | None = None) -> None:
        """Checks that the file exists.

        Args:
            path: The path in messages.
            within: The file's path within `path`, if that is a directory.
            memory: The memory budget of the reader; None for no limit.
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
        """Opens the file for reading; raises OSError."""
        return open_regular(self.path)

    def require(self, nbytes: int) -> None:
        """Refuses an array that does not fit into the free memory, before it is allocated.

        Raises:
            OperationalError: The array does not fit; a header may declare any size.
        """
        try:
            require(nbytes)
        except OperationalError as error:
            raise self.refusal(f"does not fit in memory: {error.reason}") from None

    def require_inflated(self, nbytes: int) -> None:
        """Refuses a decompressed size above the session's memory limit.

        Raises:
            OperationalError: The decompressed data does not fit.
        """
        self.require(nbytes)
        memory = self._memory
        if memory is not None and nbytes > memory.sure and not memory.allows(nbytes):
            raise self.refusal(
                f"does not fit in memory: decompressed it has {data_size(nbytes)}, and "
                f"memory_limit leaves {data_size(memory.room)}",
                "SET memory_limit allows more. Uncompressed arrays are mapped: .npy, "
                ".safetensors, or an .npz of numpy.savez.",
            )

    def lending(self, nbytes: int) -> AbstractContextManager[None]:
        """A context in which an array of this size goes to a temporary file if it does not fit."""
        memory = self._memory
        if memory is None or nbytes <= memory.sure or memory.allows(nbytes):
            return nullcontext()
        return memory.lending()

    def tensor_type(self, dtype: np.dtype) -> DType:
        """The tensor type of a NumPy dtype, or the wider one in which its elements are read.

        Raises:
            OperationalError: No tensor type has the dtype.
        """
        tensor_dtype = DType.of(dtype) or wider(dtype)
        if tensor_dtype is None:
            raise self.no_type(str(dtype))
        return tensor_dtype

    def no_type(self, name: str) -> OperationalError:
        """The error for elements of a type that tensors lack."""
        known = ", ".join([*(t.numpy_name for t in DType), *WIDER])
        return self.refusal(f"holds {name}, which is no tensor type", f"dtypes are {known}.")

    def check_shape(self, shape: Sequence[int]) -> None:
        """Refuses a shape that no array can have.

        Raises:
            OperationalError: The shape has too many axes or a wrong extent.
        """
        if len(shape) > MAX_AXES:
            raise self.refusal(f"holds an array with {len(shape)} axes, more than {MAX_AXES}")
        if any(n < 0 for n in shape) or prod(max(n, 1) for n in shape) > LARGEST // 16:
            raise self.refusal(f"is damaged: it has the shape {tuple(shape)}")

    def check_current(self) -> None:
        """Refuses a file that has changed since it was opened.

        Reading a mapped page beyond the end of a file kills the process, and a changed file is a
        mixture of two tensors.

        Raises:
            OperationalError: The file has changed.
        """
        try:
            status = os.stat(os.path.join(self.absolute, self._within).rstrip(os.sep))
        except OSError as error:
            raise self.refusal(f"cannot be read any more: {error.strerror}") from None
        if (status.st_size, status.st_mtime_ns) != (self.size, self.mtime_ns):
            raise self.refusal("has changed while it was read", "Run the statement again.")


class Mapped(RegularFile):
    """A regular file, mapped for reading.

    Attributes:
        memory: The mapping; a page is read on its first access.
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
        """Bytes of the file as a read-only array that may be unaligned; no page is read.

        Args:
            offset: The offset of the first element in bytes.
            dtype: The dtype of the elements in the file, with their byte order.
            shape: Non-negative extents.
            columns_first: True for Fortran order of the elements.

        Raises:
            OperationalError: The array is beyond the file's end, or has too many axes.
        """
        self.check_shape(shape)
        end = offset + prod(shape) * dtype.itemsize
        if offset < 0 or end > self.size:
            raise self.refusal(f"is truncated: it has {self.size} bytes, and should have {end}")
        order: Literal["C", "F"] = "F" if columns_first else "C"
        return np.ndarray(tuple(shape), dtype, self.memory, offset, order=order)


def pick(file: RegularFile, names: Sequence[str], member: str | None) -> str:
    """The name of the array to read.

    Raises:
        OperationalError: The array does not exist, or none is named and the file has several.
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
    """Translates errors of the system on a file into OperationalErrors."""
    try:
        yield
    except Error:
        raise
    except MemoryError as error:
        raise OperationalError(f"'{path}' does not fit in memory") from error
    except OSError as error:
        why = error.strerror or error
        raise OperationalError(f"'{path}' cannot be opened: {why}") from error
