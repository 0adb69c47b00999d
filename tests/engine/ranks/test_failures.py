"""Ranks that are killed, fail or are told to stop: one error, nothing left, and on it goes.

EINSQL_REPEAT says how often each is done, at moments drawn from a seed; `make failures`
does it 50 times and prints the seconds it took.
"""

import contextlib
import errno
import gc
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

import einsql
from einsql.engine.ranks import call, framing, interrupts, leftovers
from einsql.engine.ranks.messages import Fetch
from einsql.engine.ranks.rank import _failed
from tests.engine.ranks.processes import descendants, descriptors, gone, ranks_of

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

REPEAT = int(os.environ.get("EINSQL_REPEAT", "1"))
TWICE = int(os.environ.get("EINSQL_REPEAT", "2"))
"""How often what has two kinds is done."""
RANKS = 3
SIZE = 700
MATMUL = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
KILLED = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV)


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    """A session on ranks that leaves nothing behind."""
    yield from careful()


def careful() -> Iterator[einsql.Connection]:
    """A session on ranks; no process, memory, file or descriptor is left of it."""
    gc.collect()  # what other tests left open
    since, before = time.time(), descriptors()
    others = set(descendants(os.getpid()))  # as multiprocessing's tracker after other tests
    rng = np.random.default_rng(0)
    with einsql.connect(config={"mpi": RANKS}) as con:
        for name, dims in (("a", ("i", "j")), ("b", ("j", "k"))):
            con.register(name, rng.integers(-9, 9, (SIZE, SIZE)).astype(float), dims=dims)
        con.execute("CREATE TENSOR kept (i DIM(40), val DOUBLE) DEFAULT 0.5")
        assert con.execute("SELECT SUM(val) AS s FROM kept").fetchone() == (20.0,)
        assert not any(leftovers.segments(p) for p in ranks_of(os.getpid()))
        yield con
        pids = set(descendants(os.getpid())) - others
    assert gone(pids)
    assert nothing_shared(since)
    assert descriptors(compilers=False) <= before


def nothing_shared(since: float) -> bool:
    """True once no shared memory is left; another test's ranks may be ending just now."""
    deadline = time.monotonic() + 10
    while leftovers.forsaken(since) and time.monotonic() < deadline:
        time.sleep(0.5)
    return leftovers.forsaken(since) == []


def product(con: einsql.Connection) -> np.ndarray:
    return np.asarray(con.execute(MATMUL).fetch_numpy())


def figures(what: str, seconds: list[float]) -> None:
    shown = f"median {statistics.median(seconds):.2f} s, longest {max(seconds):.2f} s"
    print(f"\n{what}: {len(seconds)} times, {shown}")


