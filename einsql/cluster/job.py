"""Starts ranks beside this process with mpiexec, and sees to it that they go."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import secrets
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import IO
from weakref import WeakSet

from einsql.cluster import remains
from einsql.cluster.messages import Hello, Started
from einsql.cluster.wire import receive
from einsql.errors import OperationalError

START = 60.0
"""Seconds the ranks have to report."""
LEAVE = 5.0
"""Seconds they have to leave before they are killed."""
LAST_WORDS = 1.0
"""Seconds the launcher has to say how a rank ended."""

KEY, MARK = "EINSQL_CLUSTER_KEY", "EINSQL_CLUSTER_JOB"
"""Variables of the ranks' environment."""

_THREADS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
)  # fmt: skip

_ENDED = (
    re.compile(  # MPICH
        r"PID (?P<pid>\d+) RUNNING AT.*?EXIT CODE: (?P<status>\d+)"
        r"(.*?EXIT STRING: .*?\(signal (?P<signal>\d+)\))?", re.S,
    ),
    re.compile(r"PID (?P<pid>\d+) on node \S+ exited on\s+signal (?P<signal>\d+)"),  # Open MPI
)  # fmt: skip
"""What launchers say of a process that ended."""


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """A rank's process and the line to it."""

    line: Connection
    started: Started

    def __str__(self) -> str:
        return str(self.started)


