"""Tensor relations in memory: one tile of strided NumPy arrays per field.

On one site a relation is a single tile and costs nothing over NumPy. In Arrow it is a record
batch of int64 keys (the tile's key) and fixed-shape-tensor columns. The conversion copies only
arrays that are not contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.units import plural
from einsql.errors import InterfaceError
from einsql.storage.array_ownership import distinct as distinct  # re-exported for the statements
from einsql.storage.fields import Fields, LocalFields
from einsql.storage.widened_fields import WIDER, widened, wider

if TYPE_CHECKING:
    import pyarrow as pa

MAX_AXES = 63
"""Greatest number of axes: NumPy has 64, and an index array takes one."""

_STAND_IN = (DType.BOOLEAN, DType.BFLOAT16)


def arrow_metadata(dtype: DType) -> dict[bytes, bytes] | None:
    """Returns metadata of an Arrow column of integers that encode a type; None for other types.

    Booleans are stored as bytes, because Arrow packs them as bits. BFLOAT16 is stored as the bits
    in uint16, because Arrow has no such type.
    """
    return {b"einsql": dtype.value.encode()} if dtype in _STAND_IN else None


@dataclass(frozen=True, slots=True)
class Relation:
    """A schema and its arrays, each with one axis per key, in order."""

    schema: Schema
    fields: Fields

    def __post_init__(self) -> None:
        if not self.fields.is_local:
            return  # reading a field would fetch it
        for f in self.schema.fields:
            array = self.fields[f.name]
            if array.shape != self.schema.shape or array.dtype != f.dtype.numpy:
                raise InterfaceError(
                    f"{f.name} has shape {array.shape} and dtype {array.dtype}, "
                    f"not {self.schema.shape} and {f.dtype.numpy}"
                )

    @property
    def present(self) -> np.ndarray | None:
        """The presence mask, or None for a dense relation."""
        return self.fields[PRESENT] if self.schema.has(PRESENT) else None

    @property
    def nbytes(self) -> int:
        """Bytes of all stored elements; shared storage counts once per field."""
        return self.fields.nbytes(self.schema)


def from_array(array: np.ndarray, dims: tuple[str, ...], value: str = "val") -> Relation:
    """Returns a dense relation over an array, without a copy unless its type is widened.

    Args:
        array: An array of any rank and a dtype that DType stores.
        dims: One key name per axis.
        value: The name of the value column.

    Raises:
        InterfaceError: The dtype is no tensor type, there are too many axes, a name is not a
            string, or names and axes differ in number.
    """
    other = wider(array.dtype)
    if other is not None:
        array = widened(array, other)
    schema = schema_of(array.dtype, array.shape, dims, value)
    stored = schema.dtype(value)
    if not array.dtype.isnative:
        array = array.astype(stored.numpy)
    if stored is DType.BFLOAT16:
        array = array.view(stored.numpy)  # BFLOAT16 of ml_dtypes is stored as bits
    return Relation(schema, LocalFields({value: array}))


def schema_of(
    dtype: np.dtype, shape: tuple[int, ...], dims: tuple[str, ...], value: str = "val"
) -> Schema:
    """Returns the schema of a dense relation for a dtype and shape; see `from_array`."""
    stored = DType.of(dtype)
    if stored is None:
        known = ", ".join([*(t.numpy_name for t in DType), *WIDER])
        raise InterfaceError(f"An array of dtype {dtype} is no tensor", hint=f"dtypes are {known}.")
    if len(shape) > MAX_AXES:
        raise InterfaceError(f"An array of rank {len(shape)} has more than {MAX_AXES} axes")
    for d in dims:
        if not isinstance(d, str) or not d or d.startswith("."):
            raise InterfaceError(f"A key cannot be named {d!r}", hint="Give dims=('i', 'j').")
    if len(dims) != len(shape):
        raise InterfaceError(f"{plural(len(dims), 'name')} for an array of rank {len(shape)}")
    names = [d.lower() for d in (*dims, value)]
    if len(set(names)) != len(names):
        raise InterfaceError(f"Column names repeat: {', '.join((*dims, value))}")
    keys = tuple(Key(d, 0, n) for d, n in zip(dims, shape, strict=True))
    return Schema(keys, (Field(value, stored),))


def frozen(array: np.ndarray) -> np.ndarray:
    """Returns a read-only view, so that shared storage cannot be changed through a result."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    return array


def copied(array: np.ndarray) -> np.ndarray:
    """Returns a copy of the array, repeated along the same axes."""
    stored = np.array(distinct(array))
    return stored if stored.shape == array.shape else np.broadcast_to(stored, array.shape)


