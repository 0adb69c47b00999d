"""Parameters: one plan for many values, and the answers that constants give."""

from __future__ import annotations

import enum
import fractions
import math
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.oracle.parameters import parameter_campaign
from tests.support.samples import sample

X = np.arange(42.0).reshape(6, 7) - 20
W = np.sin(X)


@pytest.fixture
def con() -> einsql.Connection:
    connection = einsql.connect()
    connection.register("x", X, ("i", "j"))
    connection.register("w", W, ("i", "j"))
    return connection


@pytest.fixture(scope="module")
def duck() -> duckdb.DuckDBPyConnection:
    made = duckdb.connect()
    for name, array in (("x", X), ("w", W)):
        i, j = np.indices(array.shape).reshape(2, -1)
        made.execute(f"CREATE TABLE {name} (i BIGINT, j BIGINT, val DOUBLE)")
        made.executemany(
            f"INSERT INTO {name} VALUES (?, ?, ?)",
            list(zip(i.tolist(), j.tolist(), array.ravel().tolist(), strict=True)),
        )
    return made


def planned(con: einsql.Connection, sql: str, many: Sequence[Sequence[object]]) -> int:
    """How many plans a statement takes for many values, each of which is right."""
    before = con.planner_calls
    for given in many:
        con.execute(sql, given).fetchall()
    return con.planner_calls - before


ONCE: list[tuple[str, list[list[Any]]]] = [
    ("SELECT SUM(x.val * ?) AS s FROM x", [[0.5], [-1.0], [0.0], [math.inf], [math.nan]]),
    ("SELECT i, j, w.val - ? * x.val AS v FROM w JOIN x USING (i, j)", [[0.1], [0.01]]),
    ("SELECT i, SUM(val) AS s FROM x WHERE j <= ? GROUP BY i", [[0], [3], [6], [100]]),
    ("SELECT i, SUM(val) AS s FROM x WHERE ? < j GROUP BY i", [[-5], [0], [5]]),
    ("SELECT i, j, val FROM x WHERE i < ? + 1", [[0], [2], [5], [6]]),
    ("SELECT i, j, val FROM x WHERE i >= ? % 4", [[0], [6], [3]]),
    (
        "WITH c AS (SELECT i, j, val FROM x WHERE j <= ?) "
        "SELECT c.i, SUM(c.val * w.val) AS s FROM c JOIN w USING (i, j) GROUP BY c.i",
        [[0], [4], [6]],
    ),
    ("SELECT i, (SELECT SUM(val) FROM w WHERE w.i = x.i AND w.j <= ?) AS s FROM x", [[2], [3]]),
    ("SELECT i, COUNT(*) AS n FROM x WHERE val > ? GROUP BY i HAVING SUM(val) > ?", [[0.0, 1.0],
     [-3.0, 2.0]]),
    ("SELECT i, CASE WHEN val > ? THEN ? ELSE val END AS v FROM x WHERE i IN (?, ?)",
     [[0.0, 1.0, 1, 2], [2.0, 5.0, 1, 2]]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "many"), ONCE, ids=[c[0][:60] for c in ONCE])
def test_planned_once_for_many_values(
    con: einsql.Connection, duck: duckdb.DuckDBPyConnection, sql: str, many: list[list[object]]
) -> None:
    assert planned(con, sql, many) == 1
    for given in many:
        found = con.execute(sql, given).fetchall()
        wanted = sorted(duck.execute(sql, given).fetchall())
        assert len(found) == len(wanted)
        for a, b in zip(found, wanted, strict=True):
            assert a == pytest.approx(b, nan_ok=True)
    assert planned(con, sql, many) == 0


