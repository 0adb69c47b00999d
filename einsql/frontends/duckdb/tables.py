"""Tables of a user's DuckDB as tensors: a row is an element, and columns are its keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.core.sparse.compressed import at_cells
from einsql.core.sparse.numbering import matrix_shape
from einsql.core.units import plural
from einsql.errors import DataError, IntegrityError, InterfaceError, ProgrammingError
from einsql.storage.fields import LocalFields
from einsql.storage.out_of_memory import require
from einsql.storage.relation import Relation
from einsql.storage.sparse_fields import stored_fields

if TYPE_CHECKING:
    from duckdb import DuckDBPyRelation

_WHOLE = {
    "TINYINT": DType.TINYINT,
    "SMALLINT": DType.INTEGER,
    "UTINYINT": DType.INTEGER,
    "INTEGER": DType.INTEGER,
    "USMALLINT": DType.INTEGER,
    "BIGINT": DType.BIGINT,
    "UINTEGER": DType.BIGINT,
    "UBIGINT": DType.BIGINT,
    "HUGEINT": DType.BIGINT,
    "UHUGEINT": DType.BIGINT,
}
"""The tensor types of DuckDB's integer types."""
_OTHERS = {
    "BOOLEAN": DType.BOOLEAN,
    "FLOAT": DType.FLOAT,
    "DOUBLE": DType.DOUBLE,
    "DECIMAL": DType.DOUBLE,
}

