"""One test for each line of the semantics table, against DuckDB where it has an answer."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

import einsql
from einsql.core.bfloat16 import loaded, narrow
from einsql.core.schema import DType
from tests.support.oracle.compare import Row, canonical
from tests.support.oracle.coverage import LINES
from tests.support.oracle.data import Database, Tensor
from tests.support.oracle.oracle import Pair

NAN, INF = math.nan, math.inf
MOST = 2**63 - 1
_NAMES = {"bool": "BOOLEAN", "int32": "INTEGER", "int64": "BIGINT", "float16": "HALF",
          "uint16": "BFLOAT16", "float32": "FLOAT", "float64": "DOUBLE"}  # fmt: skip


class Both:
    """Some tensors on both sides."""

    def __init__(self, float_math: str = "double", **arrays: tuple[str, np.ndarray]) -> None:
        tensors = [
            Tensor(name, tuple(dims), kind := _NAMES[array.dtype.name], loaded(array, DType(kind)))
            for name, (dims, array) in arrays.items()
        ]
        self.pair = Pair(Database(float_math, tensors))
        assert not self.pair.broken, self.pair.broken
        self.pair.con.execute("SET fallback = off")

    def same(self, sql: str) -> list[Row]:
        """The rows of a query on which both sides agree, as a sorted bag."""
        ours = self.rows(sql)
        theirs = [tuple(canonical(v) for v in r) for r in self.pair.oracle.rows(sql)]
        assert sorted(map(repr, theirs)) == sorted(
            repr(tuple(canonical(v) for v in r)) for r in ours
        ), sql
        return ours

    def rows(self, sql: str) -> list[Row]:
        """einsql's rows."""
        found: list[Row] = self.pair.con.execute(sql).fetchall()
        return found

    def statement(self, sql: str) -> None:
        """Creates a tensor on both sides."""
        self.pair.con.execute(sql)
        self.pair.oracle.statement(sql)

    def both_refuse(self, sql: str, error: type[Exception] = einsql.DataError) -> None:
        """Both sides raise."""
        import duckdb

        with pytest.raises(duckdb.Error):
            self.pair.oracle.rows(sql)
        self.refuses(sql, error)

    def refuses(self, sql: str, error: type[Exception] = einsql.DataError) -> None:
        """einsql raises."""
        with pytest.raises(error):
            self.pair.con.execute(sql).fetchall()


@pytest.fixture
def make() -> Iterator[type[Both]]:
    made: list[Both] = []

    class Made(Both):
        def __init__(self, float_math: str = "double", **arrays: tuple[str, np.ndarray]) -> None:
            super().__init__(float_math, **arrays)
            made.append(self)

    yield Made
    for both in made:
        both.pair.close()


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def doubles(*values: float) -> np.ndarray:
    return np.array(values, np.float64)


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


def test_no_rows(make: type[Both]) -> None:
    """Aggregate over no rows."""
    both = make(x=("i", doubles(1, 2)))
    nothing = "FROM x WHERE i > 5"
    assert both.same(f"SELECT SUM(val) AS s, COUNT(*) AS n, MIN(val) AS m {nothing}") == [
        (None, 0, None)
    ]
    assert both.same(f"SELECT i, SUM(val) AS s {nothing} GROUP BY i") == []
    assert both.same("SELECT SUM(val) FILTER (WHERE i > 5) AS s FROM x") == [(None,)]
    assert both.same("SELECT i, VAR_SAMP(val) AS v FROM x GROUP BY i") == [(0, None), (1, None)]
    assert both.same("SELECT i, CASE WHEN i = 0 THEN val END AS v FROM x") == [(0, 1), (1, None)]
    assert both.same("SELECT i, NULLIF(val, 2) AS v FROM x") == [(0, 1), (1, None)]
    both.refuses("CREATE TENSOR y AS SELECT i, NULLIF(val, 2) AS val FROM x")


def test_bound_0(make: type[Both]) -> None:
    """Contracted bound 0."""
    both = make(x=("ij", np.zeros((2, 0))))
    assert both.same("SELECT i, SUM(val) AS s FROM x GROUP BY i") == []
    assert both.same("SELECT SUM(val) AS s, COUNT(*) AS n FROM x") == [(None, 0)]
    assert einsql.einsum("ij->i", np.zeros((2, 0))).tolist() == [0, 0]


