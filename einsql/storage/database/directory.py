"""The payload directory of a database: its owner, its files and their garbage collection."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import IO
from urllib.parse import quote
from weakref import WeakValueDictionary

from einsql.core.schema import Schema
from einsql.errors import OperationalError
from einsql.storage.database import sparse_payload
from einsql.storage.database.layout import CSR, Layout, Segment
from einsql.storage.database.merge import merged_into
from einsql.storage.database.payload import Progress, ignore, write_newer, write_payload
from einsql.storage.database.payload_fields import fields_in_files
from einsql.storage.database.segment_file import SegmentFile
from einsql.storage.database.sparse_changes import changed_blocks
from einsql.storage.database.stored import FieldsInFiles
from einsql.storage.database.tiles.newer_tiles import ChangedPart, changed_tiles
from einsql.storage.files.drafts import synchronise
from einsql.storage.files.regular_files import open_regular
from einsql.storage.objects import Tensor
from einsql.storage.sparse_fields import sparse_fields_of

MARKER = "einsql"
"""The file that contains the identity of the directory's database."""
_OURS = re.compile(r".+\.\d+\.[0-9a-f]{32}\.arrow(\.part)?|einsql\.part")
_LONGEST = 80
"""Longest part of a tensor's name in a file name, and longest identity read, in bytes."""


