"""Processes as tests see them: who comes from whom, and what is left of ranks."""

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

SHARED: set[int] = set()
"""Launchers and ranks that the tests of several files share; no test ends them."""


def descendants(pid: int) -> list[int]:
    """Processes that come from this one, whether or not those between are alive.

    Without shared ranks and the processes that compile kernels: they serve many connections.
    """
    parents: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                facts = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if facts[0] != "Z":
                parents[int(entry.name)] = int(facts[1])
    found = [pid]
    for known in found:
        found += [p for p, parent in parents.items() if parent == known]
    return [p for p in found[1:] if p not in SHARED and not _compiles(p)]


def descriptors(compilers: bool = True) -> set[str]:
    """The numbers and files of this process's descriptors.

    Args:
        compilers: Whether pipes to running compiler processes are among them.
    """
    shared: set[str] = set()
    for entry in os.scandir("/proc"):
        if not compilers and entry.name.isdigit() and _compiles(int(entry.name)):
            shared |= {target for _, target in _files(entry.path) if target.startswith("pipe:")}
    return {
        f"{number} {target}"
        for number, target in _files("/proc/self")
        if target not in shared and not target.endswith("/fd")
    }


def _files(process: str) -> list[tuple[str, str]]:
    pairs = []
    with suppress(OSError):
        for number in os.listdir(f"{process}/fd"):
            with suppress(OSError):
                pairs.append((number, os.readlink(f"{process}/fd/{number}")))
    return pairs


def _compiles(pid: int) -> bool:
    """Whether a process compiles kernels for another one."""
    try:
        return b"compiler.server import serve" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def ranks_of(pid: int) -> list[int]:
    """The ranks among the descendants of a process, in the order of their numbers."""
    found = []
    for p in descendants(pid):
        try:
            command = Path(f"/proc/{p}/cmdline").read_bytes().split(b"\0")
            environ = Path(f"/proc/{p}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"einsql.engine.ranks" in command and os.path.basename(command[0]).startswith(b"python"):
            told = dict(e.split(b"=", 1) for e in environ if b"=" in e)
            number = told.get(b"PMI_RANK", told.get(b"PMIX_RANK"))
            if number is not None:
                found.append((int(number), p))
    return [p for _, p in sorted(found)]


def gone(pids: Iterable[int], seconds: float = 20.0) -> bool:
    """Waits until processes are gone or dead; false if they stay."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_alive(p) for p in pids):
            return True
        time.sleep(0.02)
    return False


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
