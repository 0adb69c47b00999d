"""BACKUP: one commit of an open database, written to another file and its payload directory."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

from einsql.core.quoting import in_quotes, literal
from einsql.core.records import dataclass
from einsql.errors import OperationalError
from einsql.storage.array_ownership import distinct
from einsql.storage.database import rows
from einsql.storage.database.directory import Directory
from einsql.storage.database.memory import Database, State
from einsql.storage.duckdb.connection import Duck
from einsql.storage.duckdb.copy_database import copy_database
from einsql.storage.duckdb.failures import translated
from einsql.storage.files.drafts import part_name, synchronise, writing
from einsql.storage.objects import Damaged, Object, Tensor, damage_error

Tick = Callable[[float], None]
"""Callback with the completed fraction, 0 to 1; raises to cancel."""
_LOGS = (".wal", ".wal.checkpoint", ".wal.recovery")
"""Suffixes of the log files that DuckDB reads when it opens a database file."""


@dataclass
class _Progress:
    """The progress of a copy.

    Attributes:
        tick: Callback with the completed fraction, 0 to 1.
        total: Bytes to write, estimated for tables.
        done: Bytes written.
    """

    tick: Tick
    total: int
    done: int = 0

    def add(self, nbytes: int) -> None:
        """Adds written bytes."""
        self.done += nbytes
        self.tick(min(1.0, self.done / max(1, self.total)))


def back_up(
    source: Database,
    duck: Duck,
    one_commit: Callable[[], AbstractContextManager[State]],
    path: str,
    tick: Tick,
) -> None:
    """Writes a database's newest commit to a new file and its payload directory.

    Both are written under temporary names. The directory is renamed first and the file last, each
    rename synced before the next: after a crash the target's name has no file, or
    the complete backup. Without its file the directory cannot be opened.

    The state keeps every payload of the commit. `FileDatabase` removes no payload whose fields
    are referenced but not mapped, and a mapped payload is read from the mapping.

    Args:
        source: The database.
        duck: A session's DuckDB connection to it, in no transaction.
        one_commit: Context in which `duck` sees the tables of one commit; yields its state.
        path: The target file.
        tick: Callback with the completed fraction, 0 to 1; an exception cancels the backup.

    Raises:
        OperationalError: The target exists, an object or its payload is
            damaged, or the target cannot be written. The partial backup is removed.
    """
    target = _free_target(path)
    part = part_name(target)
    owned = set[tuple[int, int]]()
    try:
        with _attached(source, duck, part) as attached:
            state, identity, progress = _copy_tables(source, duck, one_commit, attached, part, tick)
            directory = Directory(part)
            directory.make(identity)
            home = f"{in_quotes(attached)}.__einsql"
            for item in state.objects.values():
                old = layout = None
                if isinstance(item, Damaged):
                    raise damage_error(item)
                if isinstance(item, Tensor):
                    old = item.relation.fields.layout
                    layout = directory.store(item, state.generation, progress.add)
                # DuckDB has copied the rows of a file's catalog; those of merged tensors differ.
                if source.path is None or layout is not old:
                    row = rows.row_of(item, state.generation, layout)
                    before = None if old is None else rows.row_of(item, state.generation, old)
                    rows.replace(duck.execute, home, row.name, before, row)
            directory.sync()
            duck.run(lambda: _checkpoint(duck, attached, path), lambda _: progress.add(0))
        _publish(part, target, owned)
    except BaseException:
        _discard(part, target, owned)
        raise


def _free_target(path: str) -> str:
    """The resolved path of a new file.

    Raises:
        OperationalError: The path exists, or its directory does not.
    """
    with writing(path):
        target = os.path.realpath(path)
    if path in ("", ":memory:"):
        raise OperationalError("A backup is a file, and this names a database in memory")
    for name in (path, target, *(target + log for log in _LOGS), Directory(target).path):
        if os.path.lexists(name):
            raise OperationalError(
                f"'{name}' exists already",
                hint="BACKUP TO creates a new database: choose another name, or move the file.",
            )
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise OperationalError(f"'{path}' cannot be written: there is no directory '{folder}'")
    return target


@contextmanager
def _attached(source: Database, duck: Duck, part: str) -> Iterator[str]:
    """Attaches a new file to DuckDB under a name that sessions do not list."""
    attached = f"einsql_backup_{os.urandom(8).hex()}"
    options = ["TYPE duckdb", "HIDDEN", "READ_WRITE", *_storage(source, duck)]
    try:
        duck.execute(f"ATTACH {literal(part)} AS {in_quotes(attached)} ({', '.join(options)})")
        yield attached
    except BaseException:
        with suppress(Exception):  # the first error says why
            duck.execute(f"DETACH DATABASE IF EXISTS {in_quotes(attached)}")
        raise
    duck.execute(f"DETACH {in_quotes(attached)}")


def _storage(source: Database, duck: Duck) -> list[str]:
    """Options of ATTACH that give a new file the source's storage format."""
    if source.path is None:
        return []
    ((version, block),) = duck.execute(
        "SELECT d.tags['storage_version'], s.block_size FROM duckdb_databases() d "
        "JOIN pragma_database_size() s USING (database_name) WHERE database_name = ?",
        [duck.database],
    )
    options = [f"BLOCK_SIZE {int(block)}"]
    known = re.fullmatch(r"(v\d+\.\d+\.\d+)\+?", str(version))
    if known:
        options.append(f"STORAGE_VERSION {literal(known[1])}")
    return options