class Directory:
    """The payload directory of a database file.

    Attributes:
        path: Its path.
    """

    def __init__(self, database: str) -> None:
        self.path = f"{database}.tensors"
        self._database = database
        self._abandoned = False
        self._segments: WeakValueDictionary[tuple[str, tuple[str, ...]], SegmentFile] = (
            WeakValueDictionary()
        )
        self._new = False
        """Whether the directory's own entry may not be synced yet."""

    def abandon(self) -> None:
        """Removes no more files: after a fork they belong to the parent process."""
        self._abandoned = True

    def check(self, identity: str, needed: bool) -> None:
        """Refuses a directory that belongs to another database.

        Args:
            identity: The identity in the catalog.
            needed: Whether the catalog refers to payloads.

        Raises:
            OperationalError: The directory is missing, or belongs to another database.
        """
        hint = f"'{self._database}' and '{self.path}' belong together: move and copy both."
        if not os.path.isdir(self.path):
            if needed:
                raise OperationalError(
                    f"'{self.path}' is missing: it holds the tensors of '{self._database}'",
                    hint=hint,
                )
            return
        marker = os.path.join(self.path, MARKER)
        try:
            with open_regular(marker) as file:
                owner = file.read(_LONGEST).decode("ascii").strip()
        except FileNotFoundError:
            owner = None
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise OperationalError(f"'{marker}' cannot be read: {why}", hint=hint) from None
        strange = owner is None and (needed or any(not _OURS.fullmatch(n) for n in self._names()))
        if strange or owner not in (None, identity):
            raise OperationalError(
                f"'{self.path}' does not belong to '{self._database}'",
                hint=f"{hint} A directory that is left over can be moved away.",
            )

    def make(self, identity: str) -> None:
        """Creates the directory and its marker if necessary; `sync` makes them durable.

        Raises:
            OperationalError: It belongs to another database, or cannot be created.
        """
        self.check(identity, False)
        marker = os.path.join(self.path, MARKER)
        if os.path.exists(marker):
            return
        self._new = True
        with writing(self.path):
            os.makedirs(self.path, exist_ok=True)
            part = f"{marker}.part"
            with open(part, "w", encoding="ascii") as file:
                file.write(f"{identity}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, marker)

    def store(self, tensor: Tensor, version: int, tick: Progress) -> Layout:
        """Copies or writes a tensor into a directory that no other connection uses.

        Newer tiles are merged into the copy of the base segment.

        Args:
            tensor: The tensor to write.
            version: Part of the file name of a new segment.
            tick: Callback with the number of bytes after each piece; raises to cancel.

        Raises:
            OperationalError: A segment is damaged, or cannot be written.
        """
        if tensor.relation.fields.layout is None or len(_stored(tensor).dirty):
            return self.write(tensor, version, set(), tick)
        fields, schema = _stored(tensor), tensor.relation.schema
        if fields.newer and not fields.layout.is_uniform(schema):
            return self.write(tensor, version, set(), tick)
        path = os.path.join(self.path, fields.layout.base.file)
        with writing(path), open(path, "xb+") as file:
            base = merged_into(file, fields, tick)
            os.fsync(file.fileno())
        return Layout(base) if fields.newer else fields.layout

    def write(
        self, tensor: Tensor, version: int, pending: set[str], tick: Progress = ignore
    ) -> Layout:
        """Writes and syncs a tensor's base segment; `sync` makes its name durable.

        Args:
            tensor: The tensor to write.
            version: Part of the file's name.
            pending: Receives the file names in use, which `sweep` must keep.
            tick: As in `store`.

        Raises:
            OperationalError: It cannot be written; the partial file is removed.
        """
        with self._new_file(tensor, version, pending) as (file, name):
            relation = tensor.relation
            few = sparse_fields_of(relation.fields)
            if few is not None:
                return Layout(sparse_payload.write(file, name, relation.schema, few, tick))
            return Layout(write_payload(file, name, relation.schema, relation.fields, tick))

    def rewrite(self, tensor: Tensor, version: int, pending: set[str]) -> Layout | None:
        """Writes a committed tensor with all tiles in a base segment of the present format.

        Args:
            tensor: A committed tensor.
            version: Part of the file's name.
            pending: As in `write`.

        Returns:
            None if it is so already.

        Raises:
            OperationalError: A segment is damaged, or cannot be written.
        """
        fields = _stored(tensor)
        base = fields.layout.base
        if base.statistics is None and base.format != CSR and base.count:
            return self.write(tensor, version, pending)
        if not fields.newer:
            return None
        if not fields.layout.is_uniform(tensor.relation.schema):
            return self.write(tensor, version, pending)
        with self._new_file(tensor, version, pending) as (file, name):
            base = merged_into(file, fields, ignore)
        return Layout(replace(base, file=name))

    def write_changes(self, tensor: Tensor, version: int, pending: set[str]) -> Layout:
        """Writes the tiles of a stored tensor that a transaction has changed, or its blocks.

        Args:
            tensor: The tensor, whose fields have a layout.
            version: Part of the file's name.
            pending: As in `write`.

        Returns:
            The new description; the present one if only the tensor's description has changed.

        Raises:
            OperationalError: A segment is damaged, or cannot be written.
        """
        fields, schema = _stored(tensor), tensor.relation.schema
        if not len(fields.dirty):
            return fields.layout
        is_sparse = fields.layout.base.format == CSR
        change: ChangedPart | None = (
            changed_blocks(fields, schema) if is_sparse else changed_tiles(fields, schema)
        )
        if change is None:
            return self.write(tensor, version, pending)
        with self._new_file(tensor, version, pending) as (file, name):
            segment = write_newer(
                file,
                replace(change.segment, file=name),
                change.schema,
                change.boxes,
                change.sizes,
                change.pieces,
            )
        return change.applied(fields.layout, segment)

    @contextmanager
    def _new_file(
        self, tensor: Tensor, version: int, pending: set[str]
    ) -> Iterator[tuple[IO[bytes], str]]:
        """A file to write, which is synced and gets its name when the block ends.

        Yields:
            The file, and its final name.
        """
        title = quote(tensor.name.lower(), safe="")[:_LONGEST]
        name = f"{title}.{version}.{os.urandom(16).hex()}.arrow"
        path = os.path.join(self.path, name)
        part = f"{path}.part"
        pending |= {name, f"{name}.part"}
        try:
            with writing(path):
                with open(part, "xb+") as file:
                    yield file, name
                    os.fsync(file.fileno())
                os.replace(part, path)
        except BaseException:
            self.remove([f"{name}.part", name])
            pending.discard(name)
            raise
        finally:
            pending.discard(f"{name}.part")

    def fields(self, layout: Layout, schema: Schema, title: str) -> FieldsInFiles:
        """The fields of a tensor's segments; messages use the title."""
        return fields_in_files(layout, schema, lambda s, arrays: self._segment(s, arrays, title))

    def _segment(self, segment: Segment, schema: Schema, title: str) -> SegmentFile:
        """A segment, shared by the versions of a tensor: it is mapped and verified once."""
        names = (title, *(f.name for f in schema.fields))
        known = self._segments.get((segment.file, names))
        if known is None:
            path = os.path.join(self.path, segment.file)
            known = SegmentFile(path, segment, schema, title)
            self._segments[segment.file, names] = known
        return known

    def sync(self) -> None:
        """Syncs the directory's entries, and its own entry if it is new.

        Raises:
            OperationalError: The sync fails.
        """
        with writing(self.path):
            synchronise(self.path)
            if self._new:
                synchronise(os.path.dirname(self.path))
                self._new = False

    def remove(self, names: Collection[str]) -> None:
        """Removes payloads; missing files are ignored."""
        for name in () if self._abandoned else names:
            with suppress(OSError):
                os.unlink(os.path.join(self.path, name))

    def sweep(self, kept: Callable[[], Collection[str] | None]) -> None:
        """Removes every payload and every unfinished file except those in use.

        Foreign files, and files that cannot be removed, stay.

        Args:
            kept: Returns the names in use, or None to keep all files. It is called after the
                directory has been listed, so that a file begun meanwhile is missing from the
                list or among the names.
        """
        with suppress(OSError):
            present = [n for n in self._names() if _OURS.fullmatch(n)]
            names = kept()
            if names is not None:
                self.remove([n for n in present if n not in names])

    def strays(
        self, kept: Callable[[], Collection[str] | None], leaving: Collection[str]
    ) -> list[str]:
        """Paths of the files that `sweep` would remove, without those in `leaving`.

        Args:
            kept: As in `sweep`.
            leaving: Names of files that the next sweep removes.
        """
        present = (
            [n for n in self._names() if _OURS.fullmatch(n)] if os.path.isdir(self.path) else []
        )
        names = kept()
        if names is None:
            return []
        paths = [os.path.join(self.path, n) for n in sorted({*present} - {*names} - {*leaving})]
        return [
            path for path in paths if os.path.lexists(path)
        ]  # another connection may have renamed its own

    def _names(self) -> list[str]:
        return os.listdir(self.path)


def _stored(tensor: Tensor) -> FieldsInFiles:
    """The fields of a tensor with a layout."""
    fields = tensor.relation.fields
    assert isinstance(fields, FieldsInFiles)
    return fields


def is_payload(name: str) -> bool:
    """True if the name is that of a payload file, without a directory part."""
    return name.endswith(".arrow") and "/" not in name and _OURS.fullmatch(name) is not None


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Translates OSError to OperationalError."""
    try:
        yield
    except OSError as error:
        raise OperationalError(
            f"'{path}' cannot be written: {error.strerror or error}",
            hint="Nothing of the statement or transaction is kept; the database is as it was.",
        ) from error
