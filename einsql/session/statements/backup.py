"""BACKUP, EXPORT DATABASE and IMPORT DATABASE: copies of a whole database in other files.

A backup is a database. An export is a directory with DuckDB's own export, which plain DuckDB can
import, and the export of einsql's objects.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from einsql.core.quoting import in_quotes, literal
from einsql.errors import (
    Error,
    InterruptedError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
)
from einsql.hybrid import duckdb_statements
from einsql.hybrid.split import guard
from einsql.session.statements.ddl import definition
from einsql.sql.parser.lexical import scan
from einsql.sql.parser.syntax import Backup, Export, Import
from einsql.sql.parser.tokens import tokenize
from einsql.storage.database.backup import back_up
from einsql.storage.database.export_manifest import (
    in_memory,
    manifest_of,
    read_objects,
    write_objects,
)
from einsql.storage.files.drafts import part_name, synchronise, writing
from einsql.storage.objects import Object, Tensor, bare_name, is_local

if TYPE_CHECKING:
    from sqlglot import Token

    from einsql.planner.context import Context

_TABLES = 0.5
"""DuckDB's part of the progress bar, fixed because its file sizes are unknown beforehand."""


def backup(ctx: Context, statement: Backup) -> None:
    """BACKUP TO: copies the newest commit of the session's database to a new database.

    Raises:
        OperationalError: A transaction is running, the target exists, a payload is damaged, or the
            target cannot be written. An incomplete backup is removed.
    """
    _refuse_off(ctx, "BACKUP")
    if ctx.store.in_transaction:
        raise OperationalError(
            "BACKUP cannot run in a transaction", hint="COMMIT or ROLLBACK it first."
        )
    with _at(statement.at):
        back_up(ctx.store.database, ctx.duck, ctx.store.newest, statement.path, ctx.tick)


def _refuse_off(ctx: Context, statement: str) -> None:
    if not ctx.settings.enable_external_access:
        raise OperationalError(f"{statement} is off: enable_external_access is false")


@contextmanager
def _at(position: int) -> Iterator[None]:
    """Sets the position of file errors to the path, in place of positions in DuckDB's text."""
    try:
        yield
    except Error as error:
        if not isinstance(error, InterruptedError):
            error.position = position
        raise


# ---- EXPORT


