"""Relations as DuckDB sees them: rows of keys and values in Arrow batches, made when read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from einsql.bfloat16 import loaded
from einsql.boxes import runs
from einsql.engine.relation import PlacedFields
from einsql.engine.result import Result, arrow_type
from einsql.schema import PRESENT, DType, valid

if TYPE_CHECKING:
    import pyarrow as pa

ROWS = 2**17
"""Rows of a batch, at most."""


@dataclass(frozen=True)
class Stream:
    """A result as a re-readable Arrow stream; HALF and BFLOAT16 are shown as FLOAT.

    Attributes:
        names: What the columns are called.
    """

    result: Result
    names: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """The columns' types."""
        import pyarrow as pa  # only boundaries need it

        types = [_shown(c.dtype) for c in self.result.columns]
        return pa.schema(list(zip(self.names, map(arrow_type, types), strict=True)))

    def __arrow_c_schema__(self) -> object:
        """The schema for the Arrow C interface."""
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """A stream from the first row on."""
        import pyarrow as pa  # as above

        reader = pa.RecordBatchReader.from_batches(self.schema, self.batches())
        return reader.__arrow_c_stream__()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows, ordered by key, at most `ROWS` at once."""
        import pyarrow as pa  # as above

        schema = self.schema
        keys = self.result.schema.keys
        whole = np.array([(k.lo, k.hi) for k in keys], np.int64).reshape(-1, 2)
        fields = self.result.fields
        flags = {n: fields[n] for n in self._flags() if n in fields}
        values = {c.field: fields[c.field] for c in self.result.columns if c.field is not None}
        for box in runs(whole, ROWS):
            at = tuple(slice(lo - k.lo, hi - k.lo) for (lo, hi), k in zip(box, keys, strict=True))
            here = flags[PRESENT][at].reshape(-1) if PRESENT in flags else None
            if here is not None and not here.any():
                continue
            columns = []
            for c in self.result.columns:
                mask = None
                if c.key is not None:
                    axis = next(n for n, k in enumerate(keys) if k.name == c.key)
                    found = _key(box, axis)
                else:
                    assert c.field is not None
                    found = loaded(values[c.field][at], c.dtype).reshape(-1)
                    known = flags.get(valid(c.field))
                    mask = None if known is None else ~known[at].reshape(-1)
                if here is not None and not here.all():
                    found = found[here]
                    mask = None if mask is None else mask[here]
                dtype = _shown(c.dtype)
                if dtype is not c.dtype:
                    found = found.astype(np.float32)
                columns.append(pa.array(found, type=arrow_type(dtype), mask=mask))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _flags(self) -> list[str]:
        return [PRESENT, *(valid(c.field) for c in self.result.columns if c.field is not None)]


def stream(result: Result, names: tuple[str, ...]) -> object:
    """What DuckDB reads a result from.

    What lies at other sites is brought here first: DuckDB must not wait for ranks.
    """
    if isinstance(result.fields, PlacedFields):
        return _table(result).rename_columns(list(names))
    return Stream(result, names)


def no_rows(names: Sequence[str], dtypes: Sequence[DType]) -> pa.Table:
    """A relation of such columns without a row."""
    import pyarrow as pa  # as above

    types = [arrow_type(_shown(t)) for t in dtypes]
    return pa.schema(list(zip(names, types, strict=True))).empty_table()


def _table(result: Result) -> pa.Table:
    import pyarrow as pa  # as above

    table = result.arrow()
    types = [arrow_type(_shown(c.dtype)) for c in result.columns]
    return pa.table([a.cast(t) for a, t in zip(table.columns, types, strict=True)], names=[
        f"c{n}" for n in range(len(types))])  # fmt: skip


def _shown(dtype: DType) -> DType:
    return DType.FLOAT if dtype.is_short else dtype


def _key(box: np.ndarray, axis: int) -> np.ndarray:
    """The values of a key in a box of keys, the last one fastest."""
    shape = tuple(int(hi - lo) for lo, hi in box)
    own = [1] * len(shape)
    own[axis] = shape[axis]
    values = np.arange(box[axis, 0], box[axis, 1]).reshape(own)
    return np.broadcast_to(values, shape).reshape(-1)
