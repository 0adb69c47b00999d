"""Exceptions of signal handlers between messages instead of in the middle of one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGALRM", "SIGUSR1", "SIGUSR2")
SIGNALS = tuple(getattr(signal, name) for name in _NAMES if hasattr(signal, name))
"""The delayed signals, those to which applications attach handlers that raise.

SIGPROF and SIGVTALRM are left out: a profiler records the line at which they arrive.
"""


@contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """Delays the handlers of `SIGNALS`. The function it yields calls those of received signals.

    The handlers may raise any exception, as a time limit does. The end of the context calls the
    remaining ones. Only the main thread receives signals. A handler in C, or none, stays
    installed.
    """
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {n: h for n in SIGNALS if callable(h := signal.getsignal(n))}
    received: dict[int, FrameType | None] = {}

    def handle() -> None:
        while received:
            number, frame = received.popitem()
            handlers[number](number, frame)

    with ExitStack() as stack:
        stack.callback(handle)
        for number, handler in handlers.items():
            stack.callback(signal.signal, number, handler)
            signal.signal(number, received.__setitem__)
        yield handle
