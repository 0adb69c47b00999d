"""Arrow's IPC file format with tensors: one row of a fixed-shape-tensor column, or tiles.

https://arrow.apache.org/docs/format/CanonicalExtensions.html#fixed-shape-tensor

Tiles are as from `relation.to_batches` with equal cuts: int64 columns with the tile's number
along each axis, then the tensor columns; a file has one schema, so all tiles have one shape.
pyarrow reads the metadata; elements are views of einsql's own mapping of the file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import IO, TYPE_CHECKING

import numpy as np

from einsql.core.schema import DType, is_flag
from einsql.errors import Error, NotSupportedError, OperationalError, ProgrammingError
from einsql.storage.files.blocks import check_blocks
from einsql.storage.files.holes import Holes, room
from einsql.storage.files.mapped import Mapped, RegularFile, pick
from einsql.storage.files.tensor import Content, single
from einsql.storage.relation import arrow_metadata

if TYPE_CHECKING:
    import pyarrow as pa

MAGIC = b"ARROW1"
MOST = 2**31 - 1
"""Greatest number of elements in a row, as Arrow uses signed 32-bit offsets."""
_TYPES = {
    "int8": DType.TINYINT,
    "int32": DType.INTEGER,
    "int64": DType.BIGINT,
    "halffloat": DType.HALF,
    "float": DType.FLOAT,
    "double": DType.DOUBLE,
}
_STAND_INS = {DType.BOOLEAN: "uint8", DType.BFLOAT16: "uint16"}
"""Arrow types of columns whose metadata contain the element type."""
_HINT = (
    "It reads columns of fixed-shape tensors: one row, or tiles with their numbers in int64 "
    "columns. pyarrow.FixedShapeTensorArray.from_numpy_ndarray(array[None]) makes one row."
)

Tile = tuple[tuple[int, ...], np.ndarray]
"""A tile's number along each axis, and its elements."""


def find(file: Mapped, member: str | None) -> Content:
    """Finds a tensor column of an .arrow file; a compressed column is decompressed completely.

    Raises:
        OperationalError: The file is damaged, has no such column, is a table without
            tensors, or its tiles do not make one tensor.
    """
    import pyarrow as pa  # takes 60 ms, and few formats need it

    if file.memory[: len(MAGIC)] != MAGIC:
        raise file.refusal("is no .arrow file: its first bytes are wrong")
    file.require_inflated(sum(check_blocks(file, file.memory)))
    try:
        memory = pa.py_buffer(file.memory)
        reader = pa.ipc.open_file(pa.BufferReader(memory))
        name, numbers = columns(file, reader.schema, member)
        dtype = dtype_of(file, reader.schema.field(name))
        tiles: list[Tile] = []
        seen: set[tuple[int, ...]] = set()
        for n in range(reader.num_record_batches):
            batch = reader.get_batch(n)
            batch.validate()
            places = numbers_of(file, batch, numbers)
            if (tiles and not numbers) or not seen.isdisjoint(places):
                raise _no_tensor(file)  # before more tiles are stored
            seen.update(places)
            tiles += zip(places, _arrays(file, memory, batch.column(name), dtype), strict=True)
    except (Error, MemoryError):
        raise
    except Exception as error:  # pyarrow's errors are ValueError, KeyError, OSError and others
        why = (str(error).splitlines() or [repr(error)])[0]
        raise file.refusal(f"is truncated or damaged: {why}") from error
    if len(tiles) == 1 and not numbers:
        return single(name, dtype, tiles[0][1])
    boxes, shape = boxes_of(file, [place for place, _ in tiles], tiles[0][1].shape if tiles else ())
    return Content(
        member=name, dtype=dtype, shape=shape, boxes=boxes, tiles=tuple(array for _, array in tiles)
    )


def columns(file: RegularFile, schema: pa.Schema, member: str | None) -> tuple[str, list[str]]:
    """The names of the tensor's column and of the columns with the numbers of its tiles.

    Raises:
        OperationalError: The column does not exist, or the file is a table.
    """
    import pyarrow as pa  # as above

    if len(set(schema.names)) < len(schema.names):
        raise file.refusal("has two columns of the same name")
    tensors = [f.name for f in schema if isinstance(f.type, pa.FixedShapeTensorType)]
    others = [f for f in schema if f.name not in tensors]
    if not tensors or any(f.type != pa.int64() for f in others):
        raise file.refusal("holds a table, not a tensor", _HINT)
    if any(is_flag(name) for name in tensors):
        raise file.refusal("holds a tensor with missing keys or NULL; a file has every element")
    return pick(file, tensors, member), [f.name for f in others]


def dtype_of(file: RegularFile, field: pa.Field) -> DType:
    """The type of a tensor column's elements.

    Raises:
        OperationalError: Tensors lack the type.
    """
    kind = str(field.type.value_type)
    metadata = (field.metadata or {}).items()
    for dtype, stored_kind in _STAND_INS.items():
        if kind == stored_kind and (arrow_metadata(dtype) or {}).items() <= metadata:
            return dtype
    if kind not in _TYPES:
        raise file.no_type(f"Arrow's {kind}")
    return _TYPES[kind]


def numbers_of(
    file: RegularFile, batch: pa.RecordBatch, names: Sequence[str]
) -> list[tuple[int, ...]]:
    """The number of each row's tile along each axis."""
    if any(batch.column(n).null_count for n in names):
        raise file.refusal("holds a tile without a number")
    columns = [batch.column(n).to_pylist() for n in names]
    return list(zip(*columns, strict=True)) if names else [()] * batch.num_rows


