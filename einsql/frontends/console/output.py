"""The destination of results: the standard output, a file, or a pager."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import IO

from einsql.frontends.console import colours
from einsql.frontends.console.box import display_width
from einsql.frontends.console.settings import CommandError, Settings

_SCROLLED = 50
"""Lines that are printed even if the screen has fewer: a table cut to 40 rows stays in sight."""


class Output:
    """Prints lines.

    Attributes:
        at_prompt: Whether lines are read at a terminal, where a pager may show them.
    """

    def __init__(self, settings: Settings) -> None:
        self.at_prompt = False
        self._settings = settings
        self._file: IO[str] | None = None
        self._once = False

    @property
    def width(self) -> int | None:
        """Characters a line of a table may have; None for any number."""
        return shutil.get_terminal_size().columns if self.is_terminal else None

    @property
    def is_terminal(self) -> bool:
        """True if lines are printed on a terminal."""
        return self._file is None and sys.stdout.isatty()

    @property
    def colours(self) -> int:
        """The depth of the colours that may be printed."""
        return colours.depth(sys.stdout) if self._file is None else colours.NONE

    def write_to(self, path: str | None, once: bool = False) -> None:
        """Sends results to a file, or to the standard output again.

        Args:
            path: The file, which is replaced; None for the standard output.
            once: Whether only the next result goes there.

        Raises:
            CommandError: The file can't be written.
        """
        if self._file is not None:
            self._file.close()
        self._file, self._once = None, once
        if path is not None:
            try:
                self._file = open(path, "w", encoding="utf-8")  # noqa: SIM115 - kept open
            except OSError as e:
                raise CommandError(f'cannot write "{path}": {e.strerror}') from e

    def print_lines(
        self, lines: Iterable[str], *, paged: bool = True, at_once: bool = False
    ) -> None:
        """Prints lines where results go; a pager shows more of them than the screen has.

        Args:
            lines: The lines.
            paged: Whether a pager may show them.
            at_once: Whether each line is flushed immediately.

        Raises:
            CommandError: The pager can't be run.
        """
        if paged and self.at_prompt and self.is_terminal and (command := self._pager()):
            lines = self._page(lines, command)
        out = sys.stdout if self._file is None else self._file
        for line in lines:
            out.write(line + "\n")
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
        """Shows lines by a pager, or gives them back where they fit on the screen."""
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


def _feed(command: str, lines: Iterator[str]) -> None:
    import subprocess  # for pagers only

    sys.stdout.flush()
    environment = {**os.environ, "LESS": os.environ.get("LESS", "SRF")}
    pager = subprocess.Popen(
        command,
        shell=True,
        stdin=subprocess.PIPE,
        env=environment,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert pager.stdin is not None
    with _left_to_child(), pager:
        # Who leaves the pager early has seen enough.
        with suppress(BrokenPipeError):
            for line in lines:
                pager.stdin.write(line + "\n")
        with suppress(BrokenPipeError):
            pager.stdin.close()
    if pager.returncode in (126, 127):  # by which a shell says that it found none
        raise CommandError(f'the pager "{command}" cannot be run; .pager off goes without')


@contextmanager
def _left_to_child() -> Iterator[None]:
    """Leaves Ctrl-C to the pager: it stops a search there, not the console."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
