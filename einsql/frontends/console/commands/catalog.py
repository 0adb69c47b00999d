"""Dot commands that list the objects of the database."""

from __future__ import annotations

from einsql.errors import suggest
from einsql.frontends.console.commands.command import CommandTarget
from einsql.frontends.console.objects import definition, entries
from einsql.frontends.console.settings import CommandError


def list_tables(shell: CommandTarget, words: list[str]) -> None:
    """Lists tensors, tables, views and macros."""
    wanted = words[0].lower() if words else ""
    listed = [e for e in entries(shell.connection) if wanted in e.name.lower()]
    heads = [e.call or e.name for e in listed]
    width = max(map(len, heads), default=0)
    shell.output.print_lines(
        head if e.kind == "tensor" else f"{head:{width}}  {e.kind}"
        for head, e in zip(heads, listed, strict=True)
    )


def print_schema(shell: CommandTarget, words: list[str]) -> None:
    """Prints the statements that create objects."""
    known = entries(shell.connection)
    chosen = [e for e in known if not words or e.name.lower() == words[0].lower()]
    if words and not chosen:
        hint = suggest(words[0], [e.name for e in known], "names")
        raise CommandError(f'There is no tensor, table, view or macro "{words[0]}"\n{hint}')
    shell.output.print_lines([definition(shell.connection, e) for e in chosen])


def list_databases(shell: CommandTarget, words: list[str]) -> None:
    """Lists the attached databases and their files."""
    query = "SELECT database_name, path FROM duckdb_databases() WHERE NOT internal ORDER BY ALL"
    rows = shell.work(lambda: shell.connection.execute(query).fetchall())
    width = max(len(name) for name, _ in rows)
    shell.output.print_lines(f"{name:{width}}  {path or '(memory)'}" for name, path in rows)


def list_indexes(shell: CommandTarget, words: list[str]) -> None:
    """Lists the indexes of all tables, or of one."""
    query = "SELECT table_name, index_name FROM duckdb_indexes() ORDER BY ALL"
    rows = shell.work(lambda: shell.connection.execute(query).fetchall())
    wanted = [name for table, name in rows if not words or table.lower() == words[0].lower()]
    shell.output.print_lines(wanted)