def _arrays(
    file: Mapped, memory: pa.Buffer, column: pa.Array, dtype: DType
) -> Iterator[np.ndarray]:
    shape, order = tuple(column.type.shape), column.type.permutation
    file.check_shape(shape)
    permuted(file, column.type)
    rows = column.storage
    if rows.null_count or rows.values.null_count or rows.offset or rows.values.offset:
        raise file.refusal("holds NULL, which is no element of a tensor")
    size = prod(shape) * dtype.numpy.itemsize
    *_, elements = rows.buffers()
    nbytes = 0 if elements is None else elements.size
    if nbytes < len(rows) * size or rows.type.list_size != prod(shape):
        raise file.refusal("is damaged: a column has not the size of its shape")
    start = elements.address - memory.address if nbytes else 0
    mapped = 0 <= start <= memory.size - nbytes
    for row in range(len(rows)):
        if mapped:
            array = file.view(start + row * size, dtype.numpy, shape)
        else:  # decompressed
            array = np.ndarray(shape, dtype.numpy, elements, row * size)
        yield array if order is None else array.transpose(order)


def permuted(file: RegularFile, kind: pa.FixedShapeTensorType) -> tuple[int, ...]:
    """The shape of a tile, with its axes in the order of the column's type."""
    shape, order = tuple(kind.shape), kind.permutation
    if order is None:
        return shape
    if sorted(order) != list(range(len(shape))):
        raise file.refusal("is damaged: the order of its axes is wrong")
    return tuple(shape[axis] for axis in order)


def _no_tensor(file: RegularFile) -> OperationalError:
    return file.refusal("has tiles that do not make one tensor", _HINT)


def boxes_of(
    file: RegularFile, places: Sequence[tuple[int, ...]], extents: tuple[int, ...]
) -> tuple[np.ndarray, tuple[int, ...]]:
    """The box of each tile, int64 (tiles, axes, 2), and the shape of the tensor.

    Args:
        file: The file, for messages.
        places: Each tile's number along each axis.
        extents: The shape of each tile.
    """
    wrong = _no_tensor(file)
    if not places or not places[0] or len(places[0]) != len(extents):
        raise wrong  # no row, several rows without numbers, or numbers for other axes
    numbers = np.array(places, np.int64)
    counts = [int(most) + 1 for most in numbers.max(axis=0)]
    distinct = len(np.unique(numbers, axis=0)) == len(places)
    if numbers.min() < 0 or not distinct or prod(counts) != len(places):
        raise wrong
    shape = tuple(count * extent for count, extent in zip(counts, extents, strict=True))
    file.check_shape(shape)
    lo = numbers * np.array(extents, np.int64)
    return np.stack([lo, lo + np.array(extents, np.int64)], axis=-1), shape


def begin(
    file: IO[bytes], arrays: Sequence[tuple[str, DType]], shape: tuple[int, ...]
) -> list[int]:
    """Writes a file with a single row, with holes in place of the elements.

    Returns:
        The offsets of the elements.

    Raises:
        NotSupportedError: Arrow cannot store so many elements in a row.
        ProgrammingError: The name is reserved for flags.
    """
    import pyarrow as pa  # as above

    rooms = [room(prod(shape) * dtype.numpy.itemsize) for _, dtype in arrays]
    cells = [cell(name, dtype, shape, r) for (name, dtype), r in zip(arrays, rooms, strict=True)]
    fields, columns = [f for f, _ in cells], [c for _, c in cells]
    sink = Holes(file, rooms)
    with pa.ipc.new_file(pa.PythonFile(sink, "w"), pa.schema(fields)) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
    return [sink.starts.get(r.address, 0) for r in rooms]  # empty buffers have no hole


def check_size(size: int) -> None:
    """Refuses a tensor with too many elements for a row.

    Raises:
        NotSupportedError: Arrow cannot store so many elements in a row.
    """
    if size > MOST:
        raise NotSupportedError(
            f"An .arrow or .parquet file holds at most {MOST} elements in a row, not {size}",
            hint="A .npy or a .safetensors file holds more, and so do rows of elements.",
        )


def cell(
    name: str, dtype: DType, shape: tuple[int, ...], elements: pa.Buffer
) -> tuple[pa.Field, pa.Array]:
    """A column with one row, the tensor.

    Raises:
        NotSupportedError: Arrow cannot store so many elements in a row.
        ProgrammingError: The name is reserved for flags.
    """
    import pyarrow as pa  # as above

    check_size(prod(shape))
    if is_flag(name):
        raise ProgrammingError(
            f"An .arrow file cannot name a tensor {name}", hint="(TENSOR 'name') sets another name."
        )
    column = tensor_row(element_type(dtype), shape, elements)
    return pa.field(name, column.type, metadata=arrow_metadata(dtype)), column


def element_type(dtype: DType) -> pa.DataType:
    """The Arrow type with the bytes of a tensor's elements; a BOOLEAN is one byte."""
    import pyarrow as pa  # as above

    return pa.uint8() if dtype is DType.BOOLEAN else pa.from_numpy_dtype(dtype.numpy)


def tensor_row(element: pa.DataType, shape: tuple[int, ...], elements: pa.Buffer) -> pa.Array:
    """A fixed-shape tensor over a buffer, with one row of at most `MOST` elements."""
    return tensor_rows(element, shape, 1, elements)


def tensor_rows(
    element: pa.DataType, shape: tuple[int, ...], rows: int, elements: pa.Buffer
) -> pa.Array:
    """Fixed-shape tensors over a buffer, with rows of at most `MOST` elements each."""
    import pyarrow as pa  # as above

    size = prod(shape)
    values = pa.Array.from_buffers(element, rows * size, [None, elements])
    kind = pa.list_(element, size)
    lists = pa.FixedSizeListArray.from_buffers(kind, rows, [None], children=[values])
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(element, shape), lists)
