"""Ranks that mpiexec or srun has started already; rank 0 has the connection.

Rank 0 has two threads. The main thread is the driver; the other thread does the work of a
rank, all MPI calls included. The other processes only serve as ranks.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING
from weakref import ReferenceType, ref

from einsql.core import forks
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.processes import Processes
from einsql.engine.ranks.rank import nameless, serve
from einsql.engine.ranks.rendezvous import Meeting, reach
from einsql.engine.ranks.threads import share_cores
from einsql.errors import InterfaceError, OperationalError

if TYPE_CHECKING:
    from mpi4py import MPI

LEAVE = 5.0
"""Seconds for the rank thread of rank 0 to finish."""

_met: list[MPI.Intracomm] = []
"""The communicator of all ranks, once this process has created it."""

_clusters: list[ReferenceType[Cluster]] = []
"""The cluster of the job, at rank 0."""

_lines: list[Connection] = []
"""At rank 0 the connections to the other ranks."""


def joined(host: str | None = None) -> Cluster:
    """Joins the ranks of this job; rank 0 returns, the others serve it and then exit.

    Args:
        host: The name of rank 0's machine for the other ranks. The default is its host name,
            or no name if all ranks are on one machine.

    Raises:
        OperationalError: mpi4py is not installed, or its MPI does not support threads.
        InterfaceError: The ranks have already shut down.
        SystemExit: At the other ranks, after rank 0 has closed its connection.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise OperationalError(
            f"Running on MPI ranks needs mpi4py and an MPI: {error}",
            hint="pip install 'einsql[mpi]'.",
        ) from None
    if _met:
        raise InterfaceError(
            "The ranks of this job already serve a connection, or have shut down with it",
            hint="Another connection shares them with config={'mpi': con.cluster}.",
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise OperationalError(
            "MPI was initialised for one thread only, but rank 0 needs a second one",
            hint="Keep the default of mpi4py.rc.thread_level, or set it to 'serialized'.",
        )
    if MPI.COMM_WORLD.rank:
        follow(MPI.COMM_WORLD)
        raise SystemExit(0)
    comm, near = _meet(MPI.COMM_WORLD)
    atexit.register(_farewell)
    cluster = Cluster(_once(partial(Joined, comm, host, near)))
    _clusters.append(ref(cluster))
    return cluster


def _once(start: Callable[[Callable[[], None]], Processes]) -> Callable[..., Processes]:
    """Wraps the start of the ranks of an MPI job, which cannot be started twice."""
    starts = iter([start])

    def started(check: Callable[[], None]) -> Processes:
        for first in starts:
            return first(check)
        raise OperationalError(
            "The ranks of this job have ended", hint="Start the job again with mpiexec."
        )

    return started


def follow(world: MPI.Intracomm) -> None:
    """The main function of all ranks but 0: serves rank 0 until its program has ended."""
    comm, _ = _meet(world)
    letter: tuple[str, bytes] | None = comm.bcast(None)
    if letter is not None:
        share_cores(comm)
        nameless(comm)
        try:
            line = reach(*letter)
        except (OSError, EOFError) as error:
            sys.exit(f"Rank {comm.rank} cannot reach rank 0 at {letter[0]}: {error}")
        os.dup(line.fileno())  # stays open until this process exits; `end` waits for that
        serve(line, comm)
    _wait(comm.Ibarrier())


def end() -> None:
    """Ends MPI where einsql is the program, so that rank 0's exit status is the job's.

    A launcher kills all ranks once one has exited with a status other than 0, so rank 0 exits
    last. An abort instead would leave shared memory behind.
    """
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank:
        MPI.Finalize()
        return
    if not _met:  # wrong options, or --help: the other ranks must be notified
        joined()
    _farewell()
    MPI.Finalize()
    deadline = time.monotonic() + LEAVE
    for line in _lines:
        with suppress(EOFError, OSError):
            while line.poll(max(0.0, deadline - time.monotonic())):
                line.recv_bytes()


class Joined(Processes):
    """The ranks of the MPI job whose rank 0 is this process."""

    def __init__(
        self, comm: MPI.Intracomm, host: str | None, near: bool, check: Callable[[], None]
    ) -> None:
        """Sends the address to all ranks, and waits for their connections.

        Args:
            comm: A communicator of all ranks.
            host: The name of this machine for the other ranks.
            near: Whether all ranks are on this machine.
            check: Called during the wait; raises to stop.

        Raises:
            OperationalError: The ranks do not connect.
        """
        try:
            meeting = Meeting(None if near and host is None else host or "")
        except OperationalError:
            comm.bcast(None)
            raise
        with meeting:
            super().__init__()
            self._abandoned = False
            self._address = meeting.address
            self.ordered = meeting.address.startswith("@")
            comm.bcast((meeting.address, meeting.key))
            self._thread = threading.Thread(
                target=_work,
                args=(comm, meeting.address, meeting.key),
                name="einsql rank 0",
                daemon=True,
            )
            self._thread.start()
            try:
                self._gather(meeting, comm.size, check)
            except BaseException:
                self.end()
                raise
        _lines.extend(p.line for p in self.ranks[1:])

    def _coming(self) -> bool:
        return self._thread.is_alive()

    def _failed(self, reason: str) -> OperationalError:
        return OperationalError(
            f"The ranks do not reach rank 0 at {self._address}: {reason}",
            hint="Set config 'mpi_host' to a name of rank 0's machine that the others can reach.",
        )

    def close(self) -> None:
        """Waits until the main thread may call MPI again; ends the job if the rank thread hangs."""
        if self._abandoned:
            return
        self._thread.join(LEAVE)
        if self._thread.is_alive():
            from mpi4py import MPI

            MPI.COMM_WORLD.Abort(1)

    def forked(self, refusal: forks.Refusal) -> None:
        """Prepares a forked child of rank 0, which must not call MPI."""
        self._abandoned = True
        super().forked(refusal)

    def end(self) -> None:
        """Ends the ranks, and with them the job, unless they have exited."""
        self._close_lines()


def _work(comm: MPI.Intracomm, address: str, key: bytes) -> None:
    """The main function of the thread of rank 0."""
    share_cores(comm)
    nameless(comm)
    with suppress(OSError, EOFError):  # the main thread reports missing ranks
        serve(reach(address, key), comm)


def _meet(world: MPI.Intracomm) -> tuple[MPI.Intracomm, bool]:
    """Waits for all ranks.

    Returns:
        Their communicator, and whether all are on one machine.
    """
    from mpi4py import MPI

    _wait(world.Ibarrier())
    comm = world.Dup()
    neighbours = comm.Split_type(MPI.COMM_TYPE_SHARED)
    _met.append(comm)
    near = neighbours.size == comm.size
    neighbours.Free()
    return comm, near


def _farewell() -> None:
    """At the exit of rank 0's program: lets the waiting ranks exit as well."""
    from mpi4py import MPI

    for remembered in _clusters:
        cluster = remembered()
        if cluster is not None:
            cluster.close()
    if _met and not MPI.Is_finalized():
        _wait(_met[0].Ibarrier())


def _forget() -> None:
    """In a forked child of rank 0: drops the communicator and the connections."""
    atexit.unregister(_farewell)
    _clusters.clear()
    _lines.clear()


forks.at_fork(_forget)


def _wait(request: MPI.Request) -> None:
    """Waits with sleeps; MPI's own wait occupies a core."""
    while not request.Test():
        time.sleep(0.005)
