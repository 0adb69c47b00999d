"""Statements with several results on several sites: one plan for all, or no change at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import einsql
from einsql.session.multi_query import fetch_together
from tests.support.networks import FFNN_STEP, FFNN_STEP_BY_GRADIENT, ffnn

SITES = 5
NAMES = ("a", "b", "m", "s", "holes")

STATEMENTS = [
    # Roots of different shapes that share an operation.
    """WITH p AS (SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k),
         u AS (UPDATE m SET val = p.val FROM p WHERE p.i = m.i AND p.k = m.k),
         t AS (INSERT OR REPLACE INTO s SELECT i, SUM(val) AS val FROM p GROUP BY i)
    SELECT SUM(val * val) AS v FROM p""",
    # A root is read by another root.
    """WITH t AS (SELECT i, SUM(val) AS val FROM a GROUP BY i),
         u AS (INSERT OR REPLACE INTO s SELECT * FROM t)
    SELECT MAX(val) AS v FROM t""",
    # Two roots are the same node.
    """WITH t AS (SELECT i, SUM(val) AS val FROM a GROUP BY i),
         u AS (INSERT OR REPLACE INTO s SELECT * FROM t),
         d AS (DELETE FROM holes WHERE i > 3)
    SELECT * FROM t""",
    # Roots are stored tensors; one of them twice.
    """WITH u AS (INSERT OR REPLACE INTO m SELECT i, j AS k, val FROM a WHERE j < 6),
         t AS (INSERT OR REPLACE INTO holes SELECT * FROM s)
    SELECT * FROM s""",
    # Stored tensors exchange their values; rows are deleted and inserted.
    """WITH u AS (UPDATE a SET val = b.val FROM b WHERE b.j = a.i AND b.k = a.j AND a.i < 4),
         d AS (DELETE FROM holes WHERE i = 2),
         n AS (INSERT OR REPLACE INTO s VALUES (1, 40), (0, 50))
    UPDATE b SET val = a.val + b.val FROM a WHERE a.i = b.j AND a.j = b.k AND a.val > 0""",
    # Different dependencies, and a root without keys.
    """WITH u AS (UPDATE m SET val = val * 2 WHERE i < 3),
         t AS (UPDATE s SET val = 0.5)
    SELECT COUNT(*) AS n, SUM(val) AS v, MIN(val) AS l FROM holes""",
]

FAILURES = [
    # The second root overflows after the first one is computed.
    """WITH u AS (UPDATE a SET val = a.val + 1),
         t AS (UPDATE n SET val = n.val * 1000000)
    SELECT SUM(val) AS v FROM b""",
    # The rows of the second part exist.
    """WITH u AS (UPDATE a SET val = a.val + 1)
    INSERT INTO s SELECT i, SUM(val) AS val FROM a GROUP BY i""",
    # A value is NULL.
    """WITH u AS (UPDATE a SET val = a.val + 1)
    UPDATE s SET val = CASE WHEN val > 2 THEN val END""",
    # Several rows of FROM match one row.
    """WITH u AS (UPDATE a SET val = a.val + 1)
    UPDATE s SET val = a.val FROM a WHERE a.i = s.i""",
]


def fill(con: einsql.Connection) -> None:
    """Creates the tensors that the statements read and change."""
    value = "((i * 7 + j * 3) % 11) - 5::DOUBLE AS val"
    whole = f"SELECT i, j, {value} FROM range({{}}) r(i), range({{}}) c(j)"
    con.execute("CREATE TENSOR a PARTITION BY (i 2) AS " + whole.format(8, 9))
    con.execute("CREATE TENSOR b AS SELECT i AS j, j AS k, val FROM (" + whole.format(9, 6) + ")")
    con.execute("CREATE TENSOR m (i DIM(8), k DIM(6), val DOUBLE) DEFAULT 1")
    con.execute("CREATE TENSOR s (i DIM(8), val DOUBLE)")
    con.execute("INSERT INTO s VALUES (0, 1), (3, 2), (5, 4)")
    con.execute("CREATE TENSOR holes (i DIM(8), val DOUBLE)")
    con.execute("INSERT INTO holes SELECT i, i / 2 AS val FROM range(6) r(i)")
    con.execute("CREATE TENSOR n AS SELECT i, 10000::INTEGER AS val FROM range(4) r(i)")


def state(con: einsql.Connection) -> list[list[tuple[object, ...]]]:
    """Returns the rows of every tensor."""
    return [con.execute(f"SELECT * FROM {name}").fetchall() for name in (*NAMES, "n")]


def take_steps(con: einsql.Connection, step: str) -> tuple[int, list[np.ndarray]]:
    """Takes two training steps; returns the measured flops of one step, and both weights."""
    chance = np.random.default_rng(5)
    for name, keys in ffnn(200, 13, 15, 10).items():  # merging sums costs little
        data = chance.integers(-2, 3, tuple(keys.values())).astype(np.float64) / 4
        con.register("data", data, dims=tuple(keys))
        con.execute(f"CREATE TENSOR {name} AS SELECT * FROM data")
    sites = con.explain(step, analyze=True).to_dict()["plan"]["per_site"]
    for _ in range(2):
        assert con.execute(step).rowcount == 150
    weights = [con.execute(f"SELECT * FROM {w}").fetch_numpy() for w in ("w1", "w2")]
    return sum(site["flops"] for site in sites), weights


def check_training_steps(con: einsql.Connection, step: str) -> None:
    """Checks the flops and the results of steps against those of one site."""
    with einsql.connect() as alone:
        flops, weights = take_steps(alone, step)
    on_sites, shared = take_steps(con, step)
    assert on_sites == pytest.approx(flops, rel=0.01)
    for found, wanted in zip(shared, weights, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def check_statements(con: einsql.Connection) -> None:
    """Checks the results of statements, run twice and in order, against those of one site."""
    with einsql.connect() as alone:
        fill(alone)
        fill(con)
        for text in STATEMENTS * 2:
            plan = con.explain(text).to_dict()
            assert "plan" in plan, "all roots are planned together"
            wanted, cursor = alone.execute(text), con.execute(text)
            assert cursor.rowcount == wanted.rowcount
            if wanted.description is not None:
                assert cursor.fetchall() == wanted.fetchall()
            assert state(con) == state(alone), text


def check_failures(con: einsql.Connection) -> None:
    """Checks that a failure in one part leaves every tensor unchanged."""
    fill(con)
    before = state(con)
    for text in FAILURES:
        with pytest.raises(einsql.Error):
            con.execute(text)
        assert state(con) == before
    con.execute("BEGIN")
    con.execute(STATEMENTS[0])
    changed = state(con)
    for text in FAILURES:
        with pytest.raises(einsql.Error):
            con.execute(text)
        assert state(con) == changed
    con.execute("ROLLBACK")
    assert state(con) == before


def check_interrupts(con: einsql.Connection, patch: pytest.MonkeyPatch) -> None:
    """Checks that an interrupt before each change is stored leaves every tensor unchanged."""
    fill(con)
    text, before = STATEMENTS[4], state(con)
    put: Callable[..., None] = con.store.put
    stop = 0

    def counted(*given: object) -> None:
        nonlocal stop
        stop -= 1
        if stop == 0:
            raise KeyboardInterrupt
        put(*given)

    patch.setattr(con.store, "put", counted)
    for at in (1, 2, 3, 4):
        stop = at
        with pytest.raises(KeyboardInterrupt):
            con.execute(text)
        assert state(con) == before
    stop = 5
    con.execute(text)
    assert stop == 1
    assert state(con) != before


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as made:
        made.execute(f"SET sites = {SITES}")
        yield made


@pytest.mark.parametrize("step", [FFNN_STEP, FFNN_STEP_BY_GRADIENT], ids=["by hand", "by GRADIENT"])
def test_a_training_step_computes_shared_operations_once(con: einsql.Connection, step: str) -> None:
    check_training_steps(con, step)


def test_statements_give_the_results_of_one_site(con: einsql.Connection) -> None:
    check_statements(con)


def test_a_failed_statement_changes_nothing(con: einsql.Connection) -> None:
    check_failures(con)


def test_an_interrupted_statement_changes_nothing(
    con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_interrupts(con, monkeypatch)


def test_a_statement_is_planned_once(con: einsql.Connection) -> None:
    fill(con)
    con.execute(STATEMENTS[0])  # the new tensors lie elsewhere than the first ones
    calls = con.planner_calls
    for _ in range(3):
        con.execute(STATEMENTS[0])
    assert con.planner_calls == calls + 1


def test_several_selects_are_one_program(con: einsql.Connection) -> None:
    fill(con)
    product = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
    texts = [product, f"SELECT SUM(val) AS val FROM ({product})", "SELECT j, k, val FROM b"]
    calls = con.planner_calls
    for text, found in zip(texts, fetch_together(con, texts), strict=True):
        np.testing.assert_array_equal(found, con.execute(text).fetch_numpy())
    assert con.planner_calls == calls + 1 + len(texts)