def test_types_and_structure_have_plans_of_their_own(con: einsql.Connection) -> None:
    assert (
        planned(con, "SELECT val * ? AS v FROM x", [[1], [2], [2.0], [None], [3.5], [2**40]]) == 4
    )
    assert planned(con, "SELECT ? AS v FROM range(?) AS t(i)", [[1, 2], [7, 2], [7, 3]]) == 2
    assert planned(con, "SELECT i // ? AS k, SUM(val) AS s FROM x GROUP BY k", [[2], [3], [2]]) == 2
    assert con.execute("SELECT ? AS v", [-0.0]).fetchall()[0][0].hex() == "-0x0.0p+0"
    assert con.execute("SELECT ? AS v", [0.0]).fetchall()[0][0].hex() == "0x0.0p+0"
    for value in (True, False, None, np.float32(0.1), np.int64(7)):
        assert con.execute("SELECT ? AS v", [value]).fetchall() == [(value,)]


class MyInt(int):
    """An int, as libraries derive them."""


class Step(enum.IntEnum):
    FEW = 3
    MANY = 2**40
    HUGE = 2**70


class Ratio(float, enum.Enum):
    HALF = 0.5


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT n + ? AS v FROM k", "SELECT val FROM x WHERE i = CAST(? AS INTEGER)",
        "SELECT MAX(n) AS m FROM k WHERE n < ?", "SELECT ? || 'a'",
        "UPDATE k SET n = ? WHERE i = 1", "INSERT OR REPLACE INTO k VALUES (1, ?)",
    ],
)  # fmt: skip
def test_kinds_of_numbers_are_the_numbers_they_are(sql: str) -> None:
    def told(con: einsql.Connection, given: object) -> object:
        try:
            cursor = con.execute(sql, [given])
            return cursor.fetchall() if cursor.description else cursor.rowcount, cursor.description
        except einsql.Error as error:
            return str(error)

    cons = [einsql.connect(), einsql.connect()]
    for con in cons:
        con.register("x", X, ("i", "j"))
        con.execute("CREATE TENSOR k (i DIM(4), n INTEGER) DEFAULT 0")
    given = [
        MyInt(3), MyInt(2**40), MyInt(2**70), *Step, MyInt(-5), np.uint8(200), np.int16(-3),
        Ratio.HALF, np.uint64(2**64 - 1), np.array(2**32 - 1, np.uint32),
    ]  # fmt: skip
    for value in given:
        plain = float(value) if isinstance(value, float) else int(value)
        assert told(cons[0], value) == told(cons[1], plain), repr(value)


@pytest.mark.parametrize(
    "value",
    [
        2**200, MyInt(2**127), 1j, np.complex64(1), np.longdouble(1), fractions.Fraction(1, 3),
        object(), np.array([1]), np.void(b"ab"), np.ma.masked, np.array(None),
        np.array(object()), np.timedelta64(3, "D"), {1},
    ],
)  # fmt: skip
def test_other_kinds_of_parameters_are_refused_or_run(
    con: einsql.Connection, value: object
) -> None:
    for sql in ("SELECT SUM(val * ?) AS s FROM x", "SELECT ?", "SELECT val FROM x WHERE i = ?"):
        try:
            con.execute(sql, [value]).fetchall()
        except einsql.Error:
            continue
        assert isinstance(value, np.ndarray | np.timedelta64)
        assert value.ndim == 0


def test_bounds_of_the_result_follow_the_values(con: einsql.Connection) -> None:
    for below in (6, 3, 1, 9):
        cur = con.execute("SELECT i, j, val FROM x WHERE i < ? AND 2 <= j", [below])
        assert cur.shape == (min(6, below), 5)
        assert cur.fetch_numpy().tolist() == X[:below, 2:].tolist()
    cur = con.execute("SELECT j, i, val FROM x WHERE i > ?", [3])
    assert (cur.origin, cur.shape) == ((0, 4), (7, 2))
    assert con.execute("SELECT i, val FROM x WHERE i < ?", [-1]).fetchall() == []


def test_a_range_is_cut_in_few_steps_where_the_key_is_long(con: einsql.Connection) -> None:
    con.register("y", np.ones(100_000), ("t",))
    sql = "SELECT SUM(val) AS s FROM y WHERE t < ?"
    assert planned(con, sql, [[n] for n in (1, 10, 4000, 5000, 8000, 9000, 70_000, 99_999)]) == 4
    assert con.execute(sql, [5001]).fetchall() == [(5001.0,)]


