"""The catalog: rows that describe tensors, views and macros, in a schema of the DuckDB file."""

from __future__ import annotations

import json
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, field
from typing import TYPE_CHECKING, Any

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.core.value_checks import Check
from einsql.errors import OperationalError
from einsql.ir.partition import OnMesh, Partition
from einsql.storage.database.layout import Layout, written_value
from einsql.storage.objects import Definition, Object, Tensor

if TYPE_CHECKING:
    import duckdb

FORMAT = 4
"""Format number of the catalog and of segments; a new number needs a migration."""
_INDEXED = 2
"""The first format with a tile index."""

Stored = tuple[object, object, object, object]
"""The columns of a row: name, version, kind and description."""
_NEWEST = 2**62
"""Upper bound of commit numbers."""


@dataclass(frozen=True, slots=True)
class Row:
    """One object in the catalog.

    Attributes:
        name: The lower-case name; macros end in `()`. A row without a name gets a generated one.
        version: The number of the commit that wrote it.
        kind: "tensor", or the kind of a definition.
        description: JSON for a tensor, without its elements; the text of a definition.
        fault: The fault of a damaged row, known before the description is parsed; else empty.
        stored: The stored rows of a damaged object.
        chunks: The chunks of a tensor's tile index by their numbers.
    """

    name: str
    version: int
    kind: str
    description: str
    fault: str = ""
    stored: tuple[Stored, ...] = ()
    chunks: Mapping[int, bytes] = field(default_factory=dict)


def home(con: duckdb.DuckDBPyConnection) -> str:
    """The catalog's qualified name in SQL, independent of USE.

    Args:
        con: A connection on which USE has not run.
    """
    ((name,),) = con.execute("SELECT current_database()").fetchall()
    return f"{in_quotes(str(name))}.__einsql"


def create(con: duckdb.DuckDBPyConnection, home: str) -> str:
    """Adds the schema to a DuckDB file; returns its new identity."""
    con.execute("BEGIN TRANSACTION")
    identity = fill(con.execute, home)
    con.execute("COMMIT")
    return identity


Execute = Callable[[str, list[object]], object]
"""Runs a DuckDB statement with parameters."""


def fill(execute: Execute, home: str) -> str:
    """Creates the schema and its tables in the running transaction; returns the identity."""
    identity = uuid.uuid4().hex
    execute(f"CREATE SCHEMA {home}", [])
    execute(f"CREATE TABLE {home}.format (version INTEGER, identity VARCHAR)", [])
    execute(
        f"CREATE TABLE {home}.objects (name VARCHAR, version BIGINT, kind VARCHAR, told VARCHAR)",
        [],
    )
    _add_tiles(execute, home)
    execute(f"INSERT INTO {home}.format VALUES (?, ?)", [FORMAT, identity])
    return identity


def _add_tiles(execute: Execute, home: str) -> None:
    """Creates the table of the tile indexes."""
    execute(f"CREATE TABLE {home}.tiles (name VARCHAR, chunk BIGINT, entries BLOB)", [])


def renew(execute: Execute, home: str) -> str:
    """Gives the copy of a catalog a new identity and returns it."""
    identity = uuid.uuid4().hex
    execute(f"UPDATE {home}.format SET identity = ?", [identity])
    return identity


def replace(execute: Execute, home: str, name: str, old: Row | None, new: Row | None) -> None:
    """Replaces or removes an object; only the chunks of its tile index that differ are written.

    Args:
        execute: Runs a statement with parameters.
        home: The catalog's qualified name.
        name: The lower-case name.
        old: The row, if it is known.
        new: The new row; None to remove the object.
    """
    _delete(execute, home, name, old)
    before = {} if old is None else old.chunks
    after = {} if new is None else new.chunks
    for chunk, entries in before.items():
        if after.get(chunk) != entries:
            execute(f"DELETE FROM {home}.tiles WHERE name = ? AND chunk = ?", [name, chunk])
    if new is None:
        return
    values: list[object] = [name, new.version, new.kind, new.description]
    execute(f"INSERT INTO {home}.objects VALUES (?, ?, ?, ?)", values)
    for chunk, entries in after.items():
        if before.get(chunk) != entries:
            execute(f"INSERT INTO {home}.tiles VALUES (?, ?, ?)", [name, chunk, entries])


