"""Processes whose calls to the file system are logged, and of which one can be made to fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

SOURCE = Path(__file__).with_name("shim.c")
KINDS = (
    "none", "EIO", "ENOSPC", "short", "kill before", "kill after", "kill within", "EIO from there",
)  # fmt: skip
"""What can become of a call, as the shim numbers them; ENOSPC holds for every later call, too."""
WRITING = ("write",)
"""Kinds of calls that can be done in part."""


@dataclass(frozen=True)
class Call:
    """A call that changes files, or a note between calls.

    Attributes:
        number: From 1; 0 for a note.
        kind: "write", "fsync", …; "note".
        error: Its errno, 0 if it succeeded.
        inode: Of the file.
        offset: Where a write begins, or the size that a file gets.
        path: The file, or the first name; a note's text.
        second: The new name of a rename.
        data: What was written.
    """

    number: int
    kind: str
    error: int
    inode: int
    offset: int
    path: str
    second: str
    data: bytes

    def note(self) -> tuple[str, Any]:
        """What a note says."""
        what, more = json.loads(self.path)
        return what, more


def read_log(path: Path) -> Iterator[Call]:
    """The calls and notes of a log in their order."""
    with path.open("rb") as file:
        while line := file.readline():
            number, kind, error, inode, offset, first, second, size = line[:-1].split(b"\t")
            yield Call(
                int(number), kind.decode(), int(error), int(inode), int(offset),
                os.fsdecode(first), os.fsdecode(second), file.read(int(size)),
            )  # fmt: skip


def build(folder: Path) -> tuple[Path | None, str]:
    """Compiles the shim; gives it, or None and the reason why there is none."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if sys.platform != "linux":
        return None, "the shim is for Linux"
    if compiler is None:
        return None, "there is no C compiler"
    library = folder / "shim.so"
    command = [
        compiler,
        "-O1",
        "-shared",
        "-fPIC",
        "-o",
        str(library),
        str(SOURCE),
        "-ldl",
        "-lpthread",
    ]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        return None, f"the C compiler refuses the shim: {ran.stderr.splitlines()[-1:]}"
    return library, ""


class Nursery:
    """Runs scenarios in processes that have the shim."""

    def __init__(self, orders: IO[str], answers: IO[str]) -> None:
        self._orders, self._answers = orders, answers

    def run(self, folder: Path, log: Path, scenario: str, at: int = 0, kind: str = "none") -> int:
        """Runs a scenario in a folder; gives the status that its process ends with."""
        log.unlink(missing_ok=True)
        order = [str(folder), str(log), at, KINDS.index(kind), scenario]
        self._orders.write(json.dumps(order) + "\n")
        self._orders.flush()
        return int(self._answers.readline())


@contextmanager
def nursery(library: Path) -> Iterator[Nursery]:
    """A process that runs scenarios until the block ends."""
    command = [sys.executable, "-m", "tests.storage.database.scenario"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "LD_PRELOAD": str(library)},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        yield Nursery(process.stdin, process.stdout)
        process.stdin.close()
