"""Writing a payload: one version of a tensor as an immutable Arrow IPC file.

The file has one record batch with one row. A field is a column: a fixed-shape tensor, or a
list where Arrow has no tensor of that many elements. The last column holds the checksums.
The catalog contains the offsets of the elements, so that reading needs no Arrow.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.core.schema import Schema
from einsql.storage.array_ownership import distinct
from einsql.storage.database.checks import CHUNK, ChunkChecksums
from einsql.storage.database.layout import Layout, Part
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
"""The column of the checksums; not a valid field name."""

Progress = Callable[[int], None]
"""Callback with the number of bytes after each piece; raises to cancel."""


def ignore(nbytes: int) -> None:
    """Ignores progress."""


def tile_text(part: Part, schema: Schema, chunk: int) -> str:
    """The keys of a chunk, as `from i = 0, j = 0 to i = 3, j = 7`.

    Args:
        part: The field.
        schema: The tensor's keys and fields.
        chunk: The checksum's number within the field.
    """
    itemsize = schema.dtype(part.name).numpy.itemsize
    ends = []
    for at in (chunk * CHUNK, min((chunk + 1) * CHUNK, prod(part.shape) * itemsize) - 1):
        cell = np.unravel_index(at // itemsize, part.shape) if part.shape else ()
        keys = zip(schema.keys, cell, strict=True)
        ends.append(", ".join(f"{k.name} = {k.lo + int(n)}" for k, n in keys))
    return f"from {ends[0]} to {ends[1]}"


def write_payload(
    file: IO[bytes], name: str, schema: Schema, fields: Fields, tick: Progress = ignore
) -> Layout:
    """Writes a tensor's fields.

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
    starts, at = _begin(file, schema, shapes)
    sums = {name: ChunkChecksums() for name in shapes}
    ends = dict(starts)
    for slabs in pieces:
        for field, array in slabs.items():
            for data in _ordered(array):
                write_all(file.fileno(), data, ends[field])
                sums[field].feed(data)
                ends[field] += len(data)
                tick(len(data))
    parts, checks = [], list[int]()
    for field, shape in shapes.items():
        sums[field].finish()
        parts.append(Part(field, starts[field], shape, len(checks)))
        checks += sums[field].checksums
    write_all(file.fileno(), np.array(checks, "<u4").view(np.uint8).data, at)
    size = os.fstat(file.fileno()).st_size
    layout = Layout(file=name, size=size, parts=tuple(parts), sums=at, count=len(checks), frame=0)
    frame = frame_of(layout, schema, lambda lo, hi: os.pread(file.fileno(), hi - lo, lo))
    return Layout(file=name, size=size, parts=tuple(parts), sums=at, count=len(checks), frame=frame)


def frame_of(layout: Layout, schema: Schema, read: Any) -> int:
    """The CRC-32 of all bytes outside of the fields' elements.

    Args:
        layout: The offsets of the elements.
        schema: The types of the fields.
        read: Returns the bytes between two offsets.
    """
    crc, end = 0, 0
    for part in sorted(layout.parts, key=lambda p: p.offset):
        if not prod(part.shape):
            continue
        crc = zlib.crc32(read(end, part.offset), crc)
        end = part.offset + prod(part.shape) * schema.dtype(part.name).numpy.itemsize
    return zlib.crc32(read(end, layout.size), crc)


def _begin(
    file: IO[bytes], schema: Schema, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, int], int]:
    """Writes everything except elements and checksums; returns the offsets of both."""
    import pyarrow as pa  # imported when used: takes 60 ms, and only writing needs it

    sizes = {f.name: prod(shapes[f.name]) * f.dtype.numpy.itemsize for f in schema.fields}
    many = sum(-(-size // CHUNK) for size in sizes.values())
    columns = [
        (f.name, arrow.element_type(f.dtype), shapes[f.name], arrow_metadata(f.dtype))
        for f in schema.fields
    ]
    columns.append((SUMS, pa.uint32(), (many,), None))
    bodies, arrays, kinds = [], [], []
    for name, element, shape, metadata in columns:
        bodies.append(room(max(64, prod(shape) * element.bit_width // 8)))
        arrays.append(_column(element, shape, bodies[-1]))
        kinds.append(pa.field(name, arrays[-1].type, metadata=metadata))
    sink = Holes(file, bodies)
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    arrow_schema = pa.schema(kinds)
    with pa.ipc.new_file(pa.PythonFile(sink, "w"), arrow_schema, options=options) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=arrow_schema))
    file.flush()
    starts = [sink.starts.get(b.address, 0) for b in bodies]
    return dict(zip(sizes, starts[:-1], strict=True)), starts[-1]


def _column(element: pa.DataType, shape: tuple[int, ...], body: pa.Buffer) -> pa.Array:
    import pyarrow as pa  # as above

    size = prod(shape)
    if size <= arrow.MOST:
        return arrow.tensor_row(element, shape, body)
    values = pa.Array.from_buffers(element, size, [None, body])
    ends = pa.array([0, size], pa.int64()).buffers()[1]
    kind = pa.large_list(element)
    return pa.LargeListArray.from_buffers(kind, 1, [None, ends], children=[values])


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


def _ordered(array: np.ndarray) -> Iterator[memoryview]:
    """An array's bytes in C order; an array in another order is copied in slabs."""
    if array.flags.c_contiguous or array.nbytes <= SLAB:
        stored = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        data = stored.reshape(-1).view(np.uint8).data
        for at in range(0, len(data), SLAB):
            yield data[at : at + SLAB]
        return
    axis = next(n for n, extent in enumerate(array.shape) if extent > 1)
    step = max(1, SLAB // (array.itemsize * prod(array.shape[axis + 1 :])))
    for at in range(0, array.shape[axis], step):
        yield from _ordered(array[(slice(None),) * axis + (slice(at, at + step),)])
