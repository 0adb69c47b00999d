"""Output modes of markup languages: Markdown, HTML, LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from einsql.frontends.console.style import Style, texts
from einsql.storage.results.box import Row
from einsql.storage.results.value_text import Column, format_cell

_LATEX = str.maketrans(
    {c: f"\\{c}" for c in "&%$#_{}"}
    | {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
)
"""LaTeX's spellings of its special characters."""


def markdown(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """A table in Markdown."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    yield line(_names(columns))
    yield "|" + "|".join("--:" if c.is_numeric else "---" for c in columns) + "|"
    for row in rows:
        yield line(texts(columns, row, style))


def html(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """The rows of a table in HTML, without the element around them, as DuckDB prints them."""
    if style.headers:
        yield from _html_row("th", _names(columns))
    for row in rows:
        yield from _html_row("td", texts(columns, row, style))


def _html_row(tag: str, cells: Iterable[str]) -> Iterator[str]:
    start = "<tr>"
    for cell in cells:
        yield f"{start}<{tag}>{escape(cell)}</{tag}>"
        start = ""
    yield "</tr>"


def latex(columns: Sequence[Column], rows: Iterable[Row], style: Style) -> Iterator[str]:
    """A tabular environment of LaTeX; special characters are escaped."""

    def line(cells: Iterable[str]) -> str:
        return " & ".join(c.translate(_LATEX) for c in cells) + " \\\\"

    yield "\\begin{tabular}{|" + "".join("r" if c.is_numeric else "l" for c in columns) + "|}"
    yield "\\hline"
    yield line(_names(columns))
    yield "\\hline"
    for row in rows:
        yield line(texts(columns, row, style))
    yield "\\hline"
    yield "\\end{tabular}"


def _names(columns: Sequence[Column]) -> list[str]:
    return [format_cell(c.name, "", "") for c in columns]
