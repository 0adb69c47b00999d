"""Aggregates with ORDERED BY, whose MERGE is not commutative, against NumPy at several sites."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

import numpy as np
import pytest

import einsql
from einsql.kernels.runtime import thread_pool
from tests.support.samples import sample

GROUPS, WIDTH, LENGTH = 3, 2, 11

PRODUCT = """
CREATE AGGREGATE product2(p BIGINT, q BIGINT, r BIGINT, s BIGINT)
STATE (p BIGINT INIT 1, q BIGINT INIT 0, r BIGINT INIT 0, s BIGINT INIT 1)
LIFT (abs(p) % 97, abs(q) % 97, abs(r) % 97, abs(s) % 97)
MERGE ((a.p * b.p + a.q * b.r) % 97, (a.p * b.q + a.q * b.s) % 97,
       (a.r * b.p + a.s * b.r) % 97, (a.r * b.q + a.s * b.s) % 97)
FINISH (p AS p, q AS q, r AS r, s AS s)
ORDERED BY t"""
LAST = """
CREATE AGGREGATE last_known(x DOUBLE) STATE (v DOUBLE INIT 0, some BOOLEAN INIT FALSE)
LIFT (x, TRUE) MERGE (CASE WHEN b.some THEN b.v ELSE a.v END, a.some OR b.some)
FINISH (v) ORDERED BY t"""
RUNS = """
CREATE AGGREGATE runs(at BIGINT, x BIGINT)
STATE (n BIGINT INIT 0, first BIGINT INIT 0, last BIGINT INIT 0)
LIFT (1, x, x)
MERGE (a.n + b.n - CASE WHEN a.n > 0 AND b.n > 0 AND a.last = b.first THEN 1 ELSE 0 END,
       CASE WHEN a.n > 0 THEN a.first ELSE b.first END,
       CASE WHEN b.n > 0 THEN b.last ELSE a.last END)
