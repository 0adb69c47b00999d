"""Arrays of NumPy as arrays of Arrow, and back.

`pyarrow.array` and `Array.to_numpy` import pandas where it is installed, which takes as long as all
other imports of a first statement together. These functions pass buffers instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from einsql.core.schema import DType

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_type(dtype: DType) -> pa.DataType:
    """The Arrow type of a value type; FLOAT for BFLOAT16, which Arrow lacks."""
    import pyarrow as pa  # takes 60 ms, and few callers need it

    return {
        DType.BOOLEAN: pa.bool_(),
        DType.TINYINT: pa.int8(),
        DType.INTEGER: pa.int32(),
        DType.BIGINT: pa.int64(),
        DType.HALF: pa.float16(),
        DType.BFLOAT16: pa.float32(),
        DType.FLOAT: pa.float32(),
        DType.DOUBLE: pa.float64(),
    }[dtype]


def arrow_lists(values: np.ndarray, dtype: DType, known: np.ndarray) -> pa.Array:
    """Returns the known values of each row as a LIST, NULL for a row without any.

    Args:
        values: Values of rank 2; BFLOAT16 as float32.
        dtype: Their type.
        known: Booleans of the same shape.
    """
    import pyarrow as pa  # as above

    lengths = np.count_nonzero(known, axis=1)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    elements = arrow_array(values[known], dtype)
    kind = pa.list_(arrow_type(dtype))
    filled = lengths > 0
    validity = None if filled.all() else pa.py_buffer(_bits(filled))
    offsets = pa.py_buffer(ends.astype(np.int32))
    return pa.Array.from_buffers(kind, len(values), [validity, offsets], children=[elements])


def arrow_array(values: np.ndarray, dtype: DType, known: np.ndarray | None = None) -> pa.Array:
    """Returns values as an Arrow array, which shares their memory if it is contiguous.

    Args:
        values: Values of rank 1; BFLOAT16 as float32.
        dtype: Their type.
        known: Booleans, false where the value is NULL; None if no value is.
    """
    import pyarrow as pa  # as above

    kind = arrow_type(dtype)
    stored = (
        np.bool_
        if dtype is DType.BOOLEAN
        else np.dtype(f"{values.dtype.kind}{kind.bit_width // 8}")
    )
    values = np.ascontiguousarray(values, stored)
    buffer = pa.py_buffer(_bits(values) if dtype is DType.BOOLEAN else values)
    validity = None if known is None or known.all() else pa.py_buffer(_bits(known))
    return pa.Array.from_buffers(kind, len(values), [validity, buffer])


def numpy_array(array: pa.Array) -> np.ndarray:
    """Returns the values of an Arrow array; numbers without NULL are read-only views of its memory.

    NULLs become NaN or None.
    """
    import pyarrow as pa  # as above

    kind = array.type
    is_float = pa.types.is_floating(kind)
    if array.null_count or not (is_float or pa.types.is_integer(kind)):
        values: np.ndarray = array.to_numpy(zero_copy_only=False)
        return values
    letter = "f" if is_float else "i" if pa.types.is_signed_integer(kind) else "u"
    dtype = np.dtype(f"{letter}{kind.bit_width // 8}")
    if not len(array):
        return np.empty(0, dtype)
    buffer = array.buffers()[1]
    values = np.frombuffer(buffer, dtype, len(array), array.offset * dtype.itemsize)
    values.flags.writeable = False  # a buffer over an array of NumPy allows writing
    return values


def null_mask(array: pa.Array) -> np.ndarray:
    """Returns booleans that are true where an Arrow array is NULL."""
    if not array.null_count:
        return np.zeros(len(array), np.bool_)
    mask: np.ndarray = array.is_null().to_numpy(zero_copy_only=False)
    return mask


def _bits(flags: np.ndarray) -> np.ndarray:
    return np.packbits(flags, bitorder="little")
