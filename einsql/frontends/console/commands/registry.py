"""The dot commands, their help, and the execution of one."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterator

from einsql.frontends.console.commands import catalog, formats, outside
from einsql.frontends.console.commands.command import (
    MANY,
    Command,
    CommandTarget,
    did_you_mean,
    switch,
    unescaped,
)
from einsql.frontends.console.commands.dump import dump
from einsql.frontends.console.render import MODES
from einsql.frontends.console.settings import CommandError, Leave


def run_command(shell: CommandTarget, line: str) -> None:
    """Runs a dot command.

    Raises:
        CommandError: The command does not exist, or its arguments are wrong.
        Error: The database reports an error.
        Leave: The command ends the shell.
    """
    name, _, rest = line.strip()[1:].partition(" ")
    name, rest = name.rstrip(";"), rest.strip()
    begun = [n for n in COMMANDS if name and n.startswith(name)]
    if name not in COMMANDS and len(begun) == 1:
        (name,) = begun
    command = COMMANDS.get(name)
    if command is None:
        hint = did_you_mean(name, COMMANDS)
        raise CommandError(f'There is no command ".{name}"\n{hint}.help explains all commands.')
    if not command.backslashes:
        rest = rest.rstrip(";")
    is_whole = command.verbatim or (command.pipes and rest.startswith("|"))
    words = [rest] if is_whole else _words(name, rest, command.backslashes)
    if not command.least <= len(words) <= command.most:
        raise CommandError(f"Usage: .{name} {command.arguments}".rstrip())
    reaches_out = command.external is not None and len(words) >= command.external
    if reaches_out and not shell.connection.settings.enable_external_access:
        what = f".{name} {command.arguments.strip('[]')}" if command.external else f".{name}"
        raise CommandError(f"{what} is off: enable_external_access is false")
    command.run(shell, words)


def _words(name: str, text: str, backslashes: bool) -> list[str]:
    """The arguments of a command, in quotes if they contain blanks."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, ""
    if backslashes:
        lexer.escape = ""
    try:
        return list(lexer)
    except ValueError as e:
        raise CommandError(f".{name}: a quoted argument has no end") from e


def _help(shell: CommandTarget, words: list[str]) -> None:
    chosen = [n for n in COMMANDS if not words or words[0].lstrip(".") in n]
    if not chosen:
        raise CommandError(f'There is no command like "{words[0]}"')
    shell.output.print_lines(_help_lines(chosen, shutil.get_terminal_size().columns))


def _help_lines(names: list[str], width: int) -> Iterator[str]:
    """A line for each command; long ones continue below the help of the first."""
    heads = {name: f".{name} {c.arguments}".rstrip() for name, c in COMMANDS.items()}
    indent = max(map(len, heads.values())) + 2
    for name in names:
        help_lines = textwrap.wrap(COMMANDS[name].help, max(width - indent, 20))
        for n, line in enumerate(help_lines):
            yield f"{'' if n else heads[name]:{indent}}{line}"


def _quit(shell: CommandTarget, words: list[str]) -> None:
    if words and not words[0].isdecimal():
        raise CommandError("Usage: .quit [STATUS], a whole number")
    raise Leave(int(words[0]) if words else int(shell.failed))


def _print(shell: CommandTarget, words: list[str]) -> None:
    shell.output.print_lines([unescaped(" ".join(words))], paged=False)


_SHELL = Command(
    "COMMAND", "Run a command line of the system's shell", outside.run_program, least=1,
    external=0, verbatim=True,
)  # fmt: skip

