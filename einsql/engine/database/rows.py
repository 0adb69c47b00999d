"""The catalog: rows about tensors, views and macros in a schema of the DuckDB file."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from einsql.engine.database.checks import CHUNK
from einsql.engine.database.directory import Directory, is_payload
from einsql.engine.database.payload import Layout
from einsql.engine.database.stored import StoredFields
from einsql.engine.objects import Definition, Object, Tensor
from einsql.engine.relation import Relation
from einsql.errors import OperationalError
from einsql.quoting import in_quotes
from einsql.schema import DType, Field, Key, Schema

if TYPE_CHECKING:
    import duckdb

FORMAT = 1
"""Of the catalog and of payloads; a new one needs its migration."""
MIGRATIONS: Mapping[int, Callable[[duckdb.DuckDBPyConnection], None]] = {}
"""By the format they start from: each makes the next one, in a transaction that is running."""

Define = Callable[[str, str], Definition]
"""Makes a view or macro of its kind and text; only the session's layer reads SQL."""


@dataclass(frozen=True, slots=True)
class Row:
    """One object in the catalog.

    Attributes:
        name: In small letters; macros end in `()`.
        version: The commit that put it there.
        kind: "tensor", or that of a definition.
        told: The rest as JSON: all that a tensor is but its elements; the text of a definition.
    """

    name: str
    version: int
    kind: str
    told: str


def home(con: duckdb.DuckDBPyConnection) -> str:
    """The catalog's full name in SQL, which means the same wherever USE has led a session.

    Args:
        con: A connection that is still where it was opened.
    """
    ((name,),) = con.execute("SELECT current_database()").fetchall()
    return f"{in_quotes(str(name))}.__einsql"


def create(con: duckdb.DuckDBPyConnection, home: str) -> str:
    """Adds the schema to a DuckDB file; returns the identity that it gets."""
    identity = uuid.uuid4().hex
    con.execute("BEGIN TRANSACTION")
    con.execute(f"CREATE SCHEMA {home}")
    con.execute(f"CREATE TABLE {home}.format (version INTEGER, identity VARCHAR)")
    con.execute(
        f"CREATE TABLE {home}.objects (name VARCHAR, version BIGINT, kind VARCHAR, told VARCHAR)"
    )
    con.execute(f"INSERT INTO {home}.format VALUES (?, ?)", [FORMAT, identity])
    con.execute("COMMIT")
    return identity


def identity_of(
    con: duckdb.DuckDBPyConnection, home: str, path: str, read_only: bool
) -> str | None:  # fmt: skip
    """Whose catalog a file has, None if it has none; an older format is made a new one.

    Every result is read to its end: until then DuckDB keeps the transaction of a SELECT open, and
    the undo of each later UPDATE with it, which makes CHECKPOINT fail on every connection.

    Raises:
        OperationalError: The format is newer, or has to be written to be read.
    """
    tables = con.execute(
        "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() "
        "AND schema_name = '__einsql' AND table_name IN ('format', 'objects')"
    ).fetchall()
    if len(tables) != 2:
        return None
    row = next(iter(con.execute(f"SELECT version, identity FROM {home}.format").fetchall()), None)
    if row is None or None in row:
        raise OperationalError(f"'{path}' is damaged: it does not say which format it has")
    version, identity = int(row[0]), str(row[1])
    if version > FORMAT:
        raise OperationalError(
            f"'{path}' has format {version}, and this einsql reads formats up to {FORMAT}",
            hint="A newer einsql opens it.",
        )
    if version < FORMAT:
        _migrate(con, home, path, version, read_only)
    return identity