def test_float_math(make: type[Both]) -> None:
    """SUM, AVG, EXP, SQRT, LN of FLOAT: the one documented deviation."""
    large = floats(16777216, 1, 1)
    sql = "SELECT SUM(val) AS s FROM x"
    assert make(x=("i", large)).same(sql) == [(16777218,)]
    ours = make("float", x=("i", large))
    found = ours.pair.con.execute(sql).fetch_numpy()
    assert found.dtype == np.float32
    both = make(x=("i", floats(0.5, 2)))
    both.same("SELECT SUM(val) AS s, AVG(val) AS a, PRODUCT(val) AS p FROM x")
    for fn in ("exp", "sqrt", "ln"):
        sql = f"SELECT i, {fn}(val) AS v FROM x"
        mine, theirs = both.rows(sql), both.pair.oracle.rows(sql)
        assert [r[1] for r in mine] == pytest.approx([r[1] for r in theirs], rel=1e-14)


def test_float_mixed(make: type[Both]) -> None:
    """FLOAT with a decimal literal or an integer is FLOAT, with DOUBLE it is DOUBLE."""
    both = make(x=("i", floats(0.1, 16777217.0)), y=("i", doubles(0.1, 1)))
    for expression in ("val * 0.1", "val + 1", "val * i", "0.3 - val", "val * 1e-1"):
        both.same(f"SELECT i, {expression} AS v FROM x")
    both.same("SELECT i, x.val + y.val AS v FROM x JOIN y USING (i)")


def test_float_literal(make: type[Both]) -> None:
    """A literal takes the other operand's type."""
    both = make(x=("i", floats(0.1, 0.2)), y=("i", doubles(0.1, 0.2)))
    for t in "xy":
        assert both.same(f"SELECT i, val > 0.1 AS v FROM {t}") == [(0, False), (1, True)]
        assert both.same(f"SELECT i FROM {t} WHERE val = 0.1") == [(0,)]


def test_decimal(make: type[Both]) -> None:
    """Pure DECIMAL arithmetic is exact."""
    both = make(x=("i", whole(1, 2, 3, 4)))
    assert both.same("SELECT i FROM x WHERE i * 0.1 = 0.3") == [(3,)]
    assert both.same("SELECT i, i * 0.1 > 0.15 AS v FROM x")[2] == (2, True)


def test_int_sum(make: type[Both]) -> None:
    """SUM of integers is a BIGINT."""
    both = make(x=("i", whole(2**31 - 1, 2**31 - 1)), y=("i", np.array([MOST, 1])))
    assert both.same("SELECT SUM(val) AS s FROM x") == [(2**32 - 2,)]
    assert both.same("SELECT SUM(-val) AS s FROM y") == [(-(2**63),)]
    both.refuses("SELECT SUM(val) AS s FROM y")
    assert both.rows("SELECT SUM(val) FILTER (WHERE i = 0) AS s FROM y") == [(MOST,)]


def test_int_overflow(make: type[Both]) -> None:
    """Integer overflow raises and never wraps."""
    both = make(x=("i", whole(2**31 - 1, 1, -(2**31))), y=("i", np.array([MOST, -(2**63)])))
    for expression in ("val + 1", "val * 2", "-val", "abs(val)", "val - 1"):
        both.both_refuse(f"SELECT i, {expression} AS v FROM x")
    for expression in ("val * 2", "val + 1", "-val", "val * val", "val // -1"):
        both.both_refuse(f"SELECT i, {expression} AS v FROM y")
    assert both.same("SELECT i, val + 1 AS v FROM x WHERE i = 1") == [(1, 2)]
    assert both.same("SELECT i, val::BIGINT + 1 AS v FROM x")[0] == (0, 2**31)


