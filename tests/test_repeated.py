"""Statements that run again and again: results stay what they were, whatever comes between."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator

import numpy as np
import pytest

import einsql

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