def test_products_stay_products(con: einsql.Connection) -> None:
    scaled = "SELECT x.i, w.i AS k, SUM(x.val * w.val * ?) AS s FROM x JOIN w USING (j) "
    for where, given in (("", [0.5]), ("WHERE j <= ? ", [0.5, 3])):
        sql = f"{scaled}{where}GROUP BY x.i, w.i"
        lines = [r[0] for r in con.execute(f"EXPLAIN {sql}", given).fetchall()]
        assert lines[lines.index("-- steps") + 1].startswith("r0  blas"), lines
        found = con.execute(sql, given).fetch_numpy()
        end = 4 if where else 7
        np.testing.assert_allclose(found, 0.5 * X[:, :end] @ W[:, :end].T, rtol=1e-12)


def test_attention_up_to_a_position_is_a_group() -> None:
    con = einsql.connect()
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, 64)).astype(np.float32) for n in (512, 700, 700))
    for name, array, dims in (("q", q, ("s", "d")), ("k", k, ("t", "d")), ("v", v, ("t", "d"))):
        con.register(name, array, dims)
    sql = """WITH a AS (SELECT s, t, SUM(q.val * k.val) / 8 AS val FROM q JOIN k USING (d)
        WHERE t <= ? GROUP BY s, t),
      m AS (SELECT s, MAX(val) AS val FROM a GROUP BY s),
      e AS (SELECT s, t, EXP(a.val - m.val) AS val FROM a JOIN m USING (s)),
      z AS (SELECT s, SUM(val) AS val FROM e GROUP BY s),
      p AS (SELECT s, t, e.val / z.val AS val FROM e JOIN z USING (s))
      SELECT s, d, SUM(p.val * v.val) AS val FROM p JOIN v USING (t) GROUP BY s, d"""
    steps = [r[0] for r in con.execute(f"EXPLAIN {sql}", [300]).fetchall()]
    assert any(line.startswith("r0..r5  group") for line in steps), steps
    for last in (0, 300, 699):
        weights = np.exp(q @ k[: last + 1].T / 8)
        wanted = weights @ v[: last + 1] / weights.sum(1, keepdims=True)
        np.testing.assert_allclose(con.execute(sql, [last]).fetch_numpy(), wanted, atol=2e-5)
    assert planned(con, sql, [[5], [500]]) == 0


@pytest.mark.parametrize("seed", sample([0], range(3)))
def test_answers_do_not_depend_on_when_values_are_known(seed: int) -> None:
    found = parameter_campaign(sample(2, 12), seed)
    assert not found.differences, "\n\n".join(found.differences)
    assert found.shared


# ---- windows: keys between two parameters

Y = np.cos(np.arange(28.0)).reshape(7, 4)

