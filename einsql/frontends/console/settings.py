"""The options and settings of a shell, and the exceptions that end it."""

from __future__ import annotations

from dataclasses import field

from einsql.core.records import dataclass


class Leave(Exception):  # noqa: N818 - not an error, like SystemExit
    """Ends the shell with an exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Bail(Leave):
    """Ends a script at its first error; an interactive prompt continues."""

    def __init__(self) -> None:
        super().__init__(1)


class CommandError(Exception):
    """An error of a dot command; the message describes it."""


@dataclass(slots=True)
class Settings:
    """The settings that options and dot commands change.

    Attributes:
        mode: The name of the output mode.
        null: The text of NULL; None for the mode's default.
        maxrows: The largest number of rows in a table; 0 for no limit.
        timer: Whether the shell prints the time of each statement.
        echo: Whether the shell prints each statement before it runs.
        bail: Whether the first error ends a script.
        explain: Whether the shell prints the plan of each query before its rows.
        progress: Whether long statements show a progress bar.
        headers: Whether modes without a table begin with the column names.
        pager: The command that shows long results at a prompt; "on" for the default pager,
            "off" for no pager.
        separator: The text between fields; None for the mode's default.
        row_end: The text after each row; None for the mode's default.
        table: The table of the mode `insert`, as SQL spells it.
        widths: The least widths of columns, see `Style`.
        columnwise: Whether tables have a line for each column.
        prompt: The prompt.
        continued: The prompt of the further lines of a statement.
    """

    mode: str = "duckbox"
    null: str | None = None
    maxrows: int = 40
    timer: bool = False
    echo: bool = False
    bail: bool = False
    explain: bool = False
    progress: bool = True
    headers: bool = True
    pager: str = "on"
    separator: str | None = None
    row_end: str | None = None
    table: str = '"table"'
    widths: tuple[int, ...] = ()
    columnwise: bool = False
    prompt: str = "einsql> "
    continued: str = "   ...> "


@dataclass(frozen=True, slots=True)
class Database:
    """The arguments for opening a connection."""

    path: str = ":memory:"
    read_only: bool = False
    config: dict[str, object] = field(default_factory=dict)
