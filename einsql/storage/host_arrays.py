"""Arrays of the caller, in FROM and as arguments of Python functions."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.lazy_module import lazy_modules
from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import InterfaceError
from einsql.storage.out_of_memory import Room
from einsql.storage.relation import Relation as Stored
from einsql.storage.relation import from_array
from einsql.storage.widened_fields import WidenedFields, wider

if TYPE_CHECKING:
    from einsql.storage import files, row_files, scipy_arrays
    from einsql.storage.files.tensor import Tick
else:  # loaded for files, and for sparse arrays
    files, row_files, scipy_arrays = lazy_modules(
        "einsql.storage", "files", "row_files", "scipy_arrays"
    )


def array_relation(
    array: object, dims: tuple[str, ...] | None = None, fill: int | None = None
) -> Stored:
    """A relation over an array-like, without a copy if possible.

    Args:
        array: A NumPy array, an object with DLPack, a SciPy sparse array or an Arrow tensor; a
            relation is returned unchanged.
        dims: One key name per axis; None for `d0`, `d1`, ….
        fill: 0 to read unstored elements of a SciPy sparse array as zeros; None to read them as
            absent keys.

    Raises:
        InterfaceError: The object is no array, its dtype is no tensor type, or a sparse array
            stores an element twice.
    """
    if isinstance(array, Stored):
        return array
    if is_sparse(array):
        return scipy_arrays.sparse_relation(array, dims, fill)
    if fill is not None:
        raise InterfaceError(
            f"A {type(array).__name__} has no absent elements to fill",
            hint="fill=0 is for SciPy's sparse arrays.",
        )
    dense = as_numpy(array)
    return from_array(dense, tuple(f"d{n}" for n in range(dense.ndim)) if dims is None else dims)


def registered_relation(
    array: object, dims: tuple[str, ...] | None = None, fill: int | None = None
) -> Stored:
    """As `array_relation`, for an array that is read again when its elements have changed."""
    if is_sparse(array) or isinstance(array, Stored):
        return array_relation(array, dims, fill)
    # A view keeps the shape and the type, which the caller may change for his object.
    dense = as_numpy(array).view()
    relation = array_relation(dense, dims, fill)
    (field,) = relation.schema.fields
    if wider(dense.dtype) is None and dense.dtype.isnative:
        return relation
    return Stored(relation.schema, WidenedFields(field.name, dense, field.dtype))


def shown_columns(relation: Stored) -> tuple[str, ...]:
    """The columns of an array in SQL: keys, then values."""
    return (*(k.name for k in relation.schema.keys), *(f.name for f in relation.schema.values))


def check_names(name: object, dims: object) -> None:
    """Checks a tensor's name and the names of its keys.

    Raises:
        InterfaceError: The name is no string or is empty, or the key names are no sequence.
    """
    if not isinstance(name, str) or not name or name.endswith("()"):
        raise InterfaceError(f"A tensor cannot be named {name!r}")
    if isinstance(dims, str) or not isinstance(dims, Sequence | None):
        raise InterfaceError(f"dims are key names, not {dims!r}", hint="Give dims=('i', 'j').")


def is_table(value: object) -> bool:
    """True for tables of Python: DataFrames of pandas and polars, Arrow tables and results."""
    kind = type(value)
    known = ("DataFrame", "LazyFrame", "Table", "RecordBatch", "RecordBatchReader")
    if getattr(kind, "__einsql_rows__", False):
        return True
    return kind.__name__ in known and kind.__module__.partition(".")[0] in _TABLES_OF


def readable_table(rows: Any) -> object:
    """A table of `is_table` in a form that DuckDB may read more than once."""
    if type(rows).__name__ == "LazyFrame":
        return rows.collect()
    if hasattr(rows, "read_all"):
        return rows.read_all()
    return _widened(rows.fetch_arrow_table()) if hasattr(rows, "fetch_arrow_table") else rows


def _widened(table: Any) -> Any:
    """An Arrow table with HALF values as FLOAT, since DuckDB does not read them."""
    import pyarrow as pa

    def wide(kind: Any) -> Any:
        if pa.types.is_float16(kind):
            return pa.float32()
        return pa.list_(wide(kind.value_type)) if pa.types.is_list(kind) else kind

    return table.cast(pa.schema([f.with_type(wide(f.type)) for f in table.schema]))


_TABLES_OF = ("pandas", "polars", "pyarrow")


def is_sparse(value: Any) -> bool:
    """True for SciPy's sparse arrays and matrices."""
    module = type(value).__module__
    return module.startswith("scipy.sparse") and hasattr(value, "tocoo")


