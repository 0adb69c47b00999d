"""The destination of results: the standard output, a file, or a pager."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import textwrap
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from itertools import chain
from typing import IO, TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.frontends.console import colours
from einsql.frontends.console.settings import CommandError, Settings
from einsql.storage.results.box import display_width

if TYPE_CHECKING:
    import subprocess
else:  # loaded for pagers and programs
    subprocess = LazyModule("subprocess")

_SCROLLED = 50
"""Lines that are printed without a pager on any screen: enough for a table of 40 rows."""


_MISSING = (126, 127)
"""The exit status of the system's shell for a command that it cannot run."""


class Output:
    """Prints lines to the standard output, a file or a pager.

    Attributes:
        at_prompt: Whether the input is an interactive prompt; only then a pager is used.
        name: The file of the results; "terminal" for the standard output.
    """

    def __init__(self, settings: Settings) -> None:
        self.at_prompt = False
        self._settings = settings
        self._file: IO[str] | None = None
        self._program: subprocess.Popen[str] | None = None
        self._once = False
        self.name = "terminal"

    @property
    def width(self) -> int | None:
        """The largest width of a table's line in characters; None for no limit."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    @property
    def is_terminal(self) -> bool:
        """True if the destination is a terminal."""
        return self._file is None and sys.stdout.isatty()

    @property
    def colours(self) -> int:
        """The colour depth of the destination in bits."""
        return colours.depth(sys.stdout) if self._file is None else colours.NONE

    def write_to(self, path: str | None, once: bool = False) -> None:
        """Redirects results to a file or a program, or back to the standard output.

        Args:
            path: The file, which is overwritten; `|` and a command line for a program that reads
                the results; None for the standard output.
            once: Whether only the next result is redirected.

        Raises:
            CommandError: The file cannot be written, or the previous program could not be run.
        """
        self._end()
        self._once, self.name = once, path or "terminal"
        if path is not None and path.startswith("|"):
            self._program = _started(path[1:])
            self._file = self._program.stdin
        elif path is not None:
            try:
                self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - the file stays open
            except OSError as e:
                raise CommandError(f'cannot write "{path}": {e.strerror}') from e

    def _end(self) -> None:
        """Closes the file, or waits for the program to end."""
        file, program, self._file, self._program = self._file, self._program, None, None
        if file is not None:
            with suppress(BrokenPipeError) if program is not None else nullcontext():
                file.close()
        if program is not None:
            with _left_to_child():
                program.wait()
            if program.returncode in _MISSING:
                raise CommandError(f'the command "{program.args!s}" cannot be run')

    def print_lines(
        self,
        lines: Iterable[str],
        *,
        paged: bool = True,
        at_once: bool = False,
        end: str = "\n",
    ) -> None:
        """Prints lines to the destination of results; a pager shows long results.

        Args:
            lines: The lines, without line ends.
            paged: Whether a pager can show the lines.
            at_once: Whether each line is flushed immediately.
            end: The text after each line.

        Raises:
            CommandError: The pager cannot be run.
        """
        if paged and self.at_prompt and self.is_terminal and (command := self._pager()):
            lines = self._page(lines, command)
        out = sys.stdout if self._file is None else self._file
        # A program may end before it has read all lines.
        with suppress(BrokenPipeError) if self._program is not None else nullcontext():
            for line in lines:
                out.write(line + end)
                if at_once:
                    out.flush()
            out.flush()
        if self._once:
            self.write_to(None)

    # Pagers

    def _pager(self) -> str | None:
        chosen = self._settings.pager
        if chosen != "on":
            return None if chosen == "off" else chosen
        return os.environ.get("PAGER") or ("less -SRF" if shutil.which("less") else None)

    def _page(self, lines: Iterable[str], command: str) -> Iterable[str]:
        """Shows lines in a pager; returns them unprinted if they fit on the screen."""
        size, used, first = shutil.get_terminal_size(), 1, list[str]()
        most = max(size.lines, _SCROLLED)
        rest = iter(lines)
        for line in rest:
            first.append(line)
            used += max(1, -(-display_width(line) // size.columns))
            if used > most:
                _feed(command, chain(first, rest))
                return ()
        return first


def tell(message: str) -> None:
    """Prints a message on the standard error; on a terminal its lines break between words."""
    if sys.stderr.isatty():
        message = wrapped(message, shutil.get_terminal_size().columns)
    print(message, file=sys.stderr)


def wrapped(message: str, width: int) -> str:
    """The message with lines of at most this width, except for a quoted line of a statement."""
    text, quote, place = message.partition("\n\nLINE ")
    lines = [
        part
        for line in text.split("\n")
        for part in textwrap.wrap(
            line,
            max(width, 20),
            subsequent_indent=" " * (len(line) - len(line.lstrip())),
            break_long_words=False,
            break_on_hyphens=False,
        )
        or [""]
    ]
    return "\n".join(lines) + quote + place


def _started(command: str) -> subprocess.Popen[str]:
    """Runs a command line of the system's shell that reads lines."""
    sys.stdout.flush()
    environment = {**os.environ, "LESS": os.environ.get("LESS", "SRF")}
    return subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
    )


def _feed(command: str, lines: Iterator[str]) -> None:
    pager = _started(command)
    assert pager.stdin is not None
    with _left_to_child(), pager:
        # The user quit the pager before its end.
        with suppress(BrokenPipeError):
            for line in lines:
                pager.stdin.write(line + "\n")
        with suppress(BrokenPipeError):
            pager.stdin.close()
    if pager.returncode in _MISSING:
        raise CommandError(f'the pager "{command}" cannot be run; .pager off goes without')


@contextmanager
def _left_to_child() -> Iterator[None]:
    """Ignores Ctrl-C in the console: in a pager it stops a search."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
