"""Glob patterns: the files of a path."""

from __future__ import annotations

import glob
import os

from einsql.errors import OperationalError, ProgrammingError
from einsql.storage.files.mapped import refusing

_WILD = "*?["


def matching(path: str) -> list[str]:
    """The sorted files of a path: the path itself, or the files that match it as a pattern.

    `*`, `?` and `[…]` match within a name, `**` any directories. An existing file whose name is
    the pattern is the only match. A link that leads out of the directory before the first wild
    card is refused.

    Raises:
        OperationalError: No file matches.
        ProgrammingError: A matching link leads out of the directory.
    """
    with refusing(path):
        names = named(path)
        if names == [path]:
            return names
        if not names:
            raise OperationalError(f"No file matches '{path}'")
        root = os.path.realpath(_fixed(path))
        for name in names:
            if os.path.commonpath([root, os.path.realpath(name)]) != root:
                raise ProgrammingError(  # so that DuckDB, which follows links, is not tried
                    f"'{name}' matches '{path}' and is a link that leads out of '{root}'",
                    hint="A pattern does not follow such links; write the path of the file.",
                )
    return names


def named(path: str) -> list[str]:
    """The sorted files of a path, without a check of links; empty if none matches."""
    if not any(c in path for c in _WILD) or os.path.exists(path):
        return [path]
    return sorted(glob.glob(path, recursive=True))


def _fixed(path: str) -> str:
    before = path[: min(path.find(c) for c in _WILD if c in path)]
    return os.path.dirname(before) or "."