WINDOWS: list[tuple[str, list[list[Any]]]] = [
    ("SELECT i, j, val FROM x WHERE i BETWEEN ? AND ?", [[0, 1], [3, 4], [4, 5]]),
    ("SELECT i, j, val * i AS v FROM x WHERE j = ? AND i >= ? AND i < ? + 2",
     [[0, 1, 1], [6, 4, 4]]),
    ("SELECT i, SUM(val) AS s FROM x WHERE j > ? AND j <= ? + 3 GROUP BY i", [[-1, -1], [3, 3]]),
    (
        "WITH b AS (SELECT i, j, val FROM x WHERE i BETWEEN ? * 2 AND ? * 2 + 1) "
        "SELECT b.i, y.k, SUM(b.val * y.val) AS s FROM b JOIN y USING (j) GROUP BY b.i, y.k",
        [[0, 0], [1, 1], [2, 2]],
    ),
    (
        "SELECT a.i, a.j, b.val - a.val AS d FROM x a, x b "
        "WHERE b.i = a.i + 1 AND b.j = a.j AND a.i BETWEEN ? AND ? + 1",
        [[0, 0], [3, 3]],
    ),
    (
        "WITH s AS (SELECT i, SUM(val) AS val FROM x GROUP BY i), "
        "m AS (SELECT i, x.val - s.val AS val FROM x JOIN s USING (i) "
        "WHERE i BETWEEN ? AND ? + 2), "
        "n AS (SELECT i, MAX(val) AS val FROM m GROUP BY i) "
        "SELECT i, n.val, COUNT(*) OVER () AS c FROM n",
        [[0, 0], [3, 3]],
    ),
    (
        "WITH c AS (SELECT i, j, val FROM x WHERE i BETWEEN ? AND ?) "
        "SELECT a.i, b.j, a.val * b.val AS v FROM c AS a, c AS b WHERE a.i = b.i AND a.j = b.j",
        [[1, 2], [4, 5]],
    ),
    ("SELECT r, r * ? AS v FROM range(9) AS t(r) WHERE r BETWEEN ? AND ?", [[2, 0, 2], [3, 6, 8]]),
    ("SELECT i, (SELECT SUM(val) FROM w WHERE w.i = x.i) AS s FROM x WHERE i = ? AND j = 0",
     [[1], [5]]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "many"), WINDOWS, ids=[c[0][:60] for c in WINDOWS])
def test_windows_are_planned_for_their_extent(
    con: einsql.Connection, duck: duckdb.DuckDBPyConnection, sql: str, many: list[list[object]]
) -> None:
    con.register("y", Y, ("j", "k"))
    if "y.k" in sql:
        j, k = np.indices(Y.shape).reshape(2, -1)
        duck.execute("CREATE OR REPLACE TABLE y (j BIGINT, k BIGINT, val DOUBLE)")
        rows = zip(j.tolist(), k.tolist(), Y.ravel().tolist(), strict=True)
        duck.executemany("INSERT INTO y VALUES (?, ?, ?)", list(rows))
    assert planned(con, sql, many) == 1
    for given in many:
        found = con.execute(sql, given).fetchall()
        wanted = sorted(duck.execute(sql, given).fetchall())
        assert len(found) == len(wanted) > 0
        for a, b in zip(found, wanted, strict=True):
            assert a == pytest.approx(b)
    assert planned(con, sql, many) == 0


def test_windows_at_the_borders_and_beyond_them(con: einsql.Connection) -> None:
    sql = "SELECT i, j, val FROM x WHERE i BETWEEN ? AND ?"
    for lo, hi in ((0, 5), (-1, 0), (5, 6), (4, 3), (7, 9), (-(2**62), 2**62), (2, 2), (4, 5)):
        cur = con.execute(sql, [lo, hi])
        wanted = X[max(0, lo) : max(0, hi + 1)]
        assert cur.shape == wanted.shape
        assert cur.fetch_numpy().tolist() == wanted.tolist()
        if wanted.size:
            assert cur.origin == (max(0, lo), 0)
    assert planned(con, sql, [[0, 1], [1, 2], [4, 5], [0, 1]]) == 0
    for given in ([None, 3], [1, None], [1, 2.5], [True, 3]):
        spelled = sql.replace("?", "{}").format(*("NULL" if v is None else v for v in given))
        assert con.execute(sql, given).fetchall() == con.execute(spelled).fetchall()


