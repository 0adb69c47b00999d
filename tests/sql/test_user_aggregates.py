"""Aggregates that CREATE AGGREGATE defines, against NumPy in float64, at several sites."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import einsql
from tests.support.samples import sample

SITES = (1, 2, 3, 4, 5)
EDGES = 12

WELFORD = """
CREATE OR REPLACE AGGREGATE welford(x DOUBLE)
STATE (n DOUBLE INIT 0, mean DOUBLE INIT 0, m2 DOUBLE INIT 0)
LIFT (1, x, 0)
MERGE (a.n + b.n,
       a.mean + (b.mean - a.mean) * b.n / greatest(n, 1),
       a.m2 + b.m2 + (b.mean - a.mean) * (b.mean - a.mean) * a.n * b.n / greatest(n, 1))
FINISH (CASE WHEN n > 1 THEN m2 / (n - 1) END)"""
SHORTEST = """
CREATE OR REPLACE AGGREGATE shortest(length DOUBLE, via BIGINT)
STATE (v DOUBLE INIT 'inf', who BIGINT INIT 9223372036854775807)
LIFT (length, via)
MERGE (CASE WHEN b.v < a.v OR (b.v = a.v AND b.who < a.who) THEN b.v ELSE a.v END,
       CASE WHEN b.v < a.v OR (b.v = a.v AND b.who < a.who) THEN b.who ELSE a.who END)
FINISH (v AS length, who AS via)"""
BEST = """
CREATE OR REPLACE AGGREGATE best4(x DOUBLE)
STATE (v DOUBLE[4] INIT 'inf')
LIFT ([x, CAST('inf' AS DOUBLE), CAST('inf' AS DOUBLE), CAST('inf' AS DOUBLE)])
MERGE ([least(a.v[1], b.v[1]),
        least(greatest(a.v[1], b.v[1]), a.v[2], b.v[2]),
        least(greatest(a.v[1], b.v[2]), greatest(a.v[2], b.v[1]), a.v[3], b.v[3]),
        least(greatest(a.v[1], b.v[3]), greatest(a.v[2], b.v[2]), greatest(a.v[3], b.v[1]),
              a.v[4], b.v[4])])
