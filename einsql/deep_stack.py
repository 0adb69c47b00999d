"""A stack for statements that nest deeper than a thread's own stack allows."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def with_deep_stack(run: Callable[[], T]) -> T:
    """Runs on a thread whose stack fits expressions nested a thousand deep."""
    outcome: list[T] = []
    failure: list[BaseException] = []

    def target() -> None:
        try:
            outcome.append(run())
        except BaseException as error:
            failure.append(error)

    old_size = threading.stack_size(512 * 2**20)
    old_limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(old_limit, 200_000))
    try:
        thread = threading.Thread(target=target, name="einsql-deep")
        thread.start()
        thread.join()
    finally:
        threading.stack_size(old_size)
        sys.setrecursionlimit(old_limit)
    if failure:
        raise failure[0]
    return outcome[0]