SINGLE: list[tuple[str, list[list[Any]]]] = [
    ("SELECT j, val FROM x WHERE i = ?", [[0], [5], [2]]),
    ("SELECT val FROM x WHERE i = ? AND j = ? + 1", [[1, 1], [4, 5]]),
    ("SELECT j, val * i AS v FROM x WHERE i BETWEEN ? AND ? AND j >= 2", [[1, 1], [4, 4]]),
    ("SELECT j, i * 2 AS k, val FROM x WHERE i = ? AND val > 0", [[4], [3], [2]]),
    ("SELECT j, val FROM x WHERE i = ? AND i <= ?", [[1, 3], [2, 2], [2, 1]]),
    ("SELECT x.j, x.val * w.val AS v FROM x JOIN w USING (i, j) WHERE i = ?", [[0], [5]]),
    ("SELECT x.j, w.i, x.val - w.val AS v FROM x JOIN w ON w.j = x.j AND w.i = x.i + 1 "
     "WHERE x.i = ?", [[0], [4]]),
    ("WITH c AS (SELECT j, val FROM x WHERE i = ?) SELECT j, val * 2 AS v FROM c WHERE j <= ?",
     [[1, 3], [4, 2]]),
    ("SELECT j, val FROM (SELECT i, j, val * 2 AS val FROM x) WHERE i = ?", [[1], [4]]),
    ("SELECT j, SUM(val) AS s FROM x WHERE i = ? GROUP BY i, j", [[1], [4]]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "many"), SINGLE, ids=[c[0][:60] for c in SINGLE])
def test_a_key_of_one_value_that_is_not_selected_is_none(
    con: einsql.Connection, sql: str, many: list[list[object]]
) -> None:
    assert planned(con, sql, many) == 1
    for given in many:
        literal = sql.replace("?", "{}").format(*given)
        found, wanted = con.execute(sql, given), con.execute(literal)
        assert (found.shape, found.origin) == (wanted.shape, wanted.origin)
        assert found.shape is not None
        assert repr(found.fetch_numpy(fill=9)) == repr(wanted.fetch_numpy(fill=9))
        con.execute(f"CREATE OR REPLACE TENSOR row AS {sql}", given)
        assert con.execute("SELECT * FROM row").fetchall() == con.execute(literal).fetchall()


def test_a_window_that_ends_beyond_the_keys_is_as_long_as_it_finds(con: einsql.Connection) -> None:
    sql = "SELECT j, SUM(val) AS s FROM x WHERE i BETWEEN ? * 4 AND ? * 4 + 3 GROUP BY j"
    assert planned(con, sql, [[0, 0], [1, 1]]) == 2
    assert planned(con, sql, [[1, 2], [1, 10**6], [0, 0]]) == 0
    for lo, hi in ((0, 0), (1, 1), (1, 2)):
        wanted = X[4 * lo : 4 * hi + 4].sum(axis=0)
        assert con.execute(sql, [lo, hi]).fetch_numpy() == pytest.approx(wanted)
    batches = "FOR n IN range(8) DO SELECT SUM(val) AS s FROM x WHERE i BETWEEN {} ; END FOR"
    before = con.planner_calls
    con.execute(batches.format("n % 2 * 4 AND n % 2 * 4 + 3")).fetchall()
    assert con.planner_calls - before <= 3


def test_windows_of_absent_elements_stored_tensors_and_sparse_arrays(tmp_path: Any) -> None:
    from scipy.sparse import csr_array

    path = str(tmp_path / "w.db")
    sql = "SELECT SUM(val * (i + 10 * j)) AS s, COUNT(*) AS n FROM {} WHERE i BETWEEN ? AND ? + 1"
    with einsql.connect(path) as con:
        con.register("x", X, ("i", "j"))
        con.execute("CREATE TENSOR t AS SELECT i, j, val FROM x WHERE val % 3 <> 0")
    with einsql.connect(path) as con:
        con.register("sparse", csr_array(np.where(X % 3 == 0, 0, X)), ("i", "j"))
        i, j = np.indices(X.shape)
        for name in ("t", "sparse"):
            for lo in (0, 2, 4):
                inside = (i >= lo) & (i <= lo + 1) & (X % 3 != 0)
                found = con.execute(sql.format(name), [lo, lo]).fetchall()
                assert found == [((X * (i + 10 * j))[inside].sum(), inside.sum())]
        assert planned(con, sql.format("t"), [[n, n] for n in range(4)]) == 0


