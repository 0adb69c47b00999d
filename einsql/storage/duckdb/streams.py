"""Relations for DuckDB: rows of keys and values in Arrow batches, created when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.boxes import runs
from einsql.core.records import cached_property, dataclass
from einsql.core.schema import PRESENT, DType, valid
from einsql.storage.arrow_arrays import arrow_array, arrow_type
from einsql.storage.duckdb.pushdown import understood
from einsql.storage.results.result import Result, ResultColumn
from einsql.storage.results.stored_elements import chunks, has_stored_rows

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

ROWS = 2**17
"""Greatest number of rows of a batch."""


@dataclass(frozen=True)
class Rows:
    """A result's rows, with HALF and BFLOAT16 as FLOAT.

    Attributes:
        result: The result.
    """

    result: Result
    names: tuple[str, ...]

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns' types."""
        import pyarrow as pa  # only boundaries need it

        types = map(_type, self.result.columns)
        return pa.schema(list(zip(self.names, types, strict=True)))

    def reader(
        self, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> pa.RecordBatchReader:
        """A reader of all rows.

        Args:
            columns: The names of the columns; None for all.
            where: A filter on the rows; None for all.
        """
        import pyarrow as pa  # as above

        schema = self.schema
        keys = self.result.schema.keys
        numbers = {k.name: n for n, k in enumerate(keys)}
        shown = {
            name: numbers[c.key]
            for name, c in zip(self.names, self.result.columns, strict=True)
            if c.key is not None
        }
        bounds = np.array([(k.lo, k.hi) for k in keys], np.int64).reshape(-1, 2)
        condition = understood(where, bounds, shown, self.names)
        wanted = list(self.names) if columns is None else list(columns)
        read_names = wanted
        if not condition.exact:
            known = condition.columns
            unread = [n for n in self.names if n not in wanted]
            read_names = wanted + [n for n in unread if known is None or n in known]
        batches = self._batches([schema.get_field_index(n) for n in read_names], condition.box)
        if not condition.exact:
            tables = (pa.Table.from_batches([b]).filter(where) for b in batches)
            batches = (b for t in tables for b in t.select(wanted).to_batches())
        projected = pa.schema([schema.field(n) for n in wanted])
        return pa.RecordBatchReader.from_batches(projected, batches)

    def _batches(self, numbers: Sequence[int], box: np.ndarray) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # as above

        schema = pa.schema([self.schema.field(n) for n in numbers])
        chosen = [self.result.columns[n] for n in numbers]
        keys = self.result.schema.keys
        fields = self.result.fields
        if has_stored_rows(fields):
            yield from self._stored(chosen, box, schema)
            return
        names = [c.field for c in chosen if c.field is not None]
        wanted = dict.fromkeys(n for n in (PRESENT, *names, *map(valid, names)) if n in fields)
        lows = np.array([k.lo for k in keys], np.int64).reshape(-1, 1)
        for here in runs(box, ROWS):
            part = fields.part(tuple(wanted), here - lows)
            present = part[PRESENT].reshape(-1) if PRESENT in part else None
            if present is not None and not present.any():
                continue
            columns = []
            for c in chosen:
                known = None
                if c.key is not None:
                    axis = next(n for n, k in enumerate(keys) if k.name == c.key)
                    array = _key(here, axis)
                else:
                    assert c.field is not None
                    array = loaded(part[c.field], c.dtype).reshape(-1)
                    flag = part.get(valid(c.field))
                    known = None if flag is None else flag.reshape(-1)
                if present is not None and not present.all():
                    array = array[present]
                    known = None if known is None else known[present]
                columns.append(arrow_array(array, _shown(c.dtype), known))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)

    def _stored(
        self, chosen: Sequence[ResultColumn], box: np.ndarray, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """The stored elements of a sparse matrix within a box of keys."""
        import pyarrow as pa  # as above

        part = replace(self.result.cropped(box), columns=tuple(chosen))
        for chunk in chunks(part, ROWS):
            arrays = [
                arrow_array(values, _shown(c.dtype), known)
                for c, (values, known) in zip(chosen, chunk, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


class Readable(Protocol):
    """Rows that are created when they are read."""

    @property
    def schema(self) -> pa.Schema:
        """The columns' types."""

    def reader(
        self, columns: Sequence[str] | None = None, where: ds.Expression | None = None
    ) -> pa.RecordBatchReader:
        """A reader of the rows that satisfy a filter; see `Rows.reader`."""


@dataclass(frozen=True)
class Scan:
    """A scan of DuckDB with its columns and filter, as the interface of pyarrow's scanners."""

    rows: Readable
    columns: Sequence[str] | None
    where: ds.Expression | None

    @property
    def projected_schema(self) -> pa.Schema:
        """The columns' types."""
        return self.to_reader().schema

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows."""
        return self.rows.reader(self.columns, self.where)


@cache
def _source() -> type[Any]:
    import pyarrow.dataset as ds  # only DuckDB needs it

    class Source(ds.Dataset):  # type: ignore[misc]  # pyarrow has no types
        """Rows as a data set, which receives DuckDB's columns and filters."""

        def __init__(self, rows: Readable) -> None:
            # pyarrow's __init__ is for data sets in files, so it is not called.
            self.rows = rows

        @property
        def schema(self) -> pa.Schema:
            return self.rows.schema

        def scanner(
            self,
            columns: Sequence[str] | None = None,
            filter: ds.Expression | None = None,  # the name that DuckDB passes
            **_: object,
        ) -> Scan:
            return Scan(self.rows, columns, filter)

    return Source


def data_set(rows: Readable) -> object:
    """An object that DuckDB scans, with the columns and the filter that it needs."""
    return _source()(rows)


def stream(result: Result, names: tuple[str, ...]) -> object:
    """The object by which DuckDB scans a result.

    Up to `ROWS` rows are a table. More rows are a data set, which reads the columns and key ranges
    that DuckDB needs; its import takes as long as DuckDB's. Remote fields are fetched first,
    because DuckDB must not wait for ranks. So are lists, which few results have.
    """
    if result.fields.sites is not None or result.has_lists:
        import pyarrow as pa  # as above

        columns = [
            column.cast(_type(c))
            for column, c in zip(result.arrow().columns, result.columns, strict=True)
        ]
        return pa.table(columns, names=list(names))
    rows = Rows(result, names)
    if result.schema.size <= ROWS:
        return rows.reader().read_all()
    return data_set(rows)


def no_rows(names: Sequence[str], columns: Sequence[Column]) -> pa.Table:
    """An empty table with columns of these names, and of the types of other columns."""
    import pyarrow as pa  # as above

    return pa.schema(list(zip(names, map(_type, columns), strict=True))).empty_table()


class Column(Protocol):
    """A column of a relation or of a result."""

    @property
    def dtype(self) -> DType:
        """The type of its values."""

    @property
    def over(self) -> str | None:
        """For a LIST, the key that numbers its values."""


def _type(column: Column) -> pa.DataType:
    """The Arrow type of a column for DuckDB."""
    import pyarrow as pa  # as above

    kind = arrow_type(_shown(column.dtype))
    return kind if column.over is None else pa.list_(kind)


def _shown(dtype: DType) -> DType:
    return DType.FLOAT if dtype.is_short else dtype


def _key(box: np.ndarray, axis: int) -> np.ndarray:
    """The values of a key in a box of keys, the last one fastest."""
    shape = tuple(int(hi - lo) for lo, hi in box)
    own = [1] * len(shape)
    own[axis] = shape[axis]
    values = np.arange(box[axis, 0], box[axis, 1]).reshape(own)
    return np.broadcast_to(values, shape).reshape(-1)
