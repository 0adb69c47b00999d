"""Matrix Market: matrices as text, by their elements or whole; SciPy reads the numbers.

https://math.nist.gov/MatrixMarket/formats.html
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from einsql.engine.files.drafts import part_file
from einsql.engine.files.mapped import Found, refusing
from einsql.engine.files.rows import Batch, Rows, damaged
from einsql.engine.files.tensor import Tick
from einsql.engine.memory import require
from einsql.errors import DataError, NotSupportedError
from einsql.schema import DType

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 2**22
"""Bytes of lines that are read at once."""
LONGEST = 2**16
"""Bytes of a line."""
_FIELDS = {"real": DType.DOUBLE, "double": DType.DOUBLE, "integer": DType.BIGINT}
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")


class Matrix(Rows):
    """A Matrix Market file: rows of two keys, which count from 0, and `val`.

    Attributes:
        sparse: Whether it lists elements; else it has every one.
    """

    positional = True

    def __init__(self, path: str) -> None:
        """Opens the file and reads its first lines.

        Args:
            path: Of the file.
        """
        with refusing(path):
            super().__init__(Found(path))
            with open(path, "rb") as text:
                self._banner, size = self._first(text)
                self._start = text.tell()
        self.sparse = self._banner[2] == "coordinate"
        self.extents = size[0], size[1]
        self._entries = size[2] if self.sparse else size[0] * size[1]
        # An entry has two bytes at least; half of a symmetric matrix is not written.
        room = self.file.size - self._start
        if self._entries > room and (self.sparse or self._entries > 2 * room + 2):
            raise self.file.refusal(
                f"is truncated or damaged: {room} bytes cannot hold {self._entries} elements"
            )
        kind = _FIELDS.get(self._banner[3], DType.BIGINT)
        self.columns = {"d0": DType.BIGINT, "d1": DType.BIGINT, "val": kind}

    def _first(self, text: IO[bytes]) -> tuple[list[str], list[int]]:
        """The words of the first line, and the numbers of the line of sizes."""
        words = text.readline(LONGEST).decode("latin1").lower().split()
        if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
            raise self.file.refusal("is no Matrix Market file: its first line is wrong")
        kind, field, symmetry = words[2:]
        known = kind in ("coordinate", "array") and symmetry in _SYMMETRIES
        known = known and (field in _FIELDS or (field == "pattern" and kind == "coordinate"))
        if not known:
            raise self.file.refusal(
                f"holds a matrix that is {kind} {field} {symmetry}",
                "It reads coordinate and array, real, integer and pattern, general, symmetric and "
                "skew-symmetric.",
            )
        while (line := text.readline(LONGEST)).startswith(b"%") or line.isspace():
            pass
        try:
            size = [int(n) for n in line.split()]
        except ValueError:
            size = []
        if len(size) != (3 if kind == "coordinate" else 2) or min(size) < 0:
            raise self.file.refusal("is damaged: its line of sizes is wrong")
        self.file.check_shape(size[:2])
        if symmetry != "general" and size[0] != size[1]:
            raise self.file.refusal("is damaged: a symmetric matrix is square")
        return words, size

    def _batches(self, wanted: Mapping[str, DType]) -> Iterator[tuple[float, pa.RecordBatch]]:
        raise NotImplementedError  # `batches` has no need of Arrow

    def batches(self, wanted: Mapping[str, DType], tick: Tick) -> Iterator[Batch]:
        """As of rows; the wanted ones are all three."""
        self._check_type(wanted["val"])
        with refusing(self.file.path), damaged(self.file):
            self.file.check_current()
            for read, rows, columns, values in self._listed() if self.sparse else self._dense():
                yield {"d0": rows, "d1": columns, "val": self._as(values, wanted["val"])}
                tick(min(1.0, read / self.file.size))
            self.file.check_current()

    def _check_type(self, wanted: DType) -> None:
        whole = self.columns["val"] is DType.BIGINT
        if not (wanted.is_float or whole):
            raise DataError(
                f"'{self.file.path}' holds real numbers, but its value is {wanted.value}"
            )

    def _as(self, values: np.ndarray, wanted: DType) -> np.ndarray:
        from einsql.bfloat16 import stored

        if not wanted.is_float:
            lo, hi = (0, 1) if wanted is DType.BOOLEAN else wanted.range
            if len(values) and (values.min() < lo or values.max() > hi):
                raise DataError(f"'{self.file.path}' holds numbers that are no {wanted.value}")
            return values.astype(wanted.numpy)
        with np.errstate(over="ignore"):
            if wanted is DType.BFLOAT16:
                return stored(values, wanted)
            return values.astype(wanted.numpy)

    def _listed(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Listed elements, a block of lines at a time."""
        assert self.extents is not None
        banner, left = f"%%MatrixMarket {' '.join(self._banner[1:])}", self._entries
        with open(self.file.path, "rb") as text:
            text.seek(self._start)
            while block := text.read(BLOCK):
                block += text.readline(LONGEST)
                count = sum(1 for line in block.splitlines() if line.strip())
                left -= count
                if left < 0:
                    raise self.file.refusal("is damaged: it has more elements than it says")
                head = f"{banner}\n{self.extents[0]} {self.extents[1]} {count}\n"
                found = _read(head.encode() + block)
                rows, columns = (c.astype(np.int64) for c in found.coords)
                values = found.data
                if self._banner[3] == "pattern":
                    values = np.ones(len(rows), np.int64)
                yield text.tell(), rows, columns, values
        if left:
            raise self.file.refusal(f"is truncated: {left} of {self._entries} elements are missing")

    def _dense(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Every element of a matrix that is written whole, which is column by column."""
        assert self.extents is not None
        if self._banner[4] != "general":
            yield from self._mirrored()
            return
        import pyarrow as pa  # 60 ms, and only files need it
        from pyarrow import csv

        kind = pa.int64() if self.columns["val"] is DType.BIGINT else pa.float64()
        done, many = 0, max(1, self.extents[0])
        with open(self.file.path, "rb") as text:
            text.seek(self._start)
            if not self._entries and not text.read(BLOCK).strip():
                return
            text.seek(self._start)
            reader = csv.open_csv(
                text, csv.ReadOptions(use_threads=False, block_size=BLOCK, column_names=["val"]),
                convert_options=csv.ConvertOptions(column_types={"val": kind}, null_values=[]),
            )  # fmt: skip
            for batch in reader:
                at = np.arange(done, done + batch.num_rows)
                done += batch.num_rows
                if done > self._entries:
                    raise self.file.refusal("is damaged: it has more elements than it says")
                share = self.file.size * done // self._entries
                yield share, at % many, at // many, batch.column(0).to_numpy()
        if done < self._entries:
            raise self.file.refusal(f"is truncated: {self._entries - done} elements are missing")

    def _mirrored(self) -> Iterator[tuple[int, np.ndarray, np.ndarray, np.ndarray]]:
        """Every element of a matrix of which half is written."""
        require(8 * self._entries)
        with open(self.file.path, "rb") as text:
            found = np.asarray(_read(text))
        for row, values in enumerate(found):
            here = np.full(len(values), row, np.int64)
            yield self.file.size * (row + 1) // len(found), here, np.arange(len(values)), values


def _read(text: bytes | IO[bytes]) -> Any:
    from scipy import io as scipy_io  # 100 ms, and only this format needs it

    return scipy_io.mmread(io.BytesIO(text) if isinstance(text, bytes) else text, spmatrix=False)


def write_rows(
    path: str, dtype: DType, shape: Sequence[int], listed: int | None,
    batches: Iterator[pa.RecordBatch],
) -> int:  # fmt: skip
    """Writes a matrix and tells how many elements.

    Args:
        path: Of the file.
        dtype: Of its elements.
        shape: Two extents.
        listed: How many elements there are, if keys are absent; None writes it whole.
        batches: Two keys and the value; if it is written whole, column by column.

    Raises:
        OperationalError: It cannot be written.
        NotSupportedError: It is no matrix.
    """
    import pyarrow as pa  # as for CSV
    import pyarrow.compute as pc
    from pyarrow import csv

    if len(shape) != 2:
        raise NotSupportedError(
            f"A Matrix Market file holds a matrix, and this has {len(shape)} keys",
            hint="A .csv or .parquet file holds rows of any keys.",
        )
    kind = "array" if listed is None else "coordinate"
    field = "real" if dtype.is_float else "integer"
    size = [*shape] if listed is None else [*shape, listed]
    rows = 0
    options = csv.WriteOptions(include_header=False, delimiter=" ")
    value = pa.int64() if field == "integer" else pa.float64()
    if dtype in (DType.FLOAT, DType.HALF, DType.BFLOAT16):
        value = pa.float32()  # its shortest decimals
    with part_file(path) as file:
        file.write(f"%%MatrixMarket matrix {kind} {field} general\n".encode())
        file.write((" ".join(map(str, size)) + "\n").encode())
        for batch in batches:
            *keys, values = batch.columns
            if values.null_count:
                raise DataError("A Matrix Market file holds no NULL", hint="COALESCE(…, 0) …")
            parts = [pc.add(k, 1) for k in keys] if listed is not None else []
            parts.append(values.cast(value))
            table = pa.table(parts, [f"c{n}" for n in range(len(parts))])
            csv.write_csv(table, pa.PythonFile(_Kept(file), "w"), write_options=options)
            rows += batch.num_rows
    return rows


class _Kept:
    """A file that pyarrow writes to and does not close."""

    closed = False

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: bytes | pa.Buffer) -> int:
        """Writes."""
        return self._file.write(data)

    def flush(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing; who opened the file closes it."""