def _copy_tables(
    source: Database,
    duck: Duck,
    one_commit: Callable[[], AbstractContextManager[State]],
    attached: str,
    part: str,
    tick: Tick,
) -> tuple[State, str, _Progress]:
    """Copies DuckDB's objects and gives the copy's catalog a new identity.

    Returns:
        The committed state, the new identity and the progress.
    """
    with one_commit() as state:
        tables = _size_on_disk(source.path)
        progress = _Progress(tick, tables + sum(map(_payload_size, state.objects.values())))

        def written(_: float) -> None:
            progress.add(min(tables, _size_on_disk(part)) - progress.done)

        duck.run(lambda: copy_database(duck, duck.database, attached), written)
        home = f"{in_quotes(attached)}.__einsql"
        renewed = rows.renew if source.catalogued else rows.fill
        identity = renewed(duck.execute, home)
    progress.add(tables - progress.done)
    return state, identity, progress


def _checkpoint(duck: Duck, attached: str, path: str) -> None:
    """Makes DuckDB write its log into the file.

    Raises:
        Error: The checkpoint fails.
    """
    import duckdb  # already loaded, as the database is open

    with translated(""):
        try:
            duck.con.execute(f"CHECKPOINT {in_quotes(attached)}").fetchall()
        except duckdb.IOException as error:
            # DuckDB's message says that "the database" is invalid; it means the new one.
            reason = str(error).split("Original error: ")[-1]
            raise OperationalError(f"'{path}' cannot be written: {reason}") from None


def _size_on_disk(path: str | None) -> int:
    """Bytes of a database file and its log."""
    size = 0
    if path is not None:
        for name in (path, f"{path}.wal"):
            with suppress(OSError):
                size += os.stat(name).st_size
    return size


def _payload_size(item: Object) -> int:
    """The size of a tensor's payload in bytes, without its header."""
    if not isinstance(item, Tensor):
        return 0
    fields = item.relation.fields
    if fields.layout is not None:
        return fields.layout.size
    if not fields.is_local:  # on sites, or sparse
        return item.relation.nbytes
    return sum(distinct(array).nbytes for array in fields.values())


def _publish(part: str, target: str, owned: set[tuple[int, int]]) -> None:
    """Renames the directory and the file to their final names and syncs both.

    Args:
        part: The file's temporary name.
        target: The file's final name.
        owned: Receives the devices and inodes of both.

    Raises:
        OperationalError: Another process has created the target, or a sync fails.
    """
    folder = os.path.dirname(target)
    with writing(target):
        left = [part + log for log in _LOGS if os.path.exists(part + log)]
        if left:
            raise OSError(0, f"DuckDB has left '{left[0]}'")
        with open(part, "rb") as file:
            os.fsync(file.fileno())
        owned |= {_inode(part), _inode(Directory(part).path)}
        # The directory is not empty: of two backups of one name the second fails here.
        os.rename(Directory(part).path, Directory(target).path)
        synchronise(folder)
        if os.path.lexists(target):
            raise OSError(0, "it exists already")
        os.rename(part, target)
        synchronise(folder)


def _discard(part: str, target: str, owned: set[tuple[int, int]]) -> None:
    """Removes a failed backup, the file before its directory."""
    for file in (target, part, *(part + log for log in _LOGS)):
        with suppress(OSError):
            if file != target or _inode(target) in owned:
                os.unlink(file)
    for folder in (Directory(target).path, Directory(part).path):
        with suppress(OSError):
            if folder != Directory(target).path or _inode(folder) in owned:
                shutil.rmtree(folder, ignore_errors=True)


def _inode(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino
