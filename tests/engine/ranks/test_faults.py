"""A rank fails in a chosen phase in a chosen way: one error that names it, and on it goes.

EINSQL_REPEAT says how often each is done; more than once, every way is tried in every phase.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import einsql
from einsql.engine.ranks import call, job
from tests.engine.ranks.processes import ranks_of
from tests.engine.ranks.test_failures import MATMUL, RANKS, careful, product, work
from tests.support.samples import sample, spread

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

REPEAT = int(os.environ.get("EINSQL_REPEAT", "1"))
MEMORY = Path("/sys/fs/cgroup/memory")
RUNNING = ("load", "agree", "exchange", "work", "fetch", "answer")
WAYS = ("SIGSEGV", "exit")
KILLS = [
    *((phase, "SIGKILL") for phase in RUNNING),
    *((p, way) for n, p in enumerate(RUNNING) for way in WAYS if REPEAT > 1 or way == WAYS[n % 2]),
]
FALLS = [("listen", "bug"), ("serve", "bug"), ("work", "abort")]


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ranks read their faults from."""
    return tmp_path_factory.mktemp("faults") / "plan"


@pytest.fixture(scope="module")
def con(plan: Path) -> Iterator[einsql.Connection]:
    """A session on ranks that fail as planned, with a launcher that drops what they print."""
    launcher, wrapper = job.launcher_of, str(Path(__file__).with_name("faulty.py"))
    rank = ["sh", "-c", 'exec "$@" 2>/dev/null', "rank", sys.executable, wrapper, str(plan)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "launcher_of", lambda given, ranks: [*launcher(given, ranks), *rank])
        yield from careful()


@pytest.fixture
def memory() -> Iterator[str]:
    """The file that puts a process where it has 64 MiB more memory."""
    group = MEMORY / f"einsql-{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text("64M")
    except OSError as error:
        pytest.skip(f"needs to make a memory cgroup (v1): {error}")
    yield str(group / "cgroup.procs")
    group.rmdir()


@pytest.mark.parametrize(("phase", "how"), sample([*KILLS[3::3], *FALLS[::2]], [*KILLS, *FALLS]))
def test_a_rank_that_ends_in_any_phase_is_named_and_the_session_goes_on(
    con: einsql.Connection, plan: Path, phase: str, how: str
) -> None:
    right = product(con)
    for n in range(REPEAT):
        ended(con, plan, n % RANKS, phase, how)
        assert (product(con) == right).all()


def test_a_rank_that_is_killed_for_want_of_memory_is_named(
    con: einsql.Connection, plan: Path, memory: str
) -> None:
    right = product(con)
    for n in range(REPEAT):
        ended(con, plan, n % RANKS, "work", memory)  # the launcher may tell another one's signal
        assert (product(con) == right).all()


def test_a_rank_that_ends_while_it_starts_is_named(con: einsql.Connection, plan: Path) -> None:
    for n in range(REPEAT):
        ended(con, plan, 0, "work", "SIGKILL")
        plan.write_text(f"{n % RANKS} start SIGKILL")
        with pytest.raises(einsql.OperationalError, match=rf"not started: .*; rank {n % RANKS} \("):
            con.execute(MATMUL)
        product(con)


@pytest.mark.parametrize("phase", spread([*RUNNING[:-1], "reply"], 3))
def test_a_bug_in_one_rank_is_an_error_that_names_it(
    con: einsql.Connection, plan: Path, phase: str
) -> None:
    right = product(con)
    pids = ranks_of(os.getpid())
    for n in range(REPEAT):
        plan.write_text(f"{n % RANKS} {phase} bug")
        told = rf"Rank {n % RANKS} failed: Traceback[\s\S]*ValueError: a bug"
        with pytest.raises(einsql.InternalError, match=told):
            work(con)
        assert (product(con) == right).all()
    assert ranks_of(os.getpid()) == pids


def test_a_small_insert_that_a_rank_has_no_memory_for_is_made_later(
    con: einsql.Connection, plan: Path
) -> None:
    con.execute("CREATE TENSOR t (i DIM(8), j DIM(8), val DOUBLE) DEFAULT 1 PARTITION BY (i 2)")
    con.execute("CREATE TENSOR five AS SELECT i, 5::DOUBLE AS val FROM range(8) AS r(i)")
    total = "SELECT SUM(val) AS s FROM t"
    assert con.execute(total).fetchone() == (64,)
    for n in range(min(REPEAT, 6) + 1):
        plan.write_text(f"{n % 2} change memory")
        con.execute("INSERT INTO t SELECT i, ?1 AS j, val FROM five", [n])
        with pytest.raises(einsql.OperationalError, match="not enough memory"):
            con.execute(total)
        plan.unlink()
        assert con.execute(total).fetchone() == (64 + 32 * (n + 1),)
    con.execute("DROP TENSOR t")
    con.execute("DROP TENSOR five")


def test_an_exchange_that_one_rank_does_not_begin_ends_them_all(
    con: einsql.Connection, plan: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "APART", 0.5)
    right = product(con)
    plan.write_text("1 begin bug")
    with pytest.raises(einsql.InternalError, match=r"Rank 1 failed: [\s\S]*ValueError: a bug"):
        work(con)
    assert ranks_of(os.getpid()) == []
    assert (product(con) == right).all()


def ended(con: einsql.Connection, plan: Path, rank: int, phase: str, how: str) -> None:
    """Lets a rank end; the error names it."""
    product(con)
    pid = ranks_of(os.getpid())[rank]
    plan.write_text(f"{rank} {phase} {how}")
    with pytest.raises(einsql.OperationalError, match=rf"^Rank {rank} \(process {pid} "):
        work(con)
    assert not plan.exists()
    assert ranks_of(os.getpid()) == []