def test_a_gradient_over_mini_batches_is_planned_once(con: einsql.Connection) -> None:
    con.register("y", np.arange(6.0), ("i",))
    con.register("v", np.linspace(-1, 1, 7), ("j",))
    sql = """WITH b AS (SELECT i, j, val FROM x WHERE i BETWEEN ? AND ? + 1),
      p AS (SELECT i, SUM(b.val * v.val) AS val FROM b JOIN v USING (j) GROUP BY i),
      loss AS (SELECT SUM((p.val - y.val) * (p.val - y.val)) AS val FROM p JOIN y USING (i))
      SELECT j, v.val - ? * g.val AS val FROM GRADIENT(loss, v) AS g JOIN v USING (j)"""
    many = [[n, n, 0.1 / (n + 1)] for n in range(0, 5, 2)]
    assert planned(con, sql, many) == 1
    for lo, _, rate in many:
        rows, v = X[lo : lo + 2], np.linspace(-1, 1, 7)
        step = 2 * (rows @ v - np.arange(6.0)[lo : lo + 2]) @ rows
        np.testing.assert_allclose(con.execute(sql, [lo, lo, rate]).fetch_numpy(), v - rate * step)
    whole = sql.replace("GRADIENT(loss, v) AS g JOIN v USING (j)", "GRADIENT(loss, x) AS g")
    whole = whole.replace("SELECT j, v.val - ? * g.val", "SELECT i, j, ? * g.val")
    assert con.execute(whole, [2, 2, 1.0]).fetch_numpy(fill=0).shape == (6, 7)


@pytest.mark.parametrize("source", ["x", "doubled"])
def test_gradients_by_what_is_read_within_and_without_a_window(
    con: einsql.Connection, source: str
) -> None:
    sql = f"""WITH doubled AS (SELECT i, j, val * 2 AS val FROM x),
      part AS (SELECT SUM(val * val) AS val FROM {source} WHERE i BETWEEN ? AND ? + 1),
      whole AS (SELECT SUM(val) AS val FROM {source}),
      loss AS (SELECT part.val + whole.val AS val FROM part, whole)
      SELECT * FROM GRADIENT(loss, {source})"""
    inside = (np.arange(6) // 2 == 1)[:, None]
    times = 1 if source == "x" else 2
    np.testing.assert_allclose(con.execute(sql, [2, 2]).fetch_numpy(), 1 + 2 * times * X * inside)


def test_loops_and_many_executions_share_plans(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR t (i DIM(6), val DOUBLE) DEFAULT 0")
    before = con.planner_calls
    rows = con.execute(
        "FOR step IN range(12) DO SELECT SUM(val) AS s FROM x "
        "WHERE i BETWEEN (step % 3) * 2 AND (step % 3) * 2 + 1 END FOR"
    ).fetchall()
    assert [r[1] for r in rows] == [X[2 * (n % 3) : 2 * (n % 3) + 2].sum() for n in range(12)]
    assert con.planner_calls - before == 1
    con.cursor().executemany(
        "INSERT OR REPLACE INTO t SELECT i, SUM(val) AS val FROM x WHERE i = ? GROUP BY i",
        [[n] for n in range(6)],
    )
    assert con.execute("SELECT i, val FROM t").fetch_numpy().tolist() == X.sum(1).tolist()


def test_a_kept_plan_does_not_compute_what_raises_and_nobody_needs() -> None:
    con = einsql.connect(config={"jit": "never"})
    sql = "SELECT i, CASE WHEN ? = 0 THEN 0 ELSE 6 // ? END AS v FROM range(2) AS r(i)"
    assert con.execute(sql, [1, 1]).fetchall() == [(0, 6), (1, 6)]
    assert con.execute(sql, [0, 0]).fetchall() == [(0, 0), (1, 0)]
    assert con.execute("SELECT 6 // ? AS v", [2]).fetchall() == [(3,)]
    with pytest.raises(einsql.DataError, match="Division by zero"):
        con.execute("SELECT i, 6 // ? AS v FROM range(2) AS r(i)", [0])
