"""Writing segments: tiles of a tensor as an immutable Arrow IPC file.

The file has one record batch with a row for each tile, in the order of the tiles: the first and
the end value of each key, the format of the tile, the elements of each field, the checksums, and
the statistics.
A field is a column of fixed-shape tensors, or of lists where its tiles have several shapes. So
the elements of adjacent tiles adjoin, and a base segment has those of a field in C order. The
catalog contains the offsets of the elements, so that reading needs no Arrow.

The base segment of a sparse tensor is one row of format CSR. Its columns have a list for each array
of the matrix, and its checksums are those of each MiB of each array. A newer segment has a row for
each block, with a checksum of each array.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, Schema, is_flag
from einsql.storage.array_ownership import distinct
from einsql.storage.database.checks import CHUNK, RunningUnits
from einsql.storage.database.layout import CSR, DENSE, Fill, Part, Segment, widest
from einsql.storage.database.tiles.tile_grid import TileGrid, tile_shape
from einsql.storage.database.tiles.tile_statistics import RECORD, records
from einsql.storage.fields import Fields
from einsql.storage.files.drafts import write_all
from einsql.storage.files.holes import Holes, room
from einsql.storage.relation import arrow_metadata

if TYPE_CHECKING:
    import pyarrow as pa

    from einsql.storage.files import arrow
else:  # loaded with the first payload
    arrow = LazyModule("einsql.storage.files.arrow")

SLAB = 2**26
"""Bytes that are reordered, or fetched from other sites, at once."""
SUMS = ".checksums"
"""The column of the checksums of each row; not a valid field name."""
END = ".end."
"""Begins the name of the column with the end of a tile along a key."""
KIND = ".format"
"""The column of the format of each tile: "dense" or "csr"."""
STATISTICS = ".statistics"
"""The column of the statistics of each field in a dense tile: items of `RECORD`."""

Slab = tuple[str, memoryview, np.ndarray | None]
"""A field, its next bytes, and the flags of their existing keys; None if every key exists."""

Progress = Callable[[int], None]
"""Callback with the number of bytes after each piece; raises to cancel."""


def ignore(nbytes: int) -> None:
    """Ignores progress."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a segment.

    Attributes:
        boxes: The positions of their tiles: int64 (rows, keys, 2).
        sizes: The number of elements of each row by field: int64 (rows,).
        format: `DENSE` or `CSR`.
        is_chunked: Whether each MiB of a field has a checksum, and not each row.
    """

    boxes: np.ndarray
    sizes: Mapping[str, np.ndarray]
    format: str = DENSE
    is_chunked: bool = False

    def units(self, name: str, itemsize: int) -> list[int]:
        """The bytes of each part of a field that has a checksum."""
        nbytes: list[int] = (self.sizes[name] * itemsize).tolist()
        if not self.is_chunked:
            return nbytes
        return [min(CHUNK, size - at) for size in nbytes for at in range(0, size, CHUNK)]


def write_payload(
    file: IO[bytes], name: str, schema: Schema, fields: Fields, tick: Progress = ignore
) -> Segment:
    """Writes a tensor's fields as a base segment.

    Args:
        file: An empty file, open for writing and reading.
        name: Its final name.
        schema: Keys and fields.
        fields: The fields, in memory or on sites. Remote fields are fetched piece by piece.
        tick: Callback with the number of bytes after each piece.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    if fields.sites is None:
        arrays = {f.name: distinct(fields[f.name]) for f in schema.fields}
        pieces: Iterable[Mapping[str, np.ndarray]] = [arrays]
        shapes = {name: array.shape for name, array in arrays.items()}
    else:
        pieces = _fetched(schema, fields)
        shapes = dict.fromkeys((f.name for f in schema.fields), schema.shape)
    # An axis along which all fields are equal is not cut.
    stored = tuple(max((s[n] for s in shapes.values()), default=1) for n in range(len(schema.keys)))
    grid = TileGrid(stored, tile_shape(stored, widest(schema)))
    tiles = np.arange(grid.count)
    spans = {field: grid.spans(tiles, shape) for field, shape in shapes.items()}
    boxes = grid.boxes(tiles)
    equal = np.array(stored, np.int64) != np.array(schema.shape, np.int64)
    boxes[:, equal, 1] = np.array(schema.shape, np.int64)[equal]
    sizes = {field: span[:, 1] - span[:, 0] for field, span in spans.items()}
    slabs = (slab for arrays in pieces for slab in _slabs(arrays, arrays.get(PRESENT)))
    segment = Segment(
        file=name,
        size=0,
        parts=tuple(Part(f, 0, shape, n) for n, (f, shape) in enumerate(shapes.items())),
        sums=0,
        count=len(tiles) * len(shapes),
        frame=0,
        tile=grid.tile,
    )
    return _written(file, segment, schema, _Rows(boxes, sizes), slabs, tick)


