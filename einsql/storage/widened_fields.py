"""Arrays of integer types that tensors lack, in Python and in files, in the next wider type.

Registered arrays in the other order of bytes are converted likewise.

int16, uint8 and uint16 are read as INTEGER, uint32 and uint64 as BIGINT. A value of uint64 that
does not fit is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.storage.fields import RemoteFields

WIDER = {
    "int16": DType.INTEGER,
    "uint8": DType.INTEGER,
    "uint16": DType.INTEGER,
    "uint32": DType.BIGINT,
    "uint64": DType.BIGINT,
}
"""The types in which arrays of other types are read, by NumPy's names of these."""


def wider(dtype: np.dtype) -> DType | None:
    """The type in which an array of a dtype is read; None if it is no such dtype.

    The bits of BFLOAT16 are uint16 with metadata, and no integers.
    """
    return None if DType.of(dtype) is not None else WIDER.get(dtype.name)


def widened(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Returns a copy of an array in the type of `wider`.

    Raises:
        DataError: A value does not fit BIGINT.
    """
    if array.dtype.name == "uint64":
        check_fits(array, [0] * array.ndim)
    copy: np.ndarray = array.astype(dtype.numpy)
    return copy


def check_fits(array: np.ndarray, start: Sequence[int] | np.ndarray) -> None:
    """Refuses an array of uint64 with a value that does not fit BIGINT.

    Args:
        array: The array.
        start: The position of its first element in the whole array.

    Raises:
        DataError: A value does not fit.
    """
    most = array.max(initial=0)
    if most < 2**63:
        return
    place = np.unravel_index(int(array.argmax()), array.shape)
    at = ", ".join(str(int(n + first)) for n, first in zip(place, start, strict=True))
    raise DataError(
        f"The value {most} at ({at}) of an array of uint64 does not fit BIGINT",
        hint="array.astype(float) rounds it.",
    )


class WidenedFields(RemoteFields):
    """The single field of a registered array, which is converted whenever it is read.

    So later writes to the caller's array show, as in arrays that are not converted.

    Attributes:
        name: The field's name.
        array: The caller's array.
        dtype: The type of the field.
    """

    def __init__(self, name: str, array: np.ndarray, dtype: DType) -> None:
        self.name = name
        self.array = array
        self.dtype = dtype

    def local(self) -> Mapping[str, np.ndarray]:
        """No arrays, as each read converts."""
        return {}

    def __getitem__(self, name: str) -> np.ndarray:
        if name != self.name:
            raise KeyError(name)
        return widened(self.array, self.dtype)

    def __iter__(self) -> Iterator[str]:
        return iter((self.name,))

    def __len__(self) -> int:
        return 1
