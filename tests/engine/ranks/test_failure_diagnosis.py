"""Which rank ended first: told by the kernel, by launchers and by ranks, and never guessed."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import pytest

import einsql
from einsql.engine.ranks.failure_diagnosis import Ended, Loss, loss, reports
from einsql.engine.ranks.messages import Started
from einsql.engine.ranks.rendezvous import Meeting
from tests.engine.ranks.processes import descendants, gone, ranks_of
from tests.support.samples import sample

REPEAT = int(os.environ.get("EINSQL_REPEAT", "1"))

MPICH = """
=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES
=   PID {pid} RUNNING AT node07
=   EXIT CODE: {code}
=   CLEANING UP REMAINING PROCESSES
YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)
"""
MPICH_ABORT = """\
Abort(1) on node 2 (rank 2 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - process 2
"""
OPEN_MPI = """
prterun noticed that process rank {rank} with PID 0 on node node07 exited on
signal 9 (Killed).
"""
OPEN_MPI_STATUS = """
thus causing the job to be terminated. The first process to do so was:
   Process name: [prterun-node07-8507@1,{rank}]
   Exit code:    3
"""
OPEN_MPI_ABORT = "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\n"


R0, R1, R2 = (f"ank {n} (process {100 + n} on node07)" for n in range(3))
UNKNOWN = f"R{R0}, r{R1} and r{R2} have ended (which of them was the first is not known)"


@pytest.mark.parametrize(
    ("text", "ordered", "told"),
    [
        ("", True, f"R{R1} has ended"),
        (MPICH.format(pid=101, code=6), True, f"R{R1} was ended by SIGABRT"),
        # The launcher names one that it killed itself, with the first one's signal below.
        (MPICH.format(pid=100, code=9), True, f"R{R1} has ended"),
        (MPICH_ABORT, True, f"R{R2} has made MPI end all ranks"),
        (MPICH.format(pid=102, code=15), False, f"R{R2} was ended by SIGTERM"),
        (OPEN_MPI.format(rank=2), False, f"R{R2} was ended by SIGKILL"),
        (OPEN_MPI_STATUS.format(rank=0), False, f"R{R0} has ended with status 3"),
        (OPEN_MPI_ABORT, False, f"R{R1} has made MPI end all ranks"),
        (MPICH.format(pid=102, code=9), False, UNKNOWN),
    ],
)
def test_what_is_told_of_ranks_that_ended(text: str, ordered: bool, told: str) -> None:
    ended = [Ended(n, Started(n, 100 + n, "node07")) for n in (1, 0, 2)]
    assert str(loss(ended, (), ordered, reports(text))) == told
    if "MPI" in told:  # it may be the last to end
        assert str(loss(ended[1:2], [ended[0], ended[2]], ordered, reports(text))) == told


def test_last_words_and_the_launchers_end_come_before_all_else() -> None:
    ended = [Ended(n, Started(n, 100 + n, "node07")) for n in (1, 0)]
    killed = Loss("the launcher (process 99 on node07)", "was ended by SIGKILL")
    assert loss(ended, (), True, [], killed) is killed
    assert (
        "rank 1" in loss(ended[:1], ended[1:], True, [], killed).who
    )  # the others go on without it
    reason = einsql.InternalError("Rank 0 failed: Traceback\nValueError: nonsense")
    spoken = loss([ended[0], Ended(0, ended[1].started, reason)], (), True, [], killed)
    assert str(spoken) == "Rank 0 (process 100 on node07) has failed: ValueError: nonsense"
    assert spoken.words is reason


RANK = """
import sys, time
from einsql.engine.ranks.rendezvous import reach
line = reach(sys.argv[1], bytes.fromhex(sys.argv[2]))
time.sleep(600)
"""


def test_a_ranks_line_closes_before_what_its_launcher_watches() -> None:
    come = threading.Event()
    lines: list[Connection] = []

    def note(line: Connection, _: Started) -> None:
        lines.append(line)
        come.set()

    launcher, watched = socket.socketpair()
    with Meeting() as meeting, select.epoll() as ends, launcher, meeting.accepting(1, note):
        command = [sys.executable, "-c", RANK, meeting.address, meeting.key.hex()]
        process = subprocess.Popen(command, pass_fds=[watched.fileno()])
        watched.close()
        assert come.wait(60)
        ends.register(launcher.fileno(), select.EPOLLRDHUP | select.EPOLLET)
        ends.register(lines[0].fileno(), select.EPOLLRDHUP | select.EPOLLET)
        process.kill()
        process.wait()
        assert next(number for number, _ in ends.poll(60)) == lines[0].fileno()
        lines[0].close()


def work(con: einsql.Connection) -> None:
    """Statements until one fails."""
    while True:
        con.execute("SELECT SUM(r.i) AS s FROM range(99) r(i)")


@contextmanager
def load() -> Iterator[None]:
    """Keeps more cores busy than there are."""
    count = 2 + len(os.sched_getaffinity(0))
    command = [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"]
    hogs = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    try:
        for hog in hogs:
            assert hog.stdout is not None
            hog.stdout.readline()  # it is at work
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.communicate()


@pytest.mark.parametrize("ranks", sample([3], [2, 4]))
def test_each_rank_is_named_when_it_is_killed_on_a_busy_machine(ranks: int) -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")
    with einsql.connect(config={"mpi": ranks}) as con:
        for n in range(REPEAT * ranks):
            con.execute("SELECT SUM(r.i) AS s FROM range(99) r(i)")
            pid = ranks_of(os.getpid())[n % ranks]
            told = rf"Rank {n % ranks} \(process {pid} "
            with load():
                os.kill(pid, (signal.SIGKILL, signal.SIGABRT)[n // ranks % 2])
                with pytest.raises(einsql.OperationalError, match=told):
                    work(con)


def test_no_rank_is_named_when_the_launcher_is_killed() -> None:
    pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")
    with einsql.connect(config={"mpi": 3}) as con:
        ranks = ranks_of(os.getpid())
        launcher = descendants(os.getpid())[0]
        os.kill(launcher, signal.SIGKILL)
        told = rf"The launcher \(process {launcher} on .*\) was ended by SIGKILL, and all ranks"
        with pytest.raises(einsql.OperationalError, match=told):
            work(con)
        assert gone(ranks)
        assert con.execute("SELECT SUM(r.i) AS s FROM range(9) r(i)").fetchone() == (36,)
