"""The input of `.plot`: the last result as arrays over one or two keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.records import dataclass
from einsql.errors import Error
from einsql.frontends.console.settings import CommandError

if TYPE_CHECKING:
    import einsql

_MOST_CELLS = 2**26
"""The largest number of elements of an array that is built from rows."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Arrays of values over one or two keys.

    Attributes:
        keys: The names of the axes, one or two.
        origin: The least value of each key.
        values: float64, float32 or integer arrays by column name, all of one
            shape; NaN for an absent key or a NULL value.
    """

    keys: tuple[str, ...]
    origin: tuple[int, ...]
    values: dict[str, np.ndarray]

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the keys."""
        return next(iter(self.values.values())).shape

    def bounds(self, axis: int) -> tuple[int, int]:
        """The first and the last value of a key."""
        return self.origin[axis], self.origin[axis] + self.shape[axis] - 1


def picture_of(cursor: einsql.Cursor) -> Picture:
    """The result of a cursor as arrays that can be drawn.

    Raises:
        CommandError: The result has no rows, no values, no key or more than two keys.
    """
    description = cursor.description or ()
    names, keys = [str(d[0]) for d in description], cursor.key_names
    if cursor.shape is None or keys is None:
        return _from_rows(cursor, None)
    if not 1 <= len(keys) <= 2:
        raise CommandError(_wrong_keys(keys))
    if len(names) == len(keys):
        raise CommandError("The last result has keys only; select a value to plot it")
    if not cursor.rowcount:
        raise CommandError("The last result has no rows to plot")
    try:
        floats = _floats(cursor)
    except Error:
        return _from_rows(cursor, keys)  # the cursor has no keys, or its values are not floats
    values = floats if isinstance(floats, dict) else {_value_name(names, keys): floats}
    return _checked(Picture(keys, cursor.origin, values))


def _floats(cursor: einsql.Cursor) -> Any:
    try:
        return cursor.fetch_numpy()
    except Error:
        return cursor.fetch_numpy(fill=np.nan)


def _value_name(names: list[str], keys: tuple[str, ...]) -> str:
    left = list(names)
    for key in keys:
        left.remove(key)
    return left[0]


def _wrong_keys(keys: tuple[str, ...]) -> str:
    hint = "select one key or two, as in SELECT i, j, val"
    if not keys:
        return f"The last result is a single row without a key: {hint}"
    named = ", ".join(keys)
    return (
        f"A plot has one key or two, but the last result has {len(keys)}: {named}\n"
        f"Fix some of them (WHERE {keys[0]} = 0), or aggregate them away."
    )


def _from_rows(cursor: einsql.Cursor, keys: tuple[str, ...] | None) -> Picture:
    """The rows of a table: the last numeric column over the integer columns before it."""
    import pyarrow as pa  # the import takes 60 ms

    table = cursor.fetch_arrow_table()
    numbers = [n for n, f in enumerate(table.schema) if _is_number(pa, f.type)]
    if not numbers:
        raise CommandError("The last result has no column of numbers to plot")
    value = numbers[-1]
    if keys is None:
        integers = [n for n in numbers[:-1] if pa.types.is_integer(table.schema.field(n).type)]
        keys = tuple(table.schema.field(n).name for n in integers)
        at = [table.column(n) for n in integers]
    else:
        names = table.schema.names
        at = [table.column(names.index(k)) for k in keys]
    if len(keys) > 2:
        raise CommandError(_wrong_keys(keys))
    if not table.num_rows:
        raise CommandError("The last result has no rows to plot")
    if any(column.null_count for column in at):
        raise CommandError(f"A key of the last result is NULL; leave it out: WHERE {keys[0]} …")
    column = table.column(value).cast(pa.float64(), safe=False)
    flat = np.asarray(column.to_numpy(), np.float64)  # NULL becomes NaN
    places = [np.asarray(c.to_numpy(), np.int64) for c in at] or [np.arange(len(flat))]
    keys, origin = keys or ("row",), tuple(int(p.min()) for p in places)
    shape = tuple(int(p.max()) - o + 1 for p, o in zip(places, origin, strict=True))
    if int(np.prod([float(n) for n in shape])) > _MOST_CELLS:
        raise CommandError(f"The keys are too far apart to plot: {' × '.join(map(str, shape))}")
    cells = np.ravel_multi_index([p - o for p, o in zip(places, origin, strict=True)], shape)
    if len(np.unique(cells)) < len(cells):
        raise CommandError(
            f"Several rows of the last result have the same {' and '.join(keys)}\n"
            "Aggregate them with GROUP BY to plot them."
        )
    array = np.full(shape, np.nan)
    array.reshape(-1)[cells] = flat
    return _checked(Picture(keys, origin, {table.schema.field(value).name: array}))


def _is_number(pa: Any, kind: Any) -> bool:
    is_ = pa.types
    numbers = (is_.is_integer, is_.is_floating, is_.is_decimal, is_.is_boolean)
    return any(is_type(kind) for is_type in numbers)


def _checked(picture: Picture) -> Picture:
    if not any(np.isfinite(a).any() for a in picture.values.values()):
        raise CommandError("The last result has no finite value to plot")
    return picture