def resident() -> int:
    """Bytes of memory this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def work(con: einsql.Connection, meanwhile: threading.Thread | None = None) -> None:
    """Statements that compute, keep and fetch, until one of them fails."""
    if meanwhile is not None:
        meanwhile.start()
    while True:
        con.execute(f"CREATE OR REPLACE TENSOR c AS {MATMUL}")
        con.execute("SELECT SUM(val) AS s FROM c").fetchone()
        product(con)


def kill(rank: int, how: int) -> int:
    """Waits until there are all ranks, and kills one of them."""
    deadline = time.monotonic() + 60
    while len(found := ranks_of(os.getpid())) < RANKS:
        assert time.monotonic() < deadline, found
        time.sleep(0.001)
    os.kill(found[rank], how)
    return found[rank]


class Later(threading.Thread):
    """Does something after some time.

    Attributes:
        at: When.
        gave: What it gave.
    """

    def __init__(self, delay: float, what: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.at = 0.0
        self.gave: object = None
        self._delay, self._what = delay, what

    def run(self) -> None:
        time.sleep(self._delay)
        self.at = time.monotonic()  # ranks that start are waited for: the error comes after
        self.gave = self._what()


def until(done: threading.Event, what: Callable[[], object]) -> None:
    """Does something again and again: between two statements nothing is interrupted."""
    while not done.wait(0.01):
        what()


def test_a_killed_rank_fails_the_statement_and_the_next_one_starts_ranks_again(
    con: einsql.Connection,
) -> None:
    right, seconds, held = product(con), [], resident()
    for seed in range(REPEAT):
        draw = random.Random(seed)
        rank, how = draw.randrange(RANKS), draw.choice(KILLED)
        moment = ("working", "idle", "starting")[seed % 3]
        if moment == "starting":
            kill(rank, how)
            with pytest.raises(einsql.OperationalError):
                work(con)
        killing = Later(draw.random() * 0.6, partial(kill, rank, how))
        killing.start()
        if moment == "idle":
            killing.join()
        with pytest.raises(einsql.OperationalError) as failure:
            work(con)
        seconds.append(time.monotonic() - killing.at)
        killing.join()
        told = str(failure.value)
        if "have not started" not in told:
            assert f"ank {rank} (process {killing.gave} on {socket.gethostname()})" in told, told
        assert gone([int(str(killing.gave))])
        assert ranks_of(os.getpid()) == []
        assert (product(con) == right).all()
        assert con.execute("SELECT SUM(val) AS s FROM kept").fetchone() == (20.0,)
    figures("from a kill to the error", seconds)
    print(f"the session's memory grew by {(resident() - held) / 2**20:.1f} MiB")


def test_a_tensor_that_lay_at_the_ranks_alone_is_named_and_can_be_made_again(
    con: einsql.Connection,
) -> None:
    con.execute(f"CREATE TENSOR c AS {MATMUL}")
    cursor = con.execute("SELECT i, k, val + 1 AS val FROM c")
    con.execute("BEGIN")
    pid = kill(2, signal.SIGKILL)
    with pytest.raises(einsql.OperationalError, match=rf"Rank 2 \(process {pid} "):
        con.execute("CREATE OR REPLACE TENSOR c AS SELECT i, SUM(val) AS val FROM a GROUP BY i")
    con.rollback()
    lost = rf'"c" was lost with rank 2 \(process {pid}'
    with pytest.raises(einsql.OperationalError, match=lost) as failure:
        con.execute("SELECT SUM(val) AS s FROM c")
    assert "CREATE OR REPLACE TENSOR c AS" in failure.value.hint
    with pytest.raises(einsql.OperationalError, match=r"The result was lost with rank 2"):
        cursor.fetch_numpy()
    con.execute(f"CREATE OR REPLACE TENSOR c AS {MATMUL}")
    assert (con.execute("SELECT i, k, val FROM c").fetch_numpy() == product(con)).all()
    con.execute("DROP TENSOR c")


def test_an_error_anywhere_is_the_same_error_and_the_next_statement_is_right(
    con: einsql.Connection,
) -> None:
    right = product(con)
    sql = "SELECT i // 2 AS g, SUM(val) AS val FROM v GROUP BY i // 2"
    values = np.zeros(60, np.int64)
    for seed in range(REPEAT):
        values[:] = 1
        places = random.Random(seed).sample(range(30), 1 + seed % 2)
        for p in [29] if seed == 0 else places:  # on the last rank alone, then anywhere
            values[2 * p : 2 * p + 2] = 2**62
        con.register("v", values, dims=("i",))
        with pytest.raises(einsql.DataError, match=r"[Oo]verflow") as failure:
            con.execute(sql)
        alone = einsql.connect()
        alone.register("v", values, dims=("i",))
        with pytest.raises(einsql.DataError) as same:
            alone.execute(sql)
        assert str(failure.value) == str(same.value)
        assert con.cluster is not None
        with pytest.raises(einsql.InternalError, match="KeyError"):
            con.cluster.call({1: Fetch(10**9, ("val",), [(0, (...,))])})
        assert (product(con) == right).all()


class StrangeError(Exception):
    """Can be neither pickled nor made again from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one)
        self.held = threading.Lock()


def test_whatever_a_rank_raises_can_be_told() -> None:
    assert isinstance(_failed(1, StrangeError(1, 2), 0).error, einsql.InternalError)
    assert isinstance(_failed(1, MemoryError(), 0).error, einsql.OperationalError)
    known = _failed(1, einsql.DataError("Overflow", hint="Cast.", position=3), 0).error
    assert isinstance(known, einsql.DataError)
    assert (known.hint, known.position) == ("Cast.", 3)


