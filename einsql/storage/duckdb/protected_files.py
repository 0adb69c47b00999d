"""Detects whether a path reaches a file of a database, which SQL must not access as a file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from einsql.core.records import cached_property, dataclass

_FOLDERS = (".tmp", ".tensors")
"""Suffixes of a database's directories."""
_LOG = ".wal"
"""The suffix of DuckDB's log, and the prefix of the suffixes of checkpoint and recovery files."""
_BESIDE = (_LOG, f"{_LOG}.checkpoint", f"{_LOG}.recovery", *_FOLDERS)
"""Suffixes of the files and directories of an attached database."""
_DRAFT = "tmp_"
"""The prefix of incomplete files of COPY TO."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?://localhost(?=/)|//)?")
_MAGIC = re.compile(r"[*?\[\\]")

Identity = tuple[int, int]
"""The device and the inode of a file."""


@dataclass
class OwnFiles:
    """The files of databases, and the files and directories that DuckDB and einsql add to them.

    A file is detected under every name that the system has for it: relative, through links, under
    `/proc`, in another letter case.

    Attributes:
        databases: Paths of database files.
        folders: Further directories of the databases, such as that of temporary files.
        search: Directories for relative paths in addition to the working directory.
        home: The meaning of `~`.
        allowed: Directories that a pattern may search.
    """

    databases: Sequence[str]
    folders: Sequence[str]
    search: Sequence[str] = ()
    home: str = ""
    allowed: Sequence[str] = ()

    def reached(self, path: str) -> bool:
        """True if a path is one of the files, or inside or above one of their directories.

        The drafts and logs of a path count, too, and so do the matches of a pattern.
        """
        if "\0" in path:
            return True
        return any(
            self._is_own(spelled)
            or (os.path.isdir(spelled) and _identity(spelled) in self._above)
            or self._matches(spelled)
            for spelled in self._spellings(path)
        )

    def may_search(self, path: str) -> bool:
        """True if a path is no pattern, or a pattern within an allowed directory."""
        return not _MAGIC.search(path) or any(map(self._is_allowed, self._spellings(path)))

    def _spellings(self, path: str) -> Iterator[str]:
        """The paths that a text may denote, without its scheme or in the home directory."""
        plain = {path, unquote(path), path.replace("\\", "/")}
        plain |= {_SCHEME.sub("", p, count=1) for p in plain}
        for spelled in plain:
            short = spelled.rstrip("/") or spelled
            if short.startswith("~"):
                yield os.path.expanduser(short)
                if self.home:
                    yield self.home + short[1:]
            yield short
            for folder in () if os.path.isabs(short) else self.search:
                yield os.path.join(folder, short)

    def _is_own(self, path: str) -> bool:
        folder, name = os.path.split(path)
        drafts = os.path.join(folder, _DRAFT + name)
        return any(self._named(p) for p in (path, drafts, *(path + b for b in _BESIDE)))

    def _named(self, path: str) -> bool:
        """True if a path is one of the files, existing or not, or inside one of the directories."""
        identity = _identity(path)
        if identity is not None and identity in self._identities:
            return True
        if identity is not None and os.stat(path).st_nlink > 1 and identity in self._inside():
            return True
        for real in _upwards(path):
            parent, name = os.path.split(real)
            if self._has_name(_identity(parent), name) or _identity(real) in self._identities:
                return True
        return False

    def _has_name(self, folder: Identity | None, name: str) -> bool:
        if folder is None or folder not in self._names:
            return False
        low = name.casefold()
        return any(
            low == own or low.startswith(own + _LOG) or low in (own + f for f in _FOLDERS)
            for own in self._names[folder]
        )

    @cached_property
    def _names(self) -> dict[Identity | None, set[str]]:
        """The case-folded names of the databases' files and directories by parent directory."""
        names: dict[Identity | None, set[str]] = {}
        for path in (*self.databases, *self.folders):
            parent, name = os.path.split(os.path.realpath(path))
            names.setdefault(_identity(parent), set()).add(name.casefold())
        return names

    @cached_property
    def _identities(self) -> set[Identity]:
        paths = [*self.folders, *(d + b for d in self.databases for b in ("", *_BESIDE))]
        return {identity for identity in map(_identity, paths) if identity is not None}

    @cached_property
    def _above(self) -> set[Identity | None]:
        """The identities of the directories above the files, up to the root."""
        paths = (*self.databases, *self.folders)
        return {_identity(a) for p in paths for a in _upwards(os.path.dirname(p) or ".")} - {None}

    def _inside(self) -> set[Identity | None]:
        """The identities of the files in the directories, to detect hard links elsewhere."""
        folders = [*self.folders, *(d + f for d in self.databases for f in _FOLDERS)]
        return {
            _identity(os.path.join(place, name))
            for folder in folders
            for place, _, names in os.walk(folder)
            for name in names
        }

    # ---- patterns

    def _matches(self, pattern: str) -> bool:
        """True if a pattern may match one of the files; it may match fewer in DuckDB."""
        if not _MAGIC.search(pattern) or not self._is_allowed(pattern):
            return False
        start, parts = _static(pattern)
        return ".." in parts or self._match(start, parts, set())

    def _is_allowed(self, pattern: str) -> bool:
        allowed = {_identity(a) for a in self.allowed} - {None}
        return not allowed.isdisjoint(map(_identity, _upwards(_static(pattern)[0])))

    def _match(self, folder: str, parts: Sequence[str], seen: set[object]) -> bool:
        """True if an entry of a directory matches the parts and is one of the files."""
        visit = _identity(folder), tuple(parts)
        if visit in seen:
            return False
        seen.add(visit)
        deep = parts[0] == "**"
        rest = list(parts[1:])
        if deep and self._match(folder, rest or ["*"], seen):
            return True
        known = re.compile(_expression(parts[0]), re.DOTALL)
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return False
        for entry in entries:
            if not deep and known.fullmatch(entry.name.casefold()) is None:
                continue
            if not deep and not rest and self._named(entry.path):
                return True
            further = parts if deep else rest
            if further and entry.is_dir() and self._match(entry.path, further, seen):
                return True
        return False


def _static(pattern: str) -> tuple[str, list[str]]:
    """The directory before the first wild card of a pattern, and the parts after it."""
    parts = pattern.split("/")
    first = next((n for n, part in enumerate(parts) if _MAGIC.search(part)), len(parts))
    start = "/".join(parts[:first]) or ("/" if pattern.startswith("/") else ".")
    return start, [part for part in parts[first:] if part not in ("", ".")]


def _expression(part: str) -> str:
    """A lower-case regular expression for a part of a pattern; a set matches any character."""
    pattern, at = "", 0
    while at < len(part):
        character = part[at]
        close = part.find("]", at + 2) if character == "[" else -1
        if character == "*" or (character == "[" and close < 0):
            pattern += ".*"
        elif character in "?[\\":
            pattern += "."
        else:
            pattern += re.escape(character.casefold())
        at = close + 1 if close >= 0 else at + 1 + (character == "\\")
    return pattern


def _identity(path: str) -> Identity | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def _upwards(path: str) -> Iterator[str]:
    """A path with links resolved, and the directories above it."""
    real = os.path.realpath(path)
    while True:
        yield real
        above = os.path.dirname(real)
        if above == real:
            return
        real = above
