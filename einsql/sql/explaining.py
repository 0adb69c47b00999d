"""Reads EXPLAIN's options: in what form a plan is shown, and for how many sites it is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from einsql.errors import ProgrammingError, suggest
from einsql.settings import MOST_SITES
from einsql.sql.tokens import TokenReader
from einsql.units import BANDWIDTH, FLOPS

_FLAGS = {"ANALYZE": "analyze", "ANALYSE": "analyze", "VERBOSE": "verbose"}
_RATES = {"NETWORK": BANDWIDTH, "FLOPS": FLOPS}
_FORMS = ("text", "json", "svg", "html")
_OPTIONS = ("ANALYZE", "VERBOSE", "FORMAT", "SITES", *_RATES)
_EXAMPLE = "Write EXPLAIN (SITES 8, FORMAT json) SELECT …."


@dataclass(slots=True)
class Options:
    """What stands between EXPLAIN and its statement, as in `syntax.Explain`."""

    analyze: bool = False
    verbose: bool = False
    form: str = "text"
    sites: int | None = None
    network: float | None = None
    flops: float | None = None


def explain_options(reader: TokenReader, queries: Sequence[str]) -> Options:
    """Reads [ANALYZE] [VERBOSE] [(option, …)].

    Args:
        reader: Stands behind EXPLAIN.
        queries: What a query begins with; a parenthesis before one of them is the query's.

    Raises:
        ProgrammingError: An option is unknown, given twice, or its value is wrong.
    """
    options = Options()
    while reader.word() in _FLAGS:
        setattr(options, _FLAGS[reader.word()], True)
        reader.at += 1
    if reader.word() in _OPTIONS:
        error = reader.error("Options of EXPLAIN with a value stand in parentheses")
        error.hint = _EXAMPLE
        raise error
    if reader.word(1) not in queries and reader.take("("):
        _parenthesised(reader, options)
    return options


def _parenthesised(reader: TokenReader, options: Options) -> None:
    given: set[str] = set()
    while not reader.take(")"):
        position = reader.position()
        option = reader.name("an EXPLAIN option").upper()
        if option in given:
            raise ProgrammingError(f"{option} is given twice", position=position)
        given.add(option)
        _option(reader, option, position, options)
        if not reader.take(",") and reader.word() != ")":
            raise reader.error("Expected , or )")


def _option(reader: TokenReader, option: str, position: int, options: Options) -> None:
    if option in _FLAGS:
        setattr(options, _FLAGS[option], True)
    elif option == "FORMAT":
        options.form = _form(reader)
    elif option == "SITES":
        at = reader.position()
        options.sites = reader.integer("the number of sites", least=1)
        if options.sites > MOST_SITES:
            raise ProgrammingError(
                f"{options.sites:,} sites are too many",
                hint=f"There are at most {MOST_SITES:,}.",
                position=at,
            )
    elif option in _RATES:
        kind = _RATES[option]
        at = reader.position()
        text = reader.text(f"a {kind.name} in quotes, as in {kind.example}")
        setattr(options, option.lower(), kind.read(text, at))
    else:
        raise ProgrammingError(
            f'EXPLAIN has no option "{option}"',
            hint=suggest(option, _OPTIONS, "options"),
            position=position,
        )


def _form(reader: TokenReader) -> str:
    word = reader.word().lower()
    if word not in _FORMS:
        error = reader.error("Expected a format")
        error.hint = f"Write FORMAT {' or '.join(_FORMS)}, without quotes."
        raise error
    reader.at += 1
    return word
