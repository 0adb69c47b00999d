"""Statements on a worker thread, so that the main thread handles Ctrl-C and the progress bar."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TypeVar

import einsql

T = TypeVar("T")

_PATIENCE = 2.0
"""The seconds before the progress bar of a statement appears."""

_BAR = 40
"""The width of the progress bar, in characters."""


class Worker:
    """Runs one function at a time and shows its progress on a terminal.

    A signal handler runs only between two bytecodes of the main thread. A kernel or DuckDB
    blocks a thread for seconds. The main thread therefore only waits.

    Attributes:
        interrupted: Whether Ctrl-C was pressed during the last function, even if it finished.
    """

    def __init__(self, screen: IO[str]) -> None:
        self._screen = screen
        self._fraction: float | None = None
        self._drawn = 0
        self._start = 0.0
        self._watched = False
        self.interrupted = False

    def run(
        self,
        connection: einsql.Connection,
        work: Callable[[], T],
        progress: bool,
        above: Callable[[], list[str]] = list,
        meanwhile: Callable[[threading.Event], None] | None = None,
    ) -> T:
        """Calls `work` on a worker thread; returns its result and raises its exceptions.

        Ctrl-C interrupts the connection; a second one ends the process.

        Args:
            connection: The connection that `work` uses.
            work: The function to call.
            progress: Whether a terminal shows the progress.
            above: Callback that returns the lines above the progress bar.
            meanwhile: Callback on this thread; its argument is set when `work` has ended.
        """
        results: list[T] = []
        failures: list[BaseException] = []
        done = threading.Event()

        def body() -> None:
            try:
                results.append(work())
            except BaseException as e:  # the main thread raises it again
                failures.append(e)
            finally:
                done.set()

        self._watched = progress and self._screen.isatty()
        self._fraction, self.interrupted = None, False
        self._start = time.monotonic()
        connection.progress = self._note if self._watched else None
        threading.Thread(target=body, name="einsql statement", daemon=True).start()
        try:
            if meanwhile is not None:
                meanwhile(done)
            self._wait(done, above)
        except KeyboardInterrupt:
            self.interrupted = True
            connection.interrupt()
            self.erase()
            _wait_or_die(done, connection)
        except BaseException:  # `meanwhile` failed: no caller reads the result
            connection.interrupt()
            done.wait()
            raise
        self.erase()
        if failures:
            raise failures[0]
        return results[0]

    @contextmanager
    def cancelling(self, connection: einsql.Connection) -> Iterator[None]:
        """A context in which Ctrl-C interrupts the connection and does not interrupt printing.

        All lines are printed completely. A second Ctrl-C ends the process.
        """
        before = signal.getsignal(signal.SIGINT)
        self.interrupted = False

        def cancel(*_: object) -> None:
            if self.interrupted:
                _die(connection)
            self.interrupted = True
            connection.interrupt()

        signal.signal(signal.SIGINT, cancel)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _note(self, fraction: float) -> None:
        self._fraction = fraction

    def _wait(self, done: threading.Event, above: Callable[[], list[str]]) -> None:
        if not self._watched or done.wait(_PATIENCE):
            done.wait()
            return
        while not done.wait(0.1):
            self.draw(above())

    def draw(self, above: Sequence[str] = ()) -> None:
        """Draws the progress bar on a terminal, after the first seconds of work.

        Args:
            above: The lines above the bar, at most as wide as the screen.
        """
        seconds = time.monotonic() - self._start
        if not self._watched or seconds < _PATIENCE:
            return
        share = min(1.0, max(0.0, self._fraction or 0.0))
        full = round(_BAR * share)
        bar = "█" * full + "░" * (_BAR - full)
        percent = "   ?" if self._fraction is None else f"{100 * share:3.0f}%"
        lines = [*above, f"{percent} {bar} {seconds:.0f} s "]
        up = f"\x1b[{self._drawn - 1}A" if self._drawn > 1 else ""
        clear = "\x1b[J" if self._drawn > len(lines) else ""
        ends = "\x1b[K\n" if len(lines) > 1 else ""
        self._screen.write(f"\r{up}{clear}" + ends.join(lines))
        self._screen.flush()
        self._drawn = len(lines)

    def erase(self) -> None:
        """Erases the output of `draw`."""
        if self._drawn:
            up = f"\x1b[{self._drawn - 1}A\r\x1b[J" if self._drawn > 1 else "\r\x1b[K"
            self._screen.write(up)
            self._screen.flush()
            self._drawn = 0


def _wait_or_die(done: threading.Event, connection: einsql.Connection) -> None:
    try:
        done.wait()
    except KeyboardInterrupt:
        _die(connection)


def _die(connection: einsql.Connection) -> None:
    # A thread cannot be ended from outside, and an orderly exit would wait for the worker.
    try:
        if connection.cluster is not None:
            connection.cluster.kill()
    finally:
        os._exit(130)