def file_relation(
    path: str, member: str | None = None, tick: Tick | None = None, memory: Room | None = None
) -> Stored:
    """A relation over a tensor in a file, or over the element rows of files.

    The elements of a tensor are read on access, rows immediately.

    Args:
        path: A file, or a pattern of files of rows.
        member: The name of the array, in files of arrays.
        tick: Callback with the fraction of the rows read, 0 to 1; raises to cancel.
        memory: The memory budget for decompressed elements; None for no limit.

    Raises:
        OperationalError: As `files.open_data`.
        DataError: Rows have no keys, or a duplicate key.
    """
    file = files.open_data(path, member, memory=memory)
    tick = tick or files.no_tick
    if not isinstance(file, files.FileTensor):
        return row_files.rows_relation(file, path, member, tick)
    schema = array_relation(np.broadcast_to(np.zeros((), file.dtype.numpy), file.shape)).schema
    (field,) = schema.fields
    return Stored(schema, files.FileFields(file, field.name, tick))


def is_array(value: object) -> bool:
    """True for arrays that FROM may name: NumPy, DLPack, SciPy sparse and Arrow tensors."""
    if isinstance(value, np.ndarray):
        return True
    module = type(value).__module__.partition(".")[0]
    return module in ("torch", "cupy", "scipy", "pyarrow") and (
        hasattr(value, "__dlpack__") or hasattr(value, "toarray") or hasattr(value, "to_numpy")
    )


def as_numpy(value: Any) -> np.ndarray:
    """The NumPy view of an array-like.

    Raises:
        InterfaceError: The object cannot be converted to an array.
    """
    # NumPy loads its masked arrays when a program first uses them.
    ma = sys.modules.get("numpy.ma")
    if ma is not None and isinstance(value, ma.MaskedArray) and ma.is_masked(value):
        raise InterfaceError(
            f"The array has {ma.getmaskarray(value).sum()} masked elements",
            hint="Fill them, as with array.filled(0).",
        )
    _refuse_null(value)
    if isinstance(value, np.ndarray):
        return np.asarray(value)  # subclasses such as np.matrix have other semantics
    try:
        if hasattr(value, "toarray"):  # SciPy sparse
            return np.asarray(value.toarray())
        if hasattr(value, "to_numpy_ndarray"):
            return np.asarray(value.to_numpy_ndarray())
        if hasattr(value, "detach"):  # a torch tensor, which may require gradients
            value = value.detach().cpu()
            if str(getattr(value, "dtype", "")) == "torch.bfloat16":
                bits = value.view(sys.modules["torch"].int16)  # NumPy lacks the type
                return np.asarray(bits.numpy()).view(DType.BFLOAT16.numpy)
            # A tensor that DLPack exports may be resized, which frees memory that is still read.
            return np.asarray(value.numpy())
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
        hint="Pass a NumPy array, or an object with DLPack.",
    )


def _refuse_null(value: Any) -> None:
    """Refuses NULLs of Arrow and pandas, which NumPy would show as NaN.

    Raises:
        InterfaceError: The array has NULLs.
    """
    nulls = getattr(value, "null_count", None)
    if nulls is None and type(getattr(value, "dtype", None)).__module__.startswith("pandas"):
        nulls = int(value.isna().sum())
    nulls = nulls() if callable(nulls) else nulls
    if isinstance(nulls, int) and nulls:
        raise InterfaceError(
            f"The {type(value).__name__} has {plural(nulls, 'NULL')}, which a tensor cannot hold",
            hint="Fill them, or register a table with the keys of the other rows.",
        )


def array_in_scope(frame: FrameType | None, name: str) -> object | None:
    """The array that FROM names, as `in_scope`; None if it is a table."""
    variable = in_scope(frame, name)
    return variable if is_array(variable) else None


def in_scope(frame: FrameType | None, name: str) -> object | None:
    """An array or a table of a name in the locals and globals of the code that called einsql.

    Args:
        frame: The start of the search; frames of einsql are skipped.
        name: The name as written in FROM.
    """
    while frame is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == "einsql":
        frame = frame.f_back
    if frame is None:
        return None
    for names in (frame.f_locals, frame.f_globals):
        for candidate in (name, name.lower()):
            variable: object = names.get(candidate)
            if is_array(variable) or is_table(variable):
                return variable
    return None
