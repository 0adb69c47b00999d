"""The process with the connection: it sends commands to the ranks and fetches tiles."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any, Self

import numpy as np

from einsql.core import forks
from einsql.core.big_stack import statement_thread
from einsql.engine.cancellation import AheadError, watch
from einsql.engine.ranks.ahead import Ahead, Started
from einsql.engine.ranks.call import GLANCE, STUBBORN, Call, Gone, Stubborn, Tick, Unused
from einsql.engine.ranks.framing import send
from einsql.engine.ranks.groups import Group, Lease, Leases
from einsql.engine.ranks.interrupts import deferred
from einsql.engine.ranks.messages import (
    Change,
    Command,
    Decline,
    Handle,
    Hello,
    Order,
    Post,
    Shutdown,
)
from einsql.engine.ranks.processes import Processes
from einsql.errors import Error, InterfaceError, OperationalError, RanksLost

Heard = Callable[[list[Any]], None]
"""Callback with the answer of each rank."""

_AGAIN = (
    "The next statement starts new ranks and sends them the tensors of this process; "
    "tensors that were stored on the ranks only are lost."
)


class Cluster:
    """The ranks of a session. After all ranks have ended, the next call starts new ones.

    Attributes:
        ranks: The number of ranks.
        ahead: The unanswered runs.
        movers: Programs that move tiles, by the placements before and after.
        kept_tiles: The tiles that ranks keep of tensors in the session, see `KeptTiles`.
    """

    def __init__(self, start: Callable[[Callable[[], None]], Processes]) -> None:
        """Starts the ranks.

        Args:
            start: Starts the processes, at first and after all have ended. It calls its argument
                while it waits; the argument raises to stop.

        Raises:
            OperationalError: MPI is missing, or the ranks do not start.
        """
        self.ranks = 0
        self._start = start
        self.ahead = Ahead()
        self.movers: dict[object, object] = {}
        self.kept_tiles: object = None
        self._users = 0
        self._refusal: Callable[[], Error] | None = None
        self._hearers: list[weakref.WeakMethod[Callable[[RanksLost], None]]] = []
        self._numbers = count(1)
        self._tiles, self._plans = Leases(), Leases()
        self._unsent: list[tuple[list[Handle], list[int]]] = []
        self._busy = threading.RLock()
        self._leading = threading.Lock()
        self._job: Processes | None = None
        self._groups: weakref.WeakSet[Group] = weakref.WeakSet()
        forks.register(self)
        self._running()

    def forked(self, refusal: forks.Refusal) -> None:
        """Prepares a forked child, which must not send to the ranks when it exits."""
        self._refusal = refusal
        self._busy, self._leading = threading.RLock(), threading.Lock()
        if self._job is not None:
            self._end.detach()

    def join(self, hear: Callable[[RanksLost], None] | None = None) -> Self:
        """Registers one more connection that uses the ranks.

        Args:
            hear: Callback after some ranks have ended while the others continue.

        Raises:
            InterfaceError: The ranks have shut down.
        """
        self._open()
        self._users += 1
        if hear is not None:
            self._hearers.append(weakref.WeakMethod(hear))
        return self

    def part(self) -> None:
        """Removes one connection; after the last one the ranks shut down."""
        self._users -= 1
        if self._users == 0:
            self.close()

    def kill(self) -> None:
        """Ends the ranks at once, also during a call."""
        self._end.detach()
        if self._job is not None:
            self._job.end()

    def tiles(self) -> Lease:
        """Returns a new handle for tiles that ranks will create."""
        return self._lease(self._tiles)

    def plan(self) -> Lease:
        """Returns a new handle for a program."""
        return self._lease(self._plans)

    def _lease(self, kind: Leases) -> Lease:
        if self._job is None:
            with self._busy:
                self._running()
        self._running()  # need not wait for the call of another connection
        return kind.new(next(self._numbers), self._group)

    def knows(self, lease: Lease) -> bool:
        """Whether the handle was created for the present ranks."""
        return self._job is not None and lease.group is self._group

    def close(self) -> None:
        """Ends the ranks after the running call of another thread has completed."""
        with self._busy:
            self._refusal = self._refusal or _left
            self._end()

    def all(self, command: Command, tick: Tick | None = None) -> list[Any]:
        """Sends one command to every rank, and returns their answers in the order of the ranks.

        Raises:
            Error: See `call`.
        """
        return self.call(dict.fromkeys(range(self.ranks), command), tick)

    def call(
        self,
        commands: Mapping[int, Command],
        tick: Tick | None = None,
        into: Mapping[int, Sequence[np.ndarray]] | None = None,
    ) -> list[Any]:
        """Sends commands to some ranks and waits for all answers.

        Args:
            commands: The command of each rank.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel. The default is the
                check of this thread.
            into: By rank the target arrays of its answer, see `framing.receive`.

        Returns:
            The answer of each rank, in the order of `commands`.

        Raises:
            InterruptedError: The call was cancelled.
            Error: The call failed; if several ranks failed, the error of the first rank.
            RanksLost: A rank has ended; the others form a smaller cluster.
            OperationalError: A rank has ended, and all others with it.
        """
        tick = tick or watch()
        with self._alone(tick):
            self._hear(all_runs=True)
            with deferred() as interrupted:
                job = self._running(interrupted)
                call = Call(job, next(self._numbers), commands, tick, interrupted, into or {})
                with self._supervised(job, lambda: call):
                    if job.ended():
                        raise Gone
                    call.tell(self._unused(commands))
                    return call.values()

    def post(self, changes: Mapping[int, tuple[Change, ...]]) -> None:
        """Sends small changes of tensors to some ranks, which do not answer.

        Args:
            changes: The changes at each rank.

        Raises:
            Error: Ranks have ended, see `call`. A change that fails is an error of later calls.
        """
        with self._alone(watch()):
            self._hear(all_runs=True)
            with deferred():
                job = self._running()
                try:
                    for rank, each in changes.items():
                        send(job.ranks[rank].line, Post(each))
                except OSError:
                    raise self._lost(job) from None

    def lead(self) -> bool:
        """Makes this thread the only one that may start runs ahead; False if another one may."""
        if not self._leading.acquire(blocking=False):
            return False
        self.ahead.owner = statement_thread()
        return True

    def follow(self) -> None:
        """Ends what `lead` has begun."""
        self.finish()
        self.ahead.reset()
        self.ahead.owner = 0
        self._leading.release()

    @property
    def starts_ahead(self) -> bool:
        """Whether this thread's runs start before the previous ones are answered."""
        return self.ahead.allowed and self.ahead.is_own

    def start(self, commands: Mapping[int, Command], tick: Tick, heard: Heard, nbytes: int) -> None:
        """Sends the command of a run to all ranks without waiting for their answers.

        Args:
            commands: The command of each rank.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.
            heard: Callback with the answer of each rank; `hear` calls it.
            nbytes: Bytes of the results.

        Raises:
            AheadError: See `hear`.
        """
        ahead = self.ahead
        with self._alone(tick):
            self._hear(at_once=not ahead.is_full)
            with deferred() as interrupted:
                job, after = self._running(interrupted), ahead.latest
                number = next(self._numbers)
                check = ahead.checked(tick)
                call = Call(job, number, commands, check, interrupted, None, ahead.calls)
                ahead.add(Started(call, heard, nbytes))
                with self._hearing(job):
                    if job.ended():
                        raise Gone
                    call.tell(self._unused(commands), after)
            if call.stopped is not None:
                ahead.stopping = call.stopped
            if call.stopped is not None or ahead.error is not None:
                self._hear(all_runs=True)

    def hear(self, *, all_runs: bool = False, at_once: bool = False) -> None:
        """Takes the answers to the runs that this thread's statement has started ahead, in order.

        Args:
            all_runs: Whether to wait for all runs, not only for the oldest.
            at_once: Whether to take only answers that have arrived.

        Raises:
            AheadError: A run failed or was cancelled; it and all later runs have no results.
        """
        if self.ahead.is_own and len(self.ahead):
            with self._alone(watch()):
                self._hear(all_runs=all_runs, at_once=at_once)
        elif self.ahead.is_own and self.ahead.error is not None:
            raise AheadError(self.ahead.error) from None

    def finish(self, reason: BaseException | None = None) -> None:
        """Waits for all runs that have started ahead, also after an error.

        Args:
            reason: The exception that cancels them; None to let them end.
        """
        self.ahead.stopping = self.ahead.stopping or reason
        if len(self.ahead):
            with self._alone(None), suppress(AheadError):
                self._hear(all_runs=True)

    def _hear(self, *, all_runs: bool = False, at_once: bool = False) -> None:
        ahead = self.ahead
        if len(ahead) and self._job is not None:
            with deferred() as interrupted, self._hearing(self._job):
                ahead.hear(interrupted, all_runs=all_runs, at_once=at_once)
        if ahead.error is not None and ahead.is_own:
            raise AheadError(ahead.error) from None

    @contextmanager
    def _hearing(self, job: Processes) -> Iterator[None]:
        """Ends all runs that have started ahead if ranks end."""
        ahead = self.ahead
        try:
            with self._supervised(job, lambda: ahead.oldest):
                yield
        except BaseException as error:
            ahead.drop(error)

    @contextmanager
    def _supervised(self, job: Processes, call_of: Callable[[], Call]) -> Iterator[None]:
        """Handles the end of ranks during a call.

        Raises:
            Error: See `call`.
        """
        try:
            yield
        except Gone:
            raise self._lost(job) from None
        except Stubborn as stop:
            who = job.named(stop.ranks)
            self._abandon(who)
            raise OperationalError(
                f"The statement was cancelled, but {who} did not stop within "
                f"{STUBBORN:g} s, so all ranks were ended",
                hint=_AGAIN,
            ) from call_of().stopped
        except BaseException:
            call = call_of()
            if call.apart and job.ended():
                raise self._lost(job) from None  # the MPI failure follows from its end
            if call.apart or not call.complete:
                self._abandon("the ranks")  # the state of the running commands is unknown
            raise

    @contextmanager
    def _alone(self, tick: Tick | None) -> Iterator[None]:
        """Waits until no other connection uses the ranks; `tick` may raise to stop the wait."""
        while not self._busy.acquire(timeout=GLANCE):
            if tick is not None:
                tick(0.0)
        try:
            yield
        finally:
            self._busy.release()

    def _unused(self, ranks: Iterable[int]) -> dict[int, Unused]:
        """Returns the handles that ranks may release with their next message."""
        released, forgotten = self._tiles.unused(), self._plans.unused()
        for tiles, plans in self._unsent:
            tiles.extend(released)
            plans.extend(forgotten)
        unused = {
            rank: (tuple(self._unsent[rank][0]), tuple(self._unsent[rank][1])) for rank in ranks
        }
        for rank in unused:
            self._unsent[rank] = [], []
        return unused

    # ---- start and end of the ranks

    def _open(self) -> None:
        if self._refusal is not None:
            raise self._refusal()

    def _running(self, interrupted: Callable[[], None] = lambda: None) -> Processes:
        self._open()
        if self._job is None:
            with deferred() as inner:

                def check() -> None:
                    inner()
                    interrupted()

                self._job = self._start(check)
                self._end = weakref.finalize(self, _leave, self._job)
                self._unsent = [([], []) for _ in self._job.ranks]
                self._form(len(self._job.ranks))
        return self._job

    def _form(self, ranks: int) -> None:
        self.ranks = ranks
        self._group = Group(ranks)
        self._groups.add(self._group)

    def _abandon(self, reason: str) -> None:
        """Ends the ranks; the next call starts new ones."""
        job, self._job = self._job, None
        if job is not None:
            self._end.detach()
            job.end()
        for group in self._groups:
            group.renumber({}, reason)

    def _lost(self, job: Processes) -> OperationalError:
        """Handles the end of a rank: continues with the others if MPI can, else ends them."""
        if not job.ended():
            self._abandon("the ranks")
            return OperationalError(
                "The connection to a rank failed, and all ranks were ended", hint=_AGAIN
            )
        loss, before = job.loss(), self.ranks
        if job.tolerant and self._regrouped(job, loss.who):
            lost = RanksLost(str(loss), before, self.ranks)
            for remembered in self._hearers:
                hear = remembered()
                if hear is not None:
                    hear(lost)
            return lost
        self._abandon(loss.who)
        them = "it" if loss.one else "them"
        error = OperationalError(f"{loss}, and all ranks were ended with {them}", hint=_AGAIN)
        error.__cause__ = loss.words
        return error

    def _regrouped(self, job: Processes, who: str) -> bool:
        """Forms a communicator of the remaining ranks. Returns False if that fails."""
        while len(job.ended()) < self.ranks:
            ended = job.ended()
            left = [n for n in range(self.ranks) if n not in ended]
            call = Call(job, next(self._numbers), dict.fromkeys(left, Decline(None)))
            try:
                call.regroup()
                hellos: list[Hello] = call.values()
            except Gone:
                continue  # another rank has ended during the attempt
            except Stubborn:
                return False
            if {h.ranks for h in hellos} != {len(left)}:
                continue
            order = sorted(left, key=lambda n: hellos[left.index(n)].rank)
            job.keep(order)
            for group in self._groups:
                group.renumber({old: new for new, old in enumerate(order)}, who)
            self._unsent = [self._unsent[n] for n in order]
            self._form(len(order))
            return True
        return False


def _left() -> Error:
    return InterfaceError(
        "The MPI ranks have shut down with the last connection that used them",
        hint='Set "mpi" to a number of ranks to start new ones.',
    )


def _leave(job: Processes) -> None:
    for process in job.ranks:
        try:
            send(process.line, Order(0, Shutdown()))
        except OSError:
            break
    job.close()
