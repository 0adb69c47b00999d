"""Results as Arrow record batches of tiles: the keys of a box, and the elements of each column."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.schema import PRESENT, Field
from einsql.errors import InterfaceError
from einsql.storage.database.layout import widest
from einsql.storage.database.tiles.tile_grid import TileGrid, tile_shape
from einsql.storage.files import arrow
from einsql.storage.relation import arrow_metadata

if TYPE_CHECKING:
    import pyarrow as pa

    from einsql.storage.results.result import Result

END = ".end."
"""Begins the name of the column with the exclusive end of a tile along a key."""


def tile_reader(result: Result) -> pa.RecordBatchReader:
    """The tiles of a result in key order, a batch for each; contiguous arrays are not copied.

    Raises:
        InterfaceError: The result has keys that are not selected, lists, or NULLs.
    """
    import pyarrow as pa  # takes 60 ms, and only some results need it

    _require_tiles(result)
    keys, shape = result.schema.keys, tuple(k.extent for k in result.schema.keys)
    grid = TileGrid(shape, tile_shape(shape, widest(result.schema)))
    lows = np.array([k.lo for k in keys], np.int64).reshape(-1, 1)
    names = {c.key: c.name for c in result.columns if c.key is not None}
    fields = {
        c.name: Field(c.field, result.schema.dtype(c.field))
        for c in result.columns
        if c.field is not None
    }
    if not result.dense_keys:
        fields[PRESENT] = Field(PRESENT, result.schema.dtype(PRESENT))
    is_uniform = all(n % max(1, t) == 0 for n, t in zip(shape, grid.tile, strict=True))
    kinds = {
        name: pa.fixed_shape_tensor(arrow.element_type(f.dtype), grid.tile)
        if is_uniform
        else pa.large_list(arrow.element_type(f.dtype))
        for name, f in fields.items()
    }
    schema = pa.schema(
        [
            *(pa.field(prefix + names[k.name], pa.int64()) for k in keys for prefix in ("", END)),
            *(pa.field(n, kinds[n], metadata=arrow_metadata(f.dtype)) for n, f in fields.items()),
        ]
    )

    def batches() -> Iterator[pa.RecordBatch]:
        for tile in range(grid.count):
            (box,) = grid.boxes(np.array([tile]))
            ends = (box + lows).reshape(-1).tolist()
            columns = [pa.array([end], pa.int64()) for end in ends]
            wanted = list(dict.fromkeys(f.name for f in fields.values()))
            elements = result.fields.part(wanted, box)
            columns += [
                _column(elements[f.name], f, is_uniform, grid.tile) for f in fields.values()
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    return pa.RecordBatchReader.from_batches(schema, batches())


def _column(
    elements: np.ndarray, field: Field, is_uniform: bool, shape: tuple[int, ...]
) -> pa.Array:
    """A column of one row over the memory of a tile."""
    import pyarrow as pa  # as above

    stored = np.ascontiguousarray(elements)
    body = pa.py_buffer(stored.reshape(-1).view(np.uint8))
    element = arrow.element_type(field.dtype)
    if is_uniform:
        return arrow.tensor_row(element, shape, body)
    values = pa.Array.from_buffers(element, prod(stored.shape), [None, body])
    return pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)


def _require_tiles(result: Result) -> None:
    """Refuses a result whose rows are not the elements of arrays."""
    if result.hidden or result.has_lists:
        what = "LIST columns" if result.has_lists else "keys that are not selected"
        raise InterfaceError(
            f"The result has {what}, so it has no tiles",
            hint="fetch_arrow_table returns its rows.",
        )
    names = [c.name for c in result.columns]
    names += [END + c.name for c in result.columns if c.key is not None]
    names += [] if result.dense_keys else [PRESENT]
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice is not None:
        raise InterfaceError(f"Two columns are named {twice}", hint="Rename one with AS.")
    for c in result.columns:
        if c.field is not None and not result.never_null(c.field):
            raise InterfaceError(
                f"{c.name} has NULLs, so it has no tiles",
                hint="Use COALESCE, or fetch_arrow_table for rows.",
            )
