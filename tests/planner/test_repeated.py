"""Statements that run again and again: results stay what they were, whatever comes between."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

import einsql
from tests.support.samples import sample

STEPS = """
WITH n AS (SELECT i, x.val * ?1 AS val FROM x),
m AS (SELECT MAX(val) AS val FROM n),
e AS (SELECT n.i, EXP(n.val - m.val) AS val FROM n, m),
s AS (SELECT SUM(val) AS val FROM e)
SELECT e.i, e.val / s.val AS val FROM e, s
"""
X = np.linspace(-1, 1, 16)


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as made:
        made.register("x", X, dims=("i",))
        yield made


def softmax(factor: float) -> np.ndarray:
    powers = np.exp(X * factor - (X * factor).max())
    return np.asarray(powers / powers.sum())


def test_results_are_not_overwritten_by_later_runs(con: einsql.Connection) -> None:
    factors = [0.5 * n for n in range(12)]
    kept = [con.execute(STEPS, [f]).fetch_numpy() for f in factors]
    for factor, found in zip(factors, kept, strict=True):
        assert np.allclose(found, softmax(factor), rtol=1e-12)
        found[...] = 0  # it is the caller's own
    assert np.allclose(con.execute(STEPS, [0.5]).fetch_numpy(), softmax(0.5), rtol=1e-12)


def test_every_run_gives_the_same_bits(con: einsql.Connection) -> None:
    runs = [con.execute(STEPS, [0.75]).fetch_numpy().tobytes() for _ in range(5)]
    assert set(runs) == {runs[0]}


def test_one_plan_for_several_threads(con: einsql.Connection) -> None:
    con.execute(STEPS, [1.0])
    plans, wrong = con.planner_calls, []

    def work(factor: float) -> None:
        for _ in range(50):
            found = con.cursor().execute(STEPS, [factor]).fetch_numpy()
            if not np.allclose(found, softmax(factor), rtol=1e-12):
                wrong.append(factor)

    threads = [threading.Thread(target=work, args=(0.25 * n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert con.planner_calls == plans


@pytest.mark.parametrize("step", [1, 3])
def test_an_interrupted_run_is_run_again(con: einsql.Connection, step: int) -> None:
    expected = con.execute(STEPS, [2.0]).fetch_numpy()
    con.execute(STEPS, [2.0])
    told: list[float] = []

    def stop(fraction: float) -> None:
        told.append(fraction)
        if len(told) == step:
            con.interrupt()

    con.progress = stop
    with pytest.raises(einsql.OperationalError, match="cancelled"):
        con.execute(STEPS, [2.0])
    con.progress = None
    assert np.array_equal(con.execute(STEPS, [2.0]).fetch_numpy(), expected)


def test_an_exception_of_the_caller_ends_the_binding(con: einsql.Connection) -> None:
    """The bounds of groups are computed from data while the query is bound."""
    con.register("y", np.arange(6) * 10**9, dims=("i",))
    told: list[float] = []

    def stop_once(fraction: float) -> None:
        told.append(fraction)
        if len(told) == 1:
            raise TimeoutError("as of a signal handler")

    con.progress = stop_once
    with pytest.raises(TimeoutError, match="signal handler"):
        con.execute("SELECT val % 5000000007 AS g, COUNT(*) AS n FROM y GROUP BY g")


def test_a_failed_run_leaves_numpy_as_it_was(con: einsql.Connection) -> None:
    con.register("n", np.arange(4), dims=("i",))
    before = np.geterr()
    for _ in range(3):
        with pytest.raises(einsql.DataError):
            con.execute("SELECT i, n.val // (n.val - ?1) AS val FROM n", [2])
        assert np.geterr() == before
    with warnings.catch_warnings(), np.errstate(all="warn"):
        warnings.simplefilter("error")
        for _ in range(3):
            con.execute("SELECT i, LN(x.val) / 0 AS val FROM x").fetch_numpy()
        with pytest.raises(RuntimeWarning):
            np.log(X)


SELECTS = [
    "SELECT i, val * ?2 AS val FROM tt WHERE i BETWEEN ?1 AND ?1 + 3",
    "SELECT SUM(val) AS val FROM tt WHERE i <= ?1 AND i < ?2",
    "SELECT i, val FROM tt WHERE i = ?1 + ?2",
    "WITH p AS (SELECT i, val FROM tt WHERE i BETWEEN ?1 AND ?1 + 3) "
    "SELECT p.i, p.val - m.val AS val FROM p, (SELECT MAX(val) AS val FROM p) AS m WHERE ?2 > 1",
]
CHANGES = [
    "INSERT INTO tt SELECT ?1 AS i, SUM(val) * ?2 AS val FROM x",
    "INSERT INTO tt SELECT i + ?1 AS i, val + ?2 AS val FROM x",
    "INSERT OR REPLACE INTO uu SELECT ?1 AS i, ?2 AS k, MAX(val) AS val FROM x",
    "INSERT INTO uu SELECT ?1 AS i, ?2 AS k, MAX(val) AS val FROM x",
    "WITH m AS (SELECT MAX(val) AS val FROM x), "
    "a AS (INSERT INTO tt SELECT ?1 AS i, val FROM m) "
    "INSERT OR REPLACE INTO uu SELECT ?2 AS i, ?1 AS k, val FROM m",
    "UPDATE tt SET val = val + ?2 WHERE i = ?1",
]
VALUES = [
    (3, 2), (0, 5), (19, 1), (4, 4), (7, 3), (20, 2), (3, 2), (-1, 2), (18, 6), (5, 0), (2**40, 1),
    (2**63 - 1, 1), (6, 6), (1, 7),
]  # fmt: skip


def prepared() -> einsql.Connection:
    con = einsql.connect()
    con.register("x", X, dims=("i",))
    con.execute("CREATE TENSOR tt (i DIM(20), val FLOAT) DEFAULT 0")
    con.execute("CREATE TENSOR uu (i DIM(20), k DIM(8), val DOUBLE)")
    con.execute("INSERT INTO tt SELECT i, val FROM x")
    return con


def outcome(con: einsql.Connection, text: str, values: tuple[int, int]) -> object:
    """What a statement gives, or what is wrong with it; and what is stored afterwards."""
    try:
        found: object = con.execute(text, list(values)).rowcount
        if text in SELECTS:
            found = con.execute(text, list(values)).fetchall()
    except einsql.Error as error:
        found = type(error), str(error)
    stored = [con.execute(f"SELECT * FROM {name}").fetchall() for name in ("tt", "uu")]
    return found, stored


@pytest.mark.parametrize("text", sample([*SELECTS[::6], *CHANGES[::6]], [*SELECTS, *CHANGES]))
def test_every_run_is_as_a_first_one(text: str) -> None:
    """Whatever the values: within bounds or beyond, of keys that are there or not."""
    with prepared() as con:
        for n, values in enumerate(VALUES):
            with prepared() as fresh:
                if text in CHANGES:  # the same history, each of whose statements is a first one
                    for before in VALUES[:n]:
                        fresh.context.plans.clear()
                        outcome(fresh, text, before)
                fresh.context.plans.clear()
                assert outcome(con, text, values) == outcome(fresh, text, values), values


def test_an_insert_that_is_a_box_is_rolled_back(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR tt (i DIM(20), val DOUBLE) DEFAULT 0")
    text = "INSERT INTO tt SELECT ? AS i, SUM(val) + ? AS val FROM x"
    for n in range(5):
        con.execute(text, [n, n])
    before = con.execute("SELECT * FROM tt").fetch_numpy().copy()
    con.execute("BEGIN")
    con.execute(text, [2, 9])
    assert con.execute("SELECT * FROM tt").fetch_numpy()[2] == pytest.approx(9)
    con.execute("ROLLBACK")
    assert con.execute("SELECT * FROM tt").fetch_numpy().tolist() == before.tolist()
    with pytest.raises(einsql.IntegrityError):
        con.execute(text, [20, 9])
    assert con.execute("SELECT * FROM tt").fetch_numpy().tolist() == before.tolist()
