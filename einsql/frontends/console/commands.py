"""Dot commands, which control the shell itself."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import einsql
from einsql.core.records import dataclass
from einsql.errors import suggest
from einsql.frontends.console.chart import draw_chart
from einsql.frontends.console.heat import draw_heat
from einsql.frontends.console.image import save_image
from einsql.frontends.console.objects import definition, entries
from einsql.frontends.console.output import Output
from einsql.frontends.console.picture import picture_of
from einsql.frontends.console.render import MODES
from einsql.frontends.console.settings import CommandError, Leave, Settings

T = TypeVar("T")


class CommandTarget(Protocol):
    """The attributes and methods of a shell that dot commands use."""

    settings: Settings
    output: Output
    failed: bool
    latest: einsql.Cursor | None
    connection: einsql.Connection

    def open(self, path: str) -> None:
        """Closes the database and opens another one."""

    def run_file(self, path: str) -> None:
        """Runs a script."""

    def work(self, work: Callable[[], T]) -> T:
        """Calls a function under the progress bar; Ctrl-C cancels it."""


@dataclass(frozen=True, slots=True)
class Command:
    """A dot command: its arguments, its line of help and its function.

    Attributes:
        takes: The words for completion; "file" for a path, "name" for an object of the database.
    """

    arguments: str
    help: str
    run: Callable[[CommandTarget, list[str]], None]
    least: int = 0
    most: int = 1
    takes: Sequence[str] = ()


def run_command(shell: CommandTarget, line: str) -> None:
    """Runs a dot command.

    Raises:
        CommandError: The command does not exist, or its arguments are wrong.
        Error: The database reports an error.
        Leave: The command ends the shell.
    """
    name, _, rest = line.strip()[1:].partition(" ")
    name, rest = name.rstrip(";"), rest.strip().rstrip(";")
    begun = [n for n in COMMANDS if name and n.startswith(name)]
    if name not in COMMANDS and len(begun) == 1:
        (name,) = begun
    command = COMMANDS.get(name)
    if command is None:
        hint = suggest(name, COMMANDS, "command")
        raise CommandError(f'There is no command ".{name}"\n{hint} ".help" explains them.')
    try:
        words = shlex.split(rest)
    except ValueError as e:
        raise CommandError(f".{name}: a quoted argument has no end") from e
    if not command.least <= len(words) <= command.most:
        raise CommandError(f"Usage: .{name} {command.arguments}".rstrip())
    command.run(shell, words)


def _help(shell: CommandTarget, words: list[str]) -> None:
    heads = {name: f".{name} {c.arguments}".rstrip() for name, c in COMMANDS.items()}
    width = max(map(len, heads.values()))
    chosen = [n for n in COMMANDS if not words or words[0].lstrip(".") in n]
    if not chosen:
        raise CommandError(f'There is no command like "{words[0]}"')
    shell.output.print_lines(f"{heads[name]:{width}}  {COMMANDS[name].help}" for name in chosen)


def _tables(shell: CommandTarget, words: list[str]) -> None:
    wanted = words[0].lower() if words else ""
    listed = [e for e in entries(shell.connection) if wanted in e.name.lower()]
    heads = [e.call or e.name for e in listed]
    width = max(map(len, heads), default=0)
    shell.output.print_lines(
        head if e.kind == "tensor" else f"{head:{width}}  {e.kind}"
        for head, e in zip(heads, listed, strict=True)
    )


def _schema(shell: CommandTarget, words: list[str]) -> None:
    known = entries(shell.connection)
    chosen = [e for e in known if not words or e.name.lower() == words[0].lower()]
    if words and not chosen:
        hint = suggest(words[0], [e.name for e in known], "names")
        raise CommandError(f'There is no tensor, table, view or macro "{words[0]}"\n{hint}')
    shell.output.print_lines([definition(shell.connection, e) for e in chosen])


def _plot(shell: CommandTarget, words: list[str]) -> None:
    cursor = shell.latest
    if cursor is None:
        raise CommandError("There is no result to plot yet; run a SELECT first, then .plot [FILE]")
    picture = shell.work(lambda: picture_of(cursor))
    if words:
        save_image(picture, words[0])
        return
    size = shutil.get_terminal_size()
    draw = draw_heat if len(picture.keys) == 2 else draw_chart
    lines = draw(picture, size.columns, size.lines, shell.output.colours)
    shell.output.print_lines(lines, paged=False)


def _mode(shell: CommandTarget, words: list[str]) -> None:
    if words[0] not in MODES:
        raise CommandError(
            f'There is no output mode "{words[0]}"\n{suggest(words[0], MODES, "mode")}'
        )
    shell.settings.mode = words[0]


def _maxrows(shell: CommandTarget, words: list[str]) -> None:
    if not words[0].isdecimal():
        raise CommandError("Usage: .maxrows COUNT, a whole number; 0 shows all rows")
    shell.settings.maxrows = int(words[0])


def _pager(shell: CommandTarget, words: list[str]) -> None:
    if not words:
        shell.output.print_lines([shell.settings.pager])
        return
    command = shlex.join(words)
    shell.settings.pager = command.lower() if command.lower() in ("on", "off") else command


def _nullvalue(shell: CommandTarget, words: list[str]) -> None:
    shell.settings.null = words[0]


def _quit(shell: CommandTarget, words: list[str]) -> None:
    if words and not words[0].isdecimal():
        raise CommandError("Usage: .quit [STATUS], a whole number")
    raise Leave(int(words[0]) if words else int(shell.failed))


def _switch(name: str, text: str) -> Command:
    choices = {"on": True, "yes": True, "1": True, "off": False, "no": False, "0": False}

    def run(shell: CommandTarget, words: list[str]) -> None:
        chosen = choices.get(words[0].lower())
        if chosen is None:
            raise CommandError(f"Usage: .{name} on|off")
        setattr(shell.settings, name, chosen)

    return Command("on|off", text, run, least=1, takes=("on", "off"))


COMMANDS: dict[str, Command] = {
    "bail": _switch("bail", "Stop a script at its first error"),
    "echo": _switch("echo", "Print each statement before it runs"),
    "exit": Command("[STATUS]", "Leave, with this exit status", _quit),
    "explain": _switch("explain", "Print the plan of each query before its rows"),
    "headers": _switch("headers", "Begin csv and list with the names of the columns"),
    "help": Command("[TEXT]", "Explain the commands whose names hold the text", _help),
    "maxrows": Command("COUNT", "Rows a table shows at most (40); 0 shows all", _maxrows, least=1),
    "mode": Command(
        "MODE", f"Print results as {', '.join(MODES)}", _mode, least=1, takes=tuple(MODES)
    ),
    "nullvalue": Command("TEXT", "Print NULL as this text", _nullvalue, least=1),
    "once": Command(
        "FILE",
        "Print the next result into a file",
        lambda shell, words: shell.output.write_to(words[0], once=True),
        least=1,
        takes="file",
    ),
    "open": Command(
        "[FILE]",
        "Close the database and open another, or an empty one in memory",
        lambda shell, words: shell.open(words[0] if words else ":memory:"),
        takes="file",
    ),
    "output": Command(
        "[FILE]",
        "Print results into a file, or on the terminal again",
        lambda shell, words: shell.output.write_to(words[0] if words else None),
        takes="file",
    ),
    "pager": Command(
        "on|off|COMMAND",
        "Show long results by $PAGER or less, not, or by this command",
        _pager,
        most=20,
        takes=("on", "off"),
    ),
    "plot": Command(
        "[FILE]",
        "Draw the last result over its one or two keys, or an image of it",
        _plot,
        takes="file",
    ),
    "progress": _switch("progress", "Show how far statements over two seconds are"),
    "quit": Command("[STATUS]", "Leave, with this exit status", _quit),
    "read": Command(
        "FILE",
        "Run a script",
        lambda shell, words: shell.run_file(words[0]),
        least=1,
        takes="file",
    ),
    "schema": Command(
        "[NAME]", "Print the statements that create everything, or one thing", _schema, takes="name"
    ),
    "tables": Command(
        "[TEXT]", "List tensors, tables, views and macros, or those of such names", _tables
    ),
    "timer": _switch("timer", "Print the time each statement takes"),
}
