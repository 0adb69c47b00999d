"""What a rank does: it waits for orders, runs programs with the others, and keeps tiles."""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from einsql.cluster.keeping import Alone, compact, nbytes, obey, read
from einsql.cluster.meeting import KEY, reach
from einsql.cluster.messages import (
    Cancel,
    Done,
    Failed,
    Handle,
    Hello,
    Kept,
    Order,
    Progress,
    Read,
    Run,
    Ship,
    ShipBlocks,
    Shutdown,
)
from einsql.cluster.threads import share_cores
from einsql.cluster.wire import receive, send
from einsql.engine.block_program import BlockProgram
from einsql.engine.memory import enough_memory
from einsql.engine.mpi import CANCELLED, FAILED, READY, Abandoned, RankTransport
from einsql.engine.sites import Held, SiteMeasure, SiteProgram
from einsql.errors import InternalError, InterruptedError
from einsql.kernels import compile_node
from einsql.supersteps import Load

if TYPE_CHECKING:
    from mpi4py import MPI

PATIENCE = 5.0
"""Seconds a rank has to leave what it does once the driver is gone."""

_REPORTS = 0.2
"""Seconds between two reports of progress."""


def serve(address: str, key: bytes, comm: MPI.Intracomm) -> None:
    """Does what the driver says until it says no more.

    Args:
        address: Where the driver listens.
        key: What it knows its ranks by.
        comm: Of all ranks.
    """
    Rank(reach(address, key), comm).serve()


class Rank:
    """One rank: its tiles, the programs it knows, and its line to the driver."""

    def __init__(self, connection: Connection, comm: MPI.Intracomm) -> None:
        self._connection = connection
        self._comm = comm
        self._held: dict[Handle, Held] = {}
        self._programs: dict[int, SiteProgram | BlockProgram] = {}
        self._orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        self._cancelled = -1
        self._gone = False
        self._reported = 0.0

    def serve(self) -> None:
        """Runs orders one after another until there are no more."""
        send(self._connection, self._hello())
        threading.Thread(target=self._listen, name="einsql orders", daemon=True).start()
        while (order := self._orders.get()) is not None:
            for handle in order.release:
                self._held.pop(handle, None)
            for plan in order.forget:
                self._programs.pop(plan, None)
            if isinstance(order.command, Shutdown):
                return
            self._answer(self._obey(order))

    def _hello(self) -> Hello:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            mapped = {line.split(maxsplit=5)[-1].strip() for line in maps if "/dev/shm/" in line}
        return Hello(
            self._comm.rank, self._comm.size, os.getpid(), socket.gethostname(), tuple(mapped)
        )

    def _listen(self) -> None:
        try:
            while True:
                message = receive(self._connection)
                if isinstance(message, Cancel):
                    self._cancelled = message.number
                    continue
                self._orders.put(message)
                if isinstance(message.command, Shutdown):
                    return
        except (EOFError, OSError):
            self._gone = True
            self._orders.put(None)
            time.sleep(PATIENCE)
            os._exit(1)  # the driver has gone and this rank is stuck

    def _answer(self, message: object) -> None:
        try:
            send(self._connection, message)
        except OSError:
            self._gone = True

    # ---- orders

    def _obey(self, order: Order) -> Done | Failed:
        command = order.command
        if isinstance(command, Run):
            return self._together(order.number, command)
        try:
            if isinstance(command, Ship):
                self._programs[command.plan] = SiteProgram(
                    command.program, command.schema, lambda node: compile_node(node, command.jit)
                )
                return Done(order.number)
            if isinstance(command, ShipBlocks):
                self._programs[command.plan] = BlockProgram(
                    command.nodes[-1], lambda node: compile_node(node, command.jit)
                )
                return Done(order.number)
            if isinstance(command, Alone):
                proceed = partial(self._proceed, self._stops(order.number))
                return Done(order.number, obey(command, self._held, proceed))
            raise InternalError(f"A rank cannot {type(command).__name__}")
        except Exception as error:
            return _failed(order.number, error)

    def _together(self, number: int, command: Run) -> Done | Failed:
        """Runs a program with all other ranks; all of them fail or none."""
        program = self._programs[command.plan]
        stops = self._stops(number)
        transport = RankTransport(self._comm, program.sites, stops)
        try:
            with enough_memory:
                held, measure = self._run(command, program, transport, self._tick(number, stops))
            transport.agree(CANCELLED if stops() else READY)
        except Abandoned as stop:
            return Failed(number, None, stop.status == CANCELLED)
        except BaseException as error:  # whatever it is, the others must hear of it
            cancelled = isinstance(error, InterruptedError)
            try:
                transport.agree(CANCELLED if cancelled else FAILED)
            except Abandoned as stop:
                cancelled = cancelled or stop.status == CANCELLED
            return Failed(number, None, True) if cancelled else _failed(number, error)
        self._held[command.result] = compact(held)
        return Done(number, measure)

    def _run(
        self, command: Run, program: SiteProgram | BlockProgram, transport: RankTransport,
        tick: Callable[[float], None],
    ) -> tuple[Held, SiteMeasure]:  # fmt: skip
        loaded = 0

        def load(number: int, _: Load, tiles: Sequence[int]) -> Held:
            nonlocal loaded
            source = command.loads[number]
            if isinstance(source, Read):
                found = read(source, partial(tick, 0.0))
                loaded += nbytes(found)
                return found
            if isinstance(source, Kept):
                held = self._held[source.handle]
                return {n: {new: held[n][old] for new, old in source.names.items()} for n in tiles}
            if source.keep is not None:
                self._held[source.keep] = source.tiles
            return source.tiles

        held, measure = program.execute(transport, load, tick)
        measure.read = loaded
        return held, measure

    def _stops(self, number: int) -> Callable[[], bool]:
        return lambda: self._gone or self._cancelled == number

    def _proceed(self, stops: Callable[[], bool]) -> None:
        if stops():
            raise InterruptedError("The statement was cancelled")

    def _tick(self, number: int, stops: Callable[[], bool]) -> Callable[[float], None]:
        def tick(fraction: float) -> None:
            self._proceed(stops)
            now = time.monotonic()
            if self._comm.rank == 0 and now - self._reported > _REPORTS:
                self._reported = now
                self._answer(Progress(number, fraction))

        return tick


def _failed(number: int, error: BaseException) -> Failed:
    trace = "".join(traceback.format_exception(error))
    error.__cause__ = error.__context__ = None  # the driver needs the reason alone
    return Failed(number, error.with_traceback(None), trace=trace)


def main(arguments: Sequence[str]) -> Any:
    """A rank that a driver started: `python -m mpi4py -m einsql.cluster ADDRESS`."""
    from mpi4py import MPI

    (address,) = arguments
    key = os.environ.pop(KEY, None)
    if key is None:
        sys.exit(f"{KEY} has not come along: the launcher has to hand on the environment")
    share_cores(MPI.COMM_WORLD)
    serve(address, bytes.fromhex(key), MPI.COMM_WORLD)
