"""Results: a relation with the columns of a SELECT, as rows, arrays and Arrow tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.boxes import runs
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Key, Schema, valid
from einsql.errors import InterfaceError
from einsql.ir.functions.casts import cast_array
from einsql.storage.array_ownership import distinct, separate
from einsql.storage.arrow_arrays import arrow_array, arrow_lists, arrow_type
from einsql.storage.fields import Fields, Term
from einsql.storage.out_of_memory import enough_memory, require
from einsql.storage.relation import count_true
from einsql.storage.results import stored_elements

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_AT_ONCE = 65536
"""Rows that are converted to Python values together; it limits their memory."""

WIDTH = 8
"""Bytes of a value in an array of rows."""

PIECE = 2**22
"""Bytes per fetch of a remote result."""


@dataclass(frozen=True, slots=True)
class ResultColumn:
    """A column of the result: a key of the relation or one of its fields.

    Attributes:
        over: For a LIST, the last key of the relation, which numbers its values; NULLs are no
            values of the list.
    """

    name: str
    dtype: DType
    key: str | None
    field: str | None
    over: str | None = None

    @property
    def type_name(self) -> str:
        """The name of its type in SQL."""
        return self.dtype.value if self.over is None else f"{self.dtype.value}[]"


@dataclass(slots=True)  # a frozen one takes 0.7 µs longer, a sixteenth of a small statement
class Result:
    """The relation that a query returns.

    Attributes:
        schema: Keys and fields of the relation.
        fields: The arrays of the relation; a missing flag is true everywhere.
        columns: The columns in SELECT order.
        hidden: The names of keys without a column.
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

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key columns, in SELECT order."""
        return tuple(c.name for c in self.columns if c.key is not None)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The extents of the key columns in SELECT order; None if a key is hidden."""
        if self.hidden:
            return None
        extents = {k.name: k.extent for k in self.schema.keys}
        return tuple(extents[c.key] for c in self.columns if c.key is not None)

    def _flag(self, name: str) -> np.ndarray | None:
        """A flag; None if it is true everywhere."""
        return None if self._count(name) == self.schema.size else self.fields[name]

    def _count(self, flag: str) -> int:
        """The number of keys with a true flag; all keys if the flag is missing."""
        return self.fields.count(Term(flag)) if flag in self.fields else self.schema.size

    def __len__(self) -> int:
        return self._count(PRESENT) // max(1, self._places)

    @property
    def dense_keys(self) -> bool:
        """Whether every key exists."""
        return self._count(PRESENT) == self.schema.size

    def never_null(self, field: str) -> bool:
        """Whether a value has no NULL at the keys that exist."""
        flag = valid(field)
        terms = [Term(f) for f in (PRESENT, flag) if f in self.fields]
        return flag not in self.fields or self.fields.count(*terms) == self._count(PRESENT)

    def known(self, field: str) -> np.ndarray:
        """Flags of the keys at which a value is not NULL."""
        return self.fields[valid(field)]

    @property
    def has_lists(self) -> bool:
        """Whether a column is a LIST. The last key then numbers no rows."""
        return any(c.over is not None for c in self.columns)

    @property
    def _places(self) -> int:
        """The greatest length of the lists; 1 without any."""
        return self.schema.keys[-1].extent if self.has_lists else 1

    def dense(self, column: ResultColumn) -> bool:
        """True if all keys are present and the values of a column are not NULL."""
        assert column.field is not None
        return all(self._count(f) == self.schema.size for f in (PRESENT, valid(column.field)))

    def _pieces(self) -> Iterator[Result]:
        """The result in local parts in key order; a local result is one part."""
        is_part = self.fields.sites is None and not self.fields.is_sparse
        if is_part or stored_elements.has_stored_rows(self.fields):
            yield self
        else:
            yield from self.pieces()

    def pieces(self) -> Iterator[Result]:
        """The result in local parts of about `PIECE` bytes, in key order.

        A result whose rows are stored elements is one part.
        """
        if stored_elements.has_stored_rows(self.fields):
            yield self
            return
        wanted = [c.field for c in self.columns if c.field is not None]
        named = dict.fromkeys([PRESENT, *wanted, *map(valid, wanted)])
        width = sum(self.schema.dtype(n).numpy.itemsize for n in named if n in self.fields)
        rows, places = self.bounds, self.bounds[:0]
        if self.has_lists:
            rows, places = rows[:-1], rows[-1:]
        for box in runs(rows, max(1, PIECE // max(1, width * self._places))):
            yield self.part(np.concatenate([box, places]), wanted)

    @property
    def bounds(self) -> np.ndarray:
        """The box of all keys, int64 (keys, 2)."""
        return np.array([(k.lo, k.hi) for k in self.schema.keys], np.int64).reshape(-1, 2)

    def part(self, box: np.ndarray, fields: Sequence[str]) -> Result:
        """The local result over a box of keys; only the box is fetched.

        Args:
            box: int64 (keys, 2), within the bounds.
            fields: The names of the value fields; their flags are included.
        """
        wanted = [*dict.fromkeys([PRESENT, *fields, *map(valid, fields)])]
        names = [name for name in wanted if name in self.fields]
        part = self.fields.part(names, box - self.bounds[:, :1])
        return replace(self, schema=self._over(box), fields=part)

    def cropped(self, box: np.ndarray) -> Result:
        """The result over a box of keys, without a fetch.

        Args:
            box: int64 (keys, 2), within the bounds.
        """
        fields = self.fields.crop(box - self.bounds[:, :1])
        return replace(self, schema=self._over(box), fields=fields)

    def _over(self, box: np.ndarray) -> Schema:
        ends = zip(self.schema.keys, box.tolist(), strict=True)
        return Schema(tuple(Key(k.name, lo, hi) for k, (lo, hi) in ends), self.schema.fields)

    # ---- arrays

    def numpy(self, fill: Any = None, *, as_stored: bool = False) -> Any:
        """The result as one array per value column over the bounds of the keys.

        Args:
            fill: Value of absent keys and NULLs; None raises an error for them.
            as_stored: Whether BFLOAT16 is returned as its bits, not as float32.

        Returns:
            An ndarray with one axis per key column in SELECT order, or a dict of them by
            column name if there are several value columns. Read-only if it shares storage.

        Raises:
            InterfaceError: A key is absent or NULL without a fill, the column cannot hold the
                fill, a key is hidden, there is no value column, or two have the same name.
        """
        values = [c for c in self.columns if c.field is not None]
        hidden = self.hidden[:-1] if self.has_lists else self.hidden
        if hidden:
            raise InterfaceError(
                f"The keys {', '.join(hidden)} are not selected, so rows are a bag",
                hint="Select them, or aggregate them away.",
            )
        order = [
            self.schema.keys.index(k)
            for c in self.columns
            for k in self.schema.keys
            if k.name == c.key
        ]
        if self.has_lists:
            order.append(len(self.schema.keys) - 1)
        if not values:
            raise InterfaceError("The result has keys only", hint="Select a value, or use rows.")
        names = [c.name for c in values]
        if len(set(names)) != len(names):
            raise InterfaceError(
                "Two value columns have the same name", hint="Rename one with AS, or fetch rows."
            )
        arrays = [self._array(c, fill, as_stored).transpose(order) for c in values]
        if len(values) == 1:
            return arrays[0]
        return dict(zip(names, separate(arrays), strict=True))

    def _array(self, column: ResultColumn, fill: Any, as_stored: bool) -> np.ndarray:
        assert column.field is not None
        holes, known = self._flag(PRESENT), self._flag(valid(column.field))
        if known is not None:
            holes = known if holes is None else holes & known
        if holes is None:
            array = self.fields[column.field]
            return array.view(column.dtype.numpy) if as_stored else loaded(array, column.dtype)
        if fill is None:
            lacking = holes.size - count_true(holes)
            raise InterfaceError(
                f"{lacking} of {holes.size} keys of {column.name} are absent or NULL",
                hint="Give fetch_numpy(fill=…) a value for them, or fetch rows.",
            )
        return np.where(
            holes, loaded(self.fields[column.field], column.dtype), _filler(fill, column)
        )

    # ---- rows

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Rows in SELECT's column order, ordered by key, as Python values."""
        with enough_memory:
            for piece in self._pieces():
                for columns in piece.column_chunks():
                    yield from zip(*columns, strict=True)

    def head(self, most: int) -> list[tuple[Any, ...]]:
        """The first rows, as many as `most`."""
        return list(islice(self.rows(), most))

    def column_chunks(self) -> Iterator[list[list[Any]]]:
        """The columns of up to `ROWS_AT_ONCE` rows at a time as Python values, None for NULL."""
        for chunk in self._chunks():
            columns = []
            for c, (values, known) in zip(self.columns, chunk, strict=True):
                column: list[Any] = values.tolist()
                if c.over is not None:
                    column = _lists(column, known)
                elif known is not None:
                    pairs = zip(column, known.tolist(), strict=True)
                    column = [v if k else None for v, k in pairs]
                columns.append(column)
            yield columns

    def _chunks(self) -> Iterator[list[tuple[np.ndarray, np.ndarray | None]]]:
        """The values of each column, and flags of NULL, for up to `ROWS_AT_ONCE` rows at a time."""
        if stored_elements.has_stored_rows(self.fields):
            yield from stored_elements.chunks(self, ROWS_AT_ONCE)
            return
        for index in self._positions():
            yield [self._column(c, index) for c in self.columns]

    def _positions(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Index arrays of the present keys, in chunks, in key order."""
        shape = self.schema.shape
        flag = self._flag(PRESENT)
        if flag is not None and not distinct(flag).any():
            return
        if self.has_lists:
            shape, flag = shape[:-1], None if flag is None else flag[..., 0]
        flat = None if flag is None else np.flatnonzero(flag)
        total = prod(shape) if flat is None else len(flat)
        together = max(1, ROWS_AT_ONCE // max(1, self._places))
        for start in range(0, total, together):
            stop = min(total, start + together)
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
        if self.has_lists:
            return self._listed(c, index, flag)
        if not self.schema.keys:
            at = index[0]
            only = np.array(loaded(self.fields[c.field], c.dtype))  # a copy, as with keys
            values = np.broadcast_to(only, at.shape)
            return values, None if flag is None else np.broadcast_to(flag, at.shape)
        values = loaded(self.fields[c.field][index], c.dtype)
        return values, None if flag is None else flag[index]

    def _listed(
        self, c: ResultColumn, index: tuple[np.ndarray, ...], flag: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """A column of a result with lists: a LIST is a row of values, others are the same in it."""
        assert c.field is not None
        stored = np.asarray(self.fields[c.field])
        if len(self.schema.keys) == 1:  # the only row
            stored, flag = stored[None], None if flag is None else flag[None]
        values, known = loaded(stored[index], c.dtype), None if flag is None else flag[index]
        if c.over is None:
            return values[:, 0], None if known is None else known[:, 0]
        return values, known

    def require_rows(self, width: int) -> None:
        """Refuses to list all rows if they do not fit into memory.

        Sparse and repeated fields may have more rows than bytes.

        Args:
            width: The bytes of a value.

        Raises:
            OperationalError: Fewer bytes than needed are available.
        """
        require(len(self) * width * len(self.columns))

    def table(self) -> Iterator[tuple[DType, np.ndarray, np.ndarray | None]]:
        """The type, values and validity mask of each column over all rows."""
        self.require_rows(2 * WIDTH)  # positions and values
        if stored_elements.has_stored_rows(self.fields):
            most = max(1, len(self))
            columns = next(stored_elements.chunks(self, most), None) or [
                (np.empty(0, c.dtype.carrier), None) for c in self.columns
            ]
            yield from ((c.dtype, *v) for c, v in zip(self.columns, columns, strict=True))
            return
        parts = list(self._positions())
        positions = (
            tuple(np.concatenate(p) for p in zip(*parts, strict=True))
            if parts
            else (tuple(np.empty(0, np.int64) for _ in self.schema.keys or (0,)))
        )
        for c in self.columns:
            yield (c.dtype, *self._column(c, positions))

    # ---- Arrow

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table, one column per SELECT item."""
        import pyarrow as pa  # takes 60 ms, and few callers need it

        self.require_rows(WIDTH)
        parts = [batch for piece in self._pieces() for batch in piece.batches()]
        return pa.Table.from_batches(parts, self.arrow_schema())

    def arrow_schema(self) -> pa.Schema:
        """The schema of `arrow`."""
        import pyarrow as pa  # as above

        types = [arrow_type(c.dtype) for c in self.columns]
        lists = (
            t if c.over is None else pa.list_(t) for c, t in zip(self.columns, types, strict=True)
        )
        return pa.schema([pa.field(c.name, t) for c, t in zip(self.columns, lists, strict=True)])

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows as record batches, ordered by key."""
        import pyarrow as pa  # as above

        schema = self.arrow_schema()
        for chunk in self._chunks():
            arrays = []
            for c, (values, known) in zip(self.columns, chunk, strict=True):
                if c.over is not None:
                    known = np.ones(values.shape, bool) if known is None else known
                    arrays.append(arrow_lists(values, c.dtype, known))
                else:
                    arrays.append(arrow_array(values, c.dtype, known))
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _lists(rows: list[list[Any]], known: np.ndarray | None) -> list[Any]:
    """The known values of each row, None if there are none."""
    if known is None:
        return rows
    lengths = np.count_nonzero(known, axis=1).tolist()
    is_prefix = bool((known[:, 1:] <= known[:, :-1]).all())
    if is_prefix:
        return [row[:n] or None for row, n in zip(rows, lengths, strict=True)]
    flags = known.tolist()
    pairs = (zip(row, f, strict=True) for row, f in zip(rows, flags, strict=True))
    return [[v for v, k in row if k] or None for row in pairs]


def _filler(fill: Any, column: ResultColumn) -> np.ndarray:
    """A fill value in a column's type; only floats are rounded."""
    filling = np.asarray(fill)
    if filling.ndim == 0 and filling.dtype.kind in "biuf":
        with np.errstate(all="ignore"):
            plain = not column.dtype.is_float
            filler = (
                filling.astype(column.dtype.numpy) if plain else cast_array(filling, column.dtype)
            )
        if column.dtype.is_float:
            fits = bool(np.isfinite(filler)) or not np.isfinite(filling)
        else:
            fits = bool(filler == filling)
        if fits:
            return filler
    raise InterfaceError(f"{column.name} is {column.dtype.value}, which cannot hold {fill!r}")
