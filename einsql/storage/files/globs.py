"""Glob patterns: the files that a path names."""

from __future__ import annotations

import glob
import os

from einsql.errors import OperationalError, ProgrammingError
from einsql.storage.files.mapped import refusing

_WILD = "*?["


def matching(path: str) -> list[str]:
    """The files that a path names, in order: itself, or those that match it as a pattern.

    `*`, `?` and `[…]` match within a name, `**` any folders. A file whose name is the pattern
    is that file. A link that leads out of the folder before the first wild card is refused.

    Raises:
        OperationalError: Nothing matches.
        ProgrammingError: A link leads elsewhere.
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
                raise ProgrammingError(  # DuckDB, which would follow it, does not try then
                    f"'{name}' matches '{path}' and is a link that leads out of '{root}'",
                    hint="A pattern does not follow such links; name the file itself.",
                )
    return names


def named(path: str) -> list[str]:
    """The files that a path names, in order, wherever links lead; may be none."""
    if not any(c in path for c in _WILD) or os.path.exists(path):
        return [path]
    return sorted(glob.glob(path, recursive=True))


def _fixed(path: str) -> str:
    """The folder before the first wild card."""
    before = path[: min(path.find(c) for c in _WILD if c in path)]
    return os.path.dirname(before) or "."
