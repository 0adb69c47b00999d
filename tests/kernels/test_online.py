"""Attention over rows that are taken part by part answers what it answers node by node."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import einsql
from einsql.kernels import groups
from einsql.kernels.groups import group, plan
from tests.support.samples import combinations, sample

SCORES = (
    "SELECT h, s, t, SUM(q.val * k.val) / 4 AS val "
    "FROM q JOIN k USING (h, d) {where} GROUP BY h, s, t"
)
WEIGHTS = """
m AS (SELECT h, s, MAX(val) AS val FROM x GROUP BY h, s),
e AS (SELECT h, s, t, EXP(x.val - m.val) AS val FROM x JOIN m USING (h, s)),
z AS (SELECT h, s, SUM(val) AS val FROM e GROUP BY h, s)
"""
SHARES = (
    ", p AS (SELECT h, s, t, e.val / z.val AS val FROM e JOIN z USING (h, s)) "
    "SELECT h, s, d, SUM(p.val * v.val) AS val FROM p JOIN v USING (h, t) GROUP BY h, s, d"
)
BY_HAND = (
    ", o AS (SELECT h, s, d, SUM(e.val * v.val) AS val FROM e JOIN v USING (h, t) "
    "GROUP BY h, s, d) SELECT h, s, d, o.val / z.val AS val, LN(z.val) + m.val AS l "
    "FROM o JOIN z USING (h, s) JOIN m USING (h, s)"
)
ADDED = (
    "y AS (" + SCORES.format(where="") + "), x AS (SELECT h, s, t, y.val + mask.val AS val "
    "FROM y JOIN mask USING (s, t)),"
)

SAFE = f"""WITH {ADDED}
m AS (SELECT h, s, MAX(val) AS val FROM x GROUP BY h, s),
e AS (SELECT h, s, t, EXP(x.val - CASE WHEN m.val = CAST('-inf' AS FLOAT) THEN 0 ELSE m.val END)
  AS val FROM x JOIN m USING (h, s)),
z AS (SELECT h, s, SUM(val) AS val FROM e GROUP BY h, s),
o AS (SELECT h, s, d, SUM(e.val * v.val) AS val FROM e JOIN v USING (h, t) GROUP BY h, s, d)
SELECT h, s, d, o.val AS val, z.val AS l FROM o JOIN z USING (h, s)"""
"""Weights with 0 in the place of a maximum of -infinity, as a part of the keys has them."""


def _attention(where: str = "") -> str:
    return f"WITH x AS ({SCORES.format(where=where)}),{WEIGHTS}"


MASKED = (
    "WITH x AS (SELECT h, s, t, SUM(q.val * k.val) / 4 AS val FROM q JOIN k USING (h, d) "
    "JOIN kept USING (s, t) JOIN mask USING (s, t) WHERE kept.val {more} GROUP BY h, s, t),"
    + WEIGHTS
)
STATEMENTS = {
    "plain": _attention() + SHARES,
    "causal": _attention("WHERE t <= s") + SHARES,
    "window": _attention("WHERE t <= s AND t > s - 5") + SHARES,
    "later": _attention("WHERE t >= s + 1") + SHARES,
    "by hand": _attention("WHERE t <= s") + BY_HAND,
    "added": f"WITH {ADDED}{WEIGHTS}{SHARES}",
    "masked": MASKED.format(more="") + SHARES,
    "masked by two": MASKED.format(more="AND t <= s AND mask.val > -1") + BY_HAND,
}
ROWS, INNER, HEADS, DEPTH = 37, 101, 2, 16
PART = 64
F, D = np.float32, np.float64
TYPES: dict[str, list[type]] = {
    "plain": [F, D], "causal": [D], "window": [F], "later": [D], "by hand": [F],
    "added": [F, D], "masked": [F], "masked by two": [D],
}  # fmt: skip
"""The types of each statement's tensors: each kind of mask and both ends meet both types."""
BOTH = pytest.mark.parametrize("con", [F, D], indirect=True)
FINITE = ("plain", "causal", "added", "masked")
RUNS = [(t, name) for name in STATEMENTS for t in TYPES[name]]
NOT_FINITE = [run for run in RUNS if run[1] in FINITE]


