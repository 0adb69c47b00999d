"""Dot commands: what the shell itself does, apart from SQL."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from einsql.console.render import MODES
from einsql.console.settings import CommandError, Leave
from einsql.console.values import format_value
from einsql.engine.store import Tensor
from einsql.errors import suggest

if TYPE_CHECKING:
    from einsql.console.shell import Shell


@dataclass(frozen=True, slots=True)
class Command:
    """A dot command: the arguments it takes, one line of help, and what it does."""

    arguments: str
    help: str
    run: Callable[[Shell, list[str]], None]
    least: int = 0
    most: int = 1


def run_command(shell: Shell, line: str) -> None:
    """Runs a line that begins with a dot.

    Raises:
        CommandError: There is no such command, or it doesn't take these arguments.
        Error: The database refused.
        Leave: The shell shall end.
    """
    name, _, rest = line.strip()[1:].partition(" ")
    name, rest = name.rstrip(";"), rest.strip().rstrip(";")
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


def _help(shell: Shell, words: list[str]) -> None:
    heads = {name: f".{name} {c.arguments}".rstrip() for name, c in COMMANDS.items()}
    width = max(map(len, heads.values()))
    chosen = [n for n in COMMANDS if not words or words[0].lstrip(".") in n]
    if not chosen:
        raise CommandError(f'There is no command like "{words[0]}"')
    shell.print_lines(f"{heads[name]:{width}}  {COMMANDS[name].help}" for name in chosen)


def _tables(shell: Shell, words: list[str]) -> None:
    names = [n for n in shell.tensors() if not words or words[0].lower() in n.lower()]
    shell.print_lines(names)


def _schema(shell: Shell, words: list[str]) -> None:
    known = shell.tensors()
    if words and words[0] not in known:
        raise CommandError(
            f'There is no tensor "{words[0]}"\n{suggest(words[0], known, "tensors")}'
        )
    shell.print_lines([_definition(shell, name) for name in words or known])


def _definition(shell: Shell, name: str) -> str:
    """The statement that would create a tensor."""
    columns = [
        _quoted(column) + (f" DIM({bounds.rpartition('..')[2]})" if bounds else f" {dtype}")
        for column, dtype, bounds in shell.describe(name)
    ]
    stored = shell.connection.store.get(name)
    options = ""
    if isinstance(stored, Tensor):
        if stored.partition is not None:
            keys = stored.relation.schema.keys
            cut = [(keys[n].name, stored.partition[n]) for n in stored.order]
            parts = ", ".join(f"{_quoted(key)} {count}" for key, count in cut if count > 1)
            options += f" PARTITION BY ({parts})"
        if stored.default is not None:
            options += f" DEFAULT {format_value(stored.default, '', '')}"
    return f"CREATE TENSOR {_quoted(name)} ({', '.join(columns)}){options};"


def _quoted(name: str) -> str:
    return name if name.isidentifier() else '"' + name.replace('"', '""') + '"'


def _mode(shell: Shell, words: list[str]) -> None:
    if words[0] not in MODES:
        raise CommandError(
            f'There is no output mode "{words[0]}"\n{suggest(words[0], MODES, "mode")}'
        )
    shell.settings.mode = words[0]


def _maxrows(shell: Shell, words: list[str]) -> None:
    if not words[0].isdecimal():
        raise CommandError("Usage: .maxrows COUNT, a whole number; 0 shows all rows")
    shell.settings.maxrows = int(words[0])


def _nullvalue(shell: Shell, words: list[str]) -> None:
    shell.settings.null = words[0]


def _quit(shell: Shell, words: list[str]) -> None:
    if words and not words[0].isdecimal():
        raise CommandError("Usage: .quit [STATUS], a whole number")
    raise Leave(int(words[0]) if words else int(shell.failed))


def _switch(name: str, text: str) -> Command:
    choices = {"on": True, "yes": True, "1": True, "off": False, "no": False, "0": False}

    def run(shell: Shell, words: list[str]) -> None:
        chosen = choices.get(words[0].lower())
        if chosen is None:
            raise CommandError(f"Usage: .{name} on|off")
        setattr(shell.settings, name, chosen)

    return Command("on|off", text, run, least=1)


COMMANDS: dict[str, Command] = {
    "bail": _switch("bail", "Stop a script at its first error"),
    "echo": _switch("echo", "Print each statement before it runs"),
    "exit": Command("[STATUS]", "Leave, with this exit status", _quit),
    "explain": _switch("explain", "Print the plan of each query before its rows"),
    "help": Command("[TEXT]", "Explain the commands whose names hold the text", _help),
    "maxrows": Command("COUNT", "Rows a table shows at most (40); 0 shows all", _maxrows, least=1),
    "mode": Command("MODE", f"Print results as {', '.join(MODES)}", _mode, least=1),
    "nullvalue": Command("TEXT", "Print NULL as this text", _nullvalue, least=1),
    "once": Command(
        "FILE", "Print the next result into a file",
        lambda shell, words: shell.write_to(words[0], once=True), least=1,
    ),
    "open": Command(
        "[FILE]", "Close the database and open another, or an empty one in memory",
        lambda shell, words: shell.open(words[0] if words else ":memory:"),
    ),
    "output": Command(
        "[FILE]", "Print results into a file, or on the terminal again",
        lambda shell, words: shell.write_to(words[0] if words else None),
    ),
    "progress": _switch("progress", "Show how far statements over two seconds are"),
    "quit": Command("[STATUS]", "Leave, with this exit status", _quit),
    "read": Command(
        "FILE", "Run a script", lambda shell, words: shell.run_file(words[0]), least=1
    ),
    "schema": Command("[NAME]", "Print the statements that create the tensors", _schema),
    "tables": Command("[TEXT]", "List the tensors whose names hold the text", _tables),
    "timer": _switch("timer", "Print the time each statement takes"),
}  # fmt: skip
