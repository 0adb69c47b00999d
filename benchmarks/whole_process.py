"""Seconds of a command, and of the processor: `python -S -m benchmarks.whole_process COMMAND`.

The command is measured from start to end. Processes that it leaves running, such as a compiler,
end before the answer is printed, so that they do not slow down the next measurement. They do not
count.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from contextlib import suppress

_SUBREAPER = 36
"""Linux's PR_SET_CHILD_SUBREAPER: orphans become children of this process."""


def main(command: list[str]) -> int:
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    start = time.perf_counter()
    child = os.posix_spawn(command[0], command, os.environ)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    with suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    print(seconds, usage.ru_utime + usage.ru_stime)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