def identity_of(
    con: duckdb.DuckDBPyConnection, home: str, path: str, read_only: bool
) -> str | None:
    """The identity of a file's catalog, or None without a catalog.

    The catalog of an older format is converted, unless the file is open for reading only. Segments
    keep their format until their tensor changes.

    Every result is read to its end: until then DuckDB keeps the transaction of a SELECT open, and
    the undo of each later UPDATE with it, which makes CHECKPOINT fail on every connection.

    Raises:
        OperationalError: The format is newer.
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
    if version < FORMAT and not read_only:
        con.execute("BEGIN TRANSACTION")
        if version < _INDEXED:
            _add_tiles(con.execute, home)
        con.execute(f"UPDATE {home}.format SET version = ?", [FORMAT])
        con.execute("COMMIT")
    return identity


def read(con: duckdb.DuckDBPyConnection, home: str) -> dict[str, Row]:
    """All rows by name, damaged ones included."""
    stored = con.execute(f"SELECT name, version, kind, told FROM {home}.objects").fetchall()
    groups: dict[str, list[Stored]] = {}
    for row in stored:
        groups.setdefault(_name(row), []).append(row)
    chunks = _chunks(con, home)
    return {name: _row(name, group, chunks.get(name, {})) for name, group in groups.items()}


def _chunks(con: duckdb.DuckDBPyConnection, home: str) -> dict[str, dict[int, bytes]]:
    """The chunks of all tile indexes, by the names of the tensors."""
    ((version,),) = con.execute(f"SELECT version FROM {home}.format").fetchall()
    chunks: dict[str, dict[int, bytes]] = {}
    if version >= _INDEXED:
        for name, chunk, entries in con.execute(f"FROM {home}.tiles").fetchall():
            chunks.setdefault(name, {})[chunk] = entries or b""
    return chunks


def _name(stored: Stored) -> str:
    """The name of an object; DROP accepts it even if the row is damaged."""
    name = stored[0]
    if isinstance(name, str) and name not in ("", "()"):
        return name.lower()
    return f"damaged_{zlib.crc32(repr(stored).encode()):08x}"


def _row(name: str, group: list[Stored], chunks: Mapping[int, bytes]) -> Row:
    called, version, kind, description = group[0]
    if len(group) > 1:
        fault = f"the catalog has {len(group)} rows of this name"
    elif called != name:
        fault = f"the name in its row is {called!r}"
    elif not isinstance(kind, str):
        fault = "its row has no kind"
    elif not isinstance(description, str):
        fault = "its row has no description"
    elif isinstance(version, int | None) and 0 <= (version or 0) < _NEWEST:
        return Row(name, version or 0, kind, description, chunks=chunks)
    else:
        fault = f"its row has the version {version}"
    kinds = {str(row[2] or "") for row in group}
    rest = "\n".join(str(row[3] or "") for row in group)
    return Row(
        name=name,
        version=0,
        kind=kinds.pop() if len(kinds) == 1 else "",
        description=rest,
        fault=fault,
        stored=tuple(group),
        chunks=chunks,
    )


def _delete(execute: Execute, home: str, name: str, row: Row | None) -> None:
    """Removes the row of a name, or all rows stored under it."""
    where = f"DELETE FROM {home}.objects WHERE name"
    if row is None or not row.fault:
        execute(f"{where} = ?", [name])
        return
    for called, _, kind, description in row.stored:
        rest = (
            "IS NOT DISTINCT FROM ? AND kind IS NOT DISTINCT FROM ? AND told IS NOT DISTINCT FROM ?"
        )
        execute(f"{where} {rest}", [called, kind, description])


def row_of(item: Tensor | Definition, version: int, layout: Layout | None) -> Row:
    """The row of an object."""
    name = item.name.lower()
    if isinstance(item, Definition):
        description: dict[str, Any] = {"text": item.text}
        return Row(name=name, version=version, kind=item.kind, description=json.dumps(description))
    assert layout is not None
    schema = item.relation.schema
    description = {
        "name": item.name,
        "keys": [(k.name, k.lo, k.hi) for k in schema.keys],
        "fields": [(f.name, f.dtype.value) for f in schema.fields],
        "columns": item.columns,
        **_partition(item.partition),
        **_checks(item.checks),
        "default": written_value(item.default),
        "payload": layout.description(),
    }
    return Row(name, version, "tensor", json.dumps(description), chunks=layout.index.chunks)


def _partition(partition: Partition | None) -> dict[str, Any]:
    """A declared partition as entries of a tensor's description."""
    if isinstance(partition, OnMesh):
        return {"partition": asdict(partition), "order": ()}
    if partition is None:
        return {"partition": None, "order": ()}
    return {"partition": partition.numbers, "order": partition.order}


def _checks(checks: Sequence[Check]) -> dict[str, Any]:
    """Declared bounds as an entry of a tensor's description, which tensors without bounds lack."""
    return {"checks": [astuple(c) for c in checks]} if checks else {}


def files_of(item: Object | None) -> frozenset[str]:
    """The segments of a committed tensor; none of another object."""
    layout = item.relation.fields.layout if isinstance(item, Tensor) else None
    return frozenset() if layout is None else layout.files