FINISH (n) ORDERED BY at"""

DIGITS = np.random.default_rng(8).integers(0, 97, (GROUPS, WIDTH, LENGTH, 2, 2))
KNOWN = np.random.default_rng(9).random((GROUPS, WIDTH, LENGTH)) < 0.3
NAMES = ("p", "q", "r", "s")
FROM = "FROM p JOIN q USING (g, u, t) JOIN r USING (g, u, t) JOIN s USING (g, u, t)"
ENTRIES = ", ".join(f"product2(p.val, q.val, r.val, s.val).{n}" for n in NAMES)


@pytest.fixture(scope="module", params=sample((1, 3), (1, 2, 3, 5)))
def con(request: pytest.FixtureRequest) -> Iterator[einsql.Connection]:
    with einsql.connect(config={"sites": request.param}) as connection:
        for n, name in enumerate(NAMES):
            entry = np.ascontiguousarray(DIGITS[..., n // 2, n % 2])
            connection.register(name, entry, dims=("g", "u", "t"))
        for definition in (PRODUCT, LAST, RUNS):
            connection.execute(definition)
        yield connection


def product(matrices: np.ndarray) -> list[int]:
    return [int(x) for x in reduce(lambda a, b: a @ b % 97, matrices.reshape(-1, 2, 2)).ravel()]


def rows(con: einsql.Connection, sql: str) -> list[tuple[int, ...]]:
    return sorted(con.execute(sql).fetchall())


def test_matrix_products_along_a_key(con: einsql.Connection) -> None:
    expected = [(g, u, *product(DIGITS[g, u])) for g in range(GROUPS) for u in range(WIDTH)]
    assert rows(con, f"SELECT g, u, {ENTRIES} {FROM} GROUP BY g, u") == expected
    part = [(u, *product(DIGITS[2, u, 3:9])) for u in range(WIDTH)]
    where = "WHERE g = 2 AND t >= 3 AND t < 9"
    assert rows(con, f"SELECT u, {ENTRIES} {FROM} {where} GROUP BY u") == part


def test_the_named_key_precedes_the_other_reduced_ones(con: einsql.Connection) -> None:
    by_time = DIGITS.transpose(2, 0, 1, 3, 4)
    assert rows(con, f"SELECT {ENTRIES} {FROM}") == [(*product(by_time),)]
    expected = [(g, *product(by_time[:, g])) for g in range(GROUPS)]
    assert rows(con, f"SELECT g, {ENTRIES} {FROM} GROUP BY g") == expected
    blocks = [(b, *product(by_time[4 * b : 4 * b + 4])) for b in range(3)]
    assert rows(con, f"SELECT t // 4 AS b, {ENTRIES} {FROM} GROUP BY t // 4") == blocks


def test_rows_that_a_filter_selects(con: einsql.Connection) -> None:
    con.register("known", KNOWN, dims=("g", "u", "t"))
    chosen = ", ".join(
        f"product2(p.val, q.val, r.val, s.val).{n} FILTER (WHERE k.val)" for n in NAMES
    )
    expected = [
        (g, u, *(product(DIGITS[g, u][KNOWN[g, u]]) if KNOWN[g, u].any() else [None] * 4))
        for g in range(GROUPS)
        for u in range(WIDTH)
    ]
    joined = f"{FROM} JOIN known k USING (g, u, t)"
    assert rows(con, f"SELECT g, u, {chosen} {joined} GROUP BY g, u") == expected
    assert rows(con, f"SELECT {chosen} {joined}") == [
        (*product(DIGITS.transpose(2, 0, 1, 3, 4)[KNOWN.transpose(2, 0, 1)]),)
    ]


def test_the_last_known_value_and_a_sum_beside_it(con: einsql.Connection) -> None:
    con.register("known", KNOWN, dims=("g", "u", "t"))
    sql = (
        "SELECT {} last_known(CASE WHEN k.val THEN p.val END), SUM(p.val), MIN(p.val), COUNT(*) "
        "FROM p JOIN known k USING (g, u, t) {}"
    )
    values = DIGITS[..., 0, 0]
    expected = [
        (
            g, u, next((v for v, k in zip(x[::-1], on[::-1], strict=True) if k), None),
            x.sum(), x.min(), LENGTH,
        )
        for g, u in np.ndindex(GROUPS, WIDTH)
        for x, on in [(values[g, u], KNOWN[g, u])]
    ]  # fmt: skip
    assert rows(con, sql.format("g, u,", "GROUP BY g, u")) == expected
    last = values.transpose(2, 0, 1)[KNOWN.transpose(2, 0, 1)][-1]
    assert rows(con, sql.format("", "")) == [(last, values.sum(), values.min(), values.size)]


def test_run_lengths_in_the_order_of_an_argument(con: einsql.Connection) -> None:
    signs = (DIGITS[..., 0, 0] > 48).astype(int)

    def count(x: np.ndarray) -> int:
        return int((np.diff(x.ravel()) != 0).sum()) + 1

    sign = "CASE WHEN val > 48 THEN 1 ELSE 0 END"
    by_u = [(g, count(signs[g].transpose(0, 1))) for g in range(GROUPS)]
    assert rows(con, f"SELECT g, runs(u, {sign}) FROM p GROUP BY g") == by_u
    by_t = [(g, count(signs[g].transpose(1, 0))) for g in range(GROUPS)]
    assert rows(con, f"SELECT g, runs(t + 5, {sign}) FROM p GROUP BY g") == by_t
    assert rows(con, f"SELECT runs(t, {sign}) FROM p") == [(count(signs.transpose(2, 0, 1)),)]


def test_running_products(con: einsql.Connection) -> None:
    over = ", ".join(
        f"product2(p.val, q.val, r.val, s.val).{n} OVER (PARTITION BY g, u ORDER BY t)"
        for n in NAMES
    )
    sql = f"SELECT g, u, t, {over} {FROM}"
    expected = [
        (g, u, t, *product(DIGITS[g, u, : t + 1])) for g, u, t in np.ndindex(GROUPS, WIDTH, LENGTH)
    ]
    assert rows(con, sql) == expected


def test_frames(con: einsql.Connection) -> None:
    values = DIGITS[..., 0, 0].astype(float)
    for frame, at in (("CURRENT ROW AND CURRENT ROW", 0), ("1 FOLLOWING AND 1 FOLLOWING", 1)):
        sql = (
            "SELECT g, u, t, last_known(val) OVER (PARTITION BY g, u ORDER BY t "
            f"ROWS BETWEEN {frame}) FROM p"
        )
        assert rows(con, sql) == [
            (g, u, t, values[g, u, t + at] if t + at < LENGTH else None)
            for g, u, t in np.ndindex(values.shape)
        ]
    sql = "SELECT g, u, t, last_known(val) OVER (PARTITION BY g, u ORDER BY t DESC) FROM p"
    assert [v for *_, v in rows(con, sql)] == list(values[:, :, -1].repeat(LENGTH))


def test_the_order_of_labels_of_einsum(con: einsql.Connection) -> None:
    sql = "SELECT * FROM EINSUM('g u t -> u', p, reduce := 'last_known')"
    assert rows(con, sql) == [(u, v) for u, v in enumerate(DIGITS[-1, :, -1, 0, 0])]
    with pytest.raises(einsql.ProgrammingError, match="t, which is no label here"):
        con.execute("SELECT * FROM EINSUM('ijk->k', p, reduce := 'last_known')")


@pytest.mark.parametrize(("jit", "threads", "sites"), [("always", 3, 1), ("never", 1, 3)])
def test_long_rows(jit: str, threads: int, sites: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops reduce slices of a row in threads, and sites its parts."""
    monkeypatch.setattr(thread_pool, "threads", lambda: threads)
    long = np.random.default_rng(10).integers(0, 97, (2, 4_000, 2, 2))
    with einsql.connect(config={"jit": jit, "sites": sites}) as con:
        con.execute(PRODUCT)
        for n, name in enumerate(NAMES):
            entry = np.ascontiguousarray(long[..., n // 2, n % 2])
            con.register(name, entry, dims=("g", "t"))
        sql = f"SELECT {ENTRIES} {FROM.replace('(g, u, t)', '(g, t)')} WHERE t < {{}}"
        for most in (4_000, 3_999, 7):
            expected = (*product(long[:, :most].swapaxes(0, 1)),)
            assert con.execute(sql.format(most)).fetchall() == [expected]
        plan = str(con.explain(sql.format(4_000)))
        assert ("r0[part:3]" in plan) == (sites > 1)
        assert ("over    t:4000, g:2, in this order" in plan) == (sites == 1)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("SELECT runs(val, val) FROM p", "at, which is no key"),
        ("SELECT runs(-t, val) FROM p", "at, which is no key"),
        ("SELECT runs(t, val), runs(u, val) FROM p", "two orders"),
        ("SELECT runs(u, val), last_known(val) FROM p", "different orders"),
        ("SELECT last_known(val) FROM (SELECT g, val FROM p WHERE u = 0 AND t = 0) y", '"t"'),
    ],
)
def test_orders_that_are_refused(con: einsql.Connection, sql: str, reason: str) -> None:
    with pytest.raises(einsql.Error) as refusal:
        con.execute(sql)
    assert reason in refusal.value.reason
    assert refusal.value.position is not None


def test_merge_has_to_be_associative_still() -> None:
    with einsql.connect() as con:
        with pytest.raises(einsql.ProgrammingError, match=r"\(a ⊕ b\) ⊕ c is not a ⊕ \(b ⊕ c\)"):
            con.execute(
                "CREATE AGGREGATE f(x DOUBLE) STATE (m DOUBLE INIT 0) LIFT (x) "
                "MERGE (a.m + b.m + a.m * b.m * b.m) FINISH (m) ORDERED BY k"
            )
        with pytest.raises(einsql.ProgrammingError, match="a ⊕ b is not b ⊕ a"):
            con.execute(LAST.replace(" ORDERED BY t", ""))
