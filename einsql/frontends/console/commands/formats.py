"""Dot commands that change how results are printed, or print the last one in another way."""

from __future__ import annotations

import shlex
import shutil

from einsql.core.quoting import name_of
from einsql.frontends.console.chart import draw_chart
from einsql.frontends.console.commands.command import CommandTarget, did_you_mean, unescaped
from einsql.frontends.console.delimited import ROW_ENDS, SEPARATORS
from einsql.frontends.console.heat import draw_heat
from einsql.frontends.console.image import save_image
from einsql.frontends.console.picture import picture_of
from einsql.frontends.console.render import MODES
from einsql.frontends.console.settings import CommandError


def change_mode(shell: CommandTarget, words: list[str]) -> None:
    """Prints or changes the output mode; a new mode has its own separators."""
    settings = shell.settings
    if not words:
        shell.output.print_lines([f"current output mode: {settings.mode}"])
        return
    mode, *table = words
    if mode not in MODES:
        known = f"The modes are {', '.join(MODES)}."
        raise CommandError(f'There is no output mode "{mode}"\n{did_you_mean(mode, MODES)}{known}')
    if table and mode != "insert":
        raise CommandError("Usage: .mode MODE, or .mode insert TABLE")
    settings.mode, settings.separator, settings.row_end = mode, None, None
    settings.table = name_of(table[0]) if table else '"table"'


def change_separator(shell: CommandTarget, words: list[str]) -> None:
    """Changes the text between fields, and the one after rows."""
    if shell.settings.mode not in SEPARATORS:
        raise CommandError(
            f"The mode {shell.settings.mode} has no separator\n"
            f"Modes with one: {', '.join(SEPARATORS)}."
        )
    shell.settings.separator = unescaped(words[0])
    if len(words) > 1:
        shell.settings.row_end = unescaped(words[1])


def change_widths(shell: CommandTarget, words: list[str]) -> None:
    """Changes the least widths of columns."""
    try:
        shell.settings.widths = tuple(map(int, words))
    except ValueError:
        raise CommandError("Usage: .width NUMBER..., negative to align on the right") from None


def render_columns(shell: CommandTarget, words: list[str]) -> None:
    """Draws a table with a line for each column."""
    shell.settings.columnwise = True


def render_rows(shell: CommandTarget, words: list[str]) -> None:
    """Draws a table with a line for each row."""
    shell.settings.columnwise = False


def change_maxrows(shell: CommandTarget, words: list[str]) -> None:
    """Changes the largest number of rows in a table."""
    if not words[0].isdecimal():
        raise CommandError("Usage: .maxrows COUNT, a whole number; 0 shows all rows")
    shell.settings.maxrows = int(words[0])


def change_null(shell: CommandTarget, words: list[str]) -> None:
    """Changes the text of NULL."""
    shell.settings.null = words[0]


def change_pager(shell: CommandTarget, words: list[str]) -> None:
    """Prints or changes the pager."""
    if not words:
        shell.output.print_lines([shell.settings.pager])
        return
    command = shlex.join(words)
    if command.lower() in ("on", "off"):
        shell.settings.pager = command.lower()
    elif shell.connection.settings.enable_external_access:
        shell.settings.pager = command
    else:
        raise CommandError(".pager COMMAND is off: enable_external_access is false")


def change_prompt(shell: CommandTarget, words: list[str]) -> None:
    """Changes the prompt, and the one of further lines."""
    shell.settings.prompt = unescaped(words[0])
    if len(words) > 1:
        shell.settings.continued = unescaped(words[1])


def show(shell: CommandTarget, words: list[str]) -> None:
    """Prints the settings of the console."""
    settings = shell.settings
    separator = settings.separator or SEPARATORS.get(settings.mode)
    row_end = settings.row_end or ROW_ENDS.get(settings.mode, "\n")
    shown = {
        **{name: "on" if getattr(settings, name) else "off" for name in _SWITCHES},
        "database": shell.database.path,
        "maxrows": str(settings.maxrows),
        "mode": settings.mode + (f" {settings.table}" if settings.mode == "insert" else ""),
        "nullvalue": "of the mode" if settings.null is None else repr(settings.null),
        "output": shell.output.name,
        "pager": settings.pager,
        "prompt": f"{settings.prompt!r} {settings.continued!r}",
        "rendering": "columns" if settings.columnwise else "rows",
        "separator": "none" if separator is None else f"{separator!r} {row_end!r}",
        "width": " ".join(map(str, settings.widths)) or "as needed",
    }
    shell.output.print_lines(f"{name:>9}: {shown[name]}" for name in sorted(shown))


_SWITCHES = ("bail", "echo", "explain", "headers", "progress", "timer")


def print_last(shell: CommandTarget, words: list[str]) -> None:
    """Prints the last result with all rows, columns and characters."""
    shell.print_latest()


def plot(shell: CommandTarget, words: list[str]) -> None:
    """Draws the last result."""
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
