"""Contestants as processes: started once, stopped between turns, asked line by line."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LIMIT = 300.0
"""Seconds that an answer may take."""


MEMORY = (
    "the sum of the processes' peaks of private memory, inputs included, plus memory that they "
    "share with each other, counted once; without pages of files, such as libraries. Peaks at "
    "different moments are added, so the sum is an upper bound"
)
"""What `Process.memory` counts, for the page."""


class Failed(Exception):  # noqa: N818 - a system that fails is a finding, not our error
    """A contestant that gave no answer or a wrong one; the reason."""


class Missing(Failed):
    """A case whose inputs need a peer that is not installed; the reason."""


class Process:
    """A contestant's processes, which form a tree.

    Args:
        command: What starts them.
        environment: Their variables.
        cores: Processors that they may use.
        limit: Seconds that an answer may take.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        cores: int = 0,
        limit: float = LIMIT,
    ) -> None:
        self.limit = limit
        self._errors = tempfile.TemporaryFile(mode="w+b")  # noqa: SIM115 - closed by close()
        everything = os.sched_getaffinity(0)
        os.sched_setaffinity(0, sorted(everything)[: cores or None])  # the processes inherit it
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(environment),
                start_new_session=True,
            )
        except OSError as error:
            raise Failed(str(error)) from None
        finally:
            os.sched_setaffinity(0, everything)
        self._unread = b""
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def ask(self, command: str) -> dict[str, Any]:
        """Sends a command, and returns its answer.

        Raises:
            Failed: The process ends or takes too long.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{command}\n".encode())
            self._process.stdin.flush()
        except OSError:
            raise Failed(self._last_words()) from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        end = time.monotonic() + self.limit
        while True:
            line, found, rest = self._unread.partition(b"\n")
            if found:
                self._unread = rest
                if line.startswith(b'{"'):
                    answer: dict[str, Any] = json.loads(line)
                    return answer
                continue
            self._unread += self._read(end)

    def _read(self, end: float) -> bytes:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, end - time.monotonic())):
                raise Failed(f"no answer after {self.limit:.0f} s")
        read = os.read(self._process.stdout.fileno(), 1 << 16)
        if not read:
            raise Failed(self._last_words())
        return read

    def _last_words(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        self._errors.seek(0)
        lines = self._errors.read()[-4000:].decode(errors="replace").strip().splitlines()
        told = [line for line in lines if "Error" in line] or lines[-1:] or ["no message"]
        return f"exit status {self._process.poll()}: {told[-1].strip()}"

    def stop(self) -> None:
        """Stops all processes, so that none takes time from others' turns."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets all processes go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for pid in tree(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def forget_peak(self) -> None:
        """Lets the next peak of memory begin at what is used now."""
        for pid in tree(self._process.pid):
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def memory(self) -> dict[str, int]:
        """Bytes in use now, and at most since the peak was forgotten, of all processes.

        The peak of resident pages includes pages of files and shared pages, which are subtracted
        as of now. Shared pages are added again in proportion to the processes that map them.
        """
        found = {"now": 0, "peak": 0}
        for pid in tree(self._process.pid):
            with contextlib.suppress(OSError):
                status = _numbers(pid, "status")
                shared = _numbers(pid, "smaps_rollup").get("Pss_Shmem", 0)
                elsewhere = status["RssFile"] + status["RssShmem"]
                found["now"] += status["VmRSS"] - elsewhere + shared
                found["peak"] += status["VmHWM"] - elsewhere + shared
        return found

    def close(self) -> None:
        """Ends all processes."""
        pids = tree(self._process.pid)
        with contextlib.suppress(OSError):
            self.resume()
            assert self._process.stdin is not None
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        for pid in (*pids, *tree(self._process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def _numbers(pid: int, file: str) -> defaultdict[str, int]:
    """The lines in kB of a file of /proc, in bytes; 0 for lines that the file lacks."""
    found: defaultdict[str, int] = defaultdict(int)
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        key, _, value = line.partition(":")
        if value.endswith(" kB"):
            found[key] = int(value.split()[0]) * 1024
    return found


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                after = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2]
                children.setdefault(int(after.split()[1]), []).append(int(entry))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += children.get(pid, [])
    return found


def loopback() -> int:
    """Bytes that have gone through the loopback interface so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return 0