def write_csr(
    file: IO[bytes],
    name: str,
    schema: Schema,
    arrays: Mapping[str, np.ndarray],
    fill: Fill | tuple[Fill, ...],
    tick: Progress = ignore,
) -> Segment:
    """Writes the arrays of a sparse matrix as a segment.

    Args:
        file: An empty file, open for writing and reading.
        name: Its final name.
        schema: The keys of the tensor, and the arrays as its fields.
        arrays: The arrays, each with one axis.
        fill: See `Segment`.
        tick: Callback with the number of bytes after each piece.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    boxes = np.array([[(0, k.extent) for k in schema.keys]], np.int64)
    sizes = {f.name: np.array([len(arrays[f.name])]) for f in schema.fields}
    rows = _Rows(boxes, sizes, CSR, is_chunked=True)
    parts, count = list[Part](), 0
    for f in schema.fields:
        parts.append(Part(f.name, 0, arrays[f.name].shape, count))
        count += len(rows.units(f.name, f.dtype.numpy.itemsize))
    segment = Segment(name, 0, tuple(parts), sums=0, count=count, frame=0, format=CSR, fill=fill)
    slabs = _slabs({f.name: arrays[f.name] for f in schema.fields}, None)
    return _written(file, segment, schema, rows, slabs, tick)


def write_newer(
    file: IO[bytes],
    segment: Segment,
    schema: Schema,
    boxes: np.ndarray,
    sizes: Mapping[str, np.ndarray],
    tiles: Callable[[str], Iterator[np.ndarray]],
) -> Segment:
    """Writes newer versions of some tiles, or of blocks of a sparse tensor, as a segment.

    Args:
        file: An empty file, open for writing and reading.
        segment: The name, tile, format and number of the segment.
        schema: Keys and fields, or the arrays of blocks.
        boxes: The positions of the tiles: int64 (tiles, keys, 2).
        sizes: The number of elements of each tile by field.
        tiles: Returns a field's elements of each tile, contiguous.

    Raises:
        OSError: The disk is full, or the file cannot be written.
    """
    names = [f.name for f in schema.fields]
    segment = replace(
        segment,
        parts=tuple(Part(name, 0, (int(sizes[name].sum()),), n) for n, name in enumerate(names)),
        count=len(boxes) * len(names),
    )
    flags = list(tiles(PRESENT)) if schema.has(PRESENT) else [None] * len(boxes)
    slabs = (
        slab
        for name in names
        for a, present in zip(tiles(name), flags, strict=True)
        for slab in _slabs({name: a}, present)
    )
    return _written(file, segment, schema, _Rows(boxes, sizes, segment.format), slabs, ignore)


def _written(
    file: IO[bytes],
    segment: Segment,
    schema: Schema,
    rows: _Rows,
    slabs: Iterable[Slab],
    tick: Progress,
) -> Segment:
    """Writes a segment; returns its description with all places.

    Args:
        file: An empty file.
        segment: The description without places.
        schema: Keys and fields.
        rows: The rows.
        slabs: The elements of the fields, in order.
        tick: Callback with the number of bytes after each piece.
    """
    places = _begin(file, schema, rows, segment.count)
    units = {
        f.name: RunningUnits(
            rows.units(f.name, f.dtype.numpy.itemsize), f.dtype if rows.format == DENSE else None
        )
        for f in schema.fields
    }
    ends = dict(places.starts)
    for field, data, present in slabs:
        write_all(file.fileno(), data, ends[field])
        units[field].feed(data, present)
        ends[field] += len(data)
        tick(len(data))
    for running in units.values():
        running.finish()
    checks = _by_row(rows, [np.array(u.checksums, "<u4") for u in units.values()])
    write_all(file.fileno(), checks.view(np.uint8).data, places.sums)
    if places.statistics is not None:
        listed = [records(units[f.name].observed, f.dtype) for f in schema.fields]
        write_all(file.fileno(), _by_row(rows, listed).view(np.uint8).data, places.statistics)
    segment = replace(
        segment,
        size=os.fstat(file.fileno()).st_size,
        parts=tuple(replace(p, offset=places.starts[p.name]) for p in segment.parts),
        sums=places.sums,
        statistics=places.statistics,
    )
    return with_frame(segment, schema, file.fileno())


def _by_row(rows: _Rows, of_fields: Sequence[np.ndarray]) -> np.ndarray:
    """The entries of all fields: of rows of each field in turn, of MiBs field by field."""
    if not rows.is_chunked:
        return np.stack(of_fields, axis=-1).reshape(-1)
    return np.concatenate(of_fields)


def with_frame(segment: Segment, schema: Schema, file: int) -> Segment:
    """The description with the checksum of the frame.

    Args:
        segment: The description without it.
        schema: The types of the fields.
        file: The descriptor of the complete file.
    """
    frame = frame_of(segment, schema, lambda lo, hi: os.pread(file, hi - lo, lo))
    return replace(segment, frame=frame)


def frame_of(segment: Segment, schema: Schema, read: Any) -> int:
    """The CRC-32 of all bytes outside of the fields' elements.

    Args:
        segment: The offsets of the elements.
        schema: The types of the fields.
        read: Returns the bytes between two offsets.
    """
    crc, end = 0, 0
    for part in sorted(segment.parts, key=lambda p: p.offset):
        if not prod(part.shape):
            continue
        crc = zlib.crc32(read(end, part.offset), crc)
        end = part.offset + prod(part.shape) * schema.dtype(part.name).numpy.itemsize
    return zlib.crc32(read(end, segment.size), crc)


@dataclass(frozen=True, slots=True)
class _Places:
    """Offsets in a segment of later writes.

    Attributes:
        starts: The elements of each field.
        sums: The checksums.
        statistics: The statistics; None without any.
    """

    starts: Mapping[str, int]
    sums: int
    statistics: int | None


def _begin(file: IO[bytes], schema: Schema, rows: _Rows, checks: int) -> _Places:
    """Writes everything except elements, a number of checksums, and statistics."""
    import pyarrow as pa  # imported when used: takes 60 ms, and only writing needs it

    many = len(rows.boxes)
    columns: list[tuple[pa.Field, pa.Array]] = []
    for n, key in enumerate(schema.keys):
        for title, bounds in (
            (key.name, rows.boxes[:, n, 0]),
            (END + key.name, rows.boxes[:, n, 1]),
        ):
            columns.append((pa.field(title, pa.int64()), pa.array(bounds + key.lo)))
    columns.append((pa.field(KIND, pa.string()), pa.array([rows.format] * many, pa.string())))
    bodies = []
    for f in schema.fields:
        element, sizes = arrow.element_type(f.dtype), rows.sizes[f.name]
        bodies.append(room(max(64, int(sizes.sum()) * f.dtype.numpy.itemsize)))
        column = _column(element, rows, sizes, bodies[-1])
        columns.append((pa.field(f.name, column.type, metadata=arrow_metadata(f.dtype)), column))
    bodies.append(room(max(64, 4 * checks)))
    each = np.full(many, checks // max(1, many), np.int64)
    sums = _list(pa.uint32(), each, bodies[-1])
    columns.append((pa.field(SUMS, sums.type), sums))
    has_statistics = rows.format == DENSE and many > 0
    if has_statistics:
        width = RECORD.itemsize * len(schema.fields)
        bodies.append(room(many * width))
        kind = pa.binary(width)
        column = pa.FixedSizeBinaryArray.from_buffers(kind, many, [None, bodies[-1]])
        columns.append((pa.field(STATISTICS, kind), column))
    sink = Holes(file, bodies)
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    arrow_schema = pa.schema([f for f, _ in columns])
    with pa.ipc.new_file(pa.PythonFile(sink, "w"), arrow_schema, options=options) as writer:
        batch = pa.RecordBatch.from_arrays([c for _, c in columns], schema=arrow_schema)
        writer.write_batch(batch)
    file.flush()
    places = [sink.starts.get(b.address, 0) for b in bodies]
    starts = {f.name: at for f, at in zip(schema.fields, places, strict=False)}
    fields = len(schema.fields)
    return _Places(starts, places[fields], places[-1] if has_statistics else None)


def _column(element: pa.DataType, rows: _Rows, sizes: np.ndarray, body: pa.Buffer) -> pa.Array:
    """A column of tensors if all rows are dense tiles of one shape, else of lists."""
    if rows.format != DENSE:
        return _list(element, sizes, body)
    boxes = rows.boxes
    shapes = boxes[:, :, 1] - boxes[:, :, 0]
    shape = tuple(shapes[0].tolist()) if len(shapes) else ()
    if not len(shapes) or (shapes != shapes[0]).any() or (sizes != prod(shape)).any():
        return _list(element, sizes, body)
    return arrow.tensor_rows(element, shape, len(sizes), body)


def _list(element: pa.DataType, sizes: np.ndarray, body: pa.Buffer) -> pa.Array:
    import pyarrow as pa  # as above

    values = pa.Array.from_buffers(element, int(sizes.sum()), [None, body])
    ends = pa.array(np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])).buffers()[1]
    kind = pa.large_list(element)
    return pa.LargeListArray.from_buffers(kind, len(sizes), [None, ends], children=[values])


def _fetched(schema: Schema, fields: Fields) -> Iterator[Fields]:
    """Fetches remote fields piece by piece, in C order."""
    names = [f.name for f in schema.fields]
    row = max(f.dtype.numpy.itemsize for f in schema.fields)

    def pieces(box: np.ndarray) -> Iterator[np.ndarray]:
        extents = box[:, 1] - box[:, 0]
        axis = next((n for n, extent in enumerate(extents) if extent > 1), None)
        if axis is None or prod(extents.tolist()) * row <= SLAB:
            yield box
            return
        lo, hi = (int(n) for n in box[axis])
        step = max(1, SLAB // (row * prod(extents[axis + 1 :].tolist())))
        for at in range(lo, hi, step):
            piece = box.copy()
            piece[axis] = at, min(at + step, hi)
            yield from pieces(piece)

    everywhere = np.array([(0, k.extent) for k in schema.keys], np.int64).reshape(-1, 2)
    for box in pieces(everywhere):
        yield fields.part(names, box)


def _slabs(arrays: Mapping[str, np.ndarray], flags: np.ndarray | None) -> Iterator[Slab]:
    """The bytes of fields in C order.

    Args:
        arrays: The fields.
        flags: The flags of the existing keys; ignored for fields that repeat along another axis.
    """
    for name, array in arrays.items():
        counted = flags is not None and flags.shape == array.shape and not is_flag(name)
        for data, present in _ordered(array, flags if counted else None):
            yield name, data, present


def _ordered(
    array: np.ndarray, flags: np.ndarray | None
) -> Iterator[tuple[memoryview, np.ndarray | None]]:
    """An array's bytes in C order, and the flags of the same shape, along one axis.

    An array in another order is copied in slabs.
    """
    if array.flags.c_contiguous or array.nbytes <= SLAB:
        stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        data = stored.reshape(-1).view(np.uint8).data
        present = None if flags is None else flags.reshape(-1)
        many = SLAB // array.itemsize
        for n, at in enumerate(range(0, len(data), SLAB)):
            some = None if present is None else present[n * many : (n + 1) * many]
            yield data[at : at + SLAB], some
        return
    axis = next(n for n, extent in enumerate(array.shape) if extent > 1)
    step = max(1, SLAB // (array.itemsize * prod(array.shape[axis + 1 :])))
    for at in range(0, array.shape[axis], step):
        where = (slice(None),) * axis + (slice(at, at + step),)
        yield from _ordered(array[where], None if flags is None else flags[where])
