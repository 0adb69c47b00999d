"""Plans for inputs of several shapes: which are kept, and that reused ones are as fresh ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from einsql.core.schema import DType
from einsql.core.unknowns import Recorder, Unknown, computed
from einsql.ir.einsum.graph import Const
from einsql.optimizer.plan_files.fingerprint import fingerprint
from einsql.planner.plan_cache import PlanCache
from einsql.sql.parameters.runtime_inputs import NOTHING
from tests.support.plans import cached, tree_of
from tests.support.plans import planned as planned_with
from tests.support.samples import sample

SOFTMAX = """
WITH e AS (SELECT t, d, EXP(val - MAX(val) OVER (PARTITION BY t)) AS val FROM x)
SELECT t, d, val / SUM(val) OVER (PARTITION BY t) AS val FROM e
"""


@pytest.fixture
def con() -> Iterator[einsql.Connection]:
    with einsql.connect() as made:
        made.execute("SET jit = 'wait'")
        yield made


def give(con: einsql.Connection, shape: Sequence[int], name: str = "x", keys: str = "td") -> None:
    """Registers random numbers; equal shapes have equal numbers."""
    values = np.random.default_rng(list(shape)).standard_normal(shape).astype(np.float32)
    con.register(name, values, dims=tuple(keys))


def give_all(con: einsql.Connection, t: int, d: int) -> None:
    """Registers x over t and d, y over d, and k over t with numbers of d."""
    give(con, (t, d))
    give(con, (d,), "y", "d")
    con.register("k", np.arange(t) * 3 % d, dims=("t",))


def planned(con: einsql.Connection, sql: str, parameters: Sequence[object] = ()) -> int:
    """The number of plans that a statement takes."""
    before = con.planner_calls
    con.execute(sql, parameters).fetch_numpy()
    return con.planner_calls - before


def test_a_shape_is_planned_once(con: einsql.Connection) -> None:
    plans, kernels = [], con.compilations
    for t in (8, 9, 10, 8, 9, 10, 10, 8):
        give(con, (t, 16))
        plans.append(planned(con, SOFTMAX))
    assert plans == [1, 0, 0, 0, 0, 0, 0, 0]
    assert con.plan_variants == 2
    before = con.compilations
    give(con, (11, 16))
    con.execute(SOFTMAX)
    assert con.compilations == before
    assert before - kernels <= 1


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT d, AVG(val) AS mean, STDDEV(val) AS deviation FROM x GROUP BY d",
        "WITH m AS (SELECT d, AVG(val) AS val FROM x GROUP BY d) "
        "SELECT t, d, x.val - m.val AS val FROM x JOIN m USING (d)",
        "SELECT VAR_POP(val) + COUNT(*) * AVG(val * 2) AS v FROM x",
    ],
)
def test_counts_of_keys_are_no_conditions(con: einsql.Connection, sql: str) -> None:
    for t, plans in ((2000, 1), (2251, 0), (1990, 0)):
        give(con, (t, 16))
        assert planned(con, sql) == plans
        fresh = einsql.connect()
        give(fresh, (t, 16))
        fresh.execute("SET jit = 'wait'")
        expected, answer = (c.execute(sql).fetchall() for c in (fresh, con))
        np.testing.assert_allclose(answer, expected, rtol=1e-6)
        fresh.close()


class Prepared:
    """A prepared statement for one number, and its template for the ten numbers around it."""

    is_volatile, version, use = False, 0, NOTHING

    def __init__(self, number: int, reusable: bool) -> None:
        self.number = number
        self.reusable = reusable

    @property
    def template(self) -> Prepared | None:
        return self if self.reusable else None

    def fits(self, ctx: Any) -> bool:
        return bool(ctx.number == self.number)

    def run(self, ctx: Any) -> object:
        return self.number if self.fits(ctx) else None

    def prepare(self, ctx: Any) -> Prepared | None:
        return Prepared(ctx.number, False) if ctx.number // 10 == self.number // 10 else None


@pytest.mark.parametrize(
    ("reusable", "numbers", "planned"),
    [
        (False, (10, 20, 30, 40, 10, 50, 10, 30, 40, 50, 20), (1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1)),
        (True, (10, 20, 30, 40, 11, 50, 12, 31, 41, 51, 21), (1, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1)),
    ],
)
def test_the_least_recently_used_of_four_is_dropped(
    reusable: bool, numbers: Sequence[int], planned: Sequence[int]
) -> None:
    plans = PlanCache()
    for number, times in zip(numbers, planned, strict=True):
        ctx = SimpleNamespace(number=number, parameters=(), plans=plans)
        cached = plans.find("a statement", ())
        outcome = None if cached is None else cached.run(ctx, ())
        if outcome is None:
            plans.keep(ctx, "a statement", Prepared(number, reusable))
        assert outcome == (None if times else number)


def test_other_tensors_do_not_matter(con: einsql.Connection) -> None:
    give(con, (4, 4))
    give(con, (3, 4), "y")
    assert planned(con, SOFTMAX) == 1
    for t in (5, 6, 7):
        give(con, (t, 4), "y")
        assert planned(con, SOFTMAX) == 0
    con.execute("CREATE TENSOR z (i DIM(3), val FLOAT)")
    assert planned(con, SOFTMAX) == 1  # a new name may change the meaning of another


@pytest.mark.parametrize(
    "change",
    [
        "dtype", "keys", "sparse", "view", "sites", "macro",
    ],
)  # fmt: skip
def test_other_changes_are_planned_anew(con: einsql.Connection, change: str) -> None:
    give(con, (3, 6))
    con.execute("CREATE VIEW w AS SELECT t, d, val + 1 AS val FROM x")
    con.execute("CREATE MACRO twice(a) AS a * 2")
    sql = "SELECT t, SUM(twice(val)) AS val FROM w GROUP BY t"
    for t in (4, 5):
        give(con, (t, 6))
        con.execute(sql)
    values = np.arange(24.0).reshape(4, 6)
    match change:
        case "dtype":
            con.register("x", values, dims=("t", "d"))
        case "keys":
            con.register("x", values.T.copy(), dims=("d", "t"))
        case "sparse":
            sparse = pytest.importorskip("scipy.sparse")
            con.register("x", sparse.csr_array(values), dims=("t", "d"), fill=0)
        case "view":
            con.execute("CREATE OR REPLACE VIEW w AS SELECT t, d, val + 2 AS val FROM x")
        case "sites":
            con.execute("SET sites = 2")
        case "macro":
            con.execute("CREATE OR REPLACE MACRO twice(a) AS a * 3")
    with einsql.connect() as fresh:
        fresh.register("x", con.execute("SELECT t, d, val FROM x").fetch_numpy(), dims=("t", "d"))
        expected = {
            "view": "SELECT t, SUM((val + 2) * 2) AS val FROM x GROUP BY t",
            "macro": "SELECT t, SUM((val + 1) * 3) AS val FROM x GROUP BY t",
        }.get(change, "SELECT t, SUM((val + 1) * 2) AS val FROM x GROUP BY t")
        want = fresh.execute(expected).fetch_numpy()
    assert con.execute(sql).fetch_numpy() == pytest.approx(want)


def test_variables_of_the_caller_have_variants(con: einsql.Connection) -> None:
    plans = []
    for t in (8, 9, 8, 9):
        local = np.full(t, 2.0)
        before = con.planner_calls
        assert con.execute("SELECT SUM(val) AS val FROM local").fetchone() == (2.0 * t,)
        plans.append(con.planner_calls - before)
        del local
    assert plans == [1, 0, 0, 0]


def test_stored_tensors_have_variants(con: einsql.Connection) -> None:
    plans = []
    for n in (3, 4, 3, 4):
        con.execute(f"CREATE OR REPLACE TENSOR s (i DIM({n}), val DOUBLE) DEFAULT 1")
        plans.append(planned(con, "SELECT SUM(val) AS val FROM s"))
        assert con.execute("SELECT SUM(val) AS val FROM s").fetchone() == (n,)
    assert sum(plans) <= 4


def test_a_change_is_bound_again_for_a_target_of_another_shape(con: einsql.Connection) -> None:
    con.register("a", np.arange(4.0), dims=("i",))
    insert = "INSERT OR REPLACE INTO s SELECT i + ?1 AS i, val FROM a"
    for n in (6, 4, 6, 5):
        con.execute(f"CREATE OR REPLACE TENSOR s (i DIM({n}), val DOUBLE) DEFAULT 9")
        con.execute(insert, [0])
        expected = [0.0, 1.0, 2.0, 3.0, 9.0, 9.0][:n]
        assert con.execute("SELECT i, val FROM s").fetch_numpy().tolist() == expected
        if n == 6:
            con.execute(insert, [2])
        else:
            with pytest.raises(einsql.Error):
                con.execute(insert, [2])


def test_a_rollback_restores_the_shape(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR s (i DIM(3), val DOUBLE) DEFAULT 1")
    total = "SELECT SUM(val) AS val FROM s"
    assert con.execute(total).fetchone() == (3,)
    con.execute("BEGIN")
    con.execute("CREATE OR REPLACE TENSOR s (i DIM(5), val DOUBLE) DEFAULT 1")
    assert con.execute(total).fetchone() == (5,)
    con.execute("ROLLBACK")
    assert con.execute(total).fetchone() == (3,)


def test_bounds_found_in_data_replace_a_plan(con: einsql.Connection) -> None:
    sql = "SELECT k.val AS g, SUM(x.val) AS val FROM x JOIN k USING (t) GROUP BY k.val"
    for t, top in ((4, 2), (6, 2), (4, 3), (6, 5), (4, 2)):
        give(con, (t, 2))
        con.register("k", np.arange(t) % top, dims=("t",))
        rows = con.execute(sql).fetchall()
        assert sorted(r[0] for r in rows) == list(range(min(top, t)))


STATEMENTS = [
    SOFTMAX,
    "SELECT t, SUM(val) AS val FROM x GROUP BY t",
    "SELECT d, t, val * 2 AS val FROM x WHERE t < 5",
    "SELECT t, val FROM x WHERE d = 3",
    "SELECT SUM(val) AS val FROM x WHERE t <= ?1 AND d >= ?2",
    "SELECT t, d, val FROM x WHERE t BETWEEN ?1 AND ?2",
    "SELECT a.t, b.t AS u, SUM(a.val * b.val) AS val FROM x AS a JOIN x AS b USING (d) "
    "GROUP BY a.t, b.t",
    "SELECT a.t, MIN(a.val + y.val) AS val FROM x AS a JOIN y USING (d) GROUP BY a.t",
    "SELECT a.t, SUM(b.val) AS val FROM x AS a JOIN x AS b ON b.t <= a.t AND a.d = b.d "
    "GROUP BY a.t",
    "SELECT t // 2 AS h, MAX(val) AS val FROM x GROUP BY t // 2",
    "SELECT t, d, val + (SELECT SUM(val) FROM y) AS val FROM x",
    "SELECT d, AVG(val) AS m, STDDEV(val) AS s FROM x GROUP BY d",
    "SELECT k.t, y.val FROM k JOIN y ON y.d = k.val",
    "SELECT k.val AS g, SUM(x.val) AS val FROM x JOIN k USING (t) GROUP BY k.val",
    "SELECT t // 4 AS h, AVG(val) AS val FROM x WHERE d < 9 GROUP BY t // 4",
    "SELECT t, COUNT(*) AS c, SUM(val) FILTER (WHERE d < 4) AS val FROM x GROUP BY t",
]  # fmt: skip
SHAPES = st.tuples(st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33, 64, 65, 127, 128, 130]),
                   st.sampled_from([1, 3, 4, 8, 16, 17]))  # fmt: skip


def outcome(con: einsql.Connection, sql: str, parameters: Sequence[object]) -> object:
    """The rows of a statement to the last bit, or its error."""
    try:
        result = con.execute(sql, parameters)
        columns = [c[0] for c in result.description or ()]
        return columns, repr(result.fetchall())
    except einsql.Error as error:
        return type(error), str(error)


@settings(max_examples=sample(6, 60), deadline=None)
@given(st.sampled_from(STATEMENTS), st.lists(SHAPES, min_size=2, max_size=8), st.data())
def test_reused_plans_are_as_fresh_ones(
    sql: str, shapes: list[tuple[int, int]], data: st.DataObject
) -> None:
    number = st.integers(-1, 10)
    with einsql.connect() as con:
        con.execute("SET jit = 'wait'")
        for shape in shapes + shapes[::-1]:
            values = [data.draw(number), data.draw(number)] if "?1" in sql else []
            with einsql.connect() as fresh:
                fresh.execute("SET jit = 'wait'")
                for each in (con, fresh):
                    give_all(each, *shape)
                assert outcome(con, sql, values) == outcome(fresh, sql, values)


@pytest.mark.parametrize("sql", STATEMENTS)
def test_a_binder_leaves_the_tree_as_it_is(con: einsql.Connection, sql: str) -> None:
    con.execute("CREATE MACRO twice(a) AS a * 2")
    give_all(con, 4, 8)
    tree = tree_of(f"SELECT twice(1) AS one FROM ({sql}) AS q")
    before = repr(tree)
    con.context.parameters = [1, 2]
    planned_with(con, tree)
    assert repr(tree) == before


def shares_graph(con: einsql.Connection, sql: str) -> bool:
    """Whether the cached plan of a query has the graph of a fresh plan."""
    fresh, _ = planned_with(con, tree_of(sql))
    return fingerprint(*cached(con, sql).optimized.roots) == fingerprint(*fresh.optimized.roots)


WITHOUT_PARAMETERS = [sql for sql in STATEMENTS if "?1" not in sql]


@pytest.mark.parametrize("sql", sample(WITHOUT_PARAMETERS[::4], WITHOUT_PARAMETERS))
def test_a_template_gives_the_graph_of_a_fresh_plan(con: einsql.Connection, sql: str) -> None:
    """Extents around the constants of the statements and around each other."""
    shapes = [(t, d) for d in (7, 4, 5, 2) for t in (11, 13, 9, 7, 8, 6, 5, 4, 3, 2, 1, 40)]
    for t, d in shapes:
        give_all(con, t, d)
        con.execute(sql)
        assert shares_graph(con, sql), (t, d)


@pytest.mark.parametrize(
    "sql",
    [
        SOFTMAX,
        "SELECT a.t, b.t AS u, SUM(a.val * b.val) AS val FROM x AS a JOIN x AS b USING (d) "
        "GROUP BY a.t, b.t",
        "SELECT t, AVG(val) AS val FROM x GROUP BY t",
        "SELECT t, SUM(val) AS val FROM x WHERE d = 3 GROUP BY t",
        "SELECT t, d, val + 1 AS val FROM x WHERE t >= 2",
    ],
)
def test_another_extent_takes_no_plan(con: einsql.Connection, sql: str) -> None:
    plans = []
    for t in (8, 9, 10, 11, 30, 300):
        give(con, (t, 16))
        before = con.planner_calls
        con.execute(sql)
        plans.append(con.planner_calls - before)
    assert plans == [1, 0, 0, 0, 0, 0]


def test_an_extent_that_changes_the_order_of_a_join_is_planned(con: einsql.Connection) -> None:
    sql = (
        "SELECT a.t, c.d AS e, SUM(a.val * b.val * c.val) AS val FROM x AS a "
        "JOIN x AS b USING (d) JOIN x AS c ON c.t = b.t GROUP BY a.t, c.d"
    )
    plans = []
    for t in (8, 9, 30, 300):
        give(con, (t, 16))
        before = con.planner_calls
        con.execute(sql)
        plans.append(con.planner_calls - before)
    assert plans == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("value", "other", "work"),
    [
        (8, 9, lambda n: n < 9),
        (8, 9, lambda n: [0] * n),
        (8, 9, lambda n: range(n)),
        (8, 9, lambda n: 1.5 * n > 13),
        (8, 9, lambda n: n / 2 < 4.5),
        (8, 9, lambda n: computed(float.is_integer, n / 2)),
        (8, 9, lambda n: computed(math.log, n) < 2.1),
        (8, 9, lambda n: f"{n}"),
        (8, 10, lambda n: n % 4 == 0),
        (8, 12, lambda n: n // 3 == 2),
        (8, 0, lambda n: 1 if n else 2),
        (8, 9, lambda n: 2**n),
        (8, 9, lambda n: max(n, 8.5)),
        (8, 9, lambda n: np.full(3, n, np.int64)),
        (8, 9, lambda n: divmod(100, n)),
        (8, 2, lambda n: {2: "a"}.get(n)),
        (8, 9, lambda n: Const(n, DType.BIGINT) == Const(8, DType.BIGINT)),
        (8, 9, lambda n: n == np.float32(8)),
    ],
)
def test_what_depends_on_an_extent_is_recorded(
    value: int, other: int, work: Callable[[Any], object]
) -> None:
    recorder = Recorder()
    work(recorder.extent(value))
    assert recorder.numbers([value]) is not None
    assert recorder.numbers([other]) is None


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 20), st.integers(-3, 20))
def test_terms_have_the_values_of_plain_numbers(a: int, b: int, c: int, k: int) -> None:
    def work(x: Any, y: Any) -> list[Any]:
        total = max(0, x - k) + min(y, 7) * x - -y
        numbers = [total, total // 3 % 5, x + True, k - y, abs(k - x)] + [x * y] * (x <= y)
        return [*numbers, 1.5 * x / y, math.ceil(x / 3), computed(pow, x, 2)]

    recorder = Recorder()
    results = work(recorder.extent(a), recorder.extent(b))
    terms = recorder.numbers([c, b])
    if terms is not None:
        values = [terms[r.slot] if type(r) is Unknown else r for r in results]
        assert values == work(c, b)
