"""CSV files of element rows, read and written by pyarrow in blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.storage.files.drafts import part_file
from einsql.storage.files.mapped import RegularFile, refusing
from einsql.storage.files.rows import Rows, columns_of, damaged

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK = 2**20
"""Bytes per read, and greatest size of a line."""
COLUMNS = 2**13
"""Greatest number of columns, as the time grows with its square, in DuckDB more than in Arrow."""
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
            path: The file's path.
            delimiter: One character.
            header: Whether the first line has names; else columns are matched by position.
        """
        with refusing(path):
            super().__init__(RegularFile(path))
            self._delimiter = delimiter
            self._header = header
            self.positional = not header
            with damaged(self.file):
                if not self.file.size:
                    raise self.file.refusal("is empty: a .csv file begins with the column names")
                self._check_first_line()
                self.columns = columns_of(self.file, self._open({}).schema)

    def _check_first_line(self) -> None:
        with self.file.open() as file:
            start = file.read(BLOCK)
        if b"\n" not in start and len(start) < self.file.size and b"\r" not in start:
            raise self.file.refusal(f"is no CSV file: its first line is longer than {BLOCK} bytes")
        columns = _END.split(start, maxsplit=1)[0].count(self._delimiter.encode()) + 1
        if columns > COLUMNS:
            raise self.file.refusal(f"has {columns} columns, more than {COLUMNS}")

    def _open(self, types: Mapping[str, pa.DataType]) -> Any:
        from pyarrow import csv  # takes 60 ms, and few formats need it

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

        # HALF and BFLOAT16 are rounded from DOUBLE.
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
            raise self._translated(error, wanted) from None

    def _translated(self, error: Exception, wanted: Mapping[str, DType]) -> Exception:
        match = _INVALID.match(str(error))
        if match is None:
            return error
        name = list(self.columns)[int(match[1])]
        kind = wanted[name].value if name in wanted else "number"
        row = f" in its row {int(match[2]) - self._header}" if match[2] else ""
        return DataError(
            f"'{self.file.path}' has a value that is no {kind} for {name},{row}: {match[3][:300]}",
            hint=f"FROM '{self.file.path}' reads it as a table, and CAST converts.",
        )


def write_rows(
    path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch], delimiter: str, header: bool
) -> int:
    """Writes rows as CSV, floats as their shortest exact decimals, and returns their number.

    Raises:
        OperationalError: The file cannot be written.
    """
    import pyarrow as pa  # as above
    from pyarrow import csv

    # Arrow cannot write 16-bit floats as CSV; they are exact as FLOAT.
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
