"""Matrix Market: sparse or dense matrices as text; Arrow parses the numbers.

https://math.nist.gov/MatrixMarket/formats.html
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, TYPE_CHECKING

import numpy as np

from einsql.core.bfloat16 import stored
from einsql.core.schema import DType
from einsql.errors import DataError, NotSupportedError, OperationalError
from einsql.storage.files.drafts import part_file
from einsql.storage.files.holes import Holes
from einsql.storage.files.mapped import RegularFile, refusing
from einsql.storage.files.rows import Batch, Rows, damaged
from einsql.storage.files.tensor import Tick

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 2**22
"""Bytes per read."""
LONGEST = 2**16
"""Greatest size of a line in bytes."""
COMMENTS = 2**20
"""Greatest size of the comments in bytes."""
_FIELDS = {"real": DType.DOUBLE, "double": DType.DOUBLE, "integer": DType.BIGINT}
_Elements = tuple[int, np.ndarray, np.ndarray, np.ndarray]
"""The offset that is read; rows, columns and values of elements."""
_SYMMETRIES = ("general", "symmetric", "skew-symmetric")


class Matrix(Rows):
    """A Matrix Market file as rows of two keys, which count from 0, and `val`.

    Attributes:
        sparse: Whether the file lists elements; else it has all of them.
    """

    positional = True

    def __init__(self, path: str) -> None:
        """Opens the file and reads its first lines.

        Args:
            path: The file's path.
        """
        with refusing(path):
            super().__init__(RegularFile(path))
            with self.file.open() as text:
                words, size = self._first(text)
                self._start = text.tell()
        form, self._field, self._symmetry = words
        self.sparse = form == "coordinate"
        self.extents = size[0], size[1]
        self._entries = size[2] if self.sparse else size[0] * size[1]
        # An entry has at least two bytes; a symmetric matrix has half of its entries.
        room = self.file.size - self._start
        if self._entries > room and (self.sparse or self._entries > 2 * room + 2):
            raise self.file.refusal(
                f"is truncated or damaged: {room} bytes cannot hold {self._entries} elements"
            )
        kind = _FIELDS.get(self._field, DType.BIGINT)
        self.columns = {"d0": DType.BIGINT, "d1": DType.BIGINT, "val": kind}

    def _first(self, text: IO[bytes]) -> tuple[list[str], list[int]]:
        """The last three words of the first line, and the numbers of the line of sizes."""
        words = text.readline(LONGEST).decode("latin1").lower().split()
        if len(words) != 5 or words[:2] != ["%%matrixmarket", "matrix"]:
            raise self.file.refusal("is no Matrix Market file: its first line is wrong")
        kind, field, symmetry = words[2:]
        known = kind in ("coordinate", "array") and symmetry in _SYMMETRIES
        known = known and (field in _FIELDS or (field == "pattern" and kind == "coordinate"))
        if not known:
            raise self.file.refusal(
                f"holds a matrix that is {kind} {field} {symmetry}",
                "Supported are coordinate and array, real, integer and pattern, general, "
                "symmetric and skew-symmetric.",
            )
        comments = 0
        while (line := text.readline(LONGEST)).startswith(b"%") or line.isspace():
            comments += len(line)
            if comments > COMMENTS:
                raise self.file.refusal(
                    f"is damaged: it has more than {COMMENTS} bytes of comments"
                )
        try:
            size = [int(n) for n in line.split()]
        except ValueError:
            size = []
        if len(size) != (3 if kind == "coordinate" else 2) or min(size) < 0:
            raise self.file.refusal("is damaged: its line of sizes is wrong")
        self.file.check_shape(size[:2])
        if symmetry != "general" and size[0] != size[1]:
            raise self.file.refusal("is damaged: a symmetric matrix is square")
        return words[2:], size

    def _batches(self, wanted: Mapping[str, DType]) -> Iterator[tuple[float, pa.RecordBatch]]:
        raise NotImplementedError  # `batches` does not use Arrow's batches

    def batches(self, wanted: Mapping[str, DType], tick: Tick) -> Iterator[Batch]:
        """The rows in batches, with all three columns; as `Rows.batches`."""
        if self.columns["val"] is not DType.BIGINT and not wanted["val"].is_float:
            raise DataError(
                f"'{self.file.path}' holds real numbers, but its value is {wanted['val'].value}"
            )
        with refusing(self.file.path), damaged(self.file):
            self.file.check_current()
            parts = self._listed() if self.sparse else self._dense()
            for read, rows, columns, values in parts:
                yield {"d0": rows, "d1": columns, "val": self._as(values, wanted["val"])}
                tick(min(1.0, read / self.file.size))
            self.file.check_current()

    def _as(self, values: np.ndarray, wanted: DType) -> np.ndarray:
        if not wanted.is_float:
            lo, hi = (0, 1) if wanted is DType.BOOLEAN else wanted.range
            if len(values) and (values.min() < lo or values.max() > hi):
                raise DataError(f"'{self.file.path}' has numbers that are no {wanted.value}")
            return values.astype(wanted.numpy)
        with np.errstate(over="ignore"):
            if wanted is DType.BFLOAT16:
                return stored(values, wanted)
            return values.astype(wanted.numpy)

    def _listed(self) -> Iterator[_Elements]:
        assert self.extents is not None
        most, left = np.array(self.extents)[:, None], self._entries
        for read, (rows, columns, *listed) in self._numbers():
            left -= len(rows)
            if left < 0:
                raise self._excess()
            at = np.stack([rows, columns])
            if (at < 1).any() or (at > most).any():
                raise self.file.refusal("is damaged: it has an element outside of its shape")
            values = listed[0] if listed else np.ones(len(rows), np.int64)
            yield self._with_mirrored(read, rows - 1, columns - 1, values)
        if left:
            raise self.file.refusal(f"is truncated: {left} of {self._entries} elements are missing")

    def _dense(self) -> Iterator[_Elements]:
        """The elements of a dense matrix; the file has half of a symmetric one."""
        assert self.extents is not None
        many, done = max(1, self.extents[0]), 0
        if not self._entries:  # the other extent may be any number
            if any(len(values) for _, (values,) in self._numbers()):
                raise self._excess()
            return
        # Columns are complete, or begin on the diagonal, or below it.
        lengths = np.full(self.extents[1], many)
        skipped = np.zeros_like(lengths)
        if self._symmetry != "general":
            skipped = np.arange(self.extents[1]) + (self._symmetry == "skew-symmetric")
            lengths = lengths - skipped
        ends = np.cumsum(lengths)
        entries = int(ends[-1])
        for read, (values,) in self._numbers():
            at = np.arange(done, done + len(values))
            done += len(values)
            if done > entries:
                raise self._excess()
            columns = np.searchsorted(ends, at, "right")
            rows = at - ends[columns] + lengths[columns] + skipped[columns]
            yield self._with_mirrored(read, rows, columns, values)
        if done < entries:
            raise self.file.refusal(f"is truncated: {entries - done} elements are missing")
        if self._symmetry == "skew-symmetric":
            diagonal = np.arange(many)
            kind = self.columns["val"] or DType.DOUBLE
            yield self.file.size, diagonal, diagonal, np.zeros(many, kind.numpy)

    def _excess(self) -> OperationalError:
        return self.file.refusal("is damaged: it has more elements than it declares")

    def _with_mirrored(
        self, read: int, rows: np.ndarray, columns: np.ndarray, values: np.ndarray
    ) -> _Elements:
        if self._symmetry == "general":
            return read, rows, columns, values
        outside = rows != columns
        mirrored = -values[outside] if self._symmetry == "skew-symmetric" else values[outside]
        return (
            read,
            np.concatenate([rows, columns[outside]]),
            np.concatenate([columns, rows[outside]]),
            np.concatenate([values, mirrored]),
        )

    def _numbers(self) -> Iterator[tuple[int, list[np.ndarray]]]:
        """The offset that is read, and the columns of numbers of a block of lines.

        Arrow's CSV reader parses them, as SciPy's reader aborts the process on some damaged files.
        """
        import pyarrow as pa  # takes 60 ms, and few formats need it
        from pyarrow import csv

        kind = pa.int64() if self.columns["val"] is DType.BIGINT else pa.float64()
        types = {"i": pa.int64(), "j": pa.int64()} if self.sparse else {}
        if self._field != "pattern":
            types["v"] = kind
        read = csv.ReadOptions(use_threads=False, block_size=2 * BLOCK, column_names=list(types))
        parse = csv.ParseOptions(delimiter=" ", quote_char=False)
        convert = csv.ConvertOptions(column_types=types, null_values=[])
        with self.file.open() as text:
            text.seek(self._start)
            while block := text.read(BLOCK):
                block += text.readline(LONGEST)
                if not block.isspace():
                    plain = _plain(block)
                    table = csv.read_csv(io.BytesIO(plain), read, parse, convert)
                    yield text.tell(), [c.to_numpy() for c in table.columns]


def _plain(block: bytes) -> bytes:
    """Lines of numbers, with single spaces between them only."""
    plain = block.replace(b"\t", b" ").replace(b"\r\n", b"\n")
    if b"  " in plain or b" \n" in plain or b"\n " in plain or plain[:1] == b" ":
        plain = re.sub(rb" +", b" ", plain).replace(b" \n", b"\n").replace(b"\n ", b"\n").strip()
    return plain


def write_rows(
    path: str,
    dtype: DType,
    shape: Sequence[int],
    listed: int | None,
    batches: Iterator[pa.RecordBatch],
) -> int:
    """Writes a matrix, and returns the number of its elements.

    Args:
        path: The file's path.
        dtype: The type of the elements.
        shape: Two extents.
        listed: The number of elements of a sparse matrix; None writes a dense one.
        batches: The columns of two keys and the value; a dense matrix is in column order.

    Raises:
        OperationalError: The file cannot be written.
        NotSupportedError: The tensor is no matrix.
    """
    import pyarrow as pa  # as for CSV
    import pyarrow.compute as pc
    from pyarrow import csv

    if len(shape) != 2:
        raise NotSupportedError(
            f"A Matrix Market file holds a matrix, and this has {len(shape)} keys",
            hint="A .csv or .parquet file holds rows with any number of keys.",
        )
    kind = "array" if listed is None else "coordinate"
    field = "real" if dtype.is_float else "integer"
    size = [*shape] if listed is None else [*shape, listed]
    rows = 0
    options = csv.WriteOptions(include_header=False, delimiter=" ")
    value = pa.int64() if field == "integer" else pa.float64()
    if dtype in (DType.FLOAT, DType.HALF, DType.BFLOAT16):
        value = pa.float32()  # written as its shortest decimals
    with part_file(path) as file:
        file.write(f"%%MatrixMarket matrix {kind} {field} general\n".encode())
        file.write((" ".join(map(str, size)) + "\n").encode())
        for batch in batches:
            *keys, values = batch.columns
            if values.null_count:
                raise DataError("A Matrix Market file has no NULL", hint="COALESCE(…, 0) …")
            parts = [pc.add(k, 1) for k in keys] if listed is not None else []
            parts.append(values.cast(value))
            table = pa.table(parts, [f"c{n}" for n in range(len(parts))])
            csv.write_csv(table, pa.PythonFile(Holes(file), "w"), write_options=options)
            rows += batch.num_rows
    return rows
