"""What a disk may hold after a power loss, from a log of the calls that came before it.

Two rules say what has become durable. Under "journal" names become so in their order, and every
fsync of any file makes all earlier ones so. Under "strict", which is what POSIX promises, a name
does by an fsync of its directory alone, each one independently of the others. Under both, what a
file holds becomes durable by an fsync of that file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from tests.storage.database.faults import Call


class File:
    """A file, with or without a name."""

    def __init__(self, durable: bytes = b"") -> None:
        self._durable = durable
        self._pending: list[tuple[int, bytes | None]] = []
        self._versions: dict[str, bytes] = {}

    def write(self, at: int, data: bytes | None) -> None:
        """Bytes are written at a place; without bytes, the file gets that size."""
        self._pending.append((at, data))
        self._versions = {}

    def sync(self) -> None:
        """What it holds becomes durable."""
        self._durable = self._contents(self._pending)
        self._pending = []
        self._versions = {}

    def _contents(self, writes: list[tuple[int, bytes | None]]) -> bytes:
        """What is durable, and some writes on top."""
        bytes_ = bytearray(self._durable)
        for at, data in writes:
            if data is None:
                del bytes_[at:]
                bytes_.extend(bytes(at - len(bytes_)))
            else:
                bytes_.extend(bytes(max(0, at - len(bytes_))))
                bytes_[at : at + len(data)] = data
        return bytes(bytes_)

    def versions(self) -> Mapping[str, bytes]:
        """What may be in it after a power loss."""
        if not self._versions:
            pending = self._pending
            torn = [(at, data and data[: len(data) // 2]) for at, data in pending[-1:]]
            self._versions = {"synced": self._durable}
            for name, writes in (
                ("written", pending),
                ("torn", pending[:-1] + torn),
                ("last", pending[-1:]),
            ):
                self._versions[name] = self._contents(writes) if writes else self._durable
        return self._versions


FOLDER = File()
"""Stands for every directory."""
Names = dict[str, File]


@dataclass(frozen=True, eq=False)
class Change:
    """A change of names: the name that goes, and the one that comes with what it means."""

    gone: str | None
    come: str | None = None
    file: File = FOLDER

    def apply(self, names: Names) -> None:
        """Makes the change."""
        if self.gone is not None:
            names.pop(self.gone, None)
        if self.come is not None:
            names[self.come] = self.file

    @property
    def folder(self) -> str:
        """The directory; no call of ours moves a file from one to another."""
        return os.path.dirname(self.come or self.gone or "")


@lru_cache(64)
def _digest(data: bytes) -> bytes:  # Python keeps the hash of an object, by which this is found
    return hashlib.blake2b(data).digest()


@dataclass(frozen=True)
class Remains:
    """What a disk holds after a power loss.

    Attributes:
        rule: "journal" or "strict".
        how: Which names and bytes have become durable, in words.
        files: The bytes of files by their names in the directory; None for a directory.
    """

    rule: str
    how: str
    files: Mapping[str, bytes | None]

    @property
    def digest(self) -> tuple[tuple[str, bytes], ...]:
        """The same for the same files."""
        return tuple((name, _digest(data or b"")) for name, data in sorted(self.files.items()))

    def write(self, folder: Path) -> None:
        """Makes the files in an empty directory."""
        for name, data in sorted(self.files.items()):
            if data is None:
                (folder / name).mkdir()
            else:
                (folder / name).write_bytes(data)


@dataclass
class Disk:
    """A directory on a disk, as it goes on by a log.

    Attributes:
        folder: Its path.
    """

    folder: str
    _names: Names = field(default_factory=dict)
    _durable: Names = field(default_factory=dict)
    _pending: list[Change] = field(default_factory=list)
    _forced: int = 0
    _inodes: dict[int, File] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> Disk:
        """A disk on which everything in a directory is durable."""
        disk = cls(str(folder))
        for path in sorted(folder.rglob("*")):
            file = FOLDER if path.is_dir() else File(path.read_bytes())
            disk._names[str(path)] = disk._durable[str(path)] = file
            disk._inodes[path.stat().st_ino] = file
        return disk

    def apply(self, call: Call) -> None:
        """Goes on by a call that has succeeded, whole or in part."""
        if call.error or call.kind == "note":
            return
        file = self._inodes.get(call.inode, FOLDER)
        if call.kind == "create":
            self._inodes[call.inode] = file = File()
            self._change(Change(None, call.path, file))
        elif call.kind == "write":
            file.write(call.offset, call.data)
        elif call.kind in ("truncate", "resize"):
            file.write(call.offset, None)
        elif call.kind in ("fsync", "fdatasync"):
            self._sync(call, file)
        elif call.kind == "link":
            self._change(Change(None, call.second, self._names[call.path]))
        elif call.kind == "rename":
            self._change(Change(call.path, call.second, self._names[call.path]))
        elif call.kind in ("unlink", "rmdir"):
            self._change(Change(call.path))
        elif call.kind == "mkdir":
            self._change(Change(None, call.path))
        else:
            raise NotImplementedError(f"the log has {call.kind} of {call.path}")

    def _change(self, change: Change) -> None:
        change.apply(self._names)
        self._pending.append(change)

    def _sync(self, call: Call, file: File) -> None:
        if call.path == self.folder or self._names.get(call.path) is FOLDER:
            for change in self._pending:
                if change.folder == call.path:
                    change.apply(self._durable)
            self._pending = [c for c in self._pending if c.folder != call.path]
        else:
            file.sync()
        self._forced = len(self._pending)

    def contents(self) -> Mapping[str, bytes | None]:
        """What a process sees; after a power loss that loses nothing it is still there."""
        return self._files(self._names, "written")

    def _files(self, names: Names, version: str) -> dict[str, bytes | None]:
        files: dict[str, bytes | None] = {}
        for path, file in sorted(names.items()):
            if os.path.dirname(path) != self.folder and names.get(os.path.dirname(path)) is None:
                continue  # its directory has not become durable
            short = os.path.relpath(path, self.folder)
            files[short] = None if file is FOLDER else file.versions()[version]
        return files

    def remains(self) -> Iterator[Remains]:
        """What may be there after a power loss at this point."""
        for rule, how, chosen in self._choices():
            names = dict(self._durable)
            for change in chosen:
                change.apply(names)
            seen = set()
            for version in ("synced", "written", "torn", "last"):
                left = Remains(rule, f"{how}, {version}", self._files(names, version))
                if left.digest not in seen:
                    seen.add(left.digest)
                    yield left

    def _choices(self) -> Iterator[tuple[str, str, list[Change]]]:
        """Changes of names that have become durable without an fsync of their directory."""
        pending = self._pending
        for many in range(self._forced, len(pending) + 1):
            yield "journal", f"{many} of {len(pending)} names", pending[:many]
        yield "strict", "no names", []
        for folder in {c.folder for c in pending}:
            yield "strict", f"names of {folder}", [c for c in pending if c.folder == folder]
        for n, change in enumerate(pending):
            yield "strict", f"the name {n} alone", [change]
            yield "strict", f"all names but {n}", [c for c in pending if c is not change]
