"""Matrix Market: matrices as text, by their elements or whole; Arrow reads the numbers.

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
from einsql.errors import DataError, NotSupportedError
from einsql.storage.files.drafts import part_file
from einsql.storage.files.mapped import Found, refusing
from einsql.storage.files.rows import Batch, Rows, damaged
from einsql.storage.files.tensor import Tick

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 2**22
"""Bytes of lines that are read at once."""
LONGEST = 2**16
"""Bytes of a line."""
COMMENTS = 2**20
"""Bytes of comments."""
_FIELDS = {"real": DType.DOUBLE, "double": DType.DOUBLE, "integer": DType.BIGINT}
_Elements = tuple[int, np.ndarray, np.ndarray, np.ndarray]
"""How far the file is read; rows, columns and values."""
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
            with self.file.open() as text:
                words, size = self._first(text)
                self._start = text.tell()
        form, self._field, self._symmetry = words
        self.sparse = form == "coordinate"
        self.extents = size[0], size[1]
        self._entries = size[2] if self.sparse else size[0] * size[1]
        # An entry has two bytes at least; half of a symmetric matrix is not written.
        room = self.file.size - self._start
        if self._entries > room and (self.sparse or self._entries > 2 * room + 2):
            raise self.file.refusal(
                f"is truncated or damaged: {room} bytes cannot hold {self._entries} elements"
            )
        kind = _FIELDS.get(self._field, DType.BIGINT)
        self.columns = {"d0": DType.BIGINT, "d1": DType.BIGINT, "val": kind}

    def _first(self, text: IO[bytes]) -> tuple[list[str], list[int]]:
        """The last words of the first line, and the numbers of the line of sizes."""
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
        passed = 0
        while (line := text.readline(LONGEST)).startswith(b"%") or line.isspace():
            passed += len(line)
            if passed > COMMENTS:
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
        raise NotImplementedError  # `batches` has no need of Arrow

    def batches(self, wanted: Mapping[str, DType], tick: Tick) -> Iterator[Batch]:
        """As of rows; the wanted ones are all three."""
        self._check_type(wanted["val"])
        with refusing(self.file.path), damaged(self.file):
            self.file.check_current()
            parts = self._listed() if self.sparse else self._dense()
            for read, rows, columns, values in parts:
                yield {"d0": rows, "d1": columns, "val": self._as(values, wanted["val"])}
                tick(min(1.0, read / self.file.size))
            self.file.check_current()

    def _check_type(self, wanted: DType) -> None:
        integral = self.columns["val"] is DType.BIGINT
        if not (wanted.is_float or integral):
            raise DataError(
                f"'{self.file.path}' holds real numbers, but its value is {wanted.value}"
            )

    def _as(self, values: np.ndarray, wanted: DType) -> np.ndarray:
        if not wanted.is_float:
            lo, hi = (0, 1) if wanted is DType.BOOLEAN else wanted.range
            if len(values) and (values.min() < lo or values.max() > hi):
                raise DataError(f"'{self.file.path}' holds numbers that are no {wanted.value}")
            return values.astype(wanted.numpy)
        with np.errstate(over="ignore"):
            if wanted is DType.BFLOAT16:
                return stored(values, wanted)
            return values.astype(wanted.numpy)

    def _listed(self) -> Iterator[_Elements]:
        """Listed elements."""
        assert self.extents is not None
        most, left = np.array(self.extents)[:, None], self._entries
        for read, (rows, columns, *listed) in self._numbers():
            left -= len(rows)
            if left < 0:
                raise self.file.refusal("is damaged: it has more elements than it says")
            at = np.stack([rows, columns])
            if (at < 1).any() or (at > most).any():
                raise self.file.refusal("is damaged: it has an element outside of its shape")
            values = listed[0] if listed else np.ones(len(rows), np.int64)
            yield self._with_mirrored(read, rows - 1, columns - 1, values)
        if left:
            raise self.file.refusal(f"is truncated: {left} of {self._entries} elements are missing")

    def _dense(self) -> Iterator[_Elements]:
        """Every element of a matrix that is written column by column, or half of it."""
        assert self.extents is not None
        many, done = max(1, self.extents[0]), 0
        if not self._entries:  # whatever the other extent is
            if any(len(values) for _, (values,) in self._numbers()):
                raise self.file.refusal("is damaged: it has more elements than it says")
            return
        # Where each column begins: whole ones, those from the diagonal on, or from below it.
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
                raise self.file.refusal("is damaged: it has more elements than it says")
            columns = np.searchsorted(ends, at, "right")
            rows = at - ends[columns] + lengths[columns] + skipped[columns]
            yield self._with_mirrored(read, rows, columns, values)
        if done < entries:
            raise self.file.refusal(f"is truncated: {entries - done} elements are missing")
        if self._symmetry == "skew-symmetric":
            diagonal = np.arange(many)
            kind = self.columns["val"] or DType.DOUBLE
            yield self.file.size, diagonal, diagonal, np.zeros(many, kind.numpy)

    def _with_mirrored(
        self, read: int, rows: np.ndarray, columns: np.ndarray, values: np.ndarray
    ) -> _Elements:
        """Elements, and what a symmetric matrix has beyond its diagonal."""
        if self._symmetry == "general":
            return read, rows, columns, values
        other = rows != columns
        mirrored = -values[other] if self._symmetry == "skew-symmetric" else values[other]
        return (
            read,
            np.concatenate([rows, columns[other]]),
            np.concatenate([columns, rows[other]]),
            np.concatenate([values, mirrored]),
        )

    def _numbers(self) -> Iterator[tuple[int, list[np.ndarray]]]:
        """The numbers of each line, a block of lines at a time, and how far it is read.

        Arrow's reader of CSV takes them: SciPy's ends the process on some damaged files.
        """
        import pyarrow as pa  # 60 ms, and only files need it
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
    """Lines of numbers with one space between them, and no other one."""
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
        """Does nothing; the opener closes the file."""
