"""The shell: reads scripts and prompts line by line, runs statements, prints results."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import einsql
from einsql.errors import Error, InterruptedError
from einsql.frontends.console import colours
from einsql.frontends.console.commands.registry import run_command
from einsql.frontends.console.delimited import ROW_ENDS
from einsql.frontends.console.loops import Arrivals
from einsql.frontends.console.output import Output, tell
from einsql.frontends.console.render import GROWING, render
from einsql.frontends.console.settings import Bail, CommandError, Database, Leave, Settings
from einsql.frontends.console.style import Style
from einsql.frontends.console.work import Worker
from einsql.storage.results.box import Row
from einsql.storage.results.value_text import Column, columns_of

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster

T = TypeVar("T")

_BATCH = 4096
"""The number of rows of a fetch."""
_LOOP = re.compile(r"for\b", re.IGNORECASE)
"""The first word of a loop, which runs step by step."""


class Shell:
    """A connection with its settings and the destination of its results.

    Attributes:
        settings: The settings; they can change between statements.
        output: The destination of results.
        failed: Whether a statement or command has failed.
        latest: The cursor of the last result that had rows; it keeps the result's memory.
        latest_text: The last text of statements that has run.
    """

    def __init__(self, database: Database, settings: Settings) -> None:
        """Opens the database.

        Raises:
            Error: The database cannot be opened.
        """
        self.settings = settings
        self.output: Output = Output(settings)
        self.failed = False
        self.latest: einsql.Cursor | None = None
        self.latest_text = ""
        self.database = database
        self._ranks: Cluster | None = None
        self.connection = self._connect(database)
        if self.connection.cluster is not None:
            self._ranks = self.connection.cluster.join()
        self._worker = Worker(sys.stderr)
        self._reading: list[str] = []

    def _connect(self, database: Database) -> einsql.Connection:
        config = database.config
        if self._ranks is not None:
            config = {**config, "mpi": self._ranks}
        in_memory = database.path in ("", ":memory:")
        path = database.path if in_memory else os.path.abspath(database.path)  # .cd may follow
        return einsql.connect(path, read_only=database.read_only, config=config)

    def open(self, path: str) -> None:
        """Closes the database and opens another one with the same options and ranks.

        Raises:
            Error: The database cannot be opened; the previous database stays open.
        """
        database = Database(path, self.database.read_only, self.database.config)
        self.latest = None
        connection = self._connect(database)
        self.connection.close()
        self.connection, self.database = connection, database

    def close(self) -> None:
        """Closes the output file and the database, and releases the MPI ranks."""
        self.output.write_to(None)
        if not self.connection.closed:  # reopening the same file can fail
            self.connection.close()
        if self._ranks is not None:
            self._ranks.part()

    # Reading

    def run_file(self, path: str) -> None:
        """Runs a script.

        Raises:
            CommandError: The file cannot be read, or the script runs itself.
            Leave: The script ends the shell.
            Bail: An error occurred with the setting `bail`.
        """
        if path in self._reading:
            raise CommandError(f'"{path}" reads itself')
        self._reading.append(path)
        try:
            with open(path, encoding="utf-8-sig") as lines:
                self.run_lines(lines, path)
        except OSError as e:
            raise CommandError(f'cannot read "{path}": {e.strerror}') from e
        finally:
            self._reading.pop()

    def run_lines(self, lines: Iterable[str], source: str = "") -> None:
        """Runs statements and dot commands while their lines arrive.

        Args:
            lines: The lines with their line ends; a statement can span several lines.
            source: The name of the script, for error messages.

        Raises:
            CommandError: The lines are not UTF-8 text.
            Leave: The script ends the shell.
            Bail: An error occurred with the setting `bail`.
        """
        pending, first = "", 1
        try:
            for number, line in enumerate(lines, 1):
                if line.startswith(".") and self.is_blank(pending):
                    self.run_command(line, source)
                    pending = ""
                    continue
                first = first if pending else number
                pending += line
                if ";" in line and self.connection.is_complete(pending):
                    self.run_text(pending, source, first)
                    pending = ""
        except UnicodeDecodeError as e:
            raise CommandError(f"{source or 'the input'} is not UTF-8 text") from e
        if pending:
            self.run_text(pending, source, first)

    def is_blank(self, text: str) -> bool:
        """True if a text contains neither a statement nor the beginning of a statement."""
        try:
            return not self.connection.split(text)
        except Error:
            return False

    def run_command(self, line: str, source: str = "") -> None:
        """Runs one dot command.

        Raises:
            Leave: The command ends the shell.
            Bail: An error occurred with the setting `bail`.
        """
        if self.settings.echo:
            self.output.print_lines([line.rstrip("\n")])
        with self.reporting(source):
            run_command(self, line)

    def run_text(self, text: str, source: str = "", line: int = 1) -> None:
        """Runs the statements of a text; an error ends the run only with the setting `bail`.

        Args:
            text: Any number of complete statements.
            source: The name of the script, for error messages.
            line: The number of the text's first line in the script.

        Raises:
            Bail: A statement failed with the setting `bail`.
            KeyboardInterrupt: Ctrl-C cancelled a statement.
        """
        statements: list[tuple[int, str]] = []
        with self.reporting(source, text, line):
            statements = self.connection.split(text)
        self.latest_text = text if statements else self.latest_text
        for offset, sql in statements:
            with self.reporting(source, text, line, offset, sql):
                self._statement(sql)
            if self._worker.interrupted:
                raise KeyboardInterrupt

    # Running

    def _statement(self, sql: str) -> None:
        if self.settings.echo:
            self.output.print_lines([sql + ";"])
        if self.settings.explain and sql.lstrip("( \n").lower().startswith(("select", "with")):
            self._query(f"EXPLAIN {sql}")
        start, used = time.perf_counter(), os.times()
        self._query(sql)
        if self.settings.timer:
            now = os.times()
            print(
                f"Run Time (s): real {time.perf_counter() - start:.3f} "
                f"user {now.user - used.user:.3f} sys {now.system - used.system:.3f}"
            )

    def _query(self, sql: str) -> None:
        if _LOOP.match(sql):
            self._loop(sql)
            return
        try:
            cursor = self.work(lambda: self.connection.execute(sql))
        finally:
            self._tell()
        if cursor.description is not None:
            columns = columns_of(cursor.description)
            # The first fetch gathers remote tiles; Ctrl-C must not interrupt the transfer.
            total, first = self.work(lambda: (cursor.rowcount, cursor.fetchmany(_BATCH)))
            if self._worker.interrupted:
                raise KeyboardInterrupt
            self.latest = cursor
            self._print(columns, _rows(first, cursor), self._style(total))

    def print_latest(self) -> None:
        """Prints the last result again, with all rows, columns and characters.

        Raises:
            CommandError: There is no result.
        """
        cursor = self.latest
        if cursor is None or cursor.description is None:
            raise CommandError("There is no result to print yet; run a SELECT first, then .last")
        cursor.rewind()
        total, first = self.work(lambda: (cursor.rowcount, cursor.fetchmany(_BATCH)))
        style = replace(self._style(total), maxrows=0, cut=False)
        self._print(columns_of(cursor.description), _rows(first, cursor), style)

    def _print(self, columns: Sequence[Column], rows: Iterable[Row], style: Style) -> None:
        mode = self.settings.mode
        self.output.print_lines(render(mode, columns, rows, style), end=self._row_end(mode))

    def _row_end(self, mode: str) -> str:
        return self.settings.row_end or ROW_ENDS.get(mode, "\n")

    def _tell(self) -> None:
        for notice in self.connection.notices:
            tell(f"Notice: {notice}")
        self.connection.notices.clear()

    def _loop(self, sql: str) -> None:
        """Runs a loop; prints a table on a terminal at the end, other output after each step."""
        arrivals, cursor = Arrivals(), self.connection.cursor()
        self.connection.stepped = arrivals.put
        self.connection.context.progress.report_reads = False
        is_table = self.output.is_terminal and self.settings.mode in GROWING
        above = partial(arrivals.lines, colours.depth(sys.stderr)) if is_table else list
        prints = None if is_table else partial(self._print_arriving, arrivals)
        progress = self.settings.progress
        try:
            with self._worker.cancelling(self.connection):
                work = partial(cursor.execute, sql)
                self._worker.run(self.connection, work, progress, above, prints)
        finally:
            self.connection.stepped = None
            self.connection.context.progress.report_reads = True
            if cursor.description is not None:
                self.latest = cursor
            if cursor.description is not None and (is_table or not arrivals.columns):
                columns, rows = columns_of(cursor.description), cursor.fetchall()
                self._print(columns, rows, self._style(len(rows)))
            self._tell()

    def _print_arriving(self, arrivals: Arrivals, done: threading.Event) -> None:
        """Prints the rows of a loop after each step."""
        rows = arrivals.rows(done, list if self.output.is_terminal else self._worker.draw)
        mode = GROWING.get(self.settings.mode, self.settings.mode)
        first = next(rows, None)
        if first is not None:
            lines = render(mode, arrivals.columns, chain([first], rows), self._style(-1))
            end = self._row_end(mode)
            self.output.print_lines(self._apart(lines), paged=False, at_once=True, end=end)

    def _apart(self, lines: Iterator[str]) -> Iterator[str]:
        """Erases the progress bar before each line."""
        for line in lines:
            self._worker.erase()
            yield line

    def work(self, work: Callable[[], T]) -> T:
        """Calls a function under the progress bar; Ctrl-C cancels it."""
        return self._worker.run(self.connection, work, self.settings.progress)

    def _style(self, total: int) -> Style:
        settings = self.settings
        return Style(
            null=settings.null,
            maxrows=settings.maxrows,
            width=self.output.width,
            total=total,
            headers=settings.headers,
            separator=settings.separator,
            widths=settings.widths,
            columnwise=settings.columnwise,
            table=settings.table,
        )

    # Errors

    @contextmanager
    def reporting(
        self, source: str = "", text: str = "", line: int = 1, offset: int = 0, sql: str = ""
    ) -> Iterator[None]:
        """Prints an error as a message; with the setting `bail` it also ends the script.

        Args:
            source: The name of the script; empty for the command line and the prompt.
            text: The statements that run inside the context.
            line: The number of the statements' first line in the script.
            offset: The offset of the running statement in `text`.
            sql: The running statement.

        Raises:
            Bail: An error occurred with the setting `bail`.
            KeyboardInterrupt: A statement was cancelled.
        """
        try:
            yield
            return
        except InterruptedError:
            raise KeyboardInterrupt from None
        except Error as e:
            if e.position is not None and e.sql in (None, text, sql):
                inside = offset if e.sql != text else 0
                lead = "\n" * (line - 1)  # line numbers count from the script's start
                e.sql, e.position = lead + text, len(lead) + inside + e.position
            message = str(e)
        except CommandError as e:
            message = str(e)
        except MemoryError:
            message = "Out of memory"
        except (Leave, BrokenPipeError):
            raise
        except OSError as e:
            message = f"cannot read or write: {e.strerror or e}"
        except Exception as e:  # an internal error must not end the session
            message = f"Internal error ({type(e).__name__}): {e}\nPlease report it."
            if sys.flags.dev_mode:
                message = traceback.format_exc()
        self.report(message, source)
        if self.settings.bail:
            raise Bail

    def report(self, message: str, source: str = "") -> None:
        """Prints an error; the exit status will be 1."""
        self.failed = True
        sys.stdout.flush()
        tell(f"Error in {source}: {message}" if source else f"Error: {message}")


def _rows(first: Sequence[Row], cursor: einsql.Cursor) -> Iterator[Row]:
    yield from first
    while batch := cursor.fetchmany(_BATCH):
        yield from batch
