"""Ranks that mpiexec or srun has started already: one of them has the connection.

Rank 0 has two threads: the main thread goes on as the driver, and another one does the work of a
rank, all MPI calls included. The other ranks are ranks only.
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
"""Seconds the thread of rank 0 has to finish."""

_met: list[MPI.Intracomm] = []
"""All ranks once this process has met them, for messages of their own."""

_clusters: list[ReferenceType[Cluster]] = []
"""The result of joining, at rank 0."""

_lines: list[Connection] = []
"""At rank 0 those to the others."""


def joined(host: str | None = None) -> Cluster:
    """The ranks of this job; rank 0 returns, the others serve it and then leave.

    Args:
        host: The name under which they reach rank 0's machine; by default its own name, or
            no name where all of them are on one machine.

    Raises:
        OperationalError: mpi4py is not installed, or its MPI is not for threads.
        InterfaceError: The ranks have been used up.
        SystemExit: At the other ranks, once rank 0 has closed its connection.
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
            "The ranks of this job serve a connection already, or have left with it",
            hint="Another one shares them with config={'mpi': con.cluster}.",
        )
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise OperationalError(
            "MPI was initialised for one thread only, but rank 0 needs a second one",
            hint="Leave mpi4py.rc.thread_level as it is, or set it to 'serialized'.",
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
    """Starts the ranks of an MPI job, which cannot be started again."""
    starts = iter([start])

    def started(check: Callable[[], None]) -> Processes:
        for first in starts:
            return first(check)
        raise OperationalError(
            "The ranks of this job have ended", hint="Start the job again with mpiexec."
        )

    return started


def follow(world: MPI.Intracomm) -> None:
    """The main function of all ranks but 0: they serve rank 0 until its program has ended."""
    comm, _ = _meet(world)
    letter: tuple[str, bytes] | None = comm.bcast(None)
    if letter is not None:
        share_cores(comm)
        nameless(comm)
        try:
            line = reach(*letter)
        except (OSError, EOFError) as error:
            sys.exit(f"Rank {comm.rank} cannot reach rank 0 at {letter[0]}: {error}")
        os.dup(line.fileno())  # open for as long as this process is there; `end` waits for that
        serve(line, comm)
    _wait(comm.Ibarrier())


def end() -> None:
    """Ends MPI where the program is einsql's own, so that rank 0's exit status is the job's.

    A launcher kills all ranks once one has ended with a status other than 0, so this one
    goes last; to end by an abort instead leaves shared memory behind.
    """
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank:
        MPI.Finalize()
        return
    if not _met:  # wrong options, or --help: the others have to hear of it
        joined()
    _farewell()
    MPI.Finalize()
    deadline = time.monotonic() + LEAVE
    for line in _lines:
        with suppress(EOFError, OSError):
            while line.poll(max(0.0, deadline - time.monotonic())):
                line.recv_bytes()


class Joined(Processes):
    """The ranks of the job that this process is rank 0 of."""

    def __init__(
        self, comm: MPI.Intracomm, host: str | None, near: bool, check: Callable[[], None]
    ) -> None:
        """Tells all ranks where to report, and waits for them.

        Args:
            comm: Of all ranks.
            host: The name under which they reach this machine.
            near: Whether all of them are on this machine.
            check: Called meanwhile; raises to stop.

        Raises:
            OperationalError: They do not reach it.
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
            hint="config 'mpi_host' is the name under which they reach rank 0's machine.",
        )

    def close(self) -> None:
        """Waits until MPI is the main thread's again; ends the job if it never will be."""
        if self._abandoned:
            return
        self._thread.join(LEAVE)
        if self._thread.is_alive():
            from mpi4py import MPI

            MPI.COMM_WORLD.Abort(1)

    def forked(self, refusal: forks.Refusal) -> None:
        """In a child of rank 0: MPI is not its own."""
        self._abandoned = True
        super().forked(refusal)

    def end(self) -> None:
        """Lets go of the ranks, which end, and the job with them, unless they have left."""
        self._close_lines()


def _work(comm: MPI.Intracomm, address: str, key: bytes) -> None:
    """The main function of the thread of rank 0."""
    share_cores(comm)
    nameless(comm)
    with suppress(OSError, EOFError):  # the main thread reports the ranks that have not come
        serve(reach(address, key), comm)


def _meet(world: MPI.Intracomm) -> tuple[MPI.Intracomm, bool]:
    """Waits for all ranks.

    Returns:
        Them, for messages of their own, and whether all are on one machine.
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
    """At the end of rank 0's program: lets the ranks that wait for it end as well."""
    from mpi4py import MPI

    for remembered in _clusters:
        cluster = remembered()
        if cluster is not None:
            cluster.close()
    if _met and not MPI.Is_finalized():
        _wait(_met[0].Ibarrier())


def _forget() -> None:
    """A child of rank 0 takes part in nothing, its parent's end included."""
    atexit.unregister(_farewell)
    _clusters.clear()
    _lines.clear()


forks.at_fork(_forget)


def _wait(request: MPI.Request) -> None:
    """Waits asleep: MPI's own way to wait keeps a core busy."""
    while not request.Test():
        time.sleep(0.005)
