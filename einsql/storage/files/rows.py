"""Files of element rows: columns of keys and of values, read a batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.bfloat16 import narrow, widen
from einsql.core.schema import DType
from einsql.errors import DataError, Error
from einsql.storage.files.mapped import Found, refusing
from einsql.storage.files.tensor import Tick

if TYPE_CHECKING:
    import pyarrow as pa

Batch = dict[str, np.ndarray]
"""Columns of equal length in the dtypes that store their types."""

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
"""From which type of float to which other one; BFLOAT16 takes what it holds exactly."""


class Rows(ABC):
    """A file of element rows.

    Attributes:
        file: The file.
        columns: What it holds, by name in its order; None for what is no number.
        positional: Whether names mean nothing: columns are the tensor's in order.
        extents: Bounds of the keys, if the format says them.
    """

    positional = False
    extents: tuple[int, ...] | None = None

    def __init__(self, file: Found) -> None:
        self.file = file
        self.columns: Mapping[str, DType | None] = {}

    @abstractmethod
    def _batches(self, wanted: Mapping[str, DType]) -> Iterator[tuple[float, pa.RecordBatch]]:
        """The wanted columns a batch at a time, with the fraction of the file that is read."""

    def batches(self, wanted: Mapping[str, DType], tick: Tick) -> Iterator[Batch]:
        """The rows of some columns.

        Args:
            wanted: Types by the file's names.
            tick: Told the fraction done; raises to cancel.

        Raises:
            OperationalError: The file is damaged or has changed.
            DataError: A value is NULL or none of its column's type.
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
        import pyarrow as pa  # 60 ms, and only these formats need it

        path = self.file.path
        if column.null_count:
            row = done + int(np.argmax(column.is_null().to_numpy(zero_copy_only=False))) + 1
            raise DataError(
                f"'{path}' has NULL for {name}, in its row {row}",
                hint="A tensor holds no NULL; leave the row out, or write a value.",
            )
        stored = type_of(column.type)
        if not _fits(stored, wanted):
            raise DataError(f"'{path}' holds {column.type} in {name}, but it is {wanted.value}")
        if wanted is DType.BFLOAT16 or (wanted is DType.HALF and stored is DType.DOUBLE):
            return self._rounded(column.to_numpy(zero_copy_only=False), name, wanted, stored)
        try:
            cast = column.cast(pa.from_numpy_dtype(wanted.numpy))
        except pa.ArrowInvalid as error:
            raise DataError(
                f"'{path}' holds in {name} what {wanted.value} cannot: {error}"
            ) from None
        return np.asarray(cast.to_numpy(zero_copy_only=False))

    def _rounded(
        self, values: np.ndarray, name: str, wanted: DType, stored: DType | None
    ) -> np.ndarray:
        """Short floats: of text, which is DOUBLE here, the nearest; else only what is exact."""
        if wanted is DType.HALF:
            with np.errstate(over="ignore"):
                return values.astype(np.float16)
        bits = narrow(values)
        if stored is not DType.DOUBLE and not np.array_equal(widen(bits), values, equal_nan=True):
            raise DataError(f"'{self.file.path}' holds in {name} what BFLOAT16 cannot hold exactly")
        return bits


def type_of(kind: pa.DataType) -> DType | None:
    """The type of an Arrow column that holds numbers or truth values, or nothing yet."""
    if str(kind) == "null":  # a CSV file without rows, or none with a value
        return DType.BIGINT
    return _INTEGERS.get(str(kind)) or _OTHERS.get(str(kind))


def columns_of(file: Found, schema: pa.Schema) -> dict[str, DType | None]:
    """The columns of a file, which have distinct names.

    Raises:
        OperationalError: Two have the same name.
    """
    if len(set(schema.names)) < len(schema.names):
        raise file.refusal("has two columns of the same name")
    return {f.name: type_of(f.type) for f in schema}


def _fits(stored: DType | None, wanted: DType) -> bool:
    if stored is None:
        return False
    if stored.is_integer and wanted.is_integer:
        return True  # each value is looked at
    return (
        stored is wanted
        or (stored, wanted) in _WIDENED
        or (stored is DType.DOUBLE and wanted.is_short)
    )


class damaged:  # noqa: N801 -- a context manager, read as a verb
    """Makes OperationalErrors of what a format's library raises."""

    def __init__(self, file: Found) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, Error | MemoryError):
            return
        if isinstance(error, OSError) and error.errno is not None:
            return  # the system's own; libraries say by others that a file is wrong
        why = (str(error).splitlines() or [repr(error)])[0]
        raise self._file.refusal(f"is truncated or damaged: {why[:300]}") from error


class Several(Rows):
    """The rows of several files together, in the order of their names."""

    def __init__(self, files: Sequence[Rows]) -> None:
        super().__init__(files[0].file)
        self._files = files
        self.columns = files[0].columns
        self.positional = files[0].positional
        for other in files[1:]:
            if list(other.columns) != list(self.columns):
                raise DataError(
                    f"'{other.file.path}' has the columns {', '.join(other.columns)}",
                    hint=f"'{self.file.path}' has {', '.join(self.columns)}.",
                )

    def _batches(self, wanted: Mapping[str, DType]) -> Iterator[tuple[float, pa.RecordBatch]]:
        raise NotImplementedError  # each file has its own

    def batches(self, wanted: Mapping[str, DType], tick: Tick) -> Iterator[Batch]:
        """As of one file."""
        for n, rows in enumerate(self._files):
            yield from rows.batches(wanted, partial(self._tick, tick, n))

    def _tick(self, tick: Tick, number: int, fraction: float) -> None:
        tick((number + fraction) / len(self._files))