FINISH (v[1] AS first, v[2] AS second, v[3] AS third, v[4] AS fourth)"""
LOG = """
CREATE OR REPLACE AGGREGATE log_sum(x DOUBLE)
STATE (m DOUBLE INIT '-inf', s DOUBLE INIT 0)
LIFT (x, 1)
MERGE (greatest(a.m, b.m), a.s + b.s)
RESCALE (s * exp(old.m - new.m))
FINISH (m + ln(s))"""
INTERVAL = """
CREATE OR REPLACE AGGREGATE interval_sum(al DOUBLE, ah DOUBLE, bl DOUBLE, bh DOUBLE)
STATE (lo DOUBLE INIT 0, hi DOUBLE INIT 0)
LIFT (least(al * bl, al * bh, ah * bl, ah * bh), greatest(al * bl, al * bh, ah * bl, ah * bh))
MERGE (a.lo + b.lo, a.hi + b.hi)
FINISH (lo AS lo, hi AS hi)"""
ATTEND = """
CREATE OR REPLACE AGGREGATE attend(score DOUBLE, v DOUBLE)
STATE (m DOUBLE INIT '-inf', s DOUBLE INIT 0, o DOUBLE INIT 0)
LIFT (score, 1, v)
MERGE (greatest(a.m, b.m), a.s + b.s, a.o + b.o)
RESCALE (s * exp(old.m - new.m), o * exp(old.m - new.m))
FINISH (o / s)"""


@pytest.fixture(scope="module")
def weights() -> np.ndarray:
    return np.random.default_rng(5).integers(-9, 99, (EDGES, EDGES)) / 8


@pytest.fixture(scope="module", params=sample(SITES[::2], SITES))
def con(request: pytest.FixtureRequest, weights: np.ndarray) -> Iterator[einsql.Connection]:
    with einsql.connect(config={"sites": request.param}) as connection:
        connection.register("w", weights, dims=("i", "j"))
        for definition in (WELFORD, SHORTEST, BEST, LOG, INTERVAL, ATTEND):
            connection.execute(definition)
        yield connection


def answer(con: einsql.Connection, sql: str, *columns: str) -> list[np.ndarray]:
    rows = con.execute(sql).fetchall()
    return [np.array(c) for c in zip(*sorted(rows), strict=True)][-len(columns) :]


def test_shortest_paths_with_witnesses(con: einsql.Connection, weights: np.ndarray) -> None:
    lengths, vias = answer(
        con,
        "SELECT a.i, b.j, shortest(a.val + b.val, a.j).length, shortest(a.val + b.val, a.j).via "
        "FROM w a JOIN w b ON a.j = b.i GROUP BY a.i, b.j",
        "length",
        "via",
    )
    sums = weights[:, :, None] + weights[None, :, :]
    assert np.array_equal(lengths, sums.min(1).ravel())
    assert np.array_equal(vias, sums.argmin(1).ravel())


def test_fields_share_the_greatest_bigint(con: einsql.Connection, weights: np.ndarray) -> None:
    """`same` has the start value of `least` where rows differ; both are kept as INTEGER."""
    most = 2**63 - 1
    con.execute(
        f"CREATE OR REPLACE AGGREGATE agreed(k BIGINT) STATE (least BIGINT INIT {most}, "
        "same BIGINT INIT 0, has BOOLEAN INIT FALSE) LIFT (k, k, TRUE) "
        "MERGE (least(a.least, b.least), CASE WHEN NOT a.has THEN b.same WHEN NOT b.has "
        f"THEN a.same WHEN a.same = b.same THEN a.same ELSE {most} END, a.has OR b.has) "
        "FINISH (least AS least, same AS same)"
    )
    rows = con.execute("SELECT agreed(j).least, agreed(j).same FROM w").fetchall()
    assert rows == [(0, most)]
    rows = con.execute("SELECT i, agreed(i - 5).same FROM w GROUP BY i ORDER BY i").fetchall()
    assert rows == [(i, i - 5) for i in range(EDGES)]


def test_witnesses_at_the_end_of_a_type(con: einsql.Connection, weights: np.ndarray) -> None:
    low = "shortest(val, i - 2147483647) FILTER (WHERE val < 0)"
    rows = con.execute(f"SELECT j, {low}.length, {low}.via FROM w GROUP BY j ORDER BY j").fetchall()
    expected = [
        (c.min(), int(c.argmin()) - 2147483647) if c.min() < 0 else (None, None) for c in weights.T
    ]
    assert [r[1:] for r in rows] == expected
    assert (None, None) in expected


def test_k_best_paths(con: einsql.Connection, weights: np.ndarray) -> None:
    names = ("first", "second", "third", "fourth")
    items = ", ".join(f"best4(a.val + b.val).{n} AS {n}" for n in names)
    columns = answer(
        con, f"SELECT a.i, b.j, {items} FROM w a JOIN w b ON a.j = b.i GROUP BY a.i, b.j", *names
    )
    sums = np.sort(weights[:, :, None] + weights[None, :, :], axis=1)
    for n, column in enumerate(columns):
        assert np.array_equal(column, sums[:, n].ravel())


def test_forward_and_backward_of_a_hidden_markov_model(con: einsql.Connection) -> None:
    random = np.random.default_rng(6)
    states, steps = 6, sample(2, 5)
    move, seen = np.log(random.dirichlet(np.ones(states), (2, states)))
    con.register("move", move, dims=("s", "t"))
    con.register("seen", seen[:steps], dims=("k", "s"))
    forward = "SELECT s, seen.val AS val FROM seen WHERE k = 0"
    for step in range(1, steps):
        forward = (
            f"SELECT m.t AS s, log_sum(f.val + m.val) + MAX(e.val) AS val FROM ({forward}) f "
            f"JOIN move m ON f.s = m.s JOIN seen e ON e.s = m.t AND e.k = {step} GROUP BY m.t"
        )
    ((total,),) = con.execute(f"SELECT log_sum(val) FROM ({forward})").fetchall()
    backward = "SELECT s, 0.0::DOUBLE AS val FROM seen WHERE k = 0"
    for step in range(steps - 1, 0, -1):
        backward = (
            f"SELECT m.s, log_sum(m.val + e.val + b.val) AS val FROM move m "
            f"JOIN seen e ON e.s = m.t AND e.k = {step} JOIN ({backward}) b ON b.s = m.t "
            "GROUP BY m.s"
        )
    ((reverse,),) = con.execute(
        f"SELECT log_sum(e.val + b.val) FROM seen e JOIN ({backward}) b ON e.s = b.s WHERE e.k = 0"
    ).fetchall()
    likely = np.exp(seen[0])
    for step in range(1, steps):
        likely = (likely @ np.exp(move)) * np.exp(seen[step])
    assert total == pytest.approx(np.log(likely.sum()), rel=1e-12)
    assert reverse == pytest.approx(total, rel=1e-12)


def test_welfords_variance(con: einsql.Connection, weights: np.ndarray) -> None:
    (rows,) = answer(con, "SELECT i, welford(val) FROM w GROUP BY i", "v")
    assert rows == pytest.approx(weights.var(1, ddof=1), rel=1e-12)
    ((whole, positive, none),) = con.execute(
        "SELECT welford(val), welford(val) FILTER (WHERE val > 0), "
        "welford(val) FILTER (WHERE val > 1000) FROM w"
    ).fetchall()
    assert whole == pytest.approx(weights.var(ddof=1), rel=1e-12)
    assert positive == pytest.approx(weights[weights > 0].var(ddof=1), rel=1e-12)
    assert none is None
    windows = con.execute("SELECT i, j, welford(val) OVER (PARTITION BY j) FROM w").fetchall()
    by_column = weights.var(0, ddof=1)
    assert [v for _, _, v in windows] == pytest.approx([by_column[j] for _, j, _ in windows])


def test_interval_arithmetic(con: einsql.Connection, weights: np.ndarray) -> None:
    low, high = answer(
        con,
        "SELECT a.i, b.j, interval_sum(a.val - 1, a.val + 1, b.val, b.val + 2).lo, "
        "interval_sum(a.val - 1, a.val + 1, b.val, b.val + 2).hi "
        "FROM w a JOIN w b ON a.j = b.i GROUP BY a.i, b.j",
        "lo",
        "hi",
    )
    ends = [
        a[:, :, None] * b[None, :, :]
        for a in (weights - 1, weights + 1)
        for b in (weights, weights + 2)
    ]
    assert low == pytest.approx(np.min(ends, axis=0).sum(1).ravel(), rel=1e-12)
    assert high == pytest.approx(np.max(ends, axis=0).sum(1).ravel(), rel=1e-12)


def test_attention_is_one_pass_over_scores_without_the_key_of_values(
    con: einsql.Connection, weights: np.ndarray
) -> None:
    values = np.random.default_rng(7).standard_normal((EDGES, 32))
    con.register("v", values, dims=("i", "j"))
    sql = "SELECT s.i, v.j, attend(s.val, v.val) FROM w s JOIN v ON s.j = v.i GROUP BY s.i, v.j"
    (attended,) = answer(con, sql, "o")
    score = np.exp(weights - weights.max(1, keepdims=True))
    expected = score / score.sum(1, keepdims=True) @ values
    assert attended == pytest.approx(expected.ravel(), rel=1e-12)
    plan = "\n".join(r[0] for r in con.execute("EXPLAIN " + sql).fetchall())
    assert plan.count("EXP(") == 1
    assert f"[i:{EDGES}]" in plan  # the maximum has no key of the values


def test_the_operation_of_einsum(con: einsql.Connection, weights: np.ndarray) -> None:
    sums = weights[:, :, None] + weights[None, :, :]
    expected = np.log(np.exp(sums).sum(1))
    options = "combine := 'add', reduce := 'log_sum'"
    (paths,) = answer(con, f"SELECT * FROM EINSUM('ij,jk->ik', w, w, {options})", "val")
    assert paths == pytest.approx(expected.ravel(), rel=1e-12)
    whole = con.einsum("ij,jk->ik", [weights, weights], combine="add", reduce="log_sum")
    assert whole == pytest.approx(expected, rel=1e-12)
    with pytest.raises(einsql.ProgrammingError, match="takes 2 arguments"):
        con.einsum("ij->i", [weights], reduce="attend")
    with pytest.raises(einsql.ProgrammingError, match="results length, via"):
        con.execute("SELECT shortest(val, i) FROM w")


@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (("a.m + b.m", "(a.m + b.m) / 2"), "INIT ⊕ a is not a"),
        (("a.m + b.m", "a.m - b.m"), "INIT ⊕ a is not a"),
        (("a.m + b.m", "a.m + b.m + a.m * a.m * b.m"), "a ⊕ b is not b ⊕ a"),
        (("a.m + b.m", "a.m + b.m + a.m * b.m * (a.m + b.m)"), "(a ⊕ b) ⊕ c is not a ⊕ (b ⊕ c)"),
        (("INIT 0", "INIT 1"), "INIT ⊕ INIT is not INIT"),
        (("a.m + b.m", "CASE WHEN a.m > b.m THEN a.m END"), "may be NULL"),
        (("a.m + b.m", "a.q + b.m"), 'no field "q"'),
        (("DOUBLE INIT", "VARCHAR INIT"), "no type VARCHAR"),
        (("LIFT (x)", "LIFT (x, 1)"), "2 expressions for 1 field"),
        (("LIFT (x)", "LIFT (y)"), 'no parameter "y"'),
        (("LIFT (x)", "LIFT ('one')"), "LIFT of f.m"),
        (("FINISH", "RESCALE (m * 2) FINISH"), "from a state to itself"),
        (("FINISH (m)", "FINISH (m, m + 1)"), "needs a name"),
        (("AGGREGATE f", "AGGREGATE sum"), "would never be called"),
        (
            ("DOUBLE INIT 0", "INTEGER INIT 99999999999"),
            "INIT of type INTEGER cannot be 99999999999",
        ),
        (("DOUBLE INIT 0", "FLOAT INIT 1e300"), "INIT of type FLOAT cannot be 1e300"),
        (("FINISH (m)", "FINISH (SUM(m))"), "FINISH aggregates nothing"),
        (("FINISH (m)", "FINISH (m AS u, -m AS u)"), "the same name"),
        (("LIFT (x)", "LIFT (CAST(x AS INTEGER) // CAST(x - x AS INTEGER))"), "LIFT of f raises"),
    ],
)
def test_a_wrong_definition_is_refused_and_leaves_nothing(
    definition: tuple[str, str], reason: str
) -> None:
    right = (
        "CREATE AGGREGATE f(x DOUBLE) STATE (m DOUBLE INIT 0) LIFT (x) MERGE (a.m + b.m) FINISH (m)"
    )
    with einsql.connect() as con:
        con.execute("CREATE TENSOR t (i DIM(3), v DOUBLE); INSERT INTO t VALUES (0, 1), (2, 5)")
        with pytest.raises(einsql.Error) as refusal:
            con.execute(right.replace(*definition))
        assert reason in str(refusal.value)
        assert refusal.value.position is not None
        con.execute(right)
        assert con.execute("SELECT f(v) FROM t").fetchall() == [(6.0,)]


def test_there_is_no_gradient_through_a_state_of_several_fields() -> None:
    """The first field does not depend on the source, and the others do."""
    with einsql.connect() as con:
        con.register("x", np.arange(6.0).reshape(2, 3), dims=("i", "j"))
        con.execute(WELFORD)
        con.execute(LOG)
        loss = "WITH l AS (SELECT {} AS val FROM x) SELECT i, j, val FROM GRADIENT(l, x)"
        with pytest.raises(einsql.ProgrammingError, match=r"through WELFORD\.\w+: welford"):
            con.execute(loss.format("welford(val) + SUM(val)"))
        shares = con.execute(loss.format("log_sum(val)")).fetchall()
        weights = np.exp(np.arange(6.0))
        assert [v for _, _, v in shares] == pytest.approx(list(weights / weights.sum()))


def test_laws_are_tested_where_lift_has_values() -> None:
    with einsql.connect() as con:
        con.register("x", np.array([1.5, 2.5, -3.0]), dims=("i",))
        con.execute(
            "CREATE AGGREGATE whole(x DOUBLE) STATE (n BIGINT INIT 0) LIFT (CAST(x AS BIGINT)) "
            "MERGE (a.n + b.n) FINISH (n)"
        )
        assert con.execute("SELECT whole(val) FROM x").fetchall() == [(1,)]


def test_a_definition_is_kept_replaced_and_dropped(tmp_path: Path) -> None:
    path = str(tmp_path / "a.duckdb")
    with einsql.connect(path) as con:
        con.execute(
            "CREATE TENSOR t (i DIM(4), v DOUBLE); INSERT INTO t SELECT i, i FROM range(4) r(i)"
        )
        con.execute("CREATE MACRO twice(x) AS 2 * x")
        con.execute(
            "CREATE AGGREGATE f(x DOUBLE) STATE (m DOUBLE INIT 0) LIFT (twice(x)) "
            "MERGE (a.m + b.m) FINISH (m)"
        )
    with einsql.connect(path) as con:
        assert con.execute("SELECT f(v) FROM t").fetchall() == [(12.0,)]
        con.execute(
            "CREATE OR REPLACE AGGREGATE f(x DOUBLE) STATE (m DOUBLE INIT '-inf') LIFT (x) "
            "MERGE (greatest(a.m, b.m)) FINISH (-m)"
        )
        assert con.execute("SELECT f(v) FROM t").fetchall() == [(-3.0,)]
        with pytest.raises(einsql.ProgrammingError, match="not allowed in WHERE"):
            con.execute("SELECT v FROM t WHERE f(v) > 0")
        with pytest.raises(einsql.NotSupportedError, match="DuckDB cannot run"):
            con.execute("SELECT f(v) FROM t, (VALUES ('a')) s(name) GROUP BY name")
        con.execute("DROP AGGREGATE f")
        with pytest.raises(einsql.Error, match="f"):
            con.execute("SELECT f(v) FROM t")