class Job:
    """Ranks started by mpiexec.

    Attributes:
        ranks: The process of each, by its number.
        tolerant: Whether the others go on when one ends (Open MPI with ULFM).
        owner: The process that started them; a fork of it has no part in them.
    """

    def __init__(
        self, ranks: int, launcher: str | None = None, check: Callable[[], None] = lambda: None
    ) -> None:
        """Starts the ranks and waits until all have reported.

        Args:
            ranks: How many.
            launcher: The command that takes `-n`; by default the mpiexec of this
                environment, else that of the path.
            check: Called meanwhile; raises to stop.

        Raises:
            OperationalError: There is no MPI, or the ranks do not start.
        """
        command = _launcher(launcher)
        self.owner = os.getpid()
        self.ranks: list[Process] = []
        self.tolerant = any("ulfm" in word for word in command)
        self._ended = False
        self._since = time.time()
        self._connected: list[Process] = []
        self._ends = select.epoll()
        token = secrets.token_hex(8)
        self._mark = f"{MARK}={token}"
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - kept
        # A name that is in no file system has not to be removed from one.
        address, key = f"\0einsql-{token}", secrets.token_bytes(32)
        environment = _environment(ranks) | {KEY: key.hex(), MARK: token}
        program = [sys.executable, "-m", "mpi4py", "-m", "einsql.cluster", f"@einsql-{token}"]
        with Listener(address, "AF_UNIX", backlog=ranks, authkey=key) as listener:
            self._process = subprocess.Popen(
                [*command, "-n", str(ranks), *program],
                stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                env=environment, start_new_session=True,
            )  # fmt: skip
            _jobs.add(self)
            # Whoever waits for it reaps it, however idle the session is when it ends.
            threading.Thread(target=self._process.wait, name="einsql mpiexec", daemon=True).start()
            try:
                with self._accepting(listener, address, ranks):
                    self._gather(ranks, check)
            except BaseException:
                self.end()
                raise

    @contextlib.contextmanager
    def _accepting(self, listener: Listener, address: str, ranks: int) -> Iterator[None]:
        """Meanwhile processes that call are noted."""
        enough = threading.Event()

        def accept() -> None:
            while len(self._connected) < ranks and not enough.is_set():
                with contextlib.suppress(AuthenticationError, OSError, EOFError):
                    line = listener.accept()
                    started = receive(line)
                    if isinstance(started, Started):
                        self._ends.register(line.fileno(), select.EPOLLRDHUP)
                        self._connected.append(Process(line, started))

        thread = threading.Thread(target=accept, name="einsql ranks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            while thread.is_alive():  # it may wait for a caller
                with contextlib.suppress(OSError):
                    Client(address, "AF_UNIX").close()
                thread.join(0.02)

    def _gather(self, ranks: int, check: Callable[[], None]) -> None:
        """Waits for every rank's Hello.

        Raises:
            OperationalError: They do not come.
        """
        found: dict[int, Process] = {}
        deadline = time.monotonic() + START
        while len(found) < ranks:
            check()
            ready = {p.line: p for p in self._connected if p not in found.values()}
            for line in wait(list(ready), 0.02):
                process = ready[line]  # type: ignore[index]  # only connections were given
                try:
                    hello = receive(process.line)
                except (EOFError, OSError):
                    raise self._failed(f"{len(found)} of {ranks} have reported") from None
                assert isinstance(hello, Hello)
                if hello.ranks != ranks:
                    raise self._failed(
                        f"mpiexec and mpi4py are of different MPIs: a rank knows of {hello.ranks}"
                    )
                found[hello.rank] = process
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise self._failed(f"{len(found)} of {ranks} have reported")
        self.ranks = [found[n] for n in range(ranks)]

    def _failed(self, reason: str) -> OperationalError:
        first = self._closed_lines()
        who = (
            f"; rank {first[0].started.rank} ({first[0]}) {self._end_of(first[0])}" if first else ""
        )
        command = shlex.join(map(str, self._process.args))  # type: ignore[arg-type]  # a list
        return OperationalError(
            f"The ranks have not started: {reason}{who}. {self.last_words()}",
            hint=f"The command was: {command}",
        )

    def _hush(self) -> None:
        """Gives the launcher time to say what it knows."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LAST_WORDS)

    def last_words(self) -> str:
        """The end of what the launcher and the ranks have printed."""
        lines = [s for s in self._text().splitlines() if s.strip(" =")]
        return "They said: " + " / ".join(lines[-6:]) if lines else "They said nothing."

    def _text(self) -> str:
        size = os.fstat(self._log.fileno()).st_size  # its offset is where others append
        start = max(0, size - 2**16)
        return os.pread(self._log.fileno(), size - start, start).decode(errors="replace")

    def ended(self) -> list[int]:
        """The ranks that have ended, in the order in which they did."""
        return [self.ranks.index(p) for p in self._closed_lines() if p in self.ranks]

    def _closed_lines(self) -> list[Process]:
        # The kernel lists lines in the order in which they were closed.
        closed = [number for number, _ in self._ends.poll(0)]
        known = {p.line.fileno(): p for p in self._connected if not p.line.closed}
        return [known[number] for number in closed if number in known]

    def named(self, rank: int) -> str:
        """A rank in words."""
        return f"rank {rank} ({self.ranks[rank]})"

    def end_of(self, rank: int) -> str:
        """How a rank ended, as far as the launcher says."""
        return self._end_of(self.ranks[rank])

    def _end_of(self, process: Process) -> str:
        if not self.tolerant:
            self._hush()
        for found in (f for pattern in _ENDED for f in pattern.finditer(self._text())):
            facts = found.groupdict()
            own = int(facts["pid"]) == process.started.pid
            if facts["signal"] is not None:
                number = signal.Signals(int(facts["signal"]))
                # MPICH may name a rank that it killed itself, with that one's signal.
                if own or number != signal.SIGKILL:
                    return f"was ended by {number.name}"
            elif own:
                return f"has ended with status {facts['status']}"
        return "has ended"

    def keep(self, ranks: Sequence[int]) -> None:
        """Goes on with some of the ranks, numbered anew in the given order."""
        kept = [self.ranks[n] for n in ranks]
        for process in self.ranks:
            if process not in kept:
                self._forget(process)
        self.ranks = kept

    def _forget(self, process: Process) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._ends.unregister(process.line.fileno())
        process.line.close()

    def close(self) -> None:
        """Waits for the ranks to leave, and ends what stays."""
        if self._ended or os.getpid() != self.owner:
            return
        for process in self.ranks:
            self._forget(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE)
        self.end()

    def end(self) -> None:
        """Ends the launcher and every rank on this machine, and removes what they leave."""
        if self._ended or os.getpid() != self.owner:
            return
        self._ended = True
        shared: set[str] = set()
        for pid in remains.marked(self._mark):
            shared |= remains.segments(pid)
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(1.0)
        remains.end(self._mark)  # the ranks are in sessions of their own
        remains.unlink(shared)
        if not self.ranks:
            remains.unlink(remains.forsaken(self._since))
        for folder in Path(tempfile.gettempdir()).glob(f"ompi.{self._process.pid}"):
            shutil.rmtree(folder, ignore_errors=True)
        self._closed()

    def _closed(self) -> None:
        for process in self._connected:
            process.line.close()
        self._ends.close()
        self._log.close()

    def orphaned(self) -> None:
        """In a fork of the owner: lets go of the lines, which must close with the owner."""
        self._ended = True
        self._closed()


_jobs: WeakSet[Job] = WeakSet()


def _forked() -> None:
    for job in list(_jobs):
        job.orphaned()


os.register_at_fork(after_in_child=_forked)


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
        words = shlex.split(given)
        if not words or shutil.which(words[0]) is None:
            raise OperationalError(
                f"mpiexec = '{given}' names no program", hint="Give the command that takes -n."
            )
        return words
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