def test_a_message_that_is_withdrawn_or_too_large_leaves_the_line_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = [Connection(s.detach()) for s in socket.socketpair()]
    array = np.arange(3 * framing.PIECE, dtype=np.uint8)

    def sent(wanted: Callable[[], bool] = lambda: True) -> threading.Thread:
        thread = threading.Thread(
            target=framing.send, args=(ends[0], [array, array.copy()], wanted)
        )
        thread.start()
        return thread

    left = iter([True, True, True, True, False])
    thread = sent(lambda: next(left))
    with pytest.raises(framing.Withdrawn):
        framing.receive(ends[1])
    thread.join()
    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", _no_memory)
        thread = sent()
        with pytest.raises(framing.Unread) as failure:
            framing.receive(ends[1])
        assert isinstance(failure.value.reason, MemoryError)
        thread.join()
    thread = sent()
    assert all((a == array).all() for a in framing.receive(ends[1]))
    thread.join()
    for end in ends:
        end.close()


def _no_memory(*_: object) -> np.ndarray:
    raise MemoryError


def test_small_arrays_come_as_large_ones_do() -> None:
    ends = [Connection(s.detach()) for s in socket.socketpair()]
    arrays = [np.arange(n, dtype=np.int64).reshape(2, -1) for n in (4, 0, framing.PACKED)]
    wanted = [np.zeros_like(a) for a in arrays]
    for into in ([], wanted, [np.zeros(3)] * 3):
        framing.send(ends[0], arrays)
        found = framing.receive(ends[1], into=into)
        for n, (a, b) in enumerate(zip(found, arrays, strict=True)):
            np.testing.assert_array_equal(a, b)
            assert a.flags.writeable
            assert n == 1 or np.shares_memory(a, wanted[n]) is (into is wanted)
    for end in ends:
        end.close()


def test_ctrl_c_and_interrupt_cancel_on_all_ranks(
    con: einsql.Connection, interruptible: None
) -> None:
    con.register("a", np.ones((SIZE, 2000)), dims=("i", "j"))
    con.register("b", np.ones((2000, 2000)), dims=("j", "k"))
    right, seconds = product(con), []
    for seed in range(TWICE):
        stopped = threading.Event()
        later = Later(
            random.Random(seed).random(),
            partial(until, stopped, con.interrupt)
            if seed % 2
            else partial(os.kill, os.getpid(), signal.SIGINT),
        )
        with pytest.raises((KeyboardInterrupt, einsql.OperationalError)):
            work(con, later)
        seconds.append(time.monotonic() - later.at)
        stopped.set()
        later.join()
        assert (product(con) == right).all()
    figures("from an interrupt to the prompt", seconds)


def test_a_rank_that_does_not_stop_is_ended(
    con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call, "STUBBORN", 0.5)
    os.kill(ranks_of(os.getpid())[1], signal.SIGSTOP)
    thread = threading.Timer(0.3, con.interrupt)
    thread.start()
    with pytest.raises(einsql.OperationalError, match=r"rank 1 .*did not stop"):
        work(con)
    thread.join()
    assert ranks_of(os.getpid()) == []
    product(con)


def test_ctrl_c_waits_for_the_end_of_a_message(interruptible: None) -> None:
    with contextlib.ExitStack() as stack:
        check = stack.enter_context(interrupts.deferred())
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
        check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("step", ["send", "receive"])
