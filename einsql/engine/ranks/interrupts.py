"""Ctrl-C between messages instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """Delays SIGINT. The function it yields raises the handler's exception after a signal.

    Only the main thread receives signals. A handler in C, or none, stays installed.
    """
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: None
        return
    came: list[tuple[int, Any]] = []

    def handle() -> None:
        if came:
            number, frame = came.pop()
            came.clear()
            before(number, frame)

    signal.signal(signal.SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        yield handle
    finally:
        signal.signal(signal.SIGINT, before)
    handle()
