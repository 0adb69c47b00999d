"""The options and settings of a shell, and the exceptions that end it."""

from __future__ import annotations

from dataclasses import dataclass, field


class Leave(Exception):  # noqa: N818 - like SystemExit, it is no error
    """The shell ends with this exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class Bail(Leave):
    """A script ends at its first error; a prompt goes on."""

    def __init__(self) -> None:
        super().__init__(1)


class CommandError(Exception):
    """A dot command was wrong or failed; the text says how."""


@dataclass(slots=True)
class Settings:
    """The settings that options and dot commands change.

    Attributes:
        mode: Name of the output mode.
        null: The text of NULL, or None for the mode's own.
        maxrows: Rows a table shows at most, 0 for all.
        timer: Whether each statement's time is printed.
        echo: Whether each statement is printed before it runs.
        bail: Whether the first error ends a script.
        explain: Whether each query's plan is printed before its rows.
        progress: Whether long statements show a progress bar.
        headers: Whether modes without a table begin with the names of the columns.
        pager: The command that shows long results at a prompt; "on" for the usual one, "off"
            for none.
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


@dataclass(frozen=True, slots=True)
class Database:
    """The arguments for opening a connection."""

    path: str = ":memory:"
    read_only: bool = False
    config: dict[str, object] = field(default_factory=dict)