def test_division(make: type[Both]) -> None:
    """/ is IEEE and DOUBLE on integers; // and % truncate and refuse a zero divisor."""
    both = make(x=("i", whole(7, -7, 0)), d=("i", doubles(-7.5, 0.0, 3)))
    both.same("SELECT i, val / 2 AS a, val / 0 AS b, val // 2 AS c, val % 3 AS d FROM x")
    both.same("SELECT i, val / 0 AS a, val % 2 AS b, val % 0 AS c FROM d")
    assert both.same("SELECT i, val // 2 AS a FROM d WHERE i = 0") == [(0, -3.75)]
    both.both_refuse("SELECT i, 1 // val AS v FROM x")
    both.both_refuse("SELECT i, 1 % val AS v FROM x")
    both.both_refuse("SELECT i, val // 0 AS v FROM d")
    assert both.same("SELECT i // 2 AS h, SUM(val) AS s FROM x GROUP BY i // 2") == [
        (0, 0), (1, 0)
    ]  # fmt: skip


def test_guarded(make: type[Both]) -> None:
    """An error is raised only for elements that are selected."""
    both = make(x=("i", whole(2, 0, 3)))
    assert both.same("SELECT i, CASE WHEN val <> 0 THEN 6 // val END AS v FROM x") == [
        (0, 3), (1, None), (2, 2)
    ]  # fmt: skip
    assert both.same("SELECT i, 6 // val AS v FROM x WHERE val <> 0") == [(0, 3), (2, 2)]
    # DuckDB divides before it filters, or tests conjuncts in any order: it has no say here.
    assert both.rows("SELECT SUM(6 // val) FILTER (WHERE val <> 0) AS v FROM x") == [(5,)]
    assert both.rows("SELECT i FROM x WHERE val <> 0 AND 6 // val > 2") == [(0,)]


def test_nan(make: type[Both]) -> None:
    """NaN equals itself, lies above infinity, and MIN skips it."""
    both = make(x=("ij", doubles(NAN, 1, INF, NAN, NAN, -INF).reshape(3, 2)))
    both.same("SELECT i, MIN(val) AS a, MAX(val) AS b, ARG_MIN(j, val) AS c FROM x GROUP BY i")
    both.same("SELECT i, j, val = val AS a, val > 1e308 AS b, val < 0 AS c FROM x")
    both.same("SELECT i, j, greatest(val, 2) AS a, least(val, 2) AS b, sign(val) AS c FROM x")
    assert both.same("SELECT MIN(val) AS m FROM x WHERE val > 1") == [(INF,)]
    only = make(x=("i", floats(NAN, NAN)))
    assert math.isnan(float(only.same("SELECT MIN(val) AS m FROM x")[0][0] or 0))


def test_zero_inf(make: type[Both]) -> None:
    """0 · inf is NaN, and masks never multiply."""
    both = make(x=("i", doubles(0, 1)), y=("i", doubles(INF, 2)))
    both.statement("CREATE TENSOR m AS SELECT i, val FROM x WHERE val > 0")
    (product,) = both.same("SELECT SUM(x.val * y.val) AS s FROM x JOIN y USING (i)")
    assert math.isnan(float(product[0] or 0))
    assert both.same("SELECT SUM(m.val * y.val) AS s FROM m JOIN y USING (i)") == [(2,)]
    assert both.same("SELECT SUM(y.val) FILTER (WHERE i = 1) AS s FROM y") == [(2,)]


def test_ties(make: type[Both]) -> None:
    """Among equal values ARG_MIN gives the least key."""
    both = make(x=("ij", doubles(3, 1, 1, 5, 5, 5).reshape(2, 3)))
    sql = "SELECT i, ARG_MIN(j, val) AS a, ARG_MAX(j, val) AS b FROM x GROUP BY i"
    assert both.rows(sql) == [(0, 1, 0), (1, 0, 0)]
    attained = (
        "SELECT q.i, x.val FROM (SELECT i, ARG_MIN(j, val) AS a FROM x GROUP BY i) AS q "
        "JOIN x ON x.i = q.i AND x.j = q.a"
    )
    both.same(attained)


