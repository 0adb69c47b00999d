"""The named objects of a database; no other module of the console reads the catalog."""

from __future__ import annotations

import einsql
from einsql.core.quoting import in_quotes, name_of
from einsql.core.records import dataclass
from einsql.sql.parser.create.create_headers import Head, head_of
from einsql.storage.objects import Damaged, Definition, Tensor, bare_name, damage_error, macro_key
from einsql.storage.results.value_text import literal
from einsql.storage.sparse_fields import sparse_fields_of


@dataclass(frozen=True, slots=True)
class Entry:
    """A named object.

    Attributes:
        name: The name in its original case, without quotes.
        kind: "tensor", "table", "view" or "macro"; prefixed with "damaged" for a damaged object.
        text: The statement that creates the object, if DuckDB's catalog has it; else empty.
        call: The signature of a macro, such as `softmax(x, axis)`; else empty.
        in_from: Whether the object can be read in FROM.
    """

    name: str
    kind: str
    call: str = ""
    in_from: bool = True
    text: str = ""


@dataclass(frozen=True, slots=True)
class ColumnEntry:
    """A column with its type; `64` or `0..8` are the bounds of a key, and values have no bounds.

    A value may have a CHECK.
    """

    name: str
    type: str
    bounds: str
    check: str = ""


def entries(connection: einsql.Connection) -> list[Entry]:
    """All named objects, sorted by name."""
    names = []
    for stored in connection.store.objects.values():
        if isinstance(stored, Tensor):
            names.append(Entry(stored.name, "tensor"))
        elif isinstance(stored, Definition) and stored.kind == "macro":
            name = bare_name(stored)
            head = head_of(stored.text) or Head("macro", name, f"{name}(…)")
            names.append(Entry(name, "macro", head.call, head.is_table))
        elif isinstance(stored, Damaged):
            names.append(Entry(stored.name, f"damaged {stored.kind}", in_from=False))
        else:
            names.append(Entry(stored.name, stored.kind))
    duckdbs = connection.duck.definitions()
    names += [Entry(name, kind, text=text.strip()) for name, kind, text in duckdbs]
    return sorted(names, key=lambda e: e.name)


def columns(connection: einsql.Connection, name: str) -> list[ColumnEntry]:
    """The columns of a tensor, table or view.

    Raises:
        Error: No object has the name, or a view names a dropped object.
    """
    cursor = connection.execute(f"DESCRIBE {in_quotes(name)}")
    rows = cursor.fetchall()
    if cursor.description is not None and cursor.description[2][0] == "null":  # from DuckDB
        return [ColumnEntry(str(column), str(dtype), "") for column, dtype, *_ in rows]
    return [ColumnEntry(*map(str, row[:4])) for row in rows]


def definition(connection: einsql.Connection, entry: Entry) -> str:
    """The statement that would create an object.

    Raises:
        Error: The object no longer exists.
    """
    if entry.text:
        return entry.text
    is_macro = entry.kind == "macro"
    stored = connection.store.get(macro_key(entry.name) if is_macro else entry.name)
    if isinstance(stored, Definition):
        last = stored.text.rpartition("\n")[2]
        return f"{stored.text}\n;" if "--" in last else f"{stored.text};"
    if isinstance(stored, Damaged):
        return f"-- {damage_error(stored).reason}"
    parts = [
        name_of(c.name)
        + (f" DIM({c.bounds.rpartition('..')[2]})" if c.bounds else f" {c.type} {c.check}".rstrip())
        for c in columns(connection, entry.name)
    ]
    options = "" if stored is None else _options(stored)
    return f"CREATE TENSOR {name_of(entry.name)} ({', '.join(parts)}){options};"


def _options(stored: Tensor) -> str:
    options = ""
    if stored.partition is not None:
        keys = [name_of(k.name) for k in stored.relation.schema.keys]
        options += f" {stored.partition.clauses(keys)}"
    if sparse_fields_of(stored.relation.fields) is not None:
        options += " STORAGE SPARSE"
    if stored.default is not None:
        options += f" DEFAULT {literal(stored.default, '')}"
    return options
