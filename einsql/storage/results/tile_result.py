"""Results of queries over tiles: rows of keys and an array, or one assembled tensor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.records import dataclass
from einsql.core.schema import DType, Field, Key, Schema
from einsql.errors import Error, InterfaceError
from einsql.ir.tra.block_schema import BlockSchema, Dim, KeyTuple, sizes
from einsql.ir.tra.kernels import VALUE
from einsql.ir.tra.plan import Node
from einsql.ir.tra.typing import assembled
from einsql.storage.arrow_arrays import arrow_type
from einsql.storage.block_relation import PlacedBlocks, assemble
from einsql.storage.fields import Fields, LocalFields
from einsql.storage.results.result import Result, ResultColumn

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class TileResult:
    """The tensor relation that a query returns.

    Attributes:
        columns: The name of each column and the number of its key; None for the arrays.
    """

    node: Node
    blocks: Mapping[KeyTuple, np.ndarray]
    columns: tuple[tuple[str, int | None], ...]

    @property
    def origin(self) -> tuple[int, ...]:
        """The least value of each key, 0 for block numbers."""
        return (0,) * len(self.node.schema.bounds)

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of values of each key, in SELECT order."""
        return tuple(self.node.schema.bounds[n] for _, n in self.columns if n is not None)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key columns, in SELECT order."""
        return tuple(name for name, n in self.columns if n is not None)

    def __len__(self) -> int:
        return len(self.blocks)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Rows in SELECT's column order, ordered by key, with NumPy arrays."""
        for key, array in self.blocks.items():
            shown = loaded(array, self.node.schema.dtype)
            yield tuple(shown if n is None else key[n] for _, n in self.columns)

    def numpy(self, fill: Any = None) -> np.ndarray:
        """The tensor assembled from the blocks, key i along axis i.

        Raises:
            InterfaceError: The keys do not cut the axes, or some are missing.
        """
        if fill is not None:
            raise InterfaceError("fill stands for absent elements; tiles have none")
        try:
            assembled(self.node.schema, "fetch_numpy of tiles")
        except Error as error:
            raise InterfaceError(
                error.reason, hint=f"{error.hint} Or fetch rows: each has its keys and its array."
            ) from None
        if len(self.blocks) == 1:
            (tensor,) = self.blocks.values()
        else:
            tensor = assemble(self.node, self.blocks)
        return loaded(tensor, self.node.schema.dtype)

    def tensor(self) -> Result:
        """The tensor assembled from the blocks, as a result over elements.

        Raises:
            Error: The keys do not cut the axes, or some are missing.
        """
        cuts = assembled(self.node.schema, "A tensor made of tiles")
        names = {n: name for name, n in self.columns}
        keys = tuple(Key(names[n], 0, sum(sizes(c))) for n, c in enumerate(cuts))
        value = names[None] if names[None] != "tile" else VALUE
        while value in names.values():
            value += "_"
        dtype = self.node.schema.dtype
        shown = [ResultColumn(k.name, DType.BIGINT, k.name, None) for k in keys]
        schema = Schema(keys, (Field(value, dtype),))
        return Result(
            schema=schema,
            fields=tensor_fields(self.node, self.blocks, schema),
            columns=(*shown, ResultColumn(value, dtype, None, value)),
            hidden=(),
        )

    def head(self, most: int) -> list[tuple[Any, ...]]:
        """The first rows, as many as `most`."""
        return list(islice(self.rows(), most))

    def column_arrays(self) -> dict[str, np.ndarray]:
        """The columns as arrays of rank 1; the one of the tiles has NumPy arrays."""
        dtype = self.node.schema.dtype
        columns: dict[str, np.ndarray] = {}
        for name, n in self.columns:
            if n is not None:
                columns[name] = np.array([key[n] for key in self.blocks], np.int64)
                continue
            columns[name] = np.empty(len(self.blocks), np.object_)
            columns[name][:] = [loaded(a, dtype) for a in self.blocks.values()]
        return columns

    def frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        return self.arrow().to_pandas()

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table.

        Arrays of one shape are a fixed-shape-tensor column, booleans as bytes; arrays of
        several shapes are structs of a shape and a list of elements.
        """
        import pyarrow as pa  # takes 60 ms, and few callers need it

        keys, dtype = list(self.blocks), self.node.schema.dtype
        columns = [
            _arrays([loaded(a, dtype) for a in self.blocks.values()], dtype)
            if n is None
            else pa.array([k[n] for k in keys], pa.int64())
            for _, n in self.columns
        ]
        return pa.Table.from_arrays(columns, names=[name for name, _ in self.columns])


def tensor_fields(node: Node, blocks: Mapping[KeyTuple, np.ndarray], schema: Schema) -> Fields:
    """The tensor assembled from blocks; it stays remote if possible.

    Args:
        node: The relation.
        blocks: All blocks of the relation.
        schema: The tensor's keys and single field.

    Raises:
        Error: The keys do not cut the axes, or some are missing.
    """
    cuts = assembled(node.schema, "A tensor made of tiles")
    placed = blocks.tensor(schema, cuts) if isinstance(blocks, PlacedBlocks) else None
    (field,) = schema.fields
    return LocalFields({field.name: assemble(node, blocks)}) if placed is None else placed


def type_text(schema: BlockSchema) -> str:
    """The SQL type of the arrays, such as DOUBLE[3|2,5]."""
    return f"{schema.dtype.value}[{','.join(map(_extents, schema.dims))}]"


def _extents(dim: Dim) -> str:
    return "|".join(map(str, dim.relative.extents))


def _arrays(arrays: list[np.ndarray], dtype: DType) -> pa.Array:
    import pyarrow as pa  # as above

    kind = arrow_type(dtype)
    shapes = {a.shape for a in arrays}
    if len(shapes) == 1 and 0 not in next(iter(shapes)):
        stored = pa.uint8() if dtype is DType.BOOLEAN else kind
        (shape,) = shapes
        flat = np.stack(arrays).reshape(-1)
        values = pa.array(flat.view(np.uint8) if flat.dtype == np.bool_ else flat, stored)
        storage = pa.FixedSizeListArray.from_arrays(values, int(np.prod(shape)))
        return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(stored, shape), storage)
    structs = [{"shape": list(a.shape), "data": a.reshape(-1)} for a in arrays]
    form = pa.struct([("shape", pa.list_(pa.int64())), ("data", pa.list_(kind))])
    return pa.array(structs, form)