@pytest.fixture
def con(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[einsql.Connection]:
    """Tensors of FLOAT, or of the type that a test asks for."""
    monkeypatch.setattr(groups, "LEAST", 100)
    monkeypatch.setattr(plan, "IN_CACHE", 1)
    monkeypatch.setattr(plan, "PART", PART)
    con = einsql.connect()
    rng = np.random.default_rng(0)
    for name, dims in {"q": "hsd", "k": "htd", "v": "htd", "mask": "st"}.items():
        extents = {"s": ROWS, "t": INNER, "h": HEADS, "d": DEPTH}
        array = rng.standard_normal([extents[d] for d in dims]).astype(getattr(request, "param", F))
        con.register(name, array, dims=tuple(dims))
    con.register(
        "kept", (rng.random((ROWS, INNER)) < 0.3) | np.eye(ROWS, INNER, dtype=bool), dims=("s", "t")
    )
    yield con
    con.close()


def _table(con: einsql.Connection, sql: str) -> np.ndarray:
    rows = con.execute(sql).fetchall()
    return np.array(sorted(rows), float).reshape(len(rows), -1)


def _same(con: einsql.Connection, sql: str) -> None:
    report = "\n".join(line for (line,) in con.execute(f"EXPLAIN {sql}").fetchall())
    assert "parts of t:" in report
    parts = _table(con, sql)
    con.execute("SET disabled_rules = 'group-nodes'")
    whole = _table(con, sql)
    con.execute("SET disabled_rules = ''")
    np.testing.assert_allclose(parts, whole, rtol=2e-5, atol=1e-6)


def _registered(con: einsql.Connection, name: str, change: np.ndarray | float, at: object) -> None:
    """Registers a table again with some values changed."""
    held = con.execute(f"SELECT * FROM {name}").fetch_numpy().copy()
    held[at] = change
    dims = {"q": "hsd", "k": "htd", "v": "htd", "mask": "st"}[name]
    con.register(name, held, dims=tuple(dims))


@pytest.mark.parametrize(("con", "name"), sample(RUNS[::3], RUNS), indirect=["con"])
def test_parts_make_the_whole(con: einsql.Connection, name: str) -> None:
    _same(con, STATEMENTS[name])


@BOTH
@pytest.mark.parametrize("order", [1, -1])
def test_the_greatest_comes_first_or_last(con: einsql.Connection, order: int) -> None:
    rising = np.linspace(-300, 300, INNER)[::order]
    _registered(con, "mask", np.broadcast_to(rising, (ROWS, INNER)), ...)
    _same(con, STATEMENTS["added"])


@BOTH
def test_masks_may_leave_parts_of_a_row_empty(con: einsql.Connection) -> None:
    rng = np.random.default_rng(3)
    kept = rng.integers(0, INNER, ROWS)
    mask = np.where(np.arange(INNER) == kept[:, None], 0.0, -np.inf)
    mask[5] = -np.inf  # a row with no weight at all: infinity minus infinity
    mask[6, 70:] = 1.0
    _registered(con, "mask", mask, ...)
    _same(con, STATEMENTS["added"])


def test_weights_of_minus_infinity_may_be_zero(con: einsql.Connection) -> None:
    mask = np.where(np.arange(INNER) < 40, -np.inf, np.zeros((ROWS, INNER)))
    mask[5] = -np.inf
    _registered(con, "mask", mask, ...)
    _same(con, SAFE)
    zeros = [row for row in con.execute(SAFE).fetchall() if row[1] == 5]
    assert {row[3:] for row in zeros} == {(0.0, 0.0)}


def test_rows_that_a_mask_leaves_empty_are_absent(con: einsql.Connection) -> None:
    kept = np.zeros((ROWS, INNER), bool)
    kept[::2, 50:52] = True
    con.register("kept", kept, dims=("s", "t"))
    _same(con, STATEMENTS["masked"])
    assert len(_table(con, STATEMENTS["masked"])) == HEADS * len(kept[::2]) * DEPTH


@pytest.mark.parametrize(
    ("con", "name"),
    sample(NOT_FINITE[::2], NOT_FINITE),
    indirect=["con"],
)
@pytest.mark.parametrize(
    ("value", "table"), combinations([np.nan, np.inf, -np.inf], ["q", "k", "v"])
)
def test_what_is_not_finite_spreads_as_far_as_in_single_nodes(
    con: einsql.Connection, name: str, value: float, table: str
) -> None:
    _registered(con, table, value, (0, ROWS // 2, 3))
    _same(con, STATEMENTS[name])


def test_memory_that_was_used_before_does_not_show(
    con: einsql.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "_scratch", lambda nbytes: np.full(nbytes, 255, np.uint8))
    for name in ("plain", "window", "added"):
        _same(con, STATEMENTS[name])


def test_long_rows_are_accurate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of parts lose no more than one."""
    monkeypatch.setattr(plan, "PART", PART)
    rng = np.random.default_rng(4)
    length = 20_000
    q, k, v = (rng.standard_normal((1, n, DEPTH)).astype(np.float32) for n in (30, length, length))
    with einsql.connect() as con:
        for name, dims, array in (("q", "hsd", q), ("k", "htd", k), ("v", "htd", v)):
            con.register(name, array, dims=tuple(dims))
        report = con.execute(f"EXPLAIN {STATEMENTS['plain']}").fetchall()
        assert any("parts of t:32" in line for (line,) in report)
        found = con.execute(STATEMENTS["plain"]).fetch_numpy()
    scores = q.astype(float) @ k.astype(float).transpose(0, 2, 1) / 4
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    expected = shares @ v.astype(float) / shares.sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max() + 1e-7)
