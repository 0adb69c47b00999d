"""Statements run on a thread of their own, so that Ctrl-C and the progress bar work meanwhile."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import IO, TypeVar

import einsql

T = TypeVar("T")

_PATIENCE = 2.0
"""Seconds a statement runs before its progress is shown."""

_BAR = 40


class Worker:
    """Runs one piece of work at a time and shows its progress on a terminal.

    A signal handler runs only between two bytecodes of the main thread; a kernel or
    DuckDB holds a thread for seconds. The main thread therefore only waits.

    Attributes:
        interrupted: Whether Ctrl-C came during the latest work, even if it finished.
    """

    def __init__(self, screen: IO[str]) -> None:
        self._screen = screen
        self._fraction: float | None = None
        self._drawn = False
        self.interrupted = False

    def run(self, connection: einsql.Connection, work: Callable[[], T], progress: bool) -> T:
        """Returns what `work` returns or raises what it raises.

        Ctrl-C interrupts the connection; a second one ends the process.
        """
        results: list[T] = []
        failures: list[BaseException] = []
        done = threading.Event()

        def body() -> None:
            try:
                results.append(work())
            except BaseException as e:  # handed to the main thread, whatever it is
                failures.append(e)
            finally:
                done.set()

        watched = progress and self._screen.isatty()
        self._fraction, self.interrupted = None, False
        connection.progress = self._note if watched else None
        threading.Thread(target=body, name="einsql statement", daemon=True).start()
        try:
            self._wait(done, watched)
        except KeyboardInterrupt:
            self.interrupted = True
            connection.interrupt()
            self._erase()
            _wait_or_die(done, connection)
        self._erase()
        if failures:
            raise failures[0]
        return results[0]

    def _note(self, fraction: float) -> None:
        self._fraction = fraction

    def _wait(self, done: threading.Event, watched: bool) -> None:
        if not watched or done.wait(_PATIENCE):
            done.wait()
            return
        start = time.monotonic() - _PATIENCE
        while not done.wait(0.1):
            self._draw(self._fraction, time.monotonic() - start)

    def _draw(self, fraction: float | None, seconds: float) -> None:
        share = min(1.0, max(0.0, fraction or 0.0))
        full = round(_BAR * share)
        bar = "█" * full + "░" * (_BAR - full)
        percent = "   ?" if fraction is None else f"{100 * share:3.0f}%"
        self._screen.write(f"\r{percent} {bar} {seconds:.0f} s ")
        self._screen.flush()
        self._drawn = True

    def _erase(self) -> None:
        if self._drawn:
            self._screen.write("\r\x1b[K")
            self._screen.flush()
            self._drawn = False


def _wait_or_die(done: threading.Event, connection: einsql.Connection) -> None:
    try:
        done.wait()
    except KeyboardInterrupt:
        # No thread can be ended from outside, and an orderly exit would wait for this one.
        try:
            if connection.cluster is not None:
                connection.cluster.kill()
        finally:
            os._exit(130)
