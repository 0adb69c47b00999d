"""Names and text literals in SQL notation."""

from __future__ import annotations

RESERVED = set(
    """
    all analyse analyze and anti any array as asc asof asymmetric at authorization binary both
    by case cast check collate collation column columns concurrently constraint create cross
    default deferrable desc describe distinct do else end except false fetch for foreign
    freeze from full generated glob group having ilike in initially inner intersect into is
    isnull join lambda lateral leading left like limit map natural not notnull null offset on
    only or order outer overlaps pivot pivot_longer pivot_wider placing positional primary
    qualify references returning right select semi show similar some struct summarize
    symmetric table tablesample then to trailing true try_cast tuple union unique unpack
    unpivot using variadic verbose when where window with
    """.split()  # noqa: SIM905 - a list of a hundred lines would be no clearer
)
"""Reserved words, which must be quoted as names."""


def in_quotes(name: str) -> str:
    """A name in double quotes, in which it may contain any character."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def name_of(name: str) -> str:
    """A name in SQL, in quotes if it needs them."""
    is_word = name.isidentifier() and name.lower() not in RESERVED
    return name if is_word else in_quotes(name)
