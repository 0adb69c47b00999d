"""The content of a database as a script of SQL."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from einsql.core.dag import producers_first
from einsql.core.quoting import in_quotes, name_of
from einsql.core.quoting import literal as text_literal
from einsql.frontends.console.commands.command import CommandTarget
from einsql.frontends.console.objects import Entry, definition, entries
from einsql.frontends.console.settings import CommandError
from einsql.frontends.console.words import pieces
from einsql.storage.objects import is_local, macro_key
from einsql.storage.results.value_text import Column, columns_of, literal

_ROWS = 100
"""The rows of an INSERT statement; longer statements take more memory to parse."""

_EXACT = re.compile(
    r"(U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|FLOAT|DOUBLE|BOOLEAN|VARCHAR|DECIMAL.*)\Z"
)
"""The types whose Python values become literals; DuckDB spells the values of other types."""

_OF_SESSION = "NOT internal AND database_name = current_database() AND schema_name <> '__einsql'"

_SCHEMAS = f"""
SELECT schema_name FROM duckdb_schemas() WHERE {_OF_SESSION} AND schema_name <> 'main'"""

_TYPES = f"""
SELECT schema_name, type_name FROM duckdb_types() WHERE {_OF_SESSION} ORDER BY type_oid"""

_SEQUENCES = """
SELECT schema_name, sequence_name, sql FROM duckdb_sequences()
WHERE NOT temporary AND database_name = current_database()"""
"""The sequences; START in `sql` is the next value, and the name has no schema and no quotes."""
_CLAUSES = " INCREMENT BY "
"""The first clause in the `sql` of a sequence."""

_TABLES = f"""
SELECT schema_name, table_name, sql FROM duckdb_tables()
WHERE {_OF_SESSION} AND NOT temporary AND sql IS NOT NULL ORDER BY table_oid"""
"""DuckDB's tables; tensors have no `sql` there, as einsql's views below."""

_VIEWS = f"""
SELECT view_name, sql FROM duckdb_views()
WHERE {_OF_SESSION} AND NOT temporary AND sql IS NOT NULL
AND NOT starts_with(view_name, '__einsql_')"""

_GENERATED = f"""
SELECT schema_name, table_name, column_name FROM duckdb_columns()
WHERE {_OF_SESSION} AND is_generated"""

_COMMENTS = f"""
SELECT 'TABLE', schema_name, table_name, NULL, table_name, comment FROM duckdb_tables()
WHERE {_OF_SESSION} AND NOT temporary
UNION ALL SELECT 'VIEW', schema_name, view_name, NULL, view_name, comment FROM duckdb_views()
WHERE {_OF_SESSION} AND NOT temporary
UNION ALL SELECT 'COLUMN', schema_name, table_name, column_name, table_name, comment
FROM duckdb_columns() WHERE {_OF_SESSION}
UNION ALL SELECT 'INDEX', schema_name, index_name, NULL, table_name, comment
FROM duckdb_indexes() WHERE database_name = current_database()
UNION ALL SELECT 'TYPE', schema_name, type_name, NULL, NULL, comment
FROM duckdb_types() WHERE {_OF_SESSION}
UNION ALL SELECT 'SEQUENCE', schema_name, sequence_name, NULL, NULL, comment
FROM duckdb_sequences() WHERE NOT temporary AND database_name = current_database()"""
"""The kind, schema, name and column of a commented object, and the table on which it depends."""

_INDEXES = """
SELECT table_name, sql FROM duckdb_indexes() WHERE database_name = current_database()"""


class _Definition(NamedTuple):
    """A view or macro, and the statement that creates it."""

    name: str
    text: str


def dump(shell: CommandTarget, words: list[str]) -> None:
    """Prints the statements that create objects and their rows."""
    chosen = _Dump(shell, words)
    shell.output.print_lines(chosen.lines())


class _Dump:
    """The objects whose names match one of some patterns of LIKE; all without patterns."""

    def __init__(self, shell: CommandTarget, patterns: Sequence[str]) -> None:
        self._shell, self._everything = shell, not patterns
        self._patterns = [_expression(p) for p in patterns]
        connection = shell.connection
        known = [e for e in entries(connection) if self._matches(e.name)]
        known = [e for e in known if not self._is_temporary(e)]
        if patterns and not known:
            raise CommandError(f"There is nothing to dump like {' or '.join(patterns)}")
        self._tensors = [e for e in known if e.kind == "tensor"]
        self._damaged = [e for e in known if e.kind.startswith("damaged")]
        stored = [e for e in known if e.kind in ("view", "macro") and not e.text]
        self._definitions = [_Definition(e.name, definition(connection, e)) for e in stored]

    def lines(self) -> Iterator[str]:
        """The statements: tables and tensors, then the objects that read them."""
        yield "BEGIN TRANSACTION;"
        if self._everything:
            yield from self._before()
        generated: dict[tuple[str, str], set[str]] = {}
        for schema, name, column in self._rows(_GENERATED):
            generated.setdefault((schema, name), set()).add(column)
        for schema, name, sql in self._rows(_TABLES):
            if self._matches(name):
                yield _ended(sql)
                yield from self._inserts(_place(schema, name), generated.get((schema, name), ()))
        for entry in self._tensors:
            yield definition(self._shell.connection, entry)
            yield from self._inserts(name_of(entry.name))
        for entry in self._damaged:
            yield f"-- {entry.kind} {entry.name}: {definition(self._shell.connection, entry)}"
        views = [_Definition(*row) for row in self._rows(_VIEWS) if self._matches(row[0])]
        for named in _in_order([*views, *self._definitions]):
            yield _ended(named.text)
        for table, sql in self._rows(_INDEXES):
            if self._matches(table):
                yield _ended(sql)
        for kind, schema, name, column, table, comment in self._rows(_COMMENTS):
            if comment is not None and (self._everything or self._matches(table or "")):
                place = _place(schema, name) + (f".{name_of(column)}" if column else "")
                yield f"COMMENT ON {kind} {place} IS {text_literal(comment)};"
        yield "COMMIT;"

    def _before(self) -> Iterator[str]:
        """The statements that tables depend on."""
        for (schema,) in self._rows(_SCHEMAS):
            yield f"CREATE SCHEMA {name_of(schema)};"
        for schema, name in self._rows(_TYPES):
            place = _place(schema, name)
            ((text,),) = self._rows(f"SELECT typeof(CAST(NULL AS {place}))")
            yield f"CREATE TYPE {place} AS {text};"
        for schema, name, sql in self._rows(_SEQUENCES):
            yield _ended(f"CREATE SEQUENCE {_place(schema, name)}{sql[sql.rindex(_CLAUSES) :]}")

    def _matches(self, name: str) -> bool:
        return self._everything or any(p.fullmatch(name) for p in self._patterns)

    def _is_temporary(self, entry: Entry) -> bool:
        """Whether an object ends with the session.

        Raises:
            CommandError: It hides a lasting object, whose rows cannot be read.
        """
        store = self._shell.connection.store
        key = macro_key(entry.name) if entry.kind == "macro" else entry.name.lower()
        own = store.objects.get(key)
        if own is None or not is_local(own):
            return False
        if store.beneath(key) is not None:
            raise CommandError(f"A TEMP object hides {entry.name}: drop the TEMP one first")
        return True

    def _rows(self, query: str) -> list[tuple[str, ...]]:
        return self._shell.work(lambda: self._shell.connection.execute(query).fetchall())

    def _inserts(self, place: str, generated: Collection[str] = ()) -> Iterator[str]:
        """The statements that insert the rows of a table or tensor.

        Args:
            place: The table.
            generated: Its columns that cannot be inserted.
        """
        connection, work = self._shell.connection, self._shell.work
        shape = work(lambda: connection.execute(f"SELECT * FROM {place} LIMIT 0").description)
        columns = [c for c in columns_of(shape or ()) if c.name not in generated]
        exact = [_EXACT.match(c.type) is not None or _is_float(c) for c in columns]
        items = ", ".join(
            in_quotes(c.name) if kept else f"CAST({in_quotes(c.name)} AS VARCHAR)"
            for c, kept in zip(columns, exact, strict=True)
        )
        query = f"SELECT {items} FROM" if generated or not all(exact) else "SELECT * FROM"
        named = f" ({', '.join(name_of(c.name) for c in columns)})" if generated else ""
        cursor = work(lambda: connection.execute(f"{query} {place}"))
        kinds = [c.type if kept else "VARCHAR" for c, kept in zip(columns, exact, strict=True)]
        while rows := work(lambda: cursor.fetchmany(_ROWS)):
            tuples = (", ".join(map(literal, row, kinds)) for row in rows)
            yield f"INSERT INTO {place}{named} VALUES ({'), ('.join(tuples)});"


def _is_float(column: Column) -> bool:
    return column.type in ("HALF", "BFLOAT16")


def _place(schema: str, name: str) -> str:
    """The name of an object with its schema, without that of the schema main."""
    return name_of(name) if schema == "main" else f"{name_of(schema)}.{name_of(name)}"


def _ended(sql: str) -> str:
    """A statement with its semicolon, which a comment at its end does not swallow."""
    bare = sql.strip().rstrip(";")
    return f"{bare}\n;" if "--" in bare.rpartition("\n")[2] else f"{bare};"


def _expression(pattern: str) -> re.Pattern[str]:
    """The regular expression of a pattern of LIKE."""
    parts = {"%": ".*", "_": "."}
    return re.compile("".join(parts.get(c, re.escape(c)) for c in pattern), re.IGNORECASE)


def _in_order(definitions: Sequence[_Definition]) -> list[_Definition]:
    """Views and macros after those whose names occur in them."""
    words = [
        {piece.strip('"').lower() for kind, piece in pieces(d.text) if kind in ("word", "name")}
        for d in definitions
    ]
    places = range(len(definitions))

    def children(n: int) -> list[int]:
        return [m for m in places if m != n and definitions[m].name.lower() in words[n]]

    return [definitions[n] for n in producers_first(list(places), children)]
