"""What the processes of contestants and those who start them say to each other.

A contestant's first process reads commands from its standard input, a line each: `run N`,
`answer` and `quit`. It answers each of the first two with a line of JSON that begins with "{".
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


def serve(
    run: Callable[[], Any],
    answer: Callable[[Any], Mapping[str, Any]],
    *,
    share: Callable[[str], str] = lambda text: text,
    barrier: Callable[[], object] = lambda: None,
    between: Callable[[], object] = lambda: None,
    first: bool = True,
) -> None:
    """Carries out commands until `quit` or the end of the input.

    Args:
        run: The computation, which all processes take part in.
        answer: What is printed about the result of the last run.
        share: The first process's text, at all processes.
        barrier: Waits for all processes.
        between: Runs before each computation, outside of its time.
        first: Whether this is the first process.
    """
    result: Any = None
    if first:
        say({"ready": True})
    while True:
        word, _, count = share(sys.stdin.readline().strip() if first else "").partition(" ")
        if word == "run":
            seconds, times = 0.0, int(count or 1)
            for _ in range(times):
                result = None
                between()
                barrier()
                start = time.perf_counter()
                result = run()
                barrier()
                seconds += time.perf_counter() - start
            found: Mapping[str, Any] = {"seconds": seconds / times}
        elif word == "answer":
            found = answer(result)
        else:
            return
        if first:
            say(found)


def say(found: Mapping[str, Any]) -> None:
    """Prints a line of JSON."""
    print(json.dumps(found), flush=True)
