"""Processes that end in the middle of a backup, each at another system call."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import duckdb  # noqa: F401 # so that each process that is forked has it

import einsql
import einsql.session.statements.backup  # as above

CALLS = ("fsync", "rename", "replace")


def crash_points(path: str) -> Iterator[tuple[str, str]]:
    """Backs a database up in processes that end, the n-th before its n-th call of `CALLS`.

    Args:
        path: The database, which nobody has open.

    Yields:
        The target, and the call; "end" for the process that came to its end.
    """
    command = [sys.executable, "-m", "tests.storage.database.crashes", path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as nursery:
        assert nursery.stdin is not None
        assert nursery.stdout is not None
        number, call = 0, ""
        while call != "end":
            number += 1
            target = f"{path}.{number}"
            print(number, target, file=nursery.stdin, flush=True)
            call = nursery.stdout.readline().strip()
            assert call in (*CALLS, "end")
            yield target, "rename" if call == "replace" else call
        nursery.stdin.close()


def back_up(path: str, target: str, last: int) -> None:
    """Backs up, and ends before a call."""
    calls = 0

    def ending(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == last:
                os._exit(CALLS.index(name) + 1)
            return call(*args, **more)

        return counted

    with einsql.connect(path) as con:
        for name in CALLS:
            setattr(os, name, ending(name, getattr(os, name)))
        con.execute(f"BACKUP TO '{target}'")
    os._exit(0)


def main() -> None:
    """Forks a process for each line, for starting Python takes long."""
    for line in sys.stdin:
        last, target = line.split()
        pid = os.fork()
        if not pid:
            back_up(sys.argv[1], target, int(last))
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(("end", *CALLS)[status], flush=True)


if __name__ == "__main__":
    main()
