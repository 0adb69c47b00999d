"""The settings of an output mode."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from einsql.core.records import dataclass
from einsql.storage.results.box import Row
from einsql.storage.results.value_text import Column, format_cell


@dataclass(frozen=True, slots=True)
class Style:
    """The settings of a mode.

    Attributes:
        null: The text of NULL; None for the mode's default.
        maxrows: The largest number of rows in a table; 0 for no limit.
        width: The largest width of a table's line in characters; None for no limit.
        total: The number of rows; -1 if unknown.
        headers: Whether modes without a table begin with the column names.
        separator: The text between the fields of a row; None for the mode's default.
        widths: The least widths of the columns of `column`, `table` and `box`, from the first
            one; the texts of a column with a negative width are right-aligned.
        columnwise: Whether `duckbox` has a line for each column instead of each row.
        cut: Whether `duckbox` cuts texts and omits columns to fit the width; otherwise texts
            continue on further lines.
        table: The table that the statements of `insert` fill, as SQL spells it.
    """

    null: str | None = None
    maxrows: int = 40
    width: int | None = None
    total: int = -1
    headers: bool = True
    separator: str | None = None
    widths: tuple[int, ...] = ()
    columnwise: bool = False
    cut: bool = True
    table: str = '"table"'

    @property
    def null_text(self) -> str:
        """The text of NULL in modes for people."""
        return "NULL" if self.null is None else self.null


Mode = Callable[[Sequence[Column], Iterable[Row], Style], Iterator[str]]
"""A function that returns the lines of a result, without line ends."""


def texts(columns: Sequence[Column], row: Row, style: Style) -> list[str]:
    """The texts of a row's cells, each on one line."""
    pairs = zip(row, columns, strict=True)
    return [format_cell(v, c.type, style.null_text) for v, c in pairs]
