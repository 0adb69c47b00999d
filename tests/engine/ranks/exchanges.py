"""What ranks run to test the transport: `python -m mpi4py -m tests.engine.ranks.exchanges CASE…`.

Every rank knows what every piece holds, so each can tell whether the right ones arrive.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any
from unittest import mock

import numpy as np

import einsql
from einsql.engine import communicator, mpi_transport, streaming_exchange
from einsql.engine.communicator import Fabric
from einsql.engine.exchange import Held
from einsql.engine.mpi_transport import CANCELLED, FAILED, READY, Abandoned, RankTransport
from einsql.engine.mpi_wait import finish
from einsql.engine.running import Loading
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Measure, Tick
from einsql.engine.transport import Arrays, LocalTransport, Routes, Transport
from tests.support.samples import sample

DTYPES: dict[str, np.dtype] = {
    "val": np.dtype(np.float32),
    "at": np.dtype(np.int64),
    "there": np.dtype(bool),
}


def random_routes(pick: Random, sites: int) -> Routes:
    """Broadcasts, all-gathers and single pieces, some of them empty, in any order."""
    found: list[tuple[int, int, int]] = []
    count = 0
    for _ in range(pick.randint(1, 4)):
        group = pick.sample(range(sites), pick.randint(1, sites))
        sources = group if pick.random() < 0.5 else [pick.randrange(sites)]
        for source in sources:
            found += [(source, target, count) for target in group]
            count += 1
    pick.shuffle(found)
    sizes = [(pick.randint(0, 5), pick.randint(1, 4)) for _ in range(count)]
    ends = np.array(found, np.int64)
    shapes = np.array(sizes, np.int64)[ends[:, 2]]
    return Routes(ends[:, 0], ends[:, 1], shapes, DTYPES, ends[:, 2])


def piece(routes: Routes, n: int) -> Arrays:
    """What a route carries; of two fields a part of a larger array."""
    chance = np.random.default_rng(int(routes.pieces[n]))
    rows, columns = routes.shapes[n]
    values = chance.integers(0, 100, (rows, columns + 1))
    return {
        "val": values[:, 1:].astype(np.float32),
        "at": values[:, :-1],
        "there": (values > 50)[:, 1:],
    }


def exchanges(seed: int, rounds: int = sample(4, 10)) -> None:
    """Random routes between random numbers of sites bring what they carry."""
    from mpi4py import MPI

    pick = Random(seed)
    comm = MPI.COMM_WORLD
    for _ in range(rounds):
        sites = pick.randint(comm.size, 2 * comm.size)
        ours = RankTransport(comm, sites, lambda: False)
        all_of_them = LocalTransport(sites)
        for routes in [random_routes(pick, sites) for _ in range(3)]:
            for window in (None, 1, 2):  # after the first time all is known
                check(ours, routes, window)
                list(all_of_them.exchange(routes, partial(piece, routes)))
        for site in ours.owned:
            assert ours.sent[site] == all_of_them.sent[site]
            assert ours.received[site] == all_of_them.received[site]


def check(ours: RankTransport, routes: Routes, window: int | None) -> None:
    """Everything arrives, with room for it that is contiguous, strided or missing."""

    def room(n: int) -> Arrays | None:
        rows, columns = routes.shapes[n]
        wide = {k: np.zeros((rows + 2, columns + n % 2), d) for k, d in DTYPES.items()}
        return {k: a[1 : rows + 1, :columns] for k, a in wide.items()} if n % 3 else None

    def cut(n: int) -> Arrays:
        assert routes.sources[n] in ours.owned
        return piece(routes, n)

    arrived = dict(ours.exchange(routes, cut, room, window))
    assert sorted(arrived) == np.flatnonzero(np.isin(routes.targets, ours.owned)).tolist()
    for n, arrays in arrived.items():
        for name, array in piece(routes, n).items():
            np.testing.assert_array_equal(arrays[name], array)
            assert arrays[name].dtype == array.dtype


def collectives(rounds: int = sample(2, 6)) -> None:
    """As if every rank were a node of its own, with as few groups kept as there may be."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    Fabric.of(comm).nodes = np.arange(comm.size)
    with (
        mock.patch.object(communicator, "GROUPS", 1),
        mock.patch("einsql.engine.mpi_schedule.FAR", 1),
    ):
        for small in (0, 100, 2**16):
            with mock.patch("einsql.engine.mpi_schedule.SMALL", small):
                exchanges(small, rounds)


def counting(rounds: int = sample(8, 20)) -> None:
    """With a site at each rank, what it has sent is what MPI was given by it."""
    from mpi4py import MPI

    given = 0

    class Counting(MPI.Intracomm):
        """Counts what is sent but for the ranks' status, which has a tag of its own."""

        def Isend(self, buf: Any, dest: int, tag: int = 0) -> MPI.Request:  # noqa: N802 - MPI's
            nonlocal given
            given += np.asarray(buf[0]).nbytes * (tag == 0)
            return super().Isend(buf, dest, tag)

    comm = Counting(MPI.COMM_WORLD.Dup())
    pick = Random(5)
    ours = RankTransport(comm, comm.size, lambda: False)
    for _ in range(rounds):
        routes = random_routes(pick, comm.size)
        check(ours, routes, None)
        assert ours.sent[comm.rank] == given
    assert given > 0
    comm.Free()


