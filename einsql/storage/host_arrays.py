"""Arrays of the caller, which FROM may name and Python functions take."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.lazy_module import lazy_modules
from einsql.core.schema import DType
from einsql.errors import InterfaceError
from einsql.storage import files
from einsql.storage.files.tensor import Tick, no_tick
from einsql.storage.out_of_memory import Room
from einsql.storage.relation import Relation as Stored
from einsql.storage.relation import from_array

if TYPE_CHECKING:
    from einsql.storage import row_files, scipy_arrays
else:  # loaded for files of rows, and for sparse arrays
    row_files, scipy_arrays = lazy_modules("einsql.storage", "row_files", "scipy_arrays")


def array_relation(
    array: object, dims: tuple[str, ...] | None = None, fill: int | None = None
) -> Stored:
    """A relation over an array-like, without a copy where its memory allows.

    Args:
        array: NumPy, anything with DLPack, SciPy sparse or an Arrow tensor; a relation as it is.
        dims: One key name per axis; `d0`, `d1`, … without.
        fill: 0 if elements that a SciPy sparse array does not store are zeros; without it
            they are absent keys.

    Raises:
        InterfaceError: It is no array, its dtype is no tensor type, or a sparse one stores
            an element twice.
    """
    if isinstance(array, Stored):
        return array
    if is_sparse(array):
        return scipy_arrays.sparse_relation(array, dims, fill)
    if fill is not None:
        raise InterfaceError(
            f"A {type(array).__name__} has a value everywhere, so there is nothing to fill",
            hint="fill=0 is for SciPy's sparse arrays.",
        )
    dense = as_numpy(array)
    return from_array(dense, default_names(dense.ndim) if dims is None else dims)


def shown_columns(held: Stored) -> tuple[str, ...]:
    """The columns that SQL shows of an array: keys, then values."""
    return (*(k.name for k in held.schema.keys), *(f.name for f in held.schema.values))


def check_names(name: object, dims: object) -> None:
    """Requires a tensor's name, and keys' names or none.

    Raises:
        InterfaceError: They are none.
    """
    if not isinstance(name, str) or not name or name.endswith("()"):
        raise InterfaceError(f"A tensor cannot be named {name!r}")
    if isinstance(dims, str) or not isinstance(dims, Sequence | None):
        raise InterfaceError(f"dims are key names, not {dims!r}", hint="Give dims=('i', 'j').")


def is_table(value: object) -> bool:
    """True for tables of Python's: DataFrames of pandas and polars, and Arrow tables."""
    kind = type(value)
    known = ("DataFrame", "LazyFrame", "Table", "RecordBatch", "RecordBatchReader")
    return kind.__name__ in known and kind.__module__.partition(".")[0] in _TABLES_OF


_TABLES_OF = ("pandas", "polars", "pyarrow")


def default_names(rank: int) -> tuple[str, ...]:
    """The default names of keys."""
    return tuple(f"d{n}" for n in range(rank))


def is_sparse(value: Any) -> bool:
    """True for SciPy's sparse arrays and matrices."""
    module = type(value).__module__
    return module.startswith("scipy.sparse") and hasattr(value, "tocoo")


def file_relation(
    path: str, member: str | None = None, tick: Tick = no_tick, memory: Room | None = None
) -> Stored:
    """A relation over a tensor in a file, or over the element rows of files.

    A tensor's elements are read when they are asked for, rows at once.

    Args:
        path: A file, or a pattern that names files of rows.
        member: Which array, in files of arrays.
        tick: Told the fraction of the rows that is read; raises to cancel.
        memory: What may be taken for elements that are decompressed; None for all there is.

    Raises:
        OperationalError: As `files.open_data`.
        DataError: Rows have no keys, or one twice.
    """
    file = files.open_data(path, member, memory=memory)
    if not isinstance(file, files.FileTensor):
        return row_files.rows_relation(file, path, member, tick)
    schema = array_relation(np.broadcast_to(np.zeros((), file.dtype.numpy), file.shape)).schema
    (field,) = schema.fields
    return Stored(schema, files.FileFields(file, field.name, tick))


def is_array(value: object) -> bool:
    """True for what may be named in FROM: NumPy, DLPack, SciPy sparse and Arrow tensors."""
    if isinstance(value, np.ndarray):
        return True
    module = type(value).__module__.partition(".")[0]
    return module in ("torch", "cupy", "scipy", "pyarrow") and (
        hasattr(value, "__dlpack__") or hasattr(value, "toarray") or hasattr(value, "to_numpy")
    )


def as_numpy(value: object) -> np.ndarray:
    """The NumPy view of an array-like.

    Raises:
        InterfaceError: It is none.
    """
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise InterfaceError(
            f"The array has {np.ma.getmaskarray(value).sum()} masked elements",
            hint="Fill them, as with array.filled(0).",
        )
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # a matrix or memory map would behave in its own way
    try:
        if hasattr(value, "toarray"):  # SciPy sparse, where no relation is made of it
            return np.asarray(value.toarray())
        if hasattr(value, "to_numpy_ndarray"):
            return np.asarray(value.to_numpy_ndarray())
        if hasattr(value, "detach"):  # a torch tensor that may ask for gradients
            value = value.detach().cpu()
            if str(getattr(value, "dtype", "")) == "torch.bfloat16":
                return _bits(value)
        if hasattr(value, "__dlpack__"):
            return np.from_dlpack(value)
        if isinstance(value, list | tuple | int | float | np.generic):
            return np.asarray(value)
        if hasattr(value, "to_numpy"):
            return np.asarray(value.to_numpy())
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise InterfaceError(f"This {type(value).__name__} is no dense tensor: {error}") from error
    raise InterfaceError(
        f"A {type(value).__name__} is no tensor",
        hint="Give a NumPy array, or anything with DLPack.",
    )


def _bits(tensor: Any) -> np.ndarray:
    """A torch.bfloat16 tensor as einsql stores the type, which DLPack has and NumPy does not."""
    return np.from_dlpack(tensor.view(sys.modules["torch"].int16)).view(DType.BFLOAT16.numpy)


def array_in_scope(frame: FrameType | None, name: str) -> object | None:
    """An array of that name among the locals and globals of the code that called einsql.

    Args:
        frame: Where the search starts; einsql's own frames are passed over.
        name: As written in FROM.
    """
    while frame is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "einsql":
        frame = frame.f_back
    if frame is None:
        return None
    for names in (frame.f_locals, frame.f_globals):
        for candidate in (name, name.lower()):
            variable: object = names.get(candidate)
            if is_array(variable):
                return variable
    return None
