"""Results: a relation with the columns SQL named, as rows, arrays and Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.engine.memory import enough_memory
from einsql.engine.relation import Fields, count_true, distinct
from einsql.errors import InterfaceError
from einsql.schema import PRESENT, DType, Schema, valid

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 65536


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of the result: a key of the relation or one of its fields."""

    name: str
    dtype: DType
    key: str | None
    field: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """The relation a query gave.

    Attributes:
        schema: Keys and fields of the relation; a flag that is missing in `fields` is true.
        hidden: Keys that no column shows.
    """

    schema: Schema
    fields: Fields
    columns: tuple[ResultColumn, ...]
    hidden: tuple[str, ...]

    @property
    def origin(self) -> tuple[int, ...]:
        """The least value of each visible key, in SELECT order."""
        bounds = {k.name: k.lo for k in self.schema.keys}
        return tuple(bounds[c.key] for c in self.columns if c.key is not None)

    def _present(self) -> np.ndarray | None:
        flag = self.fields.get(PRESENT)
        return None if flag is None or bool(distinct(flag).all()) else flag

    def __len__(self) -> int:
        flag = self.fields.get(PRESENT)
        return self.schema.size if flag is None else count_true(flag)

    # ---- arrays

    def numpy(self, fill: Any = None) -> Any:
        """The result as one array per value column over the static key bounds.

        Args:
            fill: Value of absent keys and NULLs; without it they are an error.

        Returns:
            An ndarray with one axis per key column in SELECT order, or a dict of them by
            column name if there are several value columns. Read-only if it shares storage.

        Raises:
            InterfaceError: A key is absent or NULL and no fill is given, or one that the
                column cannot hold; a key is hidden; there is no value column, or two have
                the same name.
        """
        values = [c for c in self.columns if c.field is not None]
        if self.hidden:
            raise InterfaceError(
                f"The keys {', '.join(self.hidden)} are not selected, so rows are a bag",
                hint="Select them, or aggregate them away.",
            )
        order = [self.schema.keys.index(k) for c in self.columns for k in self.schema.keys
                 if k.name == c.key]  # fmt: skip
        if not values:
            raise InterfaceError("The result has keys only", hint="Select a value, or use rows.")
        names = [c.name for c in values]
        if len(set(names)) != len(names):
            raise InterfaceError(
                "Two value columns have the same name", hint="Rename one with AS, or fetch rows."
            )
        arrays = {c.name: self._array(c, fill).transpose(order) for c in values}
        if len(values) == 1:
            return arrays[values[0].name]
        return arrays

    def _array(self, column: ResultColumn, fill: Any) -> np.ndarray:
        assert column.field is not None
        array = self.fields[column.field]
        holes = self._present()
        known = self.fields.get(valid(column.field))
        if known is not None and not distinct(known).all():
            holes = known if holes is None else holes & known
        if holes is None:
            return array
        if fill is None:
            count = holes.size - count_true(holes)
            raise InterfaceError(
                f"{count} of {holes.size} keys of {column.name} are absent or NULL",
                hint="Give fetch_numpy(fill=…) a value for them, or fetch rows.",
            )
        return np.where(holes, array, _filler(fill, column))

    # ---- rows

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Rows in SELECT's column order, ordered by key, as Python values."""
        with enough_memory:
            for columns in self._chunks():
                yield from zip(*columns, strict=True)

    def _chunks(self) -> Iterator[list[list[Any]]]:
        for index in self._positions():
            columns = []
            for c in self.columns:
                column: list[Any]
                values, known = self._column(c, index)
                column = values.tolist()
                if known is not None:
                    pairs = zip(column, known.tolist(), strict=True)
                    column = [v if k else None for v, k in pairs]
                columns.append(column)
            yield columns

    def _positions(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Index arrays of the present keys, in chunks, in key order."""
        shape = self.schema.shape
        flag = self._present()
        if flag is not None and not distinct(flag).any():
            return
        flat = None if flag is None else np.flatnonzero(flag)
        total = self.schema.size if flat is None else len(flat)
        for start in range(0, total, ROWS_AT_ONCE):
            stop = min(total, start + ROWS_AT_ONCE)
            at = np.arange(start, stop) if flat is None else flat[start:stop]
            yield np.unravel_index(at, shape) if shape else (at,)

    def _column(
        self, c: ResultColumn, index: tuple[np.ndarray, ...]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        if c.key is not None:
            axis = next(n for n, k in enumerate(self.schema.keys) if k.name == c.key)
            return index[axis] + self.schema.keys[axis].lo, None
        assert c.field is not None
        flag = self.fields.get(valid(c.field))
        if not self.schema.keys:
            at = index[0]
            values = np.broadcast_to(self.fields[c.field], at.shape)
            return values, None if flag is None else np.broadcast_to(flag, at.shape)
        return self.fields[c.field][index], None if flag is None else flag[index]

    def table(self) -> Iterator[tuple[DType, np.ndarray, np.ndarray | None]]:
        """Type, values and NULL-free mask of each column over all rows."""
        parts = list(self._positions())
        whole = tuple(np.concatenate(p) for p in zip(*parts, strict=True)) if parts else (
            tuple(np.empty(0, np.int64) for _ in self.schema.keys or (0,))
        )  # fmt: skip
        for c in self.columns:
            yield (c.dtype, *self._column(c, whole))

    # ---- Arrow

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table, one column per SELECT item."""
        import pyarrow as pa  # 60 ms, and only boundaries need it

        parts: list[list[pa.Array]] = [[] for _ in self.columns]
        for index in self._positions():
            for n, c in enumerate(self.columns):
                values, known = self._column(c, index)
                mask = None if known is None else ~known
                parts[n].append(pa.array(values, type=arrow_type(c.dtype), mask=mask))
        chunked = [
            pa.chunked_array(p, type=arrow_type(c.dtype))
            for c, p in zip(self.columns, parts, strict=True)
        ]
        return pa.Table.from_arrays(chunked, names=[c.name for c in self.columns])


def _filler(fill: Any, column: ResultColumn) -> np.ndarray:
    """A fill value in a column's type; floats are rounded, nothing else is."""
    wanted = column.dtype.numpy
    given = np.asarray(fill)
    if given.ndim == 0 and given.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            made = given.astype(wanted)
        if column.dtype.is_float or made == given:
            return made
    raise InterfaceError(f"{column.name} is {column.dtype.value}, which cannot hold {fill!r}")


def arrow_type(dtype: DType) -> pa.DataType:
    """The Arrow type of a value type."""
    import pyarrow as pa  # as above

    return {
        DType.BOOLEAN: pa.bool_(),
        DType.TINYINT: pa.int8(),
        DType.INTEGER: pa.int32(),
        DType.BIGINT: pa.int64(),
        DType.HALF: pa.float16(),
        DType.FLOAT: pa.float32(),
        DType.DOUBLE: pa.float64(),
    }[dtype]
