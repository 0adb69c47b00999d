"""The way of a statement leads down: lower rooms call few functions of higher ones."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import numpy as np
import pytest

import einsql

LEVELS = [
    ("errors",),
    ("core",),
    ("ir",),
    ("sql", "optimizer", "kernels", "storage"),
    ("engine",),
    ("planner",),
    ("hybrid",),
    ("explain",),
    ("session",),
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
SELECT = "SELECT i, SUM(val) AS s FROM t GROUP BY i"
UPDATE = "UPDATE t SET val = val + 1 WHERE i < 3"


def _room(frame: FrameType) -> str:
    names = str(frame.f_globals.get("__name__", "")).split(".")
    return names[1] if names[0] == "einsql" and len(names) > 1 else ""


def _is_handed_in(caller: FrameType, callee: FrameType) -> bool:
    """True if the caller was given the function: a callback, a generator, an override."""
    nested = "<locals>" in callee.f_code.co_qualname or callee.f_code.co_name.startswith("<")
    return (
        nested or _room(caller) == "core" or callee.f_code.co_name in ("__iter__", "part", "tick")
    )


def upward(work: Callable[[], object]) -> Counter[tuple[str, str]]:
    """Calls from a lower room to a higher one, but for functions that are handed in."""
    calls: Counter[tuple[str, str]] = Counter()

    def watch(frame: FrameType, event: str, arg: object) -> None:
        caller = frame.f_back
        if event != "call" or caller is None:
            return
        low, high = LEVEL.get(_room(caller)), LEVEL.get(_room(frame))
        if low is not None and high is not None and low < high and not _is_handed_in(caller, frame):
            calls[caller.f_code.co_qualname, frame.f_code.co_qualname] += 1

    sys.setprofile(watch)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def _connected(config: dict[str, object] | None = None) -> einsql.Connection:
    con = einsql.connect(config=config)
    con.register("a", np.ones((8, 8)), dims=("i", "j"))
    con.execute("CREATE TENSOR t AS SELECT i, j, val FROM a")
    return con


@pytest.mark.parametrize("sql", [SELECT, UPDATE])
def test_a_statement_calls_upward_three_times_at_most(sql: str) -> None:
    con = _connected()
    assert upward(lambda: con.execute(sql)).total() <= 3


def test_a_statement_at_ranks_calls_upward_three_times_at_most() -> None:
    pytest.importorskip("mpi4py", reason="it starts MPI ranks")
    with _connected({"mpi": 2}) as con:
        assert upward(lambda: con.execute(SELECT).fetchall()).total() <= 3
