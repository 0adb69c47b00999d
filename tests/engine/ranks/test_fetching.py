"""Results that lie at ranks: a fetch can be stopped, and done again."""

import os
import signal
import threading
from typing import Any

import pytest

from einsql.engine.ranks import call, framing
from einsql.errors import InterruptedError
from einsql.storage.results.result import Result
from tests.engine.ranks.conftest import Connected
from tests.support.samples import combinations

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")


@pytest.mark.parametrize(
    ("what", "by"),
    combinations(
        ["fetchall", "fetchone", "fetch_numpy", "fetch_arrow_table"], ["interrupt", "Ctrl-C"]
    ),
)
def test_what_is_fetched_from_ranks_can_be_interrupted(
    connected: Connected, monkeypatch: pytest.MonkeyPatch, interruptible: None, what: str, by: str
) -> None:
    con = connected(2)
    sql = "SELECT r.i, s.j, r.i * 1000 + s.j AS v FROM range(1000) r(i), range(1000) s(j)"
    cursor, kept = con.execute(sql), con.execute(sql)
    assert isinstance(cursor._tensor(), Result)
    first = cursor.fetchone() if what == "fetchall" else None
    con.interrupt()  # nothing is under way, so nothing is stopped
    assert len(kept.fetchmany(3)) == 3
    fetched = []

    def receive(*args: Any) -> object:
        """In the middle of a message the interrupt comes."""
        fetched.append(args)
        if len(fetched) == 1:
            if by == "interrupt":
                thread = threading.Thread(target=con.interrupt)
                thread.start()
                thread.join()
            else:
                os.kill(os.getpid(), signal.SIGINT)
        return framing.receive(*args)

    monkeypatch.setattr(call, "receive", receive)
    with pytest.raises(InterruptedError if by == "interrupt" else KeyboardInterrupt):
        getattr(cursor, what)()
    monkeypatch.undo()
    rows = cursor.fetchall()  # nothing of it is missing
    assert rows[0][1] == (first is not None)
    assert rows[-1] == (999, 999, 999999)
    assert len(rows) == 1000000 - (first is not None)
    assert kept.fetch_numpy()[7, 7] == 7007
    assert con.execute("SELECT SUM(r.i) AS s FROM range(9) r(i)").fetchone() == (36,)
