"""NumPy's .npy format: a header as Python text, then the elements.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
import io
from collections.abc import Sequence
from math import prod
from typing import IO

import numpy as np

from einsql.core.schema import DType
from einsql.errors import DataError, NotSupportedError
from einsql.storage.files.mapped import Mapped
from einsql.storage.files.tensor import Content, single

MAGIC = b"\x93NUMPY"
LONGEST = 10_000
"""Greatest size of a header in bytes: Python's parser takes much time and stack for longer ones."""
_LENGTHS = {b"\x01\x00": 2, b"\x02\x00": 4, b"\x03\x00": 4}


def header(file: Mapped, text: IO[bytes]) -> tuple[np.dtype, tuple[int, ...], bool]:
    """Reads a header: dtype, shape, and whether the elements are in Fortran's order.

    Args:
        file: The file, for messages.
        text: A stream at the first byte; afterwards it is at the first element.

    Raises:
        OperationalError: The header is missing, damaged, truncated, or of a pickle.
    """
    if text.read(len(MAGIC)) != MAGIC:
        raise file.refusal("is no .npy file: its first bytes are wrong")
    version = text.read(2)
    if len(version) == 2 and version not in _LENGTHS:
        raise file.refusal(f"is of version {version[0]}.{version[1]} of .npy, not 1.0 to 3.0")
    width = _LENGTHS.get(version, 4)
    length = int.from_bytes(text.read(width), "little")
    if length > LONGEST:
        raise file.refusal(f"is damaged: its header has {length} bytes, more than {LONGEST}")
    written = text.read(length)
    if len(written) < length or not length:
        raise file.refusal("is truncated: its header is not complete")
    try:
        fields = ast.literal_eval(written.decode("utf-8" if version == b"\x03\x00" else "latin1"))
        kind, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
        known = len(fields) == 3
    except Exception:  # Python's parser may raise any exception
        known = False
    sound = (
        known
        and isinstance(fortran, bool)
        and isinstance(shape, tuple)
        and all(type(n) is int for n in shape)
    )
    if not sound:
        raise file.refusal("is damaged: its header is wrong")
    return _dtype(file, kind), shape, fortran


def _dtype(file: Mapped, kind: object) -> np.dtype:
    if not isinstance(kind, str):  # a list of the fields of records
        raise file.no_type("records")
    try:
        dtype = np.dtype(kind)
    except Exception:  # NumPy's parser of dtypes may raise any exception
        raise file.refusal(f"is damaged: {kind!r} is no dtype") from None
    if dtype.hasobject:
        raise file.refusal("is pickled, which could run code; einsql refuses it")
    return dtype


def find(file: Mapped, member: str | None) -> Content:
    """Finds the array of a .npy file.

    Raises:
        OperationalError: The file is damaged, or `member` is set though its array has no name.
    """
    text = io.BytesIO(file.memory[: LONGEST + 16])
    dtype, shape, fortran = header(file, text)
    if member is not None:
        raise file.refusal(f"has no array '{member}'", "A .npy file holds one, without a name.")
    return single(None, *placed(file, text.tell(), file.size, dtype, shape, fortran))


def placed(
    file: Mapped, start: int, end: int, dtype: np.dtype, shape: tuple[int, ...], fortran: bool
) -> tuple[DType, np.ndarray]:
    """The array between two offsets, whose size must fit.

    Raises:
        OperationalError: The size does not fit, or the dtype is no tensor type.
    """
    kind = file.tensor_type(dtype)
    file.check_shape(shape)
    size = prod(shape) * dtype.itemsize
    if size != end - start:
        what = "is truncated" if size > end - start else "is damaged"
        raise file.refusal(f"{what}: {end - start} bytes for elements that take {size}")
    return kind, file.view(start, dtype, shape, fortran)


def check_type(dtype: DType) -> None:
    """Refuses a type that NumPy, and so the format, lacks.

    Raises:
        NotSupportedError: The type is BFLOAT16.
    """
    if dtype is DType.BFLOAT16:
        raise NotSupportedError(
            "A .npy or .npz file cannot hold BFLOAT16, which NumPy does not have",
            hint="A .safetensors or .arrow file can; or CAST the values to FLOAT, which is exact.",
        )


def write_header(file: IO[bytes], dtype: DType, shape: tuple[int, ...]) -> None:
    """Writes the header; the elements follow in C order.

    Raises:
        NotSupportedError: NumPy has no such type.
    """
    check_type(dtype)
    kind = dtype.numpy.newbyteorder("<").str
    fields = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, fields)


def begin(
    file: IO[bytes], arrays: Sequence[tuple[str, DType]], shape: tuple[int, ...]
) -> list[int]:
    """Writes a header and reserves space for the elements; the name is ignored.

    Returns:
        The offset of the elements.

    Raises:
        NotSupportedError: NumPy lacks the type.
        DataError: There are several arrays.
    """
    if len(arrays) > 1:
        raise DataError(
            "A .npy file holds one array", hint="A .npz or .safetensors file holds several."
        )
    ((_, dtype),) = arrays
    write_header(file, dtype, shape)
    start = file.tell()
    file.truncate(start + prod(shape) * dtype.numpy.itemsize)
    return [start]
