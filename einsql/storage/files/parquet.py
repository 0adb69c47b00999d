"""Parquet and Arrow's IPC files of element rows, and Parquet with fixed-shape tensors."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.schema import DType
from einsql.storage.files import arrow
from einsql.storage.files.blocks import LONGEST, check_blocks
from einsql.storage.files.drafts import part_file
from einsql.storage.files.mapped import RegularFile, refusing
from einsql.storage.files.parquet_pages import check_pages, chunks
from einsql.storage.files.rows import Rows, columns_of, damaged
from einsql.storage.files.tensor import Content, Tick, slices, unmapped
from einsql.storage.files.writing import Column

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow import parquet as pq

ROWS_AT_ONCE = 2**16
"""Rows of a batch; it limits the memory of a read."""
MOST_TILES = 2**20
"""Greatest number of rows of a file of tensors, whose tile numbers are in memory."""
_GROUP = 2**20
"""Rows of a written row group."""
_STREAM = 2**20
"""Bytes per read of a column."""
_STRINGS, _CONTAINERS = 10**7, 10**6
"""Greatest size of a string in bytes and of a list in elements, in metadata read by pyarrow."""
"""Longest string and list in a footer, as the library allocates the declared sizes."""

_holding_tensors: dict[tuple[str, int, int], bool] = {}
"""Cache of whether a file holds tensors, by path, size and time of the last change."""
_MOST_CACHED, _RECENT = 64, 2 * 10**9
"""Size of the cache, and nanoseconds after a change for which a file is not cached."""


def has_tensors(schema: pa.Schema) -> bool:
    """True if a file has a column of fixed-shape tensors; else it has rows."""
    import pyarrow as pa  # takes 60 ms, and few formats need it

    return any(isinstance(f.type, pa.FixedShapeTensorType) for f in schema)


def holds_tensors(file: RegularFile) -> bool:
    """True if a Parquet file has a column of fixed-shape tensors.

    Cached, as a statement calls it several times and long footers are slow to read.

    Raises:
        OperationalError: The file is no Parquet file, or damaged.
    """
    key = (file.absolute, file.size, file.mtime_ns)
    answer = _holding_tensors.get(key)
    if answer is None:
        answer = _holds_tensors(file)
        if time.time_ns() - file.mtime_ns > _RECENT:  # else the next change may have the same time
            if len(_holding_tensors) >= _MOST_CACHED:
                _holding_tensors.clear()
            _holding_tensors[key] = answer
    return answer


def _holds_tensors(file: RegularFile) -> bool:
    reader = opened(file)
    chunks(file)  # pages beyond the file's end may make DuckDB invalidate its database
    if b"ARROW:schema" not in (reader.metadata.metadata or {}):  # needed for extension types
        return False
    with damaged(file):
        return has_tensors(reader.schema_arrow)


def opened(file: RegularFile) -> pq.ParquetFile:
    """Opens a Parquet file and reads its footer.

    Raises:
        OperationalError: The file is no Parquet file, or damaged.
    """
    from pyarrow import parquet  # takes 30 ms more than pyarrow

    with file.open() as start:
        if start.read(4) != b"PAR1":
            raise file.refusal("is no .parquet file: its first bytes are wrong")
        start.seek(max(0, file.size - 8))
        length = int.from_bytes(start.read(4), "little")
        if LONGEST < length < file.size:
            raise file.refusal(f"is damaged: its footer cannot have {length} bytes")
    with damaged(file):
        return parquet.ParquetFile(
            file.path,
            pre_buffer=False,
            buffer_size=_STREAM,
            page_checksum_verification=True,
            thrift_string_size_limit=_STRINGS,
            thrift_container_size_limit=_CONTAINERS,
        )


def opened_arrow(file: RegularFile) -> pa.ipc.RecordBatchFileReader:
    """Opens an Arrow IPC file without mapping it.

    Raises:
        OperationalError: The file is no Arrow file, or damaged.
    """
    import pyarrow as pa  # as above

    with file.open() as start:
        if start.read(len(arrow.MAGIC)) != arrow.MAGIC:
            raise file.refusal("is no .arrow file: its first bytes are wrong")
        file.require_inflated(max(check_blocks(file, start), default=0))
    with damaged(file):
        return pa.ipc.open_file(pa.OSFile(file.path))


def rows_of(file: RegularFile, *, is_parquet: bool) -> ColumnRows | None:
    """The rows of a Parquet or Arrow file; None if it has tensors.

    Raises:
        OperationalError: The file has another format, or is damaged.
    """
    reader = opened(file) if is_parquet else opened_arrow(file)
    with damaged(file):
        if has_tensors(reader.schema_arrow if is_parquet else reader.schema):
            return None
        return ColumnRows(file, reader, is_parquet)


class ColumnRows(Rows):
    """Rows of a Parquet or Arrow file."""

    def __init__(self, file: RegularFile, reader: Any, is_parquet: bool) -> None:
        super().__init__(file)
        self._reader, self._is_parquet = reader, is_parquet
        self.columns = columns_of(file, reader.schema_arrow if is_parquet else reader.schema)

    def _batches(self, wanted: Mapping[str, DType]) -> Iterator[tuple[float, pa.RecordBatch]]:
        if not self._is_parquet:
            count = self._reader.num_record_batches
            for n in range(count):
                batch = self._reader.get_batch(n)
                batch.validate(full=True)
                yield (n + 1) / count, batch
            return
        check_pages(self.file, wanted)
        rows, done = max(1, self._reader.metadata.num_rows), 0
        for batch in self._reader.iter_batches(
            ROWS_AT_ONCE, columns=list(wanted), use_threads=False
        ):
            done += batch.num_rows
            yield done / rows, batch


def find(file: RegularFile, reader: pq.ParquetFile, member: str | None) -> Content:
    """Finds the tensor in a column of a Parquet file; it is decoded completely.

    Raises:
        OperationalError: The file is damaged, has no such column, or its tiles make no tensor.
    """
    with refusing(file.path), damaged(file):
        schema = reader.schema_arrow
        name, numbers = arrow.columns(file, schema, member)
        dtype = arrow.dtype_of(file, schema.field(name))
        kind = schema.field(name).type
        extents = tuple(kind.shape)
        file.check_shape(extents)
        rows = reader.metadata.num_rows
        if rows > MOST_TILES or kind.storage_type.list_size != prod(extents):
            raise file.refusal("is damaged: its rows or their shapes are wrong")
        check_pages(file, [name, *numbers])
        places: list[tuple[int, ...]] = []
        for batch in reader.iter_batches(ROWS_AT_ONCE, columns=numbers) if numbers else ():
            places += arrow.numbers_of(file, batch, numbers)
        if not numbers:
            places = [()] * rows
        if len(places) != rows:
            raise file.refusal("is truncated or damaged: rows are missing")
        shape = arrow.permuted(file, kind)
        boxes = None
        if rows != 1 or numbers:
            boxes, shape = arrow.boxes_of(file, places, shape)

    def read(tick: Tick) -> np.ndarray:
        with damaged(file):
            return _whole(file, reader, name, dtype, shape, boxes, tick)

    return unmapped(name, dtype, shape, decode=read)


def _whole(
    file: RegularFile,
    reader: pq.ParquetFile,
    name: str,
    dtype: DType,
    shape: tuple[int, ...],
    boxes: np.ndarray | None,
    tick: Tick,
) -> np.ndarray:
    result, row = np.empty(shape, dtype.numpy), 0
    if not result.size:
        return result  # pyarrow cannot read empty lists
    for batch in reader.iter_batches(1, columns=[name], use_threads=False):
        (column,) = batch.columns
        column.validate(full=True)
        if column.null_count or column.storage.flatten().null_count:
            raise file.refusal("holds NULL, which is no element of a tensor")
        values = column.storage.flatten().to_numpy(zero_copy_only=True).view(dtype.numpy)
        for tile in values.reshape(batch.num_rows, *column.type.shape):
            logical = tile.transpose(column.type.permutation or range(tile.ndim))
            if boxes is None:
                result[...] = logical
            else:
                result[slices(boxes[row])] = logical
            row += 1
            tick(row / max(1, reader.metadata.num_rows))
    if row != reader.metadata.num_rows:
        raise file.refusal("is truncated or damaged: rows are missing")
    return result


def write_tensors(path: str, shape: tuple[int, ...], columns: Sequence[Column]) -> None:
    """Writes a Parquet file of one row with a tensor in each column.

    Raises:
        OperationalError: The file cannot be written.
        NotSupportedError: Arrow cannot store so many elements in a row.
    """
    import pyarrow as pa  # as above
    from pyarrow import parquet

    cells = []
    for column in columns:
        size = prod(shape)
        arrow.check_size(size)
        tensor = np.empty(shape, column.dtype.numpy)
        for box, array in column.bytewise():
            tensor[slices(box)] = array
        cells.append(arrow.cell(column.name, column.dtype, shape, pa.py_buffer(tensor)))
    schema = pa.schema([f for f, _ in cells])
    with part_file(path) as file, parquet.ParquetWriter(file, schema, **_OPTIONS) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([c for _, c in cells], schema=schema))


_OPTIONS: dict[str, Any] = {"compression": "zstd", "write_page_checksum": True}


def write_rows(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    """Writes rows as Parquet in groups of `_GROUP` rows, and returns their number.

    Raises:
        OperationalError: The file cannot be written.
    """
    import pyarrow as pa  # as above
    from pyarrow import parquet

    rows, group = 0, []
    with part_file(path) as file, parquet.ParquetWriter(file, schema, **_OPTIONS) as writer:
        for batch in batches:
            group.append(batch)
            rows += batch.num_rows
            if sum(b.num_rows for b in group) >= _GROUP:
                writer.write_table(pa.Table.from_batches(group, schema))
                group = []
        if group:
            writer.write_table(pa.Table.from_batches(group, schema))
    return rows


def write_arrow_rows(path: str, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> int:
    """Writes rows as an Arrow IPC file, and returns their number.

    Raises:
        OperationalError: The file cannot be written.
    """
    import pyarrow as pa  # as above

    rows = 0
    with part_file(path) as file, pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += batch.num_rows
    return rows