COMMANDS: dict[str, Command] = {
    "bail": switch("bail", "Stop a script at its first error"),
    "cd": Command(
        "DIRECTORY", "Change the working directory", outside.change_directory, least=1,
        takes="file", external=0,
    ),
    "columns": Command(
        "", "Draw tables with a line for each column", formats.render_columns, most=0
    ),
    "databases": Command("", "List the attached databases", catalog.list_databases, most=0),
    "dump": Command(
        "[NAME]...", "Print statements that create everything with its rows, or the objects of "
        "these names; % stands for any characters", dump, most=MANY, takes="name", external=0,
    ),
    "echo": switch("echo", "Print each statement before it runs"),
    "edit": Command(
        "", "Open the last statement in $VISUAL or $EDITOR, and run the text", outside.edit,
        most=0, external=0,
    ),
    "exit": Command("[STATUS]", "Leave, with this exit status", _quit),
    "explain": switch("explain", "Print the plan of each query before its rows"),
    "headers": switch("headers", "Begin modes without a frame with the names of the columns"),
    "help": Command("[TEXT]", "Explain the commands whose names hold the text", _help),
    "import": Command(
        "FILE NAME", "Add the rows of a file to a table or tensor, which is created if it does "
        "not exist. --csv, --json or --parquet names the format; other options, such as "
        "--skip 1, go to DuckDB's reader of the format", outside.import_file, most=MANY,
        takes="file", external=0,
    ),
    "indexes": Command("[TABLE]", "List the indexes", catalog.list_indexes, takes="name"),
    "last": Command(
        "", "Print the last result with all rows, columns and characters", formats.print_last,
        most=0,
    ),
    "maxrows": Command(
        "COUNT", "Rows a table shows at most (40); 0 shows all", formats.change_maxrows, least=1
    ),
    "mode": Command(
        "[MODE] [TABLE]", f"Print results as {', '.join(MODES)}. insert takes a TABLE. Without "
        "a MODE, print the present one", formats.change_mode, most=2, takes=tuple(MODES),
    ),
    "nullvalue": Command("TEXT", "Print NULL as this text", formats.change_null, least=1),
    "once": Command(
        "FILE", "Print the next result into a file, or into a program: .once |COMMAND",
        lambda shell, words: shell.output.write_to(words[0], once=True),
        least=1, takes="file", external=1, pipes=True,
    ),
    "open": Command(
        "[FILE]", "Close the database and open another, or an empty one in memory",
        lambda shell, words: shell.open(words[0] if words else ":memory:"),
        takes="file", external=0,
    ),
    "output": Command(
        "[FILE]", "Print results into a file or a program, or on the terminal again",
        lambda shell, words: shell.output.write_to(words[0] if words else None),
        takes="file", external=1, pipes=True,
    ),
    "pager": Command(
        "[on|off|COMMAND]", "Show long results by $PAGER or less, not, or by this command",
        formats.change_pager, most=MANY, takes=("on", "off"),
    ),
    "plot": Command(
        "[FILE]", "Draw the last result over its one or two keys, or an image of it",
        formats.plot, takes="file", external=1,
    ),
    "print": Command("TEXT...", "Print a text", _print, most=MANY, backslashes=True),
    "progress": switch("progress", "Show how far statements over two seconds are"),
    "prompt": Command(
        "TEXT [TEXT]", "Change the prompt, and the one of further lines", formats.change_prompt,
        least=1, most=2, backslashes=True,
    ),
    "quit": Command("[STATUS]", "Leave, with this exit status", _quit),
    "read": Command(
        "FILE", "Run a script", lambda shell, words: shell.run_file(words[0]),
        least=1, takes="file", external=0,
    ),
    "rows": Command("", "Draw tables with a line for each row again", formats.render_rows, most=0),
    "schema": Command(
        "[NAME]", "Print the statements that create everything, or one thing",
        catalog.print_schema, takes="name",
    ),
    "separator": Command(
        "FIELDS [ROWS]", "Change the texts between fields and after rows; \\t and \\n are escapes",
        formats.change_separator, least=1, most=2, backslashes=True,
    ),
    "shell": _SHELL,
    "show": Command("", "Print the settings of the console", formats.show, most=0),
    "system": _SHELL,
    "tables": Command(
        "[TEXT]", "List tensors, tables, views and macros, or those of such names",
        catalog.list_tables,
    ),
    "timer": switch("timer", "Print the time each statement takes"),
    "width": Command(
        "[NUMBER]...", "Set least widths of columns in column, table and box; negative ones "
        "align on the right", formats.change_widths, most=MANY,
    ),
}  # fmt: skip
