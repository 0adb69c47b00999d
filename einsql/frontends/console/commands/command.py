"""The description of a dot command, and the shell that it controls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import einsql
from einsql.core.records import dataclass
from einsql.errors import nearest
from einsql.frontends.console.output import Output
from einsql.frontends.console.settings import CommandError, Database, Settings

T = TypeVar("T")


class CommandTarget(Protocol):
    """The attributes and methods of a shell that dot commands use."""

    settings: Settings
    output: Output
    failed: bool
    latest: einsql.Cursor | None
    latest_text: str
    connection: einsql.Connection
    database: Database

    def open(self, path: str) -> None:
        """Closes the database and opens another one."""

    def run_file(self, path: str) -> None:
        """Runs a script."""

    def run_lines(self, lines: Iterable[str], source: str = "") -> None:
        """Runs statements and dot commands."""

    def print_latest(self) -> None:
        """Prints the last result without omissions."""

    def work(self, work: Callable[[], T]) -> T:
        """Calls a function under the progress bar; Ctrl-C cancels it."""


@dataclass(frozen=True, slots=True)
class Command:
    """A dot command: its arguments, its line of help and its function.

    Attributes:
        takes: The words for completion; "file" for a path, "name" for an object of the database.
        external: The least number of arguments with which the command reads or writes files or
            runs programs, which a session without external access refuses; None if it never does.
        verbatim: Whether the rest of the line is one argument, unchanged.
        pipes: Whether a rest of the line that begins with `|` is one argument, unchanged.
        backslashes: Whether backslashes and a semicolon at the end belong to the arguments.
    """

    arguments: str
    help: str
    run: Callable[[CommandTarget, list[str]], None]
    least: int = 0
    most: int = 1
    takes: Sequence[str] = ()
    external: int | None = None
    verbatim: bool = False
    pipes: bool = False
    backslashes: bool = False


MANY = 1000
"""The largest number of arguments of a command that takes any number."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "\\": "\\"}


def unescaped(text: str) -> str:
    """The text with tabs and line ends in place of backslashes and letters."""
    return re.sub(r"\\([tnr\\])", lambda escape: _ESCAPES[escape[1]], text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question about the known name that is nearest to an unknown one; empty without one."""
    near = nearest(name, known)
    return "" if near is None else f'Did you mean "{near}"? '


def switch(name: str, text: str) -> Command:
    """A command that turns a setting of its name on or off."""
    choices = {"on": True, "yes": True, "1": True, "off": False, "no": False, "0": False}

    def run(shell: CommandTarget, words: list[str]) -> None:
        chosen = choices.get(words[0].lower())
        if chosen is None:
            raise CommandError(f"Usage: .{name} on|off")
        setattr(shell.settings, name, chosen)

    return Command("on|off", text, run, least=1, takes=("on", "off"))