def count_true(flag: np.ndarray) -> int:
    """Counts the elements of a flag that are true, repeated ones included."""
    stored = distinct(flag)
    count = int(np.count_nonzero(stored))
    return count * (flag.size // stored.size) if count else 0


def cuts(extent: int, parts: int) -> list[tuple[int, int]]:
    """Cuts `extent` into at most `parts` intervals whose lengths differ by at most one."""
    parts = max(1, min(parts, extent))
    edges = [extent * n // parts for n in range(parts + 1)]
    return list(pairwise(edges))


def to_batches(relation: Relation, parts: Mapping[str, int] | None = None) -> list[pa.RecordBatch]:
    """Returns the relation as Arrow tiles: int64 tile keys and fixed-shape-tensor columns.

    Args:
        relation: A dense or masked relation; flags become tensor columns of bytes.
        parts: Number of parts per key; other keys are not divided.

    Returns:
        One batch per tile shape; uneven divisions give a few shapes. With a single tile the
        columns share the arrays' memory if they are C-contiguous.
    """
    import pyarrow as pa  # 60 ms, for conversions only

    parts = parts or {}
    keys = relation.schema.keys
    axes = [list(enumerate(cuts(k.extent, parts.get(k.name, 1)))) for k in keys]
    groups: dict[tuple[int, ...], list[tuple[tuple[int, ...], tuple[slice, ...]]]] = {}
    for block in product(*axes):
        shape = tuple(hi - lo for _, (lo, hi) in block)
        where = tuple(slice(lo, hi) for _, (lo, hi) in block)
        groups.setdefault(shape, []).append((tuple(n for n, _ in block), where))
    batches = []
    for shape, tiles in groups.items():
        columns: list[pa.Array] = [
            pa.array([key[n] for key, _ in tiles], pa.int64()) for n in range(len(keys))
        ]
        for f in relation.schema.fields:
            array = relation.fields[f.name]
            cut = [array[where] for _, where in tiles]
            stacked = np.ascontiguousarray(cut[0])[None] if len(cut) == 1 else np.stack(cut)
            columns.append(_tensor_column(stacked, shape))
        names = [*(k.name for k in keys), *(f.name for f in relation.schema.fields)]
        metadata = {f.name: arrow_metadata(f.dtype) for f in relation.schema.fields}
        fields = [
            pa.field(name, column.type, metadata=metadata.get(name))
            for name, column in zip(names, columns, strict=True)
        ]
        batches.append(pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields)))
    return batches


def _tensor_column(stacked: np.ndarray, shape: tuple[int, ...]) -> pa.Array:
    """Returns tiles of one shape as a fixed-shape-tensor column; booleans become bytes."""
    import pyarrow as pa  # as above

    if stacked.dtype == np.bool_:
        stacked = stacked.view(np.uint8)
    values = pa.array(stacked.reshape(-1))
    size = int(np.prod(shape))
    storage = (
        pa.FixedSizeListArray.from_arrays(values, size)
        if size
        else pa.array([[]] * len(stacked), pa.list_(values.type, 0))
    )
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(values.type, shape), storage)


def from_batches(schema: Schema, batches: list[pa.RecordBatch]) -> Relation:
    """Assembles Arrow tiles; a single tile is used without a copy.

    Args:
        schema: Bounds and types of the complete relation.
        batches: Tiles in the format of `to_batches`, in any order.

    Raises:
        InterfaceError: Tiles are missing or overlap.
    """
    rank = len(schema.keys)
    tiles: dict[tuple[int, ...], dict[str, np.ndarray]] = {}
    for batch in batches:
        for row in range(batch.num_rows):
            key = tuple(batch.column(n)[row].as_py() for n in range(rank))
            if key in tiles:
                raise InterfaceError(f"Tile {key} is given twice")
            tiles[key] = {}
            for n, f in enumerate(schema.fields):
                column = batch.column(rank + n)
                shape = tuple(column.type.shape)
                size = int(np.prod(shape))
                flat = column.storage.flatten().to_numpy(zero_copy_only=True)
                one = flat[row * size : (row + 1) * size].reshape(shape)
                tiles[key][f.name] = one.view(np.bool_) if f.dtype is DType.BOOLEAN else one
    if len(tiles) == 1:
        return Relation(schema, LocalFields(next(iter(tiles.values()))))
    return Relation(schema, LocalFields(_assemble(schema, tiles)))


def _assemble(
    schema: Schema, tiles: dict[tuple[int, ...], dict[str, np.ndarray]]
) -> dict[str, np.ndarray]:
    counts = [max((key[n] for key in tiles), default=-1) + 1 for n in range(len(schema.keys))]
    if int(np.prod(counts)) != len(tiles):
        raise InterfaceError("Tiles are missing", hint="Every tile key must occur once.")
    tensors: dict[str, np.ndarray] = {}
    for f in schema.fields:
        array = np.empty(schema.shape, f.dtype.numpy)
        for key, fields in tiles.items():
            where = tuple(
                slice(*cuts(k.extent, parts)[n])
                for k, parts, n in zip(schema.keys, counts, key, strict=True)
            )
            array[where] = fields[f.name]
        tensors[f.name] = array
    return tensors
