"""Files of element rows: columns of keys and values, read in batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.bfloat16 import narrow, widen
from einsql.core.schema import DType
from einsql.errors import DataError, Error
from einsql.storage.files.mapped import RegularFile, refusing
from einsql.storage.files.tensor import Tick

if TYPE_CHECKING:
    import pyarrow as pa

Batch = dict[str, np.ndarray]
"""Columns of equal length by name, in the dtypes that store their types."""

_INTEGERS = {
    "int8": DType.TINYINT, "int16": DType.INTEGER, "int32": DType.INTEGER, "int64": DType.BIGINT,
    "uint8": DType.INTEGER, "uint16": DType.INTEGER, "uint32": DType.BIGINT,
    "uint64": DType.BIGINT,
}  # fmt: skip
_OTHERS = {
    "bool": DType.BOOLEAN,
    "halffloat": DType.HALF,
    "float": DType.FLOAT,
    "double": DType.DOUBLE,
}
_WIDENED = {
    (DType.HALF, DType.FLOAT),
    (DType.HALF, DType.DOUBLE),
    (DType.FLOAT, DType.DOUBLE),
    (DType.FLOAT, DType.BFLOAT16),
    (DType.HALF, DType.BFLOAT16),
}
"""Conversions of floats that keep all values; those to BFLOAT16 are checked for exactness."""


class Rows(ABC):
    """A file of element rows.

    Attributes:
        file: The file.
        columns: The types of the columns by name, in the file's order; None for other types.
        positional: Whether columns are matched with the tensor's by position, not by name.
        extents: The bounds of the keys, if the format declares them.
    """

    positional = False
    extents: tuple[int, ...] | None = None

    def __init__(self, file: RegularFile) -> None:
        self.file = file
        self.columns: Mapping[str, DType | None] = {}

    @abstractmethod
    def _batches(self, wanted: Mapping[str, DType]) -> Iterator[tuple[float, pa.RecordBatch]]:
        """The wanted columns in batches, with the fraction of the file that is read."""

    def batches(self, wanted: Mapping[str, DType], tick: Tick) -> Iterator[Batch]:
        """The rows of some columns, in batches.

        Args:
            wanted: The types of the columns by name.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.

        Raises:
            OperationalError: The file is damaged or has changed.
            DataError: A value is NULL or does not fit the type of its column.
        """
        done = 0
        with refusing(self.file.path), damaged(self.file):
            self.file.check_current()
            for fraction, batch in self._batches(wanted):
                yield {n: self._values(batch.column(n), n, t, done) for n, t in wanted.items()}
                done += batch.num_rows
                tick(min(1.0, fraction))
            self.file.check_current()

    def _values(self, column: pa.Array, name: str, wanted: DType, done: int) -> np.ndarray:
        import pyarrow as pa  # takes 60 ms, and few formats need it

        path = self.file.path
        if column.null_count:
            row = done + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) + 1
            raise DataError(
                f"'{path}' has NULL for {name}, in its row {row}",
                hint="A tensor has no NULL; omit the row, or write a value.",
            )
        stored = type_of(column.type)
        if not _fits(stored, wanted):
            raise DataError(f"'{path}' has {column.type} in {name}, but the tensor {wanted.value}")
        if wanted is DType.BFLOAT16 or (wanted is DType.HALF and stored is DType.DOUBLE):
            return self._rounded(column.to_numpy(zero_copy_only=False), name, wanted, stored)
        try:
            cast = column.cast(pa.from_numpy_dtype(wanted.numpy))
        except pa.ArrowInvalid as error:
            raise DataError(
                f"'{path}' has a value in {name} that does not fit {wanted.value}: {error}"
            ) from None
        return np.asarray(cast.to_numpy(zero_copy_only=False))

    def _rounded(
        self, values: np.ndarray, name: str, wanted: DType, stored: DType | None
    ) -> np.ndarray:
        """Values as 16-bit floats: DOUBLE, also from text, is rounded; others must be exact."""
        if wanted is DType.HALF:
            with np.errstate(over="ignore"):
                return values.astype(np.float16)
        bits = narrow(values)
        if stored is not DType.DOUBLE and not np.array_equal(widen(bits), values, equal_nan=True):
            raise DataError(f"'{self.file.path}' has a value in {name} that is inexact in BFLOAT16")
        return bits


def type_of(kind: pa.DataType) -> DType | None:
    """The type of an Arrow column of numbers or BOOLEANs, or of an empty one; else None."""
    if str(kind) == "null":  # the column of a CSV file without a value
        return DType.BIGINT
    return _INTEGERS.get(str(kind)) or _OTHERS.get(str(kind))


def columns_of(file: RegularFile, schema: pa.Schema) -> dict[str, DType | None]:
    """The types of a file's columns by their distinct names.

    Raises:
        OperationalError: Two columns have the same name.
    """
    if len(set(schema.names)) < len(schema.names):
        raise file.refusal("has two columns of the same name")
    return {f.name: type_of(f.type) for f in schema}


def _fits(stored: DType | None, wanted: DType) -> bool:
    if stored is None:
        return False
    if stored.is_integer and wanted.is_integer:
        return True  # each value is checked
    return (
        stored is wanted
        or (stored, wanted) in _WIDENED
        or (stored is DType.DOUBLE and wanted.is_short)
    )


class damaged:  # noqa: N801 -- a context manager, read as a verb
    """Translates exceptions of a format's library into OperationalErrors."""

    def __init__(self, file: RegularFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, Error | MemoryError):
            return
        if isinstance(error, OSError) and error.errno is not None:
            return  # an error of the system; libraries report damage by other ones
        why = (str(error).splitlines() or [repr(error)])[0]
        raise self._file.refusal(f"is truncated or damaged: {why[:300]}") from error


class ConcatenatedRows(Rows):
    """The rows of several files, in the order of their names."""

    def __init__(self, files: Sequence[Rows]) -> None:
        super().__init__(files[0].file)
        self._files = files
        self.columns = files[0].columns
        self.positional = files[0].positional
        for further in files[1:]:
            if list(further.columns) != list(self.columns):
                raise DataError(
                    f"'{further.file.path}' has the columns {', '.join(further.columns)}",
                    hint=f"'{self.file.path}' has {', '.join(self.columns)}.",
                )

    def _batches(self, wanted: Mapping[str, DType]) -> Iterator[tuple[float, pa.RecordBatch]]:
        raise NotImplementedError  # `batches` calls that of each file

    def batches(self, wanted: Mapping[str, DType], tick: Tick) -> Iterator[Batch]:
        """The rows of one file after the other; as `Rows.batches`."""
        for n, rows in enumerate(self._files):
            yield from rows.batches(wanted, partial(self._tick, tick, n))

    def _tick(self, tick: Tick, number: int, fraction: float) -> None:
        tick((number + fraction) / len(self._files))
