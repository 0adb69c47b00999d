"""The rows of an einsql query as an Arrow stream; a scan of the stream runs the query."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from einsql.core import forks
from einsql.core.bfloat16 import loaded
from einsql.core.schema import DType
from einsql.engine.cancellation import Interrupts
from einsql.frontends.duckdb import kernels
from einsql.planner.plan import Plan, owners
from einsql.sql.scope.relation import deduplicated
from einsql.storage.array_ownership import owned
from einsql.storage.arrow_arrays import arrow_type
from einsql.storage.duckdb import streams
from einsql.storage.fields import Fields, LocalFields
from einsql.storage.out_of_memory import enough_memory
from einsql.storage.results.result import Result
from einsql.storage.results.tile_result import TileResult

if TYPE_CHECKING:
    import pyarrow.dataset as ds

    from einsql.planner.tile_plan import TilePlan


class Rows:
    """A bound query with Arrow's PyCapsule interface, which can be scanned repeatedly.

    The first scan runs the query. The arrays of a SELECT over tiles become DuckDB's tiles.

    Args:
        plan: The plan of the query.
        inputs: The inputs of the plan.
        interrupts: The token that cancels a running scan.
    """

    def __init__(
        self, plan: Plan | TilePlan, inputs: Mapping[str, Fields], interrupts: Interrupts
    ) -> None:
        self._plan = plan
        self._interrupts = interrupts
        self._inputs: Mapping[str, Fields] = inputs
        self._result: Result | TileResult | None = None
        self._lock = threading.Lock()
        self._refusal: forks.Refusal | None = None
        forks.register(self)
        if isinstance(plan, Plan):
            names = [c.name for c in plan.columns]
            types = [column_type(c.dtype, is_list=c.over is not None) for c in plan.columns]
        else:
            tile = tile_type(plan.node.schema.dtype)
            names = [name for name, _ in plan.columns]
            types = [pa.int64() if key is not None else tile for _, key in plan.columns]
        self._schema = pa.schema(list(zip(deduplicated(names), types, strict=True)))

    def forked(self, refusal: forks.Refusal) -> None:
        """In a forked child: refuses to run the query; rows of an earlier run remain available."""
        self._lock = threading.Lock()
        self._refusal = refusal

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        computed = self._computed()
        schema = self._schema
        batches = batches_of(computed, tuple(schema.names), schema.names)
        typed = (b if b.schema.equals(schema) else b.cast(schema) for b in batches)
        reader = pa.RecordBatchReader.from_batches(schema, typed)
        return reader.__arrow_c_stream__(requested_schema)

    def run_now(self) -> None:
        """Runs the query, whose inputs may change later, and copies what shares their memory."""
        if not isinstance(self._plan, Plan):  # tiles are views of inputs
            self._inputs = {n: _copied(f) for n, f in self._inputs.items()}
            return
        foreign = owners(self._inputs.values())
        rows = self._computed()
        if isinstance(rows, Result) and not rows.fields.is_sparse:
            own = LocalFields({n: owned(a, foreign) for n, a in rows.fields.items()})
            self._result = replace(rows, fields=own)

    def _computed(self) -> Result | TileResult:
        with self._lock:
            if self._result is None:
                if self._refusal is not None:
                    raise self._refusal()
                self._result = self._result_now()
                self._inputs = {}
            return self._result

    def _result_now(self) -> Result | TileResult:
        with kernels.running, enough_memory:
            return self._plan.result(self._inputs, self._interrupts.begin())


def _copied(fields: Fields) -> Fields:
    if fields.is_sparse:
        return fields.constant()
    return LocalFields({name: np.array(array) for name, array in fields.items()})


def stored_type(dtype: DType) -> pa.DataType:
    """The Arrow type of a column; DuckDB has no floating-point type of two bytes."""
    return pa.float32() if dtype.is_short else arrow_type(dtype)


def column_type(dtype: DType, *, is_list: bool) -> pa.DataType:
    """The Arrow type of a column of values or of LISTs of them."""
    return pa.list_(stored_type(dtype)) if is_list else stored_type(dtype)


def tile_type(dtype: DType) -> pa.DataType:
    """The Arrow type of a tile."""
    data = pa.large_list(stored_type(dtype))
    return pa.struct([("shape", pa.list_(pa.int32())), ("data", data)])


def batches_of(
    result: Result | TileResult,
    names: tuple[str, ...],
    wanted: Sequence[str],
    where: ds.Expression | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a result that satisfy a filter.

    Args:
        result: The result.
        names: The names of its columns.
        wanted: The names of the columns of the batches.
        where: The filter; None for all rows.
    """
    with enough_memory:
        if isinstance(result, TileResult):
            parts = _tiles(result, names)
        elif result.has_lists:
            parts = iter(result.arrow().rename_columns(list(names)).to_batches())
        else:
            yield from streams.Rows(result, names).reader(wanted, where)
            return
        for part in parts:
            table = pa.Table.from_batches([part])
            found = table if where is None else table.filter(where)
            yield from found.select(list(wanted)).to_batches()


def _tiles(result: TileResult, names: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    dtype = result.node.schema.dtype
    types = [tile_type(dtype) if n is None else pa.int64() for _, n in result.columns]
    schema = pa.schema(list(zip(names, types, strict=True)))
    for key, block in result.blocks.items():
        array = loaded(block, dtype)
        if dtype is DType.HALF:
            array = array.astype(np.float32)
        columns = []
        for (_, n), field in zip(result.columns, schema, strict=True):
            keys: Any = [key[n]] if n is not None else None
            columns.append(pa.array(keys, field.type) if keys else _row(array, field.type))
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _row(array: np.ndarray, kind: pa.DataType) -> pa.Array:
    shape = pa.array([list(array.shape)], kind.field("shape").type)
    flat = pa.array(np.ascontiguousarray(array).reshape(-1))
    data = pa.LargeListArray.from_arrays(pa.array([0, len(flat)], pa.int64()), flat)
    return pa.StructArray.from_arrays([shape, data], names=["shape", "data"])
