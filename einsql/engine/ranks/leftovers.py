"""Leftovers of ranks on this machine: processes, shared memory, folders."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

_SHARED = Path("/dev/shm")
_NAMES = re.compile(r"(mpich_shm|sm_segment|ucx_shm|vader_segment)")
"""The names of the shared-memory files of MPI implementations."""


def segments(pid: int | str = "self") -> set[str]:
    """Returns the shared-memory files that a process has mapped and that still have a name."""
    paths = set()
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[-1].strip()
            if path.startswith(f"{_SHARED}/") and _NAMES.match(path[len(f"{_SHARED}/") :]):
                paths.add(path)
    return {p for p in paths if not p.endswith(" (deleted)")}


def unlink(paths: Iterable[str]) -> None:
    """Unlinks files of shared memory; processes keep what they have mapped until they end."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def marked(mark: str) -> list[int]:
    """Returns the processes of this user whose environment contains a text."""
    pids, wanted = [], mark.encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{entry.name}/environ", "rb") as file:
                if wanted in file.read():
                    pids.append(int(entry.name))
    return pids


def end(mark: str, within: float = 5.0) -> None:
    """Kills marked processes until none is left.

    Args:
        mark: A text in their environment.
        within: The timeout in seconds.
    """
    deadline = time.monotonic() + within
    while (pids := marked(mark)) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def forsaken(since: float) -> list[str]:
    """Finds shared memory of this user that was created after a time and is mapped by none.

    A rank that is killed during the start of MPI has not reported its segments. A segment that
    another process has just created is mapped a moment later, so the search runs twice.

    Args:
        since: Seconds since the epoch.
    """
    unmapped = _unmapped(since)
    if unmapped:
        time.sleep(0.2)
        unmapped &= _unmapped(since)
    return sorted(unmapped)


def _unmapped(since: float) -> set[str]:
    paths = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(_SHARED):
            with contextlib.suppress(OSError):
                facts = entry.stat()
                own = facts.st_uid == os.getuid() and facts.st_mtime >= since
                if own and _NAMES.match(entry.name):
                    paths.add(entry.path)
    if paths:
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                paths -= segments(entry.name)
    return paths
