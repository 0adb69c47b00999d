"""The main loop of a rank: it executes commands, runs programs, and stores tiles."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from einsql.core import buffer_pool
from einsql.core.fp_errors import Ignored
from einsql.core.sparse.tiles import part_of, renamed_tile
from einsql.engine.communicator import Fabric
from einsql.engine.exchange import Held
from einsql.engine.mpi_transport import (
    CANCELLED,
    FAILED,
    READY,
    Abandoned,
    RankTransport,
    TornError,
)
from einsql.engine.ranks import leftovers
from einsql.engine.ranks.framing import Unread, Withdrawn, receive, send
from einsql.engine.ranks.messages import (
    Answers,
    Cancel,
    Change,
    Command,
    Decline,
    Done,
    Failed,
    Fallen,
    Handle,
    Hello,
    Kept,
    Mapped,
    Order,
    Post,
    Progress,
    Read,
    Regroup,
    Run,
    Ship,
    Shutdown,
    Slice,
    Tiled,
)
from einsql.engine.ranks.rendezvous import KEY, LOG, reach
from einsql.engine.ranks.threads import share_cores
from einsql.engine.ranks.tile_store import (
    Alone,
    TileStore,
    compact,
    nbytes,
    obey,
    read,
    read_mapped,
)
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Tick
from einsql.engine.tiered_ranks import Attempt, Results, TieredProgram
from einsql.errors import Error, InternalError, InterruptedError
from einsql.ir.spmd.program import Load
from einsql.kernels.runtime.blas import Statement
from einsql.storage.out_of_memory import available, enough_memory

if TYPE_CHECKING:
    from mpi4py import MPI

PATIENCE = 5.0
"""Seconds for a rank to stop after its driver has ended."""

SHARE = 16
"""Divisor of the free memory: all ranks together may use one such part for future results."""

WAITING = 8
"""Number of orders from which answers are held back: the driver is far ahead of the ranks."""

TOGETHER = 0.1
"""Greatest number of seconds for which an answer is held back, if the run calls its tick."""

_REPORTS = 0.2
"""Seconds between two reports of progress."""


def serve(connection: Connection, comm: MPI.Intracomm) -> None:
    """Executes commands until the driver ends or closes the connection; call `nameless` before it.

    Args:
        connection: The connection to the driver.
        comm: A communicator of all ranks.
    """
    buffer_pool.keep(max(buffer_pool.KEPT, (available() or 0) // (SHARE * comm.size)))
    rank = Rank(connection, comm)
    try:
        rank.serve()
    except BaseException as error:  # the driver must not wait for this rank
        rank.fall(error)
        raise


class Rank:
    """A rank: its tiles, its programs, and its connection to the driver."""

    def __init__(self, connection: Connection, comm: MPI.Intracomm) -> None:
        self._connection = connection
        self._comm = comm
        self._held = TileStore()
        self._programs: dict[int, TieredProgram] = {}
        self._orders: queue.SimpleQueue[Order | Post | Regroup | None] = queue.SimpleQueue()
        self._posted: deque[Change] = deque()
        self._released: deque[Handle] = deque()
        self._cancelled = range(0)
        self._failed_run = -1
        self._held_back: list[Done | Failed] = []
        self._held_since = 0.0
        self._gone = False
        self._reported = 0.0

    def serve(self) -> None:
        """Executes orders one after another until `Shutdown`."""
        self._answer(Hello(self._comm.rank, self._comm.size))
        threading.Thread(target=self._listen, name="einsql orders", daemon=True).start()
        while (order := self._orders.get()) is not None:
            if isinstance(order, Regroup):
                self._regroup(order)
                continue
            if isinstance(order, Post):
                self._posted.extend(order.changes)
                self._change()
                continue
            fault = self._change()
            self._released.extend(order.release)
            while self._released and fault is None:  # changes may need these tiles
                self._held.release(self._released.popleft())
            for plan in order.forget:
                self._programs.pop(plan, None)
            if isinstance(order.command, Shutdown):
                return
            if fault is not None:
                order = replace(order, command=Decline(fault, order.together))
            self._reply(order, self._obey(order))

    def _change(self) -> BaseException | None:
        """Makes the changes that have been posted; returns the error of the first that fails."""
        while self._posted:
            try:
                with enough_memory:
                    self._held.change(self._posted[0])
            except Exception as error:
                return error
            self._posted.popleft()
        return None

    def _listen(self) -> None:
        try:
            while self._heard():
                pass
        except (EOFError, OSError):
            self._gone = True
            self._orders.put(None)
            time.sleep(PATIENCE)
            os._exit(1)  # the driver has ended and this rank hangs
        except BaseException as error:  # after it no thread would receive a cancellation
            self.fall(error)
            traceback.print_exc()
            os._exit(1)

    def fall(self, error: BaseException) -> None:
        """Reports the reason of this rank's end to the driver."""
        reason = _failed(0, error, self._comm.rank).error
        self._answer(Fallen(reason or InternalError(f"Rank {self._comm.rank} failed")))

    def _heard(self) -> bool:
        """Receives a message; returns False after the last one."""
        try:
            message = receive(self._connection)
        except Withdrawn:
            return True
        except Unread as unread:
            if not unread.number:
                raise unread.reason from None  # no process waits for an answer, so the rank ends
            message = Order(unread.number, Decline(unread.reason, unread.together))
        if isinstance(message, Cancel):
            self._cancelled = range(message.number, message.last + 1)
            return True
        if isinstance(message, Regroup):
            # This ends every wait of the other thread, on all ranks.
            self._comm.Revoke()
        self._orders.put(message)
        return not (isinstance(message, Order) and isinstance(message.command, Shutdown))

    def _answer(self, message: object) -> None:
        with contextlib.suppress(OSError):  # the other thread detects the closed connection
            send(self._connection, message)

    def _reply(self, order: Order, answer: Done | Failed) -> None:
        """Answers an order; answers with a failure if it was cancelled or memory is short.

        The answers to runs are sent together while many more runs wait.
        """
        number, stops = order.number, self._stops(order.number)
        if order.after and isinstance(answer, Done) and self._orders.qsize() >= WAITING:
            if not self._held_back:
                self._held_since = time.monotonic()
            self._held_back.append(answer)
            self._flush(TOGETHER)
            return
        self._flush(0.0)
        try:
            if not send(self._connection, answer, lambda: not stops()):
                self._answer(Failed(number, None, True))
        except OSError:
            self._gone = True
        except Exception as error:
            self._answer(self._failed(number, error))

    def _flush(self, seconds: float) -> None:
        """Sends the answers that have been held back for some seconds."""
        if self._held_back and time.monotonic() - self._held_since >= seconds:
            answers = tuple(self._held_back)
            self._held_back.clear()
            try:
                self._answer(Answers(answers[0].number, answers))
            except Exception as error:  # memory is short
                for answer in answers:
                    self._answer(self._failed(answer.number, error))

    def _regroup(self, order: Regroup) -> None:
        from mpi4py import MPI

        self._comm = MPI.Intracomm(self._comm.Shrink())
        Fabric.of(self._comm)
        self._answer(Done(order.number, Hello(self._comm.rank, self._comm.size)))

    # ---- orders

    def _obey(self, order: Order) -> Done | Failed:
        command = order.command
        if order.after and order.after == self._failed_run:
            self._failed_run = order.number  # on all ranks: a run fails on all or on none
            return Failed(order.number, None, True)
        if order.together or (isinstance(command, Decline) and command.together):
            answer = self._run_with_all(order.number, command)
            if isinstance(answer, Failed):
                self._failed_run = order.number
            return answer
        try:
            if isinstance(command, Decline):
                return self._declined(order.number, command)
            if isinstance(command, Ship):
                self._programs[command.plan] = TieredProgram(command.program, command.jit)
                return Done(order.number)
            if isinstance(command, Run):
                return self._run_with_all(order.number, command)
            if isinstance(command, Alone):
                proceed = partial(self._proceed, self._stops(order.number))
                return Done(order.number, obey(command, self._held, proceed))
            raise InternalError(f"A rank cannot {type(command).__name__}")
        except Exception as error:
            return self._failed(order.number, error)

    def _run_with_all(self, number: int, command: Command) -> Done | Failed:
        """Runs a program with all other ranks; either all ranks fail or none, if it says so."""
        stops = self._stops(number)
        transport = RankTransport(self._comm, self._comm.size, stops)
        if isinstance(command, Decline):
            return self._withdraw(transport, self._declined(number, command))
        assert isinstance(command, Run)
        try:
            program, tick = self._programs[command.plan], self._tick(number, stops)
            run = partial(self._run, command, stops)
            with enough_memory, Ignored(), Statement():
                if command.tiers:
                    results, measure = program.run(Attempt(run, transport.agree), tick)
                else:
                    results, measure = run(program.compiled, tick)
        except Abandoned as stop:
            return Failed(number, None, stop.status == CANCELLED)
        except BaseException as error:  # the other ranks must learn of any error
            cancelled = isinstance(error, InterruptedError)
            answer = Failed(number, None, True) if cancelled else self._failed(number, error)
            return self._withdraw(transport, answer) if command.together else answer
        for handle, tiles in zip(command.results, results, strict=True):
            self._held[handle] = compact(tiles)
        return Done(number, measure)

    def _withdraw(self, transport: RankTransport, answer: Failed) -> Failed:
        """Reports to the other ranks why this rank leaves a program early."""
        if answer.apart:
            return answer
        try:
            transport.agree(CANCELLED if answer.cancelled else FAILED)
        except Abandoned as stop:
            if stop.status == CANCELLED:
                return Failed(answer.number, None, True)
        except Exception as error:
            return self._failed(answer.number, error)
        return answer

    def _run(
        self, command: Run, stops: Callable[[], bool], program: SiteProgram, tick: Tick
    ) -> Results:
        """Runs a program to its end; if with all other ranks, until all have ended it."""
        transport, loaded = RankTransport(self._comm, program.sites, stops), 0

        def load(number: int, _: Load, tiles: Sequence[int]) -> Held:
            nonlocal loaded
            source = command.loads[number]
            if isinstance(source, Slice):
                stored = self._tiles(source.source, tiles)
                return {n: part_of(stored[n], source.at) for n in tiles}
            if isinstance(source, Mapped):
                mapped = self._tiles(source, tiles)
                loaded += nbytes(mapped)
                return mapped
            if isinstance(source, Read):
                tiles_read = read(source, partial(tick, 0.0))
                loaded += nbytes(tiles_read)
                return tiles_read
            return self._tiles(source, tiles)

        execute = program.execute if command.measured else program.execute_repeated
        results, measure = execute(transport, load, tick)
        measure.read = loaded
        if command.together:
            transport.agree(CANCELLED if stops() else READY)
        else:
            self._proceed(stops)
        return results, measure

    def _tiles(self, source: Tiled, tiles: Sequence[int]) -> Held:
        """Returns tiles that are stored here or in files, or came with the message."""
        if isinstance(source, Mapped):
            self._held[source.keep] = mapped = read_mapped(source, lambda: None)
            return mapped
        if isinstance(source, Kept):
            if not tiles:
                return {}  # the handle may be unknown
            stored = self._held[source.handle]
            return {n: renamed_tile(stored[n], source.names) for n in tiles}
        if source.keep is not None:
            self._held[source.keep] = source.tiles
        return source.tiles

    def _declined(self, number: int, command: Decline) -> Failed:
        if command.reason is None:
            return Failed(number, None, True)
        return self._failed(number, command.reason)

    def _failed(self, number: int, error: BaseException) -> Failed:
        return _failed(number, error, self._comm.rank)

    def _stops(self, number: int) -> Callable[[], bool]:
        return lambda: self._gone or number in self._cancelled

    def _proceed(self, stops: Callable[[], bool]) -> None:
        if stops():
            raise InterruptedError("The statement was cancelled")

    def _tick(self, number: int, stops: Callable[[], bool]) -> Callable[[float], None]:
        def tick(fraction: float) -> None:
            self._proceed(stops)
            self._flush(TOGETHER)
            now = time.monotonic()
            if self._comm.rank == 0 and now - self._reported > _REPORTS:
                self._reported = now
                self._answer(Progress(number, fraction))

        return tick


