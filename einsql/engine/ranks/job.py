"""Starts ranks on this machine or others with mpiexec, and makes sure that they end."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from einsql.core import forks
from einsql.engine.ranks import leftovers
from einsql.engine.ranks.failure_diagnosis import Ended, Loss, loss, reports
from einsql.engine.ranks.processes import Processes
from einsql.engine.ranks.rendezvous import KEY, LOG, Meeting
from einsql.engine.ranks.threads import limited
from einsql.errors import OperationalError, ProgrammingError
from einsql.kernels.runtime import compile_cache

LEAVE = 5.0
"""Seconds for the ranks to exit before they are killed."""
LAST_WORDS = 1.0
"""Seconds for the launcher to report how a rank ended."""

_NO_TOPOLOGY = "/proc/self/einsql-no-topology"
"""A path at which no file can be created."""

MARK = "EINSQL_CLUSTER_JOB"
"""The environment variable that identifies the ranks of a job."""


class Job(Processes):
    """Ranks started by mpiexec."""

    def __init__(
        self,
        ranks: int,
        launcher: str | None = None,
        host: str | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts the ranks and waits until all have reported.

        Args:
            ranks: The number of ranks.
            launcher: A command that accepts `-n`, or contains `{n}` for the number of ranks. The
                default is the mpiexec of this environment, else of PATH.
            host: The name of this machine for ranks on other machines. The default is its host
                name where the launcher may use several machines.
            check: Called during the wait; raises to stop.

        Raises:
            OperationalError: MPI is missing, or the ranks do not start.
        """
        command = launcher_of(launcher, ranks)
        here = host is None and launcher is None and not _scattered()
        with Meeting(None if here else host or "") as meeting:
            super().__init__()
            self.tolerant = any("ulfm" in word for word in command)
            self.ordered = here
            self._over = False
            self._since = time.time()
            token = secrets.token_hex(8)
            self._mark = f"{MARK}={token}"
            self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open until the end
            environment = _environment(ranks if here else None)
            environment |= {KEY: meeting.key.hex(), MARK: token}
            if here:
                # The shared offset of the launcher's descriptor would overwrite lines of the ranks.
                fcntl.fcntl(self._log, fcntl.F_SETFL, os.O_RDWR | os.O_APPEND)
                environment[LOG] = f"/proc/{os.getpid()}/fd/{self._log.fileno()}"
            program = [sys.executable, "-m", "mpi4py", "-m", "einsql.engine.ranks", meeting.address]
            self._command = [*command, *program]
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=environment,
                start_new_session=True,  # Ctrl-C goes to this process only
            )
            # A waiting thread reaps the process, also while the session is idle.
            threading.Thread(target=self._process.wait, name="einsql mpiexec", daemon=True).start()
            try:
                self._gather(meeting, ranks, check)
            except BaseException:
                self.end()
                raise

    def _coming(self) -> bool:
        return self._process.poll() is None

    def _failed(self, reason: str) -> OperationalError:
        who = ""
        if self._gone():
            self._hush()
            judged = self._judged([self._known(p) for p in self._gone()])
            who = f"; {judged.who} {judged.how}"
        return OperationalError(
            f"The ranks have not started: {reason}{who}. {self.last_words()}",
            hint=f"The command was: {shlex.join(self._command)}",
        )

    def _hush(self) -> None:
        """Gives the launcher time to print its messages."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS)

    def last_words(self) -> str:
        """Returns the end of the output of the launcher and the ranks."""
        lines = [s for s in self._text().splitlines() if s.strip(" =")]
        return "They said: " + " / ".join(lines[-6:]) if lines else "They said nothing."

    def _text(self) -> str:
        size = os.fstat(self._log.fileno()).st_size  # keep the offset of the appenders
        start = max(0, size - 2**16)
        return os.pread(self._log.fileno(), size - start, start).decode(errors="replace")

    def _judged(self, ended: Sequence[Ended]) -> Loss:
        status, killed = self._process.poll(), None
        if status is not None and status < 0:
            who = f"the launcher (process {self._process.pid} on {socket.gethostname()})"
            killed = Loss(who, f"was ended by {signal.Signals(-status).name}")
        return loss(ended, self._left(), self.ordered, reports(self._text()), killed)

    def loss(self) -> Loss:
        """Determines which rank ended first, as far as known."""
        if not self.tolerant:
            self._hush()
            deadline = time.monotonic() + LAST_WORDS
            # The death of the launcher ends all ranks, but with a delay.
            while (self._process.poll() or 0) < 0 and time.monotonic() < deadline:
                if not self._left():
                    break
                time.sleep(0.01)
        return super().loss()

    def close(self) -> None:
        """Waits for the ranks to exit, and kills the remaining ones."""
        if self._over:
            return
        for process in self.ranks:
            self._forget(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE)
        self.end()

    def end(self) -> None:
        """Ends the launcher and every rank on this machine, and removes their leftovers."""
        if self._over:
            return
        self._over = True
        shared: set[str] = set()
        for pid in leftovers.marked(self._mark):
            shared |= leftovers.segments(pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
        leftovers.end(self._mark)  # the ranks have sessions of their own
        leftovers.unlink(shared)
        if not self.ranks:
            leftovers.unlink(leftovers.forsaken(self._since))
        for folder in Path(tempfile.gettempdir()).glob(f"ompi.{self._process.pid}"):
            shutil.rmtree(folder, ignore_errors=True)
        self._close_lines()

    def _close_lines(self) -> None:
        super()._close_lines()
        self._log.close()

    def forked(self, refusal: forks.Refusal) -> None:
        """Prepares a forked child, which must not end the ranks: the launcher is not its child."""
        self._over = True
        forks.never_destroy(self._process)
        super().forked(refusal)


def launcher_of(command: str | None, ranks: int) -> list[str]:
    """Returns the command that starts ranks, up to the program.

    Raises:
        OperationalError: The launcher is missing, or mpi4py is not installed.
        ProgrammingError: The option is no valid command.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise OperationalError(
            "Running on MPI ranks needs mpi4py and an MPI", hint="pip install 'einsql[mpi]'."
        )
    if command is None:
        return [_found("mpiexec"), "-n", str(ranks)]
    try:
        words = shlex.split(command.replace("{n}", str(ranks)))
    except ValueError as error:
        raise ProgrammingError(f"mpiexec is a command, not {command}: {error}") from None
    if not words:
        raise ProgrammingError("mpiexec is a command, not an empty text")
    return [_found(words[0]), *words[1:], *([] if "{n}" in command else ["-n", str(ranks)])]