def export(ctx: Context, statement: Export) -> bool:
    """EXPORT DATABASE: DuckDB's export and the tensors, views and macros that the session sees.

    Returns:
        False if the statement exports an attached database, which DuckDB exports alone.

    Raises:
        OperationalError: The directory is not empty or cannot be written, or a payload is damaged.
            An incomplete export is removed.
        NotSupportedError: The directory is on another machine, or DuckDB cannot export a table.
    """
    _refuse_off(ctx, "EXPORT DATABASE")
    current = str(ctx.duck.execute("SELECT current_database()")[0][0])
    if (statement.database or current).lower() != ctx.duck.database.lower():
        return False
    with _at(statement.at):
        if "://" in statement.path:
            raise NotSupportedError("EXPORT DATABASE writes a directory of this machine")
        target = _free_directory(statement.path)
        part = part_name(target)
        try:
            with ctx.store.snapshot():
                _export_tables(ctx, part, target, statement.options)
                _export_objects(ctx, part)
            _publish(part, target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return True


def _free_directory(path: str) -> str:
    """Returns the real path of a directory that is empty or does not exist."""
    with writing(path):
        target = os.path.realpath(os.path.expanduser(path))
        if os.path.lexists(target) and (not os.path.isdir(target) or os.listdir(target)):
            raise OperationalError(
                f"'{path}' exists already",
                hint="EXPORT DATABASE makes a directory, or fills an empty one.",
            )
    return target


def _export_tables(ctx: Context, part: str, target: str, options: str) -> None:
    """Has DuckDB export its tables, then removes einsql's catalog from the export."""
    name = in_quotes(ctx.duck.database)
    text = f"EXPORT DATABASE {name} TO {literal(part)} {options}"
    ctx.duck.run(lambda: ctx.duck.execute(text), lambda done: ctx.tick(_TABLES * done))
    with writing(target):
        for script in ("schema.sql", "load.sql"):
            path = os.path.join(part, script)
            with open(path, encoding="utf-8", newline="") as file:
                statements = file.read()
            kept = []
            for span in scan(statements):
                statement = statements[span.start : span.end]
                tokens = tokenize(statement) if guard.CATALOG in statement else []
                if not _makes_catalog(tokens):
                    # DuckDB resolves the paths relative to load.sql; other readers may not.
                    kept.append(statement.replace(literal(part)[:-1], literal(target)[:-1]))
                elif tokens[0].text.upper() == "COPY":
                    words = [token.text.upper() for token in tokens]
                    file_name = tokens[words.index("FROM") + 1].text
                    os.unlink(os.path.join(part, os.path.basename(file_name)))
            with open(path, "w", encoding="utf-8", newline="") as file:
                file.writelines(f"{statement};\n" for statement in kept)


def _makes_catalog(tokens: Sequence[Token]) -> bool:
    """Returns True for statements that create or fill the catalog's schema."""
    words = [t.text for t in tokens[:4]]
    if words[:2] == ["CREATE", "SCHEMA"]:
        return words[2:3] == [guard.CATALOG]
    named = words[2:] if words[:1] == ["CREATE"] else words[1:3] if words[:1] == ["COPY"] else []
    return named == [guard.CATALOG, "."]  # a table of the user may have the schema's name


def _export_objects(ctx: Context, part: str) -> None:
    current = ctx.store.objects.items()
    lasting = [ctx.store.beneath(name) if is_local(own) else own for name, own in current]
    objects = [own for own in lasting if own is not None]
    if not objects:
        return
    total = sum(item.relation.nbytes for item in objects if isinstance(item, Tensor))
    written = 0

    def tick(nbytes: int) -> None:
        nonlocal written
        written += nbytes
        ctx.tick(min(1.0, _TABLES + (1 - _TABLES) * written / max(1, total)))

    write_objects(part, objects, tick)


def _publish(part: str, target: str) -> None:
    """Syncs an export, then renames it to its final name."""
    with writing(target):
        for name in os.listdir(part):
            path = os.path.join(part, name)
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    os.fsync(file.fileno())
        synchronise(part)
        os.rename(part, target)
        try:
            synchronise(os.path.dirname(target))
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise


# ---- IMPORT


def import_database(ctx: Context, statement: Import) -> None:
    """IMPORT DATABASE: imports all objects of an export, or none of them.

    A failure within the caller's transaction aborts the transaction, because DuckDB cannot undo a
    part of one.

    Raises:
        OperationalError: A file is missing or damaged.
        ProgrammingError: The database already has an object of the same name.
    """
    _refuse_off(ctx, "IMPORT DATABASE")
    folder = os.path.realpath(os.path.expanduser(statement.path))
    try:
        with _at(statement.at):
            duckdb_statements.check_scripts(ctx, folder)
            listed = os.path.exists(manifest_of(folder))
            objects = read_objects(folder, definition) if listed else []
            _check_place(ctx, objects)
            _import_tables(ctx, folder, objects)
            for item in objects:
                ctx.tick(1.0)
                ctx.store.put(
                    in_memory(item, ctx.memory.copied) if isinstance(item, Tensor) else item
                )
    except BaseException:
        if ctx.store.in_transaction:
            ctx.duck.aborted = True
        raise
    finally:
        ctx.plans.clear()  # a table takes precedence over an array of the caller
        ctx.store.database.tables = object()


def _check_place(ctx: Context, objects: Sequence[Object]) -> None:
    """Refuses objects whose names exist, or whose database would differ from their tables'."""
    if not objects:
        return
    current = str(ctx.duck.execute("SELECT current_database()")[0][0])
    if current.lower() != ctx.duck.database.lower():
        raise NotSupportedError(
            f"The export holds tensors, views or macros, and {current} is an attached database",
            hint=f"USE {in_quotes(ctx.duck.database)} first.",
        )
    for item in objects:
        taken = ctx.store.get(item.name)
        if taken is not None:
            raise _taken(taken)
        ctx.duck.refuse(item.name)


def _taken(item: Object) -> Error:
    kind = "tensor" if isinstance(item, Tensor) else item.kind
    return ProgrammingError(
        f'There is a {kind} "{bare_name(item)}" already',
        hint="IMPORT DATABASE replaces nothing: DROP it, or import into another database.",
    )


def _import_tables(ctx: Context, folder: str, objects: Sequence[Object]) -> None:
    """Has DuckDB import its tables, and refuses tables with names of einsql's objects."""
    ctx.duck.names_changed = True  # a commit checks the names of concurrent commits
    before = ctx.duck.names()
    text = f"IMPORT DATABASE {literal(folder)}"
    ctx.duck.run(lambda: ctx.duck.execute(text), ctx.tick)
    imported = {item.name.lower(): item for item in objects}
    for name in sorted(ctx.duck.names() - before):
        taken = ctx.store.get(name) or imported.get(name)
        if taken is not None:
            raise _taken(taken)