def _failed(number: int, error: BaseException, rank: int) -> Failed:
    fault = f"Rank {rank} failed"
    trace = "".join(traceback.format_exception(error))
    torn = isinstance(error, TornError)
    error = error.__cause__ or error if torn else error
    apart = torn or type(error).__module__.startswith("mpi4py")
    try:
        with enough_memory:
            raise error
    except Error as known:
        error = known
    except BaseException:
        error = InternalError(f"{fault}: {trace.strip()}")
    error.__cause__ = error.__context__ = None  # the driver needs the reason only
    error.with_traceback(None)
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error whose constructor takes other arguments
        error = InternalError(f"{fault}: {trace.strip()}")
    return Failed(number, error, apart=apart)


def nameless(comm: MPI.Intracomm) -> None:
    """Unlinks the shared memory that all ranks have mapped; the call is collective.

    The kernel then frees it however the ranks end. The ranks also find their neighbours here,
    because a rank may get its first program alone.
    """
    Fabric.of(comm)
    comm.Barrier()
    leftovers.unlink(leftovers.segments())


def _log_errors(path: str | None) -> None:
    """Writes standard error to the driver's log, without the launcher between.

    A launcher that ends all ranks after an abort may drop the last lines of their pipes, among
    them the line that names the rank which aborted.
    """
    if path is None:
        return
    with contextlib.suppress(OSError):  # no /proc: the launcher forwards the lines
        log = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(log, sys.stderr.fileno())
        os.close(log)


def main(arguments: Sequence[str]) -> None:
    """The main function of a rank that a driver started.

    Its command is `python -m mpi4py -m einsql.engine.ranks ADDRESS`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver sends cancellations
    _log_errors(os.environ.pop(LOG, None))
    faulthandler.enable()
    (address,) = arguments
    key = os.environ.pop(KEY, None)
    if key is None:
        sys.exit(f"{KEY} is not set: the launcher must pass on the environment")
    connection = None
    with contextlib.suppress(OSError, EOFError):
        connection = reach(address, bytes.fromhex(key))
    # Also without a driver: a rank that exits while others start MPI makes them leak memory.
    from mpi4py import MPI

    share_cores(MPI.COMM_WORLD)
    nameless(MPI.COMM_WORLD)  # collective: ranks with a driver wait for the others
    if connection is not None:
        try:
            serve(connection, MPI.COMM_WORLD)
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # an abort would end all ranks, even if MPI can continue
    MPI.Finalize()  # while the other thread can still end a process that hangs
