"""Files of tensors and of element rows. Every file is validated before its content is used.

Reading: `open_data` detects the content of files, `FileTensor.read` copies a box of a tensor and
touches only its pages, `Rows.batches` yields rows in batches. `FileTensor.description` can be sent
to another process, where `reopen` returns the same tensor or raises an error. Writing by several
processes: one calls `create`, each calls `write_box`, one calls `commit` or `abandon`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from einsql.core.lazy_module import lazy_modules
from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import OperationalError
from einsql.storage.files.drafts import Begin, Draft, abandon, commit, drafted, write_box
from einsql.storage.files.fields import FileFields
from einsql.storage.files.mapped import Mapped, RegularFile, refusing
from einsql.storage.files.rows import ConcatenatedRows, Rows
from einsql.storage.files.tensor import Content, Description, FileTensor, Pieces, no_tick, whole
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
else:  # imported with the first file of a format
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
    "no_tick",
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
        suffix: The suffix of the format; by default that of the file.
        delimiter: The delimiter of CSV columns; the default depends on the suffix.
        header: Whether the first line of CSV contains names.
    """

    suffix: str | None = None
    delimiter: str | None = None
    header: bool = True


class _MappedFormat(Protocol):
    """A module of a format whose files are mapped."""

    def find(self, file: Mapped, member: str | None, /) -> Content:
        """Returns an array in a file."""


class _RawFormat(Protocol):
    """A module of a format that stores elements uncompressed."""

    @property
    def begin(self) -> Begin:
        """Writes all bytes except the elements."""


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
"""Suffixes of the files that can be read as tensors."""


def open_tensor(
    path: str, member: str | None = None, suffix: str | None = None, memory: Room | None = None
) -> FileTensor:
    """Opens a tensor in a file; no element is read from formats that can be mapped.

    Mapped content: .npy, .safetensors, uncompressed members of .npz, uncompressed columns of
    .arrow, and unquantised tensors of .gguf. Of .zarr and quantised .gguf only the requested
    parts are read; all other content is read completely.

    Args:
        path: A file of arrays.
        member: The name of the array or column; optional if the file has only one.
        suffix: The suffix of the format; by default that of the file.
        memory: The memory budget of decompressed elements; None for all free memory.

    Raises:
        OperationalError: The file is missing, truncated, damaged, pickled or of another format,
            has no such member, does not fit into memory, or its dtype is no tensor type.
    """
    kind = _known(path, suffix, "reads", _ARRAYS)
    with refusing(path):
        return FileTensor(*_content(path, member, kind, memory), kind)


def _content(
    path: str, member: str | None, kind: str, memory: Room | None
) -> tuple[RegularFile, Content]:
    """Opens the file of an array, and returns both."""
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
    """Opens a tensor in a file, or the rows of all files that match a pattern.

    Args:
        path: A file or, for element rows, a pattern; see `globs.matching`.
        member: The name of the array or column, for files of arrays.
        form: The options of the statement.
        memory: See `open_tensor`.

    Raises:
        OperationalError: See `open_tensor`.
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
    """Returns the rows of a file, or None if it has tensors."""
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
        OperationalError: See `open_tensor`; also if the file has changed since its description.
    """
    tensor = open_tensor(description.path, description.member, description.suffix)
    if tensor.description != description:
        raise OperationalError(
            f"'{description.path}' has changed while a statement used it",
            hint="Run the statement again.",
        )
    return tensor


def read(path: str, member: str | None = None) -> np.ndarray:
    """Returns the complete array of a tensor file, mapped where possible; see `open_tensor`.

    Raises:
        OperationalError: See `open_tensor`.
    """
    return open_tensor(path, member).array


def write(path: str, array: np.ndarray, name: str) -> None:
    """Writes a tensor file atomically; see `write_arrays`.

    Args:
        path: The target file; an existing one is replaced.
        array: The array, of a dtype that DType stores.
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
    """Writes arrays of one shape into a file, atomically.

    Args:
        path: The target file; an existing one is replaced.
        shape: The shape of every array.
        columns: At least one column, with distinct names.
        suffix: The suffix of the format; by default that of the file.

    Raises:
        OperationalError: The suffix is unknown or the file cannot be written.
        NotSupportedError: The format does not support the type.
        DataError: The format supports a single array only.
        ProgrammingError: The format does not support the name.
    """
    _WRITERS[_known(path, suffix, "writes", _WRITERS)](path, shape, columns)


def write_rows(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], form: Form) -> int:
    """Writes element rows into a .csv, .tsv, .parquet or .arrow file, atomically.

    Returns:
        The number of rows.

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
    """Begins a file that several processes write: creates its part file, at full size.

    Args:
        path: A .npy, .safetensors or .arrow file; `commit` replaces an existing one.
        dtype: Type of the elements.
        shape: Extents of the complete tensor.
        name: The tensor's name in formats that have names.

    Raises:
        OperationalError: The format cannot be written in parts, or the file cannot be created.
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
    """Whether files of a format may contain element rows."""
    return suffix in _ROWS


def in_parts(suffix: str) -> bool:
    """Whether several processes can write a file of a format."""
    return suffix in _RAW


def suffix_of(path: str) -> str:
    """Returns the lower-case suffix of a file's name, which determines its format."""
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
