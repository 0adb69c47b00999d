"""Starts ranks beside this process with mpiexec, and sees to it that they go."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO

from einsql.cluster.meeting import KEY, Meeting
from einsql.cluster.messages import Hello
from einsql.cluster.threads import limited
from einsql.errors import OperationalError, ProgrammingError

LEAVE = 5.0
"""Seconds they have to leave before they are killed."""


class Job:
    """Ranks started by mpiexec.

    Attributes:
        lines: A connection to each rank, by its number.
        ranks: What each said of itself.
    """

    def __init__(
        self, ranks: int, launcher: str | None = None, host: str | None = None
    ) -> None:  # fmt: skip
        """Starts the ranks and waits until all have reported.

        Args:
            ranks: How many.
            launcher: The command that takes `-n`, or has `{n}` where their number goes; by
                default the mpiexec of this environment, else that of the path.
            host: The name under which ranks on other machines reach this one; by default
                its own name where the launcher may start any.

        Raises:
            OperationalError: There is no MPI, or the ranks do not start.
        """
        command = launcher_of(launcher, ranks)
        here = host is None and launcher is None and not _scattered()
        self._folder = tempfile.TemporaryDirectory(prefix="einsql-", ignore_cleanup_errors=True)
        self._log: IO[bytes] = open(Path(self._folder.name) / "log", "w+b")  # noqa: SIM115 - kept
        environment = _environment(ranks if here else None)
        try:
            with Meeting(self._folder.name, None if here else host or "") as meeting:
                program = [sys.executable, "-m", "mpi4py", "-m", "einsql.cluster", meeting.address]
                environment[KEY] = meeting.key.hex()
                self._process = subprocess.Popen(
                    [*command, *program],
                    stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log,
                    env=environment, start_new_session=True,  # Ctrl-C is for this process alone
                )  # fmt: skip
                found = self._reported(meeting, ranks)
        except BaseException:
            self.kill()
            raise
        self.ranks = [hello for hello, _ in found]
        self.lines = [line for _, line in found]

    _process: subprocess.Popen[bytes] | None = None

    def _reported(self, meeting: Meeting, ranks: int) -> list[tuple[Hello, Connection]]:
        """Every rank's first message and line, in their order."""
        process = self._process
        assert process is not None
        found = meeting.gather(ranks, lambda: process.poll() is None)
        if len(found) == ranks:
            return [found[n] for n in range(ranks)]
        raise OperationalError(
            f"{len(found)} of {ranks} MPI ranks have started: {self.last_words()}",
            hint="The command was: " + shlex.join(map(str, process.args)),  # type: ignore[arg-type]  # a list
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
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE)
        self.kill()

    def kill(self) -> None:
        """Ends the launcher and every rank on this machine, and frees what they shared."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process is None or self._process.poll() is not None:
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


def launcher_of(given: str | None, ranks: int) -> list[str]:
    """The words that start ranks, up to the program.

    Raises:
        OperationalError: There is no launcher, or mpi4py is not installed.
        ProgrammingError: The given text is no command.
    """
    if importlib.util.find_spec("mpi4py") is None:
        raise OperationalError(
            "Running on MPI ranks needs mpi4py and an MPI", hint="pip install 'einsql[mpi]'."
        )
    if given is None:
        return [_found("mpiexec"), "-n", str(ranks)]
    try:
        words = shlex.split(given.replace("{n}", str(ranks)))
    except ValueError as error:
        raise ProgrammingError(f"mpiexec is a command, not {given}: {error}") from None
    if not words:
        raise ProgrammingError("mpiexec is a command, not an empty text")
    return [_found(words[0]), *words[1:], *([] if "{n}" in given else ["-n", str(ranks)])]


def _found(command: str) -> str:
    """Where a command is: beside this Python, whose environment may not be active, or elsewhere.

    Raises:
        OperationalError: It is nowhere.
    """
    own = Path(sys.executable).parent / command
    found = str(own) if own.is_file() else shutil.which(command)
    if found is None:
        raise OperationalError(
            f"There is no {command} that could start MPI ranks",
            hint="pip install 'einsql[mpi]' brings an mpiexec; config 'mpiexec' names another.",
        )
    return found


def _scattered() -> bool:
    """True in a job of several machines, over which a launcher deals its ranks by itself."""
    return os.environ.get("SLURM_JOB_NUM_NODES", "1") != "1" or "PBS_NODEFILE" in os.environ


def _environment(ranks: int | None) -> dict[str, str]:
    """This process's environment for ranks.

    Args:
        ranks: How many share its cores, or None if that is not known.
    """
    environment = dict(os.environ)
    if ranks is not None:
        limited(environment, len(os.sched_getaffinity(0)) // ranks)
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, [environment.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["PYTHONSAFEPATH"] = "1"  # nothing in the current folder passes for einsql
    return environment
