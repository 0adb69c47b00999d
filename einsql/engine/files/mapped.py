"""A file whose bytes can be seen as arrays, every bound checked."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

import numpy as np

from einsql.engine.relation import MAX_AXES
from einsql.errors import Error, OperationalError
from einsql.schema import DType

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

    def __init__(self, path: str, within: str = "") -> None:
        """Finds a file.

        Args:
            path: What messages name.
            within: The file's path in it, if it is a directory.
        """
        self.path = path
        self.absolute = os.path.abspath(path)
        self._within = within
        if not os.path.exists(path):
            relative = not os.path.isabs(path) and "://" not in path
            raise OperationalError(
                f"There is no file '{path}'",
                hint=f"Looked for '{self.absolute}', from the current directory." * relative,
            )
        status = os.stat(os.path.join(self.absolute, within) if within else path)
        if not stat.S_ISREG(status.st_mode):  # opening a pipe waits for its writer
            raise self.refusal("cannot be opened: it is no regular file")
        self.size = status.st_size
        self.mtime_ns = status.st_mtime_ns

    def refusal(self, why: str, hint: str = "") -> OperationalError:
        """An error that names the file."""
        return OperationalError(f"'{self.path}' {why}", hint=hint)

    def tensor_type(self, dtype: np.dtype) -> DType:
        """The tensor type of a NumPy dtype.

        Raises:
            OperationalError: There is none.
        """
        found = DType.of(dtype)
        if found is None:
            raise self.no_type(str(dtype))
        return found

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

    def __init__(self, path: str) -> None:
        super().__init__(path)
        with open(path, "rb") as file:
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