SPARSE = 16
"""A matrix with fewer than one element per this number of keys is stored sparsely."""
_EXPLICIT = "edb.tensor(name, 'SELECT …', dims=('i', 'j')) says which columns are keys."


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a table whose rows are elements.

    Attributes:
        name: The table's name, for error messages.
        keys: The names of the key columns.
        dtypes: The type of each column, by name; the keys are first.
    """

    name: str
    keys: tuple[str, ...]
    dtypes: Mapping[str, DType]

    @property
    def casts(self) -> list[str]:
        """The SQL expressions of the columns in the types of the tensor."""
        return [f"CAST({in_quotes(c)} AS {t.value})" for c, t in self.dtypes.items()]

    def relation(
        self, columns: Mapping[str, np.ndarray], shape: Sequence[int] | None = None
    ) -> Relation:
        """The relation over the rows.

        Args:
            columns: The columns without NULLs, in the types of the schema.
            shape: The extents of the keys, which then start at 0; by default the data determines
                the bounds.

        Returns:
            A relation over copies of the columns; dense if every key is present, else masked.

        Raises:
            IntegrityError: A key is duplicate, negative or out of bounds.
        """
        bounds = _bounds(self.name, [columns[k] for k in self.keys], self.keys, shape)
        fields = tuple(Field(c, t) for c, t in self.dtypes.items() if c not in self.keys)
        return _relation(self.name, Schema(bounds, fields), columns)

    def without_nulls(self, column: str, nulls: int, rows: int) -> None:
        """Requires that a column has no NULLs.

        Raises:
            DataError: It has some.
        """
        if nulls:
            raise DataError(
                f"{column} of {self.name} is NULL in {nulls} of {rows} rows",
                hint=f"Leave those out: WHERE {column} IS NOT NULL. A key without a row is "
                "absent, which is no error.",
            )


def read_table(
    name: str,
    table: DuckDBPyRelation,
    dims: Sequence[str] | None = None,
    shape: Sequence[int] | None = None,
) -> Relation:
    """Reads a table whose rows are elements.

    Args:
        name: The table's name, for error messages.
        table: The table or query.
        dims: The key columns; by default the leading integer columns, except the last column.
        shape: The extents of the keys, which then start at 0; by default the data determines
            the bounds.

    Raises:
        ProgrammingError: A key or value column is missing, or tensors lack a column's type.
        IntegrityError: A key is duplicate, negative or out of bounds.
        DataError: A value or key is NULL, or an integer exceeds the range of BIGINT.
    """
    types = dict(zip(table.columns, (str(t) for t in table.types), strict=True))
    schema = table_schema(name, types, dims)
    return schema.relation(_columns(schema, table), shape)


def table_schema(
    name: str, types: Mapping[str, str], dims: Sequence[str] | None = None
) -> TableSchema:
    """The schema of a table as a tensor.

    Args:
        name: The table's name, for error messages.
        types: DuckDB's types of the columns, by name.
        dims: The key columns; by default the leading integer columns, except the last column.

    Raises:
        ProgrammingError: A key or value column is missing, or tensors lack a column's type.
    """
    keys = _keys(name, types, dims)
    values = [c for c in types if c not in keys]
    if not values:
        raise ProgrammingError(f"{name} has keys only", hint="A tensor has a value beside them.")
    dtypes = dict.fromkeys(keys, DType.BIGINT) | {c: _type(name, c, types[c]) for c in values}
    return TableSchema(name, tuple(keys), dtypes)


def _keys(name: str, types: Mapping[str, str], dims: Sequence[str] | None) -> list[str]:
    if dims is not None:
        known = {c.lower(): c for c in types}
        missing = [d for d in dims if d.lower() not in known]
        if missing:
            raise ProgrammingError(
                f"{name} has no column {missing[0]}", hint=f"It has {', '.join(types)}."
            )
        keys = [known[d.lower()] for d in dims]
        other = next((k for k in keys if types[k] not in _WHOLE), None)
        if other is not None:
            raise ProgrammingError(f"The key {other} of {name} is {types[other]}, not an integer")
        return keys
    keys = []
    for column in list(types)[:-1]:
        if types[column] not in _WHOLE:
            break
        keys.append(column)
    if not keys:
        shown = ", ".join(f"{c} {t}" for c, t in types.items())
        raise ProgrammingError(
            f"{name} is not a tensor: its first column is not an integer key ({shown})",
            hint=_EXPLICIT,
        )
    return keys


def _type(name: str, column: str, kind: str) -> DType:
    dtype = _WHOLE.get(kind) or _OTHERS.get(kind.partition("(")[0])
    if dtype is None:
        raise ProgrammingError(
            f"Column {column} of {name} is {kind}, which no tensor holds",
            hint=f"Leave it out, and join it outside einsql('…'). {_EXPLICIT}",
        )
    return dtype


def _columns(schema: TableSchema, table: DuckDBPyRelation) -> dict[str, np.ndarray]:
    """The columns as arrays without NULLs."""
    import duckdb

    shown = ", ".join(f"{cast} AS c{n}" for n, cast in enumerate(schema.casts))
    try:
        arrays = table.project(shown).fetchnumpy()
    except duckdb.ConversionException as error:
        raise DataError(
            f"A number in {schema.name} does not fit its type in a tensor: {error}",
            hint="Whole numbers are BIGINT at most.",
        ) from error
    columns = {}
    for n, (column, dtype) in enumerate(schema.dtypes.items()):
        array: Any = arrays[f"c{n}"]
        if isinstance(array, np.ma.MaskedArray):
            nulls = int(np.count_nonzero(np.ma.getmaskarray(array)))
            schema.without_nulls(column, nulls, len(array))
            array = array.data
        columns[column] = np.asarray(array, dtype.numpy)
    return columns


def _bounds(
    name: str, columns: Sequence[np.ndarray], keys: Sequence[str], shape: Sequence[int] | None
) -> tuple[Key, ...]:
    if shape is not None and len(shape) != len(keys):
        raise InterfaceError(f"shape has {len(shape)} extents for {plural(len(keys), 'key')}")
    bounds = []
    for n, (key, column) in enumerate(zip(keys, columns, strict=True)):
        least, most = (int(column.min()), int(column.max())) if len(column) else (0, -1)
        if least < 0:
            raise IntegrityError(
                f"{key} of {name} takes the value {least}, and keys are not negative",
                hint=f"Shift it: {key} + {-least}.",
            )
        if shape is not None and most >= shape[n]:
            raise IntegrityError(
                f"{key} of {name} takes the value {most}, outside of its bounds [0, {shape[n]})"
            )
        bounds.append(Key(key, least, most + 1) if shape is None else Key(key, 0, int(shape[n])))
    return tuple(bounds)


def _relation(name: str, schema: Schema, columns: Mapping[str, np.ndarray]) -> Relation:
    keys = schema.keys
    rows = len(columns[keys[0].name])
    size = prod(k.extent for k in keys)
    if size >= 2**63:
        raise ProgrammingError(
            f"The keys of {name} span {size:,} elements", hint="Number them more densely."
        )
    flat = np.zeros(rows, np.int64)
    for k in keys:
        flat *= k.extent
        flat += columns[k.name] - k.lo
    if size == rows and np.array_equal(flat, np.arange(rows)):
        return Relation(
            schema,
            LocalFields({f.name: columns[f.name].reshape(schema.shape) for f in schema.fields}),
        )
    masked = Schema(keys, (*schema.fields, Field(PRESENT, DType.BOOLEAN)))
    if keys and schema.fields and size > max(2**20, SPARSE * rows):
        return _sparse(name, schema, masked, flat, columns)
    require(size * sum(f.dtype.numpy.itemsize for f in masked.fields))
    present = np.zeros(size, np.bool_)
    present[flat] = True
    _check_unique(name, keys, flat, rows - int(np.count_nonzero(present)))
    fields = LocalFields()
    for f in schema.fields:
        array = np.zeros(size, f.dtype.numpy)
        array[flat] = columns[f.name]
        fields[f.name] = array.reshape(schema.shape)
    if size == rows:
        return Relation(schema, fields)
    fields[PRESENT] = present.reshape(schema.shape)
    return Relation(masked, fields)


def _sparse(
    name: str, schema: Schema, masked: Schema, flat: np.ndarray, columns: Mapping[str, np.ndarray]
) -> Relation:
    require((matrix_shape(schema.shape)[0] + 1) * 8)
    structure, twice = at_cells(schema.shape, flat)
    _check_unique(name, schema.keys, flat, 0 if twice is None else len(twice))
    values = {f.name: columns[f.name][structure.values] for f in schema.fields}
    return Relation(masked, stored_fields(structure, values, None))


def _check_unique(name: str, keys: Sequence[Key], flat: np.ndarray, surplus: int) -> None:
    if not surplus:
        return
    ordered = np.sort(flat)
    twice = int(ordered[1:][ordered[1:] == ordered[:-1]][0])
    at = np.unravel_index(twice, [k.extent for k in keys])
    shown = ", ".join(f"{k.name} = {int(n) + k.lo}" for k, n in zip(keys, at, strict=True))
    raise IntegrityError(
        f"{name} has several rows for {shown}, and a key is there once",
        hint=f"Aggregate them: SELECT {', '.join(k.name for k in keys)}, SUM(…) … GROUP BY ALL. "
        + _EXPLICIT,
    )
