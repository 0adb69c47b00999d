"""CSV: a line of names, then a line for each row; by pyarrow, a block at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.storage.files.drafts import part_file
from einsql.storage.files.mapped import Found, refusing
from einsql.storage.files.rows import Rows, columns_of, damaged

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 2**20
"""Bytes that are read at once; no line is longer."""
COLUMNS = 2**13
"""The most columns: time grows with their square, DuckDB's more than Arrow's."""
_END = re.compile(rb"[\r\n]")
_INVALID = re.compile(
    r"In CSV column #(\d+): (?:Row #(\d+): )?CSV conversion error to [^:]*: (.*)", re.DOTALL
)
_NULL = ("", "NULL", "null")


class Delimited(Rows):
    """A CSV file."""

    def __init__(self, path: str, delimiter: str, header: bool) -> None:
        """Opens the file and reads its names.

        Args:
            path: Of the file.
            delimiter: One character.
            header: Whether the first line has names; without, columns go by their order.
        """
        with refusing(path):
            super().__init__(Found(path))
            self._delimiter = delimiter
            self._header = header
            self.positional = not header
            with damaged(self.file):
                if not self.file.size:
                    raise self.file.refusal("is empty: a .csv file begins with names of columns")
                self._readable()
                self.columns = columns_of(self.file, self._open({}).schema)

    def _readable(self) -> None:
        """Refuses a first line longer than a block, or of too many columns, which it names."""
        with self.file.open() as file:
            start = file.read(BLOCK)
        if b"\n" not in start and len(start) < self.file.size and b"\r" not in start:
            raise self.file.refusal(f"is no CSV file: its first line is longer than {BLOCK} bytes")
        columns = _END.split(start, maxsplit=1)[0].count(self._delimiter.encode()) + 1
        if columns > COLUMNS:
            raise self.file.refusal(f"has {columns} columns, more than {COLUMNS}")

    def _open(self, types: Mapping[str, pa.DataType]) -> Any:
        from pyarrow import csv  # 60 ms, and only files need it

        return csv.open_csv(
            self.file.path,
            csv.ReadOptions(
                use_threads=False, block_size=BLOCK, autogenerate_column_names=not self._header
            ),
            csv.ParseOptions(delimiter=self._delimiter),
            csv.ConvertOptions(
                column_types=dict(types),
                include_columns=list(types),
                null_values=_NULL,
                quoted_strings_can_be_null=False,
            ),
        )

    def _batches(self, wanted: Mapping[str, DType]) -> Iterator[tuple[float, pa.RecordBatch]]:
        import pyarrow as pa  # as above

        # HALF and BFLOAT16 are rounded from the exact text by way of DOUBLE.
        types = {
            n: pa.float64() if t.is_short else pa.from_numpy_dtype(t.numpy)
            for n, t in wanted.items()
        }
        read = 0
        try:
            with self._open(types) as reader:
                for batch in reader:
                    read += BLOCK
                    yield read / self.file.size, batch
        except pa.ArrowInvalid as error:
            raise self._told(error, wanted) from None

    def _told(self, error: Exception, wanted: Mapping[str, DType]) -> Exception:
        """Translates pyarrow's error of a value that does not fit its column."""
        match = _INVALID.match(str(error))
        if match is None:
            return error
        name = list(self.columns)[int(match[1])]
        kind = wanted[name].value if name in wanted else "number"
        row = f" in its row {int(match[2]) - self._header}" if match[2] else ""
        return DataError(
            f"'{self.file.path}' has what is no {kind} for {name},{row}: {match[3][:300]}",
            hint=f"FROM '{self.file.path}' reads it as a table, and CAST converts.",
        )


def write_rows(
    path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], delimiter: str, header: bool
) -> int:
    """Writes a CSV file and tells how many rows; every float's shortest exact decimals.

    Raises:
        OperationalError: It cannot be written.
    """
    import pyarrow as pa  # as above
    from pyarrow import csv

    # Arrow has no short floats in CSV; as FLOAT they are exact.
    plain = pa.schema(
        [pa.field(f.name, pa.float32() if pa.types.is_float16(f.type) else f.type) for f in schema]
    )
    options = csv.WriteOptions(include_header=header, delimiter=delimiter)
    rows = 0
    with part_file(path) as file, csv.CSVWriter(file, plain, write_options=options) as writer:
        for batch in batches:
            writer.write_batch(batch.cast(plain))
            rows += batch.num_rows
    return rows