def test_bag(make: type[Both]) -> None:
    """A key that is not selected is hidden, not lost."""
    both = make(x=("ij", doubles(1, 1, 2, 3).reshape(2, 2)))
    assert sorted(both.same("SELECT i, val FROM x")) == [(0, 1), (0, 1), (1, 2), (1, 3)]
    assert both.same("SELECT SUM(val) AS s FROM (SELECT i, val FROM x) AS q") == [(7,)]
    both.refuses("CREATE TENSOR y AS SELECT i, val FROM x", einsql.Error)
    with pytest.raises(einsql.Error):
        both.pair.con.execute("SELECT i, val FROM x").fetch_numpy()


def test_fallback(make: type[Both]) -> None:
    """DISTINCT, UNION, GROUP BY a float, windows ordered by values: DuckDB's work, or an error."""
    both = make(x=("i", doubles(1, 1, 2)))
    for sql in (
        "SELECT DISTINCT val FROM x",
        "SELECT i FROM x UNION ALL SELECT i FROM x",
        "SELECT val, COUNT(*) AS n FROM x GROUP BY val",
        "SELECT i, SUM(val) OVER (ORDER BY val) AS s FROM x",
    ):
        both.refuses(sql, einsql.NotSupportedError)


def test_natural(make: type[Both]) -> None:
    """NATURAL JOIN joins on `val` too."""
    both = make(x=("i", whole(1, 2)), y=("i", whole(1, 3)))
    assert both.same("SELECT i, val FROM x NATURAL JOIN y") == [(0, 1)]
    assert both.pair.con.notices


def test_bounds(make: type[Both]) -> None:
    """Different bounds in a join meet in their intersection."""
    both = make(x=("i", doubles(1, 2, 3)), y=("i", doubles(1, 2)))
    assert both.same("SELECT i, x.val + y.val AS v FROM x JOIN y USING (i)") == [(0, 2), (1, 4)]
    with pytest.raises(einsql.Error):
        einsql.einsum("i,i->", doubles(1, 2, 3), doubles(1, 2))


def test_negative_key(make: type[Both]) -> None:
    """Keys range over [lo, hi); a stored tensor needs lo ≥ 0."""
    both = make(x=("i", doubles(1, 2)))
    sql = "SELECT i - 1 AS i, SUM(val) AS s FROM x GROUP BY i - 1"
    assert both.same(sql) == [(-1, 1), (0, 2)]
    assert both.same("SELECT i - 1 AS i, val FROM x") == [(-1, 1), (0, 2)]
    cursor = both.pair.con.execute(sql)
    assert cursor.origin == (-1,)
    assert cursor.fetch_numpy().tolist() == [1, 2]
    both.refuses(f"CREATE TENSOR y AS {sql}", einsql.Error)


def test_correlated(make: type[Both]) -> None:
    """A correlated subquery without a match is NULL, COUNT 0; several rows raise."""
    both = make(x=("i", doubles(1, 2, 3)), y=("ij", np.ones((3, 2))))
    same = "SELECT x.i, (SELECT SUM(y.val) FROM y WHERE y.i = x.i) AS s FROM x"
    assert both.same(same) == [(0, 2), (1, 2), (2, 2)]
    both.statement("CREATE TENSOR z AS SELECT i, j, val FROM y WHERE i < 2 AND j < 2")
    for aggregate, missing in (("SUM(z.val)", None), ("COUNT(*)", 0)):
        sql = f"SELECT x.i, (SELECT {aggregate} FROM z WHERE z.i = x.i) AS s FROM x"
        assert both.same(sql)[2] == (2, missing)
    both.both_refuse("SELECT x.i, (SELECT y.val FROM y WHERE y.i = x.i) AS s FROM x", einsql.Error)


def test_self_join(make: type[Both]) -> None:
    """Inequality joins and self joins."""
    both = make(x=("i", doubles(1, 2, 3)))
    both.same("SELECT a.i, b.i AS j, a.val * b.val AS v FROM x AS a JOIN x AS b ON a.i < b.i")
    both.same("SELECT a.i, SUM(b.val) AS s FROM x AS a, x AS b WHERE b.i <= a.i GROUP BY a.i")
    assert both.same("SELECT SUM(a.val * b.val) AS s FROM x AS a, x AS b") == [(36,)]


