"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

NOTICE = (
    "<!-- Written by `python -m docs.builder.reference` from the catalogs of the code; change "
    "those. -->\n"
)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Rows below a header; `|` in cells is escaped."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |\n" for line in lines
    )


def code(text: object) -> str:
    """A cell of code, or an empty one."""
    return f"`{text}`" if str(text) else ""