def _found(command: str) -> str:
    """Returns the path of a command: beside this Python, which may be inactive, or in PATH.

    Raises:
        OperationalError: The command does not exist.
    """
    own = Path(sys.executable).parent / command
    path = str(own) if own.is_file() else shutil.which(command)
    if path is None:
        raise OperationalError(
            f"The command {command}, which starts MPI ranks, does not exist",
            hint="pip install 'einsql[mpi]' installs mpiexec; config 'mpiexec' sets another.",
        )
    return path


def _scattered() -> bool:
    """Whether this is a batch job on several machines; a launcher uses all of them."""
    return os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1" or "PBS_NODEFILE" in os.environ


def _environment(ranks: int | None) -> dict[str, str]:
    """Returns the environment for ranks.

    Args:
        ranks: The number of ranks that share the cores, or None if it is unknown.
    """
    environment = dict(os.environ)
    if ranks is not None:
        limited(environment, len(os.sched_getaffinity(0)) // ranks)
    here = str(Path(__file__).parents[3])
    paths = [here, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["PYTHONSAFEPATH"] = "1"  # no module in the current folder shadows einsql
    # MPICH's launcher writes the topology to a file in /tmp, which remains if it is killed. With
    # this variable it writes none; as the named file is missing, each rank discovers the topology.
    environment.setdefault("HWLOC_XMLFILE", _NO_TOPOLOGY)
    if environment.get("EINSQL_CACHE_DIR"):
        environment["EINSQL_CACHE_DIR"] = str(
            compile_cache.named()
        )  # ranks may start in another folder
    return environment