def test_update_from(make: type[Both]) -> None:
    """UPDATE … FROM with several matches is an error; one match each is not."""
    both = make(g=("i", doubles(1, 2)), h=("ij", np.ones((2, 2))))
    both.statement("CREATE TENSOR w AS SELECT i, val * 10 AS val FROM g")
    both.statement("UPDATE w SET val = w.val - g.val FROM g WHERE g.i = w.i")
    assert both.same("SELECT i, val FROM w") == [(0, 9), (1, 18)]
    both.refuses("UPDATE w SET val = h.val FROM h WHERE h.i = w.i", einsql.IntegrityError)
    assert both.rows("SELECT i, val FROM w") == [(0, 9), (1, 18)]


def test_insert_existing(make: type[Both]) -> None:
    """INSERT of an existing key."""
    both = make()
    con = both.pair.con
    con.execute("CREATE TENSOR w (i DIM(3), val DOUBLE)")
    con.execute("INSERT INTO w VALUES (0, 1.5)")
    both.refuses("INSERT INTO w VALUES (0, 2)", einsql.IntegrityError)
    con.execute("INSERT OR REPLACE INTO w VALUES (0, 2)")
    assert both.rows("SELECT i, val FROM w") == [(0, 2)]
    con.execute("CREATE TENSOR z (i DIM(2), val DOUBLE) DEFAULT 0")
    con.execute("INSERT INTO z VALUES (1, 5)")
    assert both.rows("SELECT i, val FROM z") == [(0, 0), (1, 5)]
    both.refuses("DELETE FROM z", einsql.IntegrityError)


def test_cast_round(make: type[Both]) -> None:
    """CAST rounds half to even, ROUND away from zero; what does not fit raises."""
    both = make(
        x=("i", doubles(2.5, -2.5, 0.5, 3.5)), n=("i", doubles(NAN)), e=("i", doubles(1e300))
    )
    found = both.same("SELECT i, CAST(val AS INTEGER) AS a, ROUND(val) AS b FROM x")
    assert found == [(0, 2, 3), (1, -2, -3), (2, 0, 1), (3, 4, 4)]
    both.both_refuse("SELECT i, CAST(val AS INTEGER) AS v FROM n")
    both.both_refuse("SELECT i, CAST(val AS FLOAT) AS v FROM e")


def test_select_order(make: type[Both]) -> None:
    """Columns come in SELECT's order."""
    both = make(x=("ij", np.arange(4.0).reshape(2, 2)))
    sql = "SELECT SUM(val) AS s, i FROM x GROUP BY i"
    assert both.same(sql) == [(1, 0), (5, 1)]
    assert [d[0] for d in both.pair.con.execute(sql).description] == ["s", "i"]


def test_ours(make: type[Both]) -> None:
    """ERF, LOGSUMEXP, HALF and BFLOAT16 are einsql's own."""
    both = make(h=("i", np.array([0.5, 2.25], np.float16)), x=("i", doubles(-1000, 0, 1000)))
    assert both.same("SELECT SUM(val) AS s, MAX(val) AS m FROM h") == [(2.75, 2.25)]
    ((value,),) = both.rows("SELECT LOGSUMEXP(val) AS v FROM x")
    assert value == 1000
    assert [r[1] for r in both.rows("SELECT i, ERF(val) AS v FROM x")] == [-1, 0, 1]
    found = both.rows("SELECT i, ERF(val) AS v FROM h")
    assert [r[1] for r in found] == pytest.approx([math.erf(0.5), math.erf(2.25)], rel=1e-6)
    both = make(b=("i", narrow(np.array([0.1, 3e38, -2.5]))), h=("i", np.array([0.1], np.float16)))
    for sql in (
        "SELECT i, val, val + 1 AS s, val > 0.1 AS g, -val AS n, val * 2.0 AS d FROM b",
        "SELECT MIN(val) AS l, MAX(val) AS m, SUM(val / 4) AS s, ARG_MAX(i, val) AS a FROM b",
        "SELECT b.i, b.val + h.val AS s, GREATEST(b.val, h.val) AS g FROM b, h WHERE h.i = 0",
    ):
        both.same(sql)


def test_every_line_has_a_test() -> None:
    missing = [tag for tag in LINES if f"test_{tag}" not in globals()]
    assert not missing