def chunks() -> None:
    """Arrays of more bytes than a message may have."""
    with mock.patch.object(mpi_transport, "LARGEST", 13):
        exchanges(3, rounds=sample(1, 3))
        collectives(rounds=1)


def direct() -> None:
    """Between pairs, as on one node."""
    exchanges(1)


def programs() -> None:
    """Tiles of placed programs are those of virtual sites, put together or piece by piece."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    execute = SiteProgram.execute
    runs = pieces = 0

    def both(
        self: SiteProgram, transport: Transport, load: Loading, tick: Tick
    ) -> tuple[list[Held], Measure]:
        nonlocal runs, pieces
        wanted, measure = execute(self, transport, load, tick)
        ours = RankTransport(comm, self.program.sites, lambda: False)
        found, _ = execute(self, ours, load, tick)
        for tiles, all_tiles in zip(found, wanted, strict=True):
            for n, fields in tiles.items():
                for name, array in fields.items():
                    np.testing.assert_array_equal(array, all_tiles[n][name])
        assert [ours.sent[s] for s in ours.owned] == [measure.sent[s] for s in ours.owned]
        runs += 1
        pieces += sum(s is not None for s in self._streams.values())
        return wanted, measure

    rng = np.random.default_rng(0)
    with (
        mock.patch.multiple(streaming_exchange, PIECE=0, DEPTH=0, MARGIN=-1000),
        mock.patch.object(SiteProgram, "execute", both),
        einsql.connect() as con,
    ):
        con.execute("SET sites = 4; SET jit = 'never'")
        for name, dims in (("x", "ij"), ("y", "jk")):
            values = rng.integers(-8, 8, (13, 13)).astype(np.float32)
            con.register(name, values, dims=tuple(dims))
        con.execute("CREATE TENSOR u PARTITION BY (j 4) AS SELECT * FROM y")
        con.execute("CREATE TENSOR v PARTITION BY (k 4) AS SELECT * FROM y")
        for read in ("u", "v"):
            for what in (
                f"i, k, SUM(x.val * {read}.val) AS a",
                f"i, k, MIN(x.val + {read}.val) AS a, ARG_MAX(x.j, {read}.val) AS b",
            ):
                hinted = f"SELECT /*+ PARTITION(i=4) */ {what}"
                con.execute(f"{hinted} FROM x JOIN {read} USING (j) GROUP BY i, k").fetchall()
    assert runs >= 6
    assert pieces >= 4


def failures() -> None:
    """Who fails while taking what arrives leaves no message behind, nor anyone alone."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    stop = False
    ours = RankTransport(comm, comm.size, lambda: stop and comm.rank == 0)
    everyone = np.arange(comm.size)
    pairs = np.array([(s, t) for s in everyone for t in everyone if s != t])
    shapes = np.full((len(pairs), 1), 1000)
    routes = Routes(pairs[:, 0], pairs[:, 1], shapes, {"val": np.dtype(float)}, pairs[:, 0])

    def cut(n: int) -> Arrays:
        return {"val": np.full(1000, float(routes.sources[n]))}

    for failing in everyone.tolist():
        status = READY
        try:
            for _ in ours.exchange(routes, cut, window=failing % 2 or None):
                if comm.rank == failing:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            status = FAILED
        try:
            ours.agree(status)
        except Abandoned as all_leave:
            assert all_leave.status == FAILED  # noqa: PT017 - pytest is not there
        else:
            raise AssertionError
    for n, arrays in ours.exchange(routes, cut):
        assert (arrays["val"] == routes.sources[n]).all()
    stop = True
    try:
        list(ours.exchange(routes, cut))
    except Abandoned as all_leave:
        assert all_leave.status == CANCELLED  # noqa: PT017 - as above
    else:
        raise AssertionError


def patience() -> None:
    """Prints the part of a core that ranks took while they waited two seconds for the first."""
    import time

    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    ours = RankTransport(comm, comm.size, lambda: False)
    ours.agree(READY)
    if comm.rank == 0:
        time.sleep(2.0)
    start = time.process_time()
    ours.agree(READY)
    took = np.array([time.process_time() - start])
    most = np.zeros(1)
    finish([comm.Ireduce(took, most, MPI.MAX, 0)])
    if comm.rank == 0:
        print(most[0] / 2.0)


def large() -> None:
    """A piece of more than 2³¹ bytes."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    ours = RankTransport(comm, 2, lambda: False)
    count = 2**31 + 12345
    one = np.array([0]), np.array([1]), np.array([[count]])
    routes = Routes(*one, {"val": np.dtype(np.uint8)}, np.array([0]))
    values = np.zeros(count, np.uint8)
    values[[0, 2**30, -1]] = 1, 2, 3
    for _, arrays in ours.exchange(routes, lambda _: {"val": values}):
        assert arrays["val"][[0, 2**30 - 1, 2**30, -1]].tolist() == [1, 0, 2, 3]
        assert int(arrays["val"].sum(dtype=np.int64)) == 6
    assert sum(ours.sent) + sum(ours.received) == count


CASES: dict[str, Callable[[], None]] = {
    case.__name__: case
    for case in (direct, counting, collectives, chunks, programs, failures, patience, large)
}

if __name__ == "__main__":
    for named in sys.argv[1:]:
        CASES[named]()
