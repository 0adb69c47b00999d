"""Starts ranks beside this process with mpiexec, and sees to it that they go."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import IO

from einsql.cluster.messages import Hello
from einsql.cluster.wire import receive
from einsql.errors import OperationalError

START = 60.0
"""Seconds the ranks have to report."""
LEAVE = 5.0
"""Seconds they have to leave before they are killed."""

_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)  # fmt: skip


class Job:
    """Ranks started by mpiexec.

    Attributes:
        lines: A connection to each rank, by its number.
        ranks: What each said of itself.
    """

    def __init__(self, ranks: int, launcher: str | None = None) -> None:
        """Starts the ranks and waits until all have reported.

        Args:
            ranks: How many.
            launcher: The command that takes `-n`; by default the mpiexec of this
                environment, else that of the path.

        Raises:
            OperationalError: There is no MPI, or the ranks do not start.
        """
        command = _launcher(launcher)
        self._folder = tempfile.TemporaryDirectory(prefix="einsql-", ignore_cleanup_errors=True)
        address = str(Path(self._folder.name) / "driver")
        key = secrets.token_bytes(32)
        self._log: IO[bytes] = open(Path(self._folder.name) / "log", "w+b")  # noqa: SIM115 - kept
        environment = _environment(ranks) | {"EINSQL_CLUSTER_KEY": key.hex()}
        program = [sys.executable, "-m", "mpi4py", "-m", "einsql.cluster", address]
        with Listener(address, "AF_UNIX", backlog=ranks, authkey=key) as listener:
            self._process = subprocess.Popen(
                [*command, "-n", str(ranks), *program],
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                env=environment, start_new_session=True,
            )  # fmt: skip
            try:
                found = self._accepted(listener, address, key, ranks)
            except BaseException:
                self.kill()
                raise
        self.ranks = [hello for hello, _ in found]
        self.lines = [line for _, line in found]

    def _accepted(
        self, listener: Listener, address: str, key: bytes, ranks: int
    ) -> list[tuple[Hello, Connection]]:
        """Every rank's first message, in their order."""
        found: dict[int, tuple[Hello, Connection]] = {}
        waiting = threading.Event()

        def accept() -> None:
            while len(found) < ranks and not waiting.is_set():
                with contextlib.suppress(AuthenticationError, OSError, EOFError):
                    line = listener.accept()
                    hello = receive(line)
                    if isinstance(hello, Hello):
                        found[hello.rank] = hello, line

        thread = threading.Thread(target=accept, name="einsql ranks", daemon=True)
        thread.start()
        deadline = time.monotonic() + START
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(0.02)
            if self._process.poll() is not None and len(found) < ranks:
                break
        if len(found) == ranks:
            return [found[n] for n in range(ranks)]
        waiting.set()
        with contextlib.suppress(OSError):  # wakes the thread, which waits for a caller
            Client(address, "AF_UNIX").close()
        raise OperationalError(
            f"{len(found)} of {ranks} MPI ranks have started: {self.last_words()}",
            hint="The command was: " + shlex.join(map(str, self._process.args)),  # type: ignore[arg-type]  # a list
        )

    def last_words(self) -> str:
        """The end of what the launcher and the ranks have printed."""
        self._log.seek(0)
        text = self._log.read().decode(errors="replace").strip()
        return " / ".join(text.splitlines()[-6:]) or "they say nothing"

    def close(self) -> None:
        """Waits for the ranks to leave, and kills what stays."""
        for line in self.lines:
            line.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE)
        self.kill()

    def kill(self) -> None:
        """Ends the launcher and every rank on this machine, and frees what they shared."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is not None:
                break
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2.0)
        for hello in getattr(self, "ranks", ()):
            for name in hello.segments:  # ranks that were killed leave theirs behind
                with contextlib.suppress(OSError):
                    os.unlink(name)
        self._log.close()
        self._folder.cleanup()


def _launcher(given: str | None) -> list[str]:
    """The command that starts ranks.

    Raises:
        OperationalError: There is none, or mpi4py is not installed.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise OperationalError(
            "Running on MPI ranks needs mpi4py and an MPI", hint="pip install 'einsql[mpi]'."
        )
    if given:
        return shlex.split(given)
    own = Path(sys.executable).with_name("mpiexec")
    found = str(own) if own.exists() else shutil.which("mpiexec")
    if found is None:
        raise OperationalError(
            "There is no mpiexec on the path", hint="pip install 'einsql[mpi]' brings one."
        )
    return [found]


def _environment(ranks: int) -> dict[str, str]:
    """This process's environment for ranks that share its cores."""
    environment = dict(os.environ)
    threads = max(1, len(os.sched_getaffinity(0)) // ranks)
    for name in _THREADS:
        environment.setdefault(name, str(threads))
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment
