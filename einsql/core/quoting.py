"""Names and text literals in SQL notation."""

from __future__ import annotations


def in_quotes(name: str) -> str:
    """A name in double quotes, in which it may contain any character."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
