"""Suppresses NumPy's warnings about floating-point conditions, which SQL does not report.

Changing NumPy's settings takes a microsecond, as long as a short operation. A program changes
them once for all of its steps, so a kernel within a program does not.
"""

from __future__ import annotations

import threading
from types import TracebackType

import numpy as np


class _Here(threading.local):
    """The state of this thread.

    Attributes:
        ignored: Whether the conditions are ignored.
    """

    ignored = False


here = _Here()


class Ignored:
    """A context that ignores this thread's floating-point conditions and sets `here.ignored`."""

    __slots__ = ("_before", "_state")

    def __enter__(self) -> None:
        self._state = np.errstate(all="ignore")
        self._before = here.ignored
        self._state.__enter__()
        here.ignored = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        here.ignored = self._before
        self._state.__exit__(kind, error, trace)
