"""Reads EXPLAIN's options, such as the output format and the number of sites."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from einsql.core.records import dataclass
from einsql.core.settings import MOST_SITES
from einsql.core.units import BANDWIDTH, DURATION, FLOPS, SIZE, Quantity
from einsql.errors import ProgrammingError, suggest
from einsql.sql.parser.syntax import LEVELS
from einsql.sql.parser.tokens import TokenReader

_FLAGS = {"ANALYZE": "analyze", "ANALYSE": "analyze", "VERBOSE": "verbose", "SIMULATE": "simulate"}
_RATES = {"NETWORK": BANDWIDTH, "FLOPS": FLOPS}
_CLUSTER_COUNTS = {"NODE_SITES": "sites of a node", "LINKS": "links of a node"}
_CLUSTER_RATES = {
    "LATENCY": DURATION,
    "NODE_NETWORK": BANDWIDTH,
    "NODE_LATENCY": DURATION,
    "NODE_MEMORY": SIZE,
}
_CLUSTER = (*_CLUSTER_COUNTS, *_CLUSTER_RATES)
FORMS = ("text", "json", "svg", "html")
"""The output formats, after FORMAT."""
OPTIONS = ("ANALYZE", "VERBOSE", "SIMULATE", "LEVEL", "FORMAT", "SITES", *_RATES, *_CLUSTER)
"""The names of all options."""
_EXAMPLE = "Write EXPLAIN (SITES 8, FORMAT json) SELECT …."


@dataclass(slots=True)
class Options:
    """The options between EXPLAIN and its statement, as in `syntax.Explain`."""

    analyze: bool = False
    verbose: bool = False
    level: str | None = None
    form: str = "text"
    sites: int | None = None
    network: float | None = None
    flops: float | None = None
    simulate: bool = False
    cluster: tuple[tuple[str, Any], ...] = ()


def explain_options(reader: TokenReader, queries: Sequence[str]) -> Options:
    """Reads [ANALYZE] [VERBOSE] [SIMULATE] [(option, …)].

    Args:
        reader: The reader of the statement, after EXPLAIN.
        queries: The first words of a query; a parenthesis before one of them belongs to the query.

    Raises:
        ProgrammingError: An option is unknown, occurs twice, or has an invalid value.
    """
    options = Options()
    while reader.word() in _FLAGS:
        setattr(options, _FLAGS[reader.word()], True)
        reader.at += 1
    if reader.word() in OPTIONS:
        error = reader.error("Options of EXPLAIN with a value need parentheses")
        error.hint = _EXAMPLE
        raise error
    if reader.word(1) not in queries and reader.take("("):
        _parenthesised(reader, options)
    return options


def _parenthesised(reader: TokenReader, options: Options) -> None:
    options_read: set[str] = set()
    while not reader.take(")"):
        position = reader.position()
        option = reader.name("an EXPLAIN option").upper()
        if option in options_read:
            raise ProgrammingError(f"{option} is given twice", position=position)
        options_read.add(option)
        _option(reader, option, position, options)
        if not reader.take(",") and reader.word() != ")":
            raise reader.error("Expected , or )")


def _option(reader: TokenReader, option: str, position: int, options: Options) -> None:
    if option in _FLAGS:
        setattr(options, _FLAGS[option], True)
    elif option == "LEVEL":
        options.level = _level(reader)
    elif option == "FORMAT":
        options.form = _form(reader)
    elif option == "SITES":
        options.sites = _count(reader, "sites")
    elif option in _RATES:
        setattr(options, option.lower(), _quantity(reader, _RATES[option]))
    elif option in _CLUSTER_COUNTS:
        options.cluster += ((option.lower(), _count(reader, _CLUSTER_COUNTS[option])),)
    elif option in _CLUSTER_RATES:
        options.cluster += ((option.lower(), _quantity(reader, _CLUSTER_RATES[option])),)
    else:
        raise ProgrammingError(
            f'EXPLAIN has no option "{option}"',
            hint=suggest(option, OPTIONS, "options"),
            position=position,
        )


def _count(reader: TokenReader, what: str) -> int:
    at = reader.position()
    count = reader.integer(f"the number of {what}", least=1)
    if count > MOST_SITES:
        raise ProgrammingError(
            f"{count:,} {what} are too many",
            hint=f"There are at most {MOST_SITES:,}.",
            position=at,
        )
    return count


def _quantity(reader: TokenReader, kind: Quantity) -> float:
    at = reader.position()
    text = reader.text(f"a {kind.name} in quotes, as in {kind.example}")
    return kind.read(text, at)


def _level(reader: TokenReader) -> str:
    """Reads the name of a level; Python's keyword `level` writes it in quotes."""
    at = reader.position()
    try:
        level = reader.name("a level") if reader.word() else reader.text("a level")
    except ProgrammingError as error:
        error.hint = f"Write LEVEL {' or '.join(LEVELS)}."
        raise
    level = level.lower()
    if level not in LEVELS:
        raise ProgrammingError(
            f'A plan has no level "{level}"', hint=suggest(level, LEVELS, "levels"), position=at
        )
    return level


def _form(reader: TokenReader) -> str:
    word = reader.word().lower()
    if word not in FORMS:
        error = reader.error("Expected a format")
        error.hint = f"Write FORMAT {' or '.join(FORMS)}, without quotes."
        raise error
    reader.at += 1
    return word