def _migrate(
    con: duckdb.DuckDBPyConnection, home: str, path: str, version: int, read_only: bool
) -> None:  # fmt: skip
    missing = [n for n in range(version, FORMAT) if n not in MIGRATIONS]
    if read_only or missing:
        raise OperationalError(
            f"'{path}' has format {version}, and this einsql writes format {FORMAT}",
            hint="An einsql of an earlier version opens it."
            if missing
            else "Open it once without read_only=True, which brings it to the new format.",
        )
    con.execute("BEGIN TRANSACTION")
    for n in range(version, FORMAT):
        MIGRATIONS[n](con)
    con.execute(f"UPDATE {home}.format SET version = ?", [FORMAT])
    con.execute("COMMIT")


def read(con: duckdb.DuckDBPyConnection, home: str) -> list[Row]:
    """Every row."""
    found = con.execute(
        f"SELECT name, coalesce(version, 0), kind, told FROM {home}.objects"
    ).fetchall()
    return [Row(str(n), int(v), str(k), str(t)) for n, v, k, t in found]


def row_of(item: Object, version: int, layout: Layout | None) -> Row:
    """The row of an object."""
    name = item.name.lower()
    if isinstance(item, Definition):
        told: dict[str, Any] = {"text": item.text}
        return Row(name, version, item.kind, json.dumps(told))
    assert layout is not None
    schema = item.relation.schema
    default = item.default
    told = {
        "name": item.name,
        "keys": [(k.name, k.lo, k.hi) for k in schema.keys],
        "fields": [(f.name, f.dtype.value) for f in schema.fields],
        "columns": item.columns,
        "partition": item.partition,
        "order": item.order,
        "default": default if default is None or isinstance(default, bool | int) else
        float(default).hex(),
        "payload": layout.told(),
    }  # fmt: skip
    return Row(name, version, "tensor", json.dumps(told))


def object_of(row: Row, directory: Directory, define: Define) -> Object:
    """The object of a row; a tensor's payload is not touched.

    Raises:
        OperationalError: The row makes no sense.
    """
    try:
        told = json.loads(row.told)
        is_tensor = row.kind == "tensor"
        found = _tensor(told, directory) if is_tensor else define(row.kind, told["text"])
        if found.name.lower() != row.name:
            raise ValueError(f"it holds {found.name}")
        return found
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise OperationalError(
            f'The row of "{row.name}" in the catalog is damaged: {error}'
        ) from error


def _tensor(told: dict[str, Any], directory: Directory) -> Tensor:
    fields = tuple(Field(n, DType(t)) for n, t in told["fields"])
    schema = Schema(tuple(Key(*k) for k in told["keys"]), fields)
    default = told["default"]
    layout = Layout.read(told["payload"])
    _check(layout, schema)
    held = directory.fields(layout, schema, told["name"])
    return Tensor(
        told["name"],
        Relation(schema, held),
        tuple(told["columns"]),
        None if told["partition"] is None else tuple(told["partition"]),
        tuple(told["order"]),
        float.fromhex(default) if isinstance(default, str) else default,
    )


def _check(layout: Layout, schema: Schema) -> None:
    """Refuses what would read beyond a payload, or another file.

    Raises:
        ValueError: It would.
    """
    if not is_payload(layout.file):
        raise ValueError(f"{layout.file!r} is no payload's name")
    if [p.name for p in layout.parts] != [f.name for f in schema.fields]:
        raise ValueError("the payload has other fields")
    places = [(layout.sums, 4 * layout.count)]
    count = 0
    for part in layout.parts:
        extents = zip(part.shape, schema.shape, strict=True)
        if any(stored not in (1, whole) for stored, whole in extents) or part.first != count:
            raise ValueError(f"the payload has no {part.name} of that shape")
        nbytes = prod(part.shape) * schema.dtype(part.name).numpy.itemsize
        places.append((part.offset, nbytes))
        count += -(-nbytes // CHUNK)
    if count != layout.count or any(lo < 0 or lo + n > layout.size for lo, n in places):
        raise ValueError("the payload is too short")


def payload_of(item: Object | None) -> str | None:
    """The file of a committed tensor."""
    if isinstance(item, Tensor) and isinstance(item.relation.fields, StoredFields):
        return item.relation.fields.layout.file
    return None
