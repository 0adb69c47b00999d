"""Types, key bounds and fields of a relation, which all languages share."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import field
from math import prod

import numpy as np

from einsql.core.records import dataclass

PRESENT = ".present"
"""Name of the BOOLEAN field that is true for existing keys; dense relations have none."""


def valid(field: str) -> str:
    """Name of the BOOLEAN field that is true where `field` is not NULL."""
    return f".valid:{field}"


def is_flag(field: str) -> bool:
    """True for presence and validity fields, which are not columns."""
    return field.startswith(".")


class DType(enum.Enum):
    """The value types of tensors and of the expressions over them."""

    BOOLEAN = "BOOLEAN"
    TINYINT = "TINYINT"
    INTEGER = "INTEGER"
    BIGINT = "BIGINT"
    HALF = "HALF"
    BFLOAT16 = "BFLOAT16"
    FLOAT = "FLOAT"
    DOUBLE = "DOUBLE"

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype that stores this type; BFLOAT16 is stored as its bits.

        Those bits are uint16 with metadata that marks them. Not every NumPy function
        preserves the metadata, so the Field determines the type of an array.
        """
        return _NUMPY[self]

    @property
    def carrier(self) -> np.dtype:
        """The NumPy dtype in which values of this type are computed: float32 for BFLOAT16."""
        return _FLOAT32 if self is DType.BFLOAT16 else _NUMPY[self]

    @property
    def numpy_name(self) -> str:
        """The name of this type in NumPy or ml_dtypes."""
        return _MARK if self is DType.BFLOAT16 else self.numpy.name

    @property
    def is_integer(self) -> bool:
        """True for the signed integer types."""
        return self in (DType.TINYINT, DType.INTEGER, DType.BIGINT)

    @property
    def is_float(self) -> bool:
        """True for the binary floating-point types."""
        return self in (DType.HALF, DType.BFLOAT16, DType.FLOAT, DType.DOUBLE)

    @property
    def is_short(self) -> bool:
        """True for the types of two bytes; arithmetic converts them to FLOAT."""
        return self in (DType.HALF, DType.BFLOAT16)

    @property
    def range(self) -> tuple[int, int]:
        """The least and the greatest value of an integer type."""
        return _RANGES[self]

    @classmethod
    def of(cls, dtype: np.dtype) -> DType | None:
        """The type that stores a NumPy dtype without loss, or None.

        The result is None for plain uint16. BFLOAT16 has two dtypes: the one of `numpy`, and the
        one of ml_dtypes.
        """
        if dtype.itemsize == 2 and dtype.kind in "uV":
            metadata: Mapping[str, object] = dtype.metadata or {}
            return cls.BFLOAT16 if dtype.name == _MARK or _MARK in metadata else None
        return _FROM_NUMPY.get(np.dtype(dtype).newbyteorder("="))

    @classmethod
    def held(cls, dtype: np.dtype) -> DType | None:
        """The type of a field with a dtype; uint16 means the bits of BFLOAT16."""
        return cls.BFLOAT16 if dtype == cls.BFLOAT16.numpy else cls.of(dtype)


_MARK = "bfloat16"
_FLOAT32 = np.dtype(np.float32)
_NUMPY: dict[DType, np.dtype] = {
    DType.BOOLEAN: np.dtype(np.bool_),
    DType.TINYINT: np.dtype(np.int8),
    DType.INTEGER: np.dtype(np.int32),
    DType.BIGINT: np.dtype(np.int64),
    DType.HALF: np.dtype(np.float16),
    DType.BFLOAT16: np.dtype(np.uint16, metadata={_MARK: True}),
    DType.FLOAT: _FLOAT32,
    DType.DOUBLE: np.dtype(np.float64),
}
_RANGES = {
    d: (int(np.iinfo(n).min), int(np.iinfo(n).max)) for d, n in _NUMPY.items() if n.kind == "i"
}
_FROM_NUMPY = {n: d for d, n in _NUMPY.items()}


@dataclass(frozen=True, slots=True)
class Key:
    """An integer key column with values in `[lo, hi)`."""

    name: str
    lo: int
    hi: int

    @property
    def extent(self) -> int:
        """The number of possible values of the key."""
        return max(0, self.hi - self.lo)


@dataclass(frozen=True, slots=True)
class Field:
    """A stored field: a value column, or a presence or validity flag."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Schema:
    """Keys and fields of a tensor relation; arrays have one axis per key, in order.

    Attributes:
        shape: The extent of each key.
        size: The number of possible combinations of keys.
    """

    keys: tuple[Key, ...]
    fields: tuple[Field, ...]
    shape: tuple[int, ...] = field(init=False, compare=False, repr=False)
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(k.extent for k in self.keys))
        object.__setattr__(self, "size", prod(self.shape))

    @property
    def values(self) -> tuple[Field, ...]:
        """The fields that are columns; flags are omitted."""
        return tuple(f for f in self.fields if not is_flag(f.name))

    def has(self, field: str) -> bool:
        """True if the schema has a field of that name."""
        return any(f.name == field for f in self.fields)

    def dtype(self, field: str) -> DType:
        """The type of a field.

        Raises:
            KeyError: The schema has no field of that name.
        """
        for f in self.fields:
            if f.name == field:
                return f.dtype
        raise KeyError(field)
