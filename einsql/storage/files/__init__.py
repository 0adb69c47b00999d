"""Files of tensors and of element rows, checked before anything is believed.

Reading: `open_data` finds out what files hold, `FileTensor.read` copies a box of a tensor and
touches no other page, `Rows.batches` gives rows a batch at a time. `FileTensor.description`
travels to another process, where `reopen` gives the same tensor or refuses. Writing by several
processes: one `create`s a draft, each does `write_box`, one does `commit` or `abandon`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from einsql.core.lazy_module import lazy_modules
from einsql.core.schema import DType
from einsql.errors import OperationalError
from einsql.storage.files.drafts import Begin, Draft, abandon, commit, drafted, write_box
from einsql.storage.files.fields import FileFields
from einsql.storage.files.mapped import Mapped, RegularFile, refusing
from einsql.storage.files.rows import ConcatenatedRows, Rows
from einsql.storage.files.tensor import Content, Description, FileTensor, Pieces, whole
from einsql.storage.files.writing import Column, write_in_place, write_npz
from einsql.storage.out_of_memory import Room

if TYPE_CHECKING:
    import pyarrow as pa

    from einsql.storage.files import arrow as _arrow
    from einsql.storage.files import delimited as _delimited
    from einsql.storage.files import gguf as _gguf
    from einsql.storage.files import globs as _globs
    from einsql.storage.files import matrix_market as _matrix_market
    from einsql.storage.files import npy as _npy
    from einsql.storage.files import npz as _npz
    from einsql.storage.files import parquet as _parquet
    from einsql.storage.files import safetensors as _safetensors
    from einsql.storage.files import zarr as _zarr
else:  # loaded with the first file of a format
    _arrow, _delimited, _gguf, _globs, _matrix_market = lazy_modules(
        __name__, "arrow", "delimited", "gguf", "globs", "matrix_market"
    )
    _npy, _npz, _parquet, _safetensors, _zarr = lazy_modules(
        __name__, "npy", "npz", "parquet", "safetensors", "zarr"
    )

__all__ = [
    "READABLE",
    "Column",
    "Description",
    "Draft",
    "FileFields",
    "FileTensor",
    "Form",
    "abandon",
    "commit",
    "create",
    "in_parts",
    "may_hold_rows",
    "open_data",
    "open_tensor",
    "read",
    "reopen",
    "suffix_of",
    "write",
    "write_arrays",
    "write_box",
    "write_rows",
]


@dataclass(frozen=True, slots=True)
class Form:
    """The options of a file in a statement.

    Attributes:
        suffix: Of the format, if the file's own does not tell it.
        delimiter: Between columns of CSV; the suffix tells it otherwise.
        header: Whether the first line of CSV has names.
    """

    suffix: str | None = None
    delimiter: str | None = None
    header: bool = True


class _MappedFormat(Protocol):
    """A module of a format whose files are mapped."""

    def find(self, file: Mapped, member: str | None, /) -> Content:
        """Finds an array in a file."""


class _RawFormat(Protocol):
    """A module of a format that stores elements uncompressed."""

    @property
    def begin(self) -> Begin:
        """Writes everything but the elements."""


_MAPPED: dict[str, _MappedFormat] = {
    ".npy": _npy, ".npz": _npz, ".safetensors": _safetensors, ".gguf": _gguf, ".arrow": _arrow,
}  # fmt: skip
"""Formats of arrays whose files are mapped."""
_ARRAYS = (*_MAPPED, ".parquet", ".zarr")
"""Formats of arrays."""
_RAW: dict[str, _RawFormat] = {".npy": _npy, ".safetensors": _safetensors, ".arrow": _arrow}
"""Formats that several processes can write."""
_TEXTS = {".csv": ",", ".tsv": "\t"}
"""Delimited formats, and the delimiter of each."""
_ROWS = (*_TEXTS, ".mtx", ".parquet", ".arrow")
"""Formats of element rows; the last two may hold tensors instead."""
READABLE = (*_ARRAYS, *_TEXTS, ".mtx")
"""Ends of the names of files that can be read as tensors."""


def open_tensor(
    path: str, member: str | None = None, suffix: str | None = None, memory: Room | None = None
) -> FileTensor:
    """Opens a tensor in a file; no element is read where the format allows to map them.

    What is mapped: .npy, .safetensors, members of an .npz that are not compressed, columns of
    an .arrow file that are not compressed, and tensors of .gguf that are not quantised. Of
    .zarr and quantised .gguf the parts are read that are asked for, the rest as a whole.

    Args:
        path: A file of arrays.
        member: Which array or column; may be omitted if the file holds one.
        suffix: Of the format, if the file's own does not tell it.
        memory: What may be taken for elements that are decompressed; None for all there is.

    Raises:
        OperationalError: The file is missing, truncated, damaged, pickled, of another
            format, has no such member, does not fit in memory, or its dtype is no tensor type.
    """
    kind = _known(path, suffix, "reads", _ARRAYS)
    with refusing(path):
        return FileTensor(*_content(path, member, kind, memory), kind)


def _content(
    path: str, member: str | None, kind: str, memory: Room | None
) -> tuple[RegularFile, Content]:
    """The file of an array, and the array in it."""
    if kind == ".zarr":
        return _zarr.find(path, member, memory)
    if kind == ".parquet":
        file = RegularFile(path, memory=memory)
        return file, _parquet.find(file, _parquet.opened(file), member)
    mapped = Mapped(path, memory)
    return mapped, _MAPPED[kind].find(mapped, member)


def open_data(
    path: str, member: str | None = None, form: Form | None = None, memory: Room | None = None
) -> FileTensor | Rows:
    """Opens what a file holds, or the rows of all files that a pattern matches.

    Args:
        path: A file or, of element rows, a pattern; as `globs.matching`.
        member: Which array or column, in files of arrays.
        form: What the statement says of it.
        memory: As for `open_tensor`.

    Raises:
        OperationalError: As `open_tensor`.
    """
    form = form or Form()
    kind = _known(path, form.suffix, "reads", READABLE)
    names = _globs.matching(path)
    with refusing(path):
        if names == [path]:
            return _rows(path, kind, form, memory) or open_tensor(path, member, kind, memory)
        sources = [_rows(name, kind, form, memory) for name in names]
        row_sources = [rows for rows in sources if rows is not None]
        if len(row_sources) < len(sources):
            raise OperationalError(
                f"'{path}' is a pattern, and it matches files of arrays",
                hint="A pattern names files of element rows, as .csv and .parquet hold.",
            )
        return ConcatenatedRows(row_sources)


def _rows(path: str, kind: str, form: Form, memory: Room | None) -> Rows | None:
    """The rows of a file that holds rows."""
    if kind not in _ROWS:
        return None
    if kind in _TEXTS:
        return _delimited.Delimited(path, form.delimiter or _TEXTS[kind], form.header)
    if kind == ".mtx":
        return _matrix_market.Matrix(path)
    return _parquet.rows_of(RegularFile(path, memory=memory), is_parquet=kind == ".parquet")


def reopen(description: Description) -> FileTensor:
    """Opens a described tensor again, in any process.

    Raises:
        OperationalError: As `open_tensor`, or the file is not the one that was described.
    """
    tensor = open_tensor(description.path, description.member, description.suffix)
    if tensor.description != description:
        raise OperationalError(
            f"'{description.path}' has changed while a statement used it",
            hint="Run the statement again.",
        )
    return tensor


def read(path: str, member: str | None = None) -> np.ndarray:
    """A tensor file's array, mapped where possible: what `open_tensor` finds, as a whole.

    Raises:
        OperationalError: As `open_tensor`.
    """
    return open_tensor(path, member).array


def write(path: str, array: np.ndarray, name: str) -> None:
    """Writes a tensor file, whole or not at all; as `write_arrays`.

    Args:
        path: Target file; an existing one is replaced.
        array: What to write, of a dtype that DType stores.
        name: The array's name in formats that have names.
    """
    dtype = DType.of(array.dtype)
    if dtype is None:
        raise OperationalError(f"'{path}' cannot be written: {array.dtype} is no tensor type")

    def pieces(most: int) -> Pieces:
        yield whole(array.shape), array

    write_arrays(path, array.shape, [Column(name, dtype, pieces)])


_Write = Callable[[str, tuple[int, ...], Sequence[Column]], None]


def _raw(module: _RawFormat) -> _Write:
    def write(path: str, shape: tuple[int, ...], columns: Sequence[Column]) -> None:
        write_in_place(path, shape, columns, module.begin)

    return write


_WRITERS: dict[str, _Write] = {
    ".npy": _raw(_npy),
    ".npz": write_npz,
    ".safetensors": _raw(_safetensors),
    ".arrow": _raw(_arrow),
    ".parquet": lambda *array: _parquet.write_tensors(*array),
    ".zarr": lambda *array: _zarr.write(*array),
}


def write_arrays(
    path: str, shape: tuple[int, ...], columns: Sequence[Column], suffix: str | None = None
) -> None:
    """Writes arrays of one shape into a file, which is written whole or not at all.

    Args:
        path: Target; an existing one is replaced.
        shape: Of every array.
        columns: At least one, their names distinct.
        suffix: Of the format, if the file's own does not tell it.

    Raises:
        OperationalError: The suffix is unknown or the file cannot be written.
        NotSupportedError: The format has no such type.
        DataError: The format holds a single array.
        ProgrammingError: The format has no such name.
    """
    _WRITERS[_known(path, suffix, "writes", _WRITERS)](path, shape, columns)


def write_rows(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], form: Form) -> int:
    """Writes element rows into a .csv, .tsv, .parquet or .arrow file, whole or not at all.

    Returns:
        How many.

    Raises:
        OperationalError: The file cannot be written.
    """
    kind = _known(path, form.suffix, "writes", (*_TEXTS, ".parquet", ".arrow"))
    if kind in _TEXTS:
        between = form.delimiter or _TEXTS[kind]
        return _delimited.write_rows(path, schema, batches, between, form.header)
    write = _parquet.write_rows if kind == ".parquet" else _parquet.write_arrow_rows
    return write(path, schema, batches)


def create(path: str, dtype: DType, shape: tuple[int, ...], name: str = "val") -> Draft:
    """Begins a file that several processes fill: its part file, at full size.

    Args:
        path: A .npy, .safetensors or .arrow file; an existing one is replaced by `commit`.
        dtype: Type of the elements.
        shape: Extents of the whole tensor.
        name: The tensor's name in formats that have names.

    Raises:
        OperationalError: The format cannot be written in parts, or the file not at all.
    """
    suffix = _known(path, None, "writes", _WRITERS)
    if suffix not in _RAW:
        raise OperationalError(
            f"'{path}' cannot be written by several processes",
            hint=f"They write {_listed(_RAW)} files.",
        )
    (draft,) = drafted(path, [(name, dtype)], shape, _RAW[suffix].begin)
    return draft


def may_hold_rows(suffix: str) -> bool:
    """Whether files of a format may hold element rows."""
    return suffix in _ROWS


def in_parts(suffix: str) -> bool:
    """Whether several processes can fill a file of a format."""
    return suffix in _RAW


def suffix_of(path: str) -> str:
    """The end of a file's name that tells its format, in small letters."""
    return Path(path.rstrip("/")).suffix.lower()


def _known(path: str, suffix: str | None, does: str, known: Iterable[Any]) -> str:
    kind = suffix or suffix_of(path)
    if kind not in known:
        raise OperationalError(
            f"'{path}' is no tensor file einsql {does}",
            hint=f"It {does} {_listed(known)} files.",
        )
    return kind


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}"
