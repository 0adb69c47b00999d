"""Writes arrays to files; a failed write leaves no file."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import ProgrammingError
from einsql.storage.files import npy
from einsql.storage.files.drafts import Begin, abandon, commit, drafted, part_file, write_box
from einsql.storage.files.tensor import AT_ONCE, Pieces

_RESERVED = ("file", "allow_pickle")
"""Parameters of numpy.savez, which cannot be names of arrays."""


@dataclass(frozen=True, slots=True)
class Column:
    """An array to be written.

    Attributes:
        name: The name, for formats with names.
        dtype: The type of the elements.
        pieces: Returns the elements in C order by boxes of at most a number of elements.
        named: Whether the user has set the name.
    """

    name: str
    dtype: DType
    pieces: Callable[[int], Pieces]
    named: bool = True

    def bytewise(self) -> Pieces:
        """Pieces of at most `AT_ONCE` bytes."""
        return self.pieces(max(1, AT_ONCE // self.dtype.numpy.itemsize))


def write_in_place(
    path: str, shape: tuple[int, ...], columns: Sequence[Column], begin: Begin
) -> None:
    """Writes a file of a format with known offsets of the elements.

    Raises:
        OperationalError: The file cannot be written.
    """
    parts = drafted(path, [(c.name, c.dtype) for c in columns], shape, begin)
    try:
        for column, draft in zip(columns, parts, strict=True):
            for box, array in column.bytewise():
                write_box(draft, box, array)
        commit(parts[0])
    except BaseException:
        abandon(parts[0])
        raise


def write_npz(path: str, shape: tuple[int, ...], columns: Sequence[Column]) -> None:
    """Writes an uncompressed .npz archive sequentially.

    Raises:
        OperationalError: The file cannot be written.
        NotSupportedError: NumPy has no such type.
        ProgrammingError: NumPy reserves the name of an array.
    """
    for column in columns:
        npy.check_type(column.dtype)
        if column.name in _RESERVED:
            raise ProgrammingError(
                f"NumPy cannot name an array in a file {column.name}",
                hint="(TENSOR 'name') sets another name.",
            )
    with part_file(path) as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for column in columns:
            with archive.open(f"{column.name}.npy", "w", force_zip64=True) as member:
                npy.write_header(member, column.dtype, shape)
                stored = column.dtype.numpy.newbyteorder("<")
                for _, array in column.bytewise():
                    member.write(
                        np.ascontiguousarray(array, stored).reshape(-1).view(np.uint8).data
                    )
