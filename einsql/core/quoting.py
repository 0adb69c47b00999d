"""Names and texts as SQL writes them."""

from __future__ import annotations


def in_quotes(name: str) -> str:
    """A name in double quotes, which may then hold any characters."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as a literal."""
    return "'" + text.replace("'", "''") + "'"
