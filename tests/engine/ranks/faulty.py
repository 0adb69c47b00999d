"""A rank that fails when it is told to: `faulty.py PLAN python -m mpi4py -m einsql.engine.ranks …`.

PLAN is a file of a rank's number, a phase and a fault; who fails deletes it first, so that
it does so once. einsql knows nothing of this: here its functions are wrapped before it runs.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mpi4py.run

from einsql.engine import mpi_transport, spmd_executor
from einsql.engine.ranks import framing, rank, tile_store
from einsql.engine.ranks.messages import Fetch

PLAN = Path(sys.argv[1])


def fail(fault: str) -> None:
    """Fails in some way."""
    if fault == "bug":
        raise ValueError("a bug")
    if fault == "memory":
        raise MemoryError
    if fault == "exit":
        os._exit(3)
    if fault == "abort":
        from mpi4py import MPI

        abort: Callable[[int], object] = MPI.COMM_WORLD.Abort
        abort(7)
        threading.Event().wait(60)  # the launcher ends this process a little later
    if fault.startswith("/"):  # a group of processes with little memory
        Path(fault).write_text(str(os.getpid()))
        held = []
        while True:
            held.append(bytearray(2**20))
    os.kill(os.getpid(), signal.Signals[fault])
    threading.Event().wait(60)


def reached(phase: str) -> None:
    """Fails if that is planned for this phase of this rank."""
    try:
        who, where, fault = PLAN.read_text().split()
    except OSError:
        return
    if phase == where and who == os.environ["PMI_RANK"]:
        if fault != "memory":  # it stays short until the test says otherwise
            PLAN.unlink()
        fail(fault)


def before(owner: Any, name: str, phase: str) -> None:
    """Lets something be preceded by a fault."""
    real = getattr(owner, name)

    def wrapped(*args: Any, **more: Any) -> Any:
        reached(phase)
        return real(*args, **more)

    setattr(owner, name, wrapped)


def while_working(
    local: Callable[..., Any], self: Any, number: int, step: Any, held: Any, transport: Any,
    tick: Callable[[float], None], measure: Any,
) -> Any:  # fmt: skip
    """A kernel in the middle of which, as far as it tells, comes a fault."""

    def ticking(fraction: float) -> None:
        reached("work")
        tick(fraction)

    found = local(self, number, step, held, transport, ticking, measure)
    reached("work")  # kernels without much to do do not tick
    return found


def while_sending(real: Callable[..., bool], line: Any, message: Any, *wanted: Any) -> bool:
    """An answer of which, in the end, a part is sent; or a fault in what sends answers."""
    if wanted and getattr(message, "value", None) is not None:
        reached("reply")

    def asked() -> bool:
        reached("answer")
        return bool(wanted[0]())

    return real(line, message, asked) if wanted else real(line, message)


def arriving(real: Callable[..., Any], flight: Any) -> Iterator[Any]:
    """An exchange that has begun on all ranks."""
    reached("exchange")
    yield from real(flight)


def main() -> None:
    """Wraps what ranks do, and becomes one."""
    before(rank, "share_cores", "start")
    before(rank, "TieredProgram", "load")
    before(mpi_transport.RankTransport, "agree", "agree")
    before(rank, "receive", "listen")
    before(rank.Rank, "_reply", "serve")
    before(mpi_transport._Flight, "begin", "begin")
    before(tile_store.TileStore, "change", "change")
    flights, local = mpi_transport._Flight.arrivals, spmd_executor.SiteProgram._local
    send, parts = framing.send, tile_store._parts
    mpi_transport._Flight.arrivals = lambda self: arriving(flights, self)  # type: ignore[method-assign]  # as above
    spmd_executor.SiteProgram._local = lambda *args: while_working(local, *args)  # type: ignore[method-assign]  # as above
    setattr(rank, "send", lambda *args: while_sending(send, *args))  # noqa: B010 - as `before` does

    def fetching(command: Fetch, tiles: Any) -> Any:
        reached("fetch")
        return parts(command, tiles)

    tile_store._parts = fetching
    sys.argv = ["mpi4py", *sys.argv[sys.argv.index("mpi4py") + 1 :]]
    mpi4py.run.main()


if __name__ == "__main__":
    main()
