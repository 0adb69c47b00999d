"""The transport between ranks: what it makes of routes, and that everything arrives."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from einsql.engine.mpi_schedule import AllGather, Broadcast, Schedule, scheduled
from einsql.engine.transport import Routes
from tests.support.samples import sample

ROOT = Path(__file__).parents[3]


def on_ranks(ranks: int, *cases: str) -> str:
    """What cases of `exchanges.py` print, one after the other on the same ranks."""
    pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")
    launcher = Path(sys.executable).with_name("mpiexec")
    done = subprocess.run(
        [launcher, "-n", str(ranks), sys.executable, "-m", "mpi4py", "-m",
         "tests.engine.ranks.exchanges", *cases],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("ranks", sample([3], [2, 4]))
def test_everything_arrives_and_is_counted(ranks: int) -> None:
    on_ranks(ranks, "direct", "counting", "collectives", "chunks", "programs", "failures")


def test_who_waits_leaves_the_core_to_others() -> None:
    assert float(on_ranks(3, "patience")) < 0.1


@pytest.mark.large
def test_a_piece_may_have_more_bytes_than_a_count() -> None:
    with open("/proc/meminfo", encoding="ascii") as lines:
        free = next(int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))
    if free < 8 * 2**20:
        pytest.skip("needs 8 GiB of memory")
    on_ranks(2, "large")


# ---- what is recognised, without MPI


def routes(ends: list[tuple[int, int, int]], size: int = 10) -> Routes:
    """Of (source, target, piece)."""
    table = np.array(ends, np.int64)
    shapes = np.full((len(ends), 1), size)
    return Routes(table[:, 0], table[:, 1], shapes, {"val": np.dtype(np.int8)}, table[:, 2])


def schedules(moved: Routes, ranks: int, nodes: int, sites: int | None = None) -> list[Schedule]:
    """Of every rank."""
    sites = sites or ranks
    of_site, of_rank = np.arange(sites) * ranks // sites, np.arange(ranks) * nodes // ranks
    return [scheduled(moved, of_site, of_rank, here) for here in range(ranks)]


ALL_TO_ALL_SAME = [(s, t, s) for s in range(8) for t in range(8)]
ONE_TO_ALL = [(2, t, 7) for t in range(8)]


def test_on_one_node_everything_goes_in_pairs() -> None:
    for ends in (ALL_TO_ALL_SAME, ONE_TO_ALL):
        for here, schedule in enumerate(schedules(routes(ends), 8, nodes=1)):
            assert not schedule.collectives
            assert {r for _, r in schedule.receives} == {s for s, t, _ in ends if t == here != s}


def test_between_nodes_what_one_has_for_all_is_broadcast() -> None:
    for here, schedule in enumerate(schedules(routes(ONE_TO_ALL), 8, nodes=8)):
        (found,) = schedule.collectives
        assert found == Broadcast(tuple(range(8)), 2, 0)
        assert (schedule.sends, schedule.receives) == ((), ())
        assert schedule.stays == ((2,) if here == 2 else ())
        assert schedule.serves == ({} if here == 2 else {0: (here,)})


def test_between_nodes_small_pieces_of_all_for_all_are_gathered_in_one_call() -> None:
    (found,) = schedules(routes(ALL_TO_ALL_SAME), 8, nodes=4)[3].collectives
    assert isinstance(found, AllGather)
    large = schedules(routes(ALL_TO_ALL_SAME, size=2**20), 8, nodes=4)[3].collectives
    assert [c.root for c in large if isinstance(c, Broadcast)] == list(range(8))


def test_groups_are_recognised_side_by_side_among_other_pieces() -> None:
    rows = [[0, 2, 4, 6], [1, 3, 5, 7]]
    ends = [(s, t, s) for row in rows for s in row for t in row]
    ends += [(0, 1, 100), (1, 2, 101), (0, 7, 102), (0, 5, 102)]
    for schedule in schedules(routes(ends), 8, nodes=8):
        assert [c.members for c in schedule.collectives] == [tuple(row) for row in rows]
    assert [rank for _, rank in schedules(routes(ends), 8, nodes=8)[0].sends] == [1, 7, 5]


def test_distinct_pieces_go_in_pairs() -> None:
    ends = [(s, t, 8 * s + t) for s in range(8) for t in range(8)]
    for schedule in schedules(routes(ends), 8, nodes=8):
        assert not schedule.collectives
        assert len(schedule.sends) == len(schedule.receives) == 7


def test_a_rank_gets_a_piece_once_for_all_of_its_sites() -> None:
    first, second = schedules(routes([(0, t, 0) for t in range(8)]), 2, nodes=1, sites=8)
    assert first.sends == ((4, 1),)
    assert second.serves == {4: (4, 5, 6, 7)}
