"""Copies DuckDB's objects from a database to an empty attached one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from einsql.core.quoting import in_quotes
from einsql.errors import NotSupportedError

if TYPE_CHECKING:
    from einsql.storage.duckdb.connection import Duck

Name = tuple[str, str]
"""The names of a schema and a table."""
Reference = tuple[str, tuple[str, ...], tuple[str, ...]]
"""A foreign key: the referenced table of the same schema, its columns, the referring columns."""


def copy_database(duck: Duck, source: str, target: str) -> None:
    """Copies schemas, types, sequences, tables, views, macros, indexes and comments.

    Args:
        duck: A connection in a transaction.
        source: DuckDB's name of the source database.
        target: DuckDB's name of the target database.

    Raises:
        Error: DuckDB fails.
    """
    copy = f"COPY FROM DATABASE {in_quotes(source)} TO {in_quotes(target)}"
    references = _references(duck, source)
    if all(table != other for (_, table), many in references.items() for other, _, _ in many):
        duck.execute(copy)
        return
    # DuckDB looks for a referenced row before it has added the rows of the same
    # statement, so one statement cannot copy a table that refers to itself.
    duck.execute(f"{copy} (SCHEMA)")
    tables = duck.execute(
        "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ?", [source]
    )
    for schema, table in _ordered(tables, references):
        name = schema, table
        columns = ", ".join(map(in_quotes, _columns(duck, source, name)))
        ends = [f"{in_quotes(d)}.{in_quotes(schema)}.{in_quotes(table)}" for d in (source, target)]
        insert = f"INSERT INTO {ends[1]} ({columns}) SELECT {columns} FROM {ends[0]}"
        own = [reference for reference in references[name] if reference[0] == table]
        if not own:
            duck.execute(insert)
        for rows in _levels(duck, ends[0], own) if own else ():
            duck.execute(f"{insert} WHERE rowid IN (SELECT unnest(?))", [rows])


def _references(duck: Duck, database: str) -> dict[Name, list[Reference]]:
    references: dict[Name, list[Reference]] = defaultdict(list)
    for schema, table, other, named, own in duck.execute(
        "SELECT schema_name, table_name, referenced_table, referenced_column_names, "
        "constraint_column_names FROM duckdb_constraints() "
        "WHERE database_name = ? AND constraint_type = 'FOREIGN KEY'",
        [database],
    ):
        references[schema, table].append((other, tuple(named), tuple(own)))
    return references


def _columns(duck: Duck, database: str, name: Name) -> list[str]:
    columns = duck.execute(
        "SELECT column_name FROM duckdb_columns() WHERE database_name = ? AND schema_name = ? "
        "AND table_name = ? AND NOT is_generated ORDER BY column_index",
        [database, *name],
    )
    return [column for (column,) in columns]


def _ordered(names: Iterable[Any], references: dict[Name, list[Reference]]) -> Iterator[Name]:
    """The tables in an order that puts referenced tables first."""
    left = set(names)
    while left:
        ready = {
            (schema, table)
            for schema, table in left
            if all(o == table or (schema, o) not in left for o, _, _ in references[schema, table])
        }
        assert ready, "DuckDB has no foreign keys in a cycle of tables"
        left -= ready
        yield from sorted(ready)


def _levels(duck: Duck, table: str, references: list[Reference]) -> Iterator[list[int]]:
    """The rows of a table that refers to itself, each level after the rows that it refers to.

    Raises:
        NotSupportedError: Rows refer to each other in a cycle.
    """
    listed = sorted({c for _, named, own in references for c in (*named, *own)})
    at = {column: n + 1 for n, column in enumerate(listed)}
    columns = ", ".join(map(in_quotes, listed))
    rows = duck.execute(f"SELECT rowid, {columns} FROM {table} ORDER BY rowid")
    waiting: dict[int, int] = {}
    followers: dict[int, list[int]] = defaultdict(list)
    for _, named, own in references:
        holder = {tuple(row[at[c]] for c in named): row[0] for row in rows}
        for row in rows:
            key: tuple[Any, ...] = tuple(row[at[c]] for c in own)
            if None not in key:
                followers[holder[key]].append(row[0])
                waiting[row[0]] = waiting.get(row[0], 0) + 1
    level, done = [row[0] for row in rows if row[0] not in waiting], 0
    while level:
        yield level
        done += len(level)
        behind = list[int]()
        for row in level:
            for follower in followers[row]:
                waiting[follower] -= 1
                if not waiting[follower]:
                    behind.append(follower)
        level = behind
    if done < len(rows):
        raise NotSupportedError(
            f"Rows of {table} refer to each other in a cycle, which DuckDB cannot copy",
            hint="Close every connection, then copy the file together with its directory.",
        )
