"""Figures that were recorded in the documents, with the day they were made on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from docs.builder.source import ROOT


@dataclass(frozen=True, slots=True)
class Recorded:
    """A table of a document.

    Attributes:
        document: The path in docs/, such as "explanation/benchmarks.md".
        day: When its figures were made.
        rows: The cells of each row by the first one.
    """

    document: str
    day: str
    rows: dict[str, list[str]]

    def __getitem__(self, start: str) -> list[str]:
        """The cells behind the first one of the row that begins so.

        Raises:
            LookupError: No row does, or several do.
        """
        found = [cells for name, cells in self.rows.items() if name.startswith(start)]
        if len(found) != 1:
            raise LookupError(f"{len(found)} rows of docs/{self.document} begin with {start!r}")
        return found[0]


def recorded(document: str, title: str) -> Recorded:
    """The table below a heading, or below a line that begins so.

    Raises:
        LookupError: There is none, or no day.
    """
    text = (ROOT / "docs" / document).read_text(encoding="utf-8")
    day = re.search(r"(?:Measured|Made) on (\d{4}-\d\d-\d\d)", text)
    found = re.search(rf"^(?:#+ )?{re.escape(title)}", text, re.MULTILINE)
    if day is None or found is None:
        raise LookupError(f"docs/{document} has no {title!r}, or no day")
    rows: dict[str, list[str]] = {}
    for line in text[found.start() :].splitlines():
        if line.startswith("|"):
            first, *cells = (c.strip().replace("\\|", "|") for c in _cells(line))
            rows[first] = cells
        elif rows:
            break
    return Recorded(document, day[1], rows)


def _cells(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line.strip().strip("|"))