@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGTERM])
def test_a_time_limit_within_a_message_leaves_ranks_that_work(
    con: einsql.Connection, monkeypatch: pytest.MonkeyPatch, step: str, number: signal.Signals
) -> None:
    def expire(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("too late")  # an OSError, as is the end of a connection

    def late(*args: object) -> object:
        result = whole(*args)
        if not late_messages:
            late_messages.append(args)
            signal.raise_signal(number)
        return result

    late_messages: list[object] = []
    expected, whole = product(con), getattr(call, step)
    before = signal.signal(number, expire)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(call, step, late)
            with pytest.raises(TimeoutError, match="too late"):
                product(con)
        assert signal.getsignal(number) is expire
    finally:
        signal.signal(number, before)
    for _ in range(3):
        np.testing.assert_array_equal(product(con), expected)


def test_a_connection_that_fails_ends_the_ranks(
    con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        raise OSError(errno.ENOBUFS, os.strerror(errno.ENOBUFS))

    expected = product(con)
    with monkeypatch.context() as patched:
        patched.setattr(call, "send", fail)
        with pytest.raises(einsql.OperationalError, match="connection to a rank failed"):
            product(con)
    assert ranks_of(os.getpid()) == []
    np.testing.assert_array_equal(product(con), expected)


SESSION = """
    import os, sys, numpy as np, einsql
    con = einsql.connect(config={"mpi": 2})
    con.register("a", np.ones((500, 500)), dims=("i", "j"))
    con.register("b", np.ones((500, 500)), dims=("j", "k"))
    sql = "SELECT i, k, SUM(a.val * b.val) AS s FROM a JOIN b USING (j) GROUP BY i, k"
    con.execute(sql)
    print("ready", flush=True)
"""


def session(body: str) -> subprocess.Popen[str]:
    """A process of its own with ranks of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SESSION) + textwrap.dedent(body)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3],
    )  # fmt: skip


def test_ranks_leave_when_their_session_is_killed() -> None:
    since = time.time()
    for seed in range(REPEAT):
        process = session("while True: con.execute(sql).fetch_numpy()")
        draw = random.Random(seed)
        if seed % 2:  # else while it starts
            assert process.stdout is not None
            process.stdout.readline()
        time.sleep(draw.random())
        pids = descendants(process.pid)
        process.kill()
        process.communicate(timeout=60)
        assert gone(pids)
    assert nothing_shared(since)


def test_ranks_leave_when_their_session_is_killed_before_all_have_reached_it() -> None:
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent("""
            import os, signal
            import einsql
            from einsql.engine.ranks.rendezvous import Meeting
            from tests.engine.ranks.processes import descendants

            whole = Meeting.accepting

            def accepting(self, ranks, note):
                lines = []

                def some(line, started):
                    lines.append(line)
                    if len(lines) == 2:
                        print(*descendants(os.getpid()), flush=True)
                        os.kill(os.getpid(), signal.SIGKILL)
                    note(line, started)

                return whole(self, ranks, some)

            Meeting.accepting = accepting
            einsql.connect(config={"mpi": 3}).execute("SELECT 1")
        """)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3], timeout=60, check=False,
    )  # fmt: skip
    pids = [int(pid) for pid in process.stdout.split()]
    assert len(pids) >= 3
    assert gone(pids)


def test_a_session_may_end_without_closing_and_a_fork_leaves_it_alone() -> None:
    process = session("""
        child = os.fork()
        if child == 0:
            try:
                con.execute(sql)
            except einsql.OperationalError as error:
                print(error)
            con.close()
            sys.exit(0)
        os.waitpid(child, 0)
        print(con.execute(sql).fetch_numpy()[0, 0])
    """)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "before a fork; open a new one in this process" in out
    assert out.endswith("\n500.0\n")


PRIVATE = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
"""A process whose directory for temporary files is its own, however many tests run."""


@pytest.mark.parametrize("victims", ["mpiexec", "all"])
def test_a_killed_launcher_leaves_nothing_in_the_temporary_directory(victims: str) -> None:
    mount = "mount -t tmpfs none /tmp"
    if not shutil.which("unshare") or subprocess.run([*PRIVATE, mount], check=False).returncode:
        pytest.skip("needs user namespaces for a private /tmp")
    if any(str(Path(p).absolute()).startswith("/tmp/") for p in (__file__, sys.executable)):
        pytest.skip("the tests or their Python are in /tmp, which this test replaces")
    text = textwrap.dedent(f"""
        import os, signal, subprocess, sys, time
        import einsql
        from tests.engine.ranks.processes import descendants, gone

        child = os.fork()
        if child == 0:
            con = einsql.connect(config={{"mpi": 2}})
            con.execute("SELECT 1").fetchall()
            pids = descendants(os.getpid())
            for pid in pids[:1] if {victims!r} == "mpiexec" else pids:
                os.kill(pid, signal.SIGKILL)
            if {victims!r} == "all":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                con.execute("SELECT SUM(r.i) AS s FROM range(99) r(i)")
            except einsql.OperationalError:
                con.close()
            os._exit(0)
        os.waitpid(child, 0)
        print(sorted(os.listdir("/tmp")))
    """)
    done = subprocess.run(
        [*PRIVATE, f'{mount} && exec "$0" -c "$1"', sys.executable, text],
        capture_output=True, text=True, cwd=Path(__file__).parents[3], timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout == "[]\n", done.stderr
