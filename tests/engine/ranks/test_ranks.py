"""Queries on real MPI ranks: the same answers, and tensors that stay where they are made."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import einsql
from einsql.storage.fields import PlacedFields
from einsql.storage.objects import Tensor
from tests.engine.ranks.conftest import Connected

pytest.importorskip("mpi4py", reason="needs mpi4py and an MPI")

MATMUL = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"


@pytest.fixture(params=[2, 3])
def con(request: pytest.FixtureRequest, connected: Connected) -> einsql.Connection:
    return connected(request.param)


def test_a_rank_imports_nothing_of_planning() -> None:
    script = """
import sys, einsql.engine.ranks.rank
planning = ("einsql.optimizer", "einsql.planner", "einsql.sql.", "duckdb", "sqlglot", "scipy")
print([m for m in sys.modules if m.startswith(planning)])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_a_product_stays_on_the_ranks_and_is_read_there(con: einsql.Connection) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.integers(-9, 9, (30, 20)).astype(float), rng.integers(-9, 9, (20, 10)).astype(float)
    con.register("a", a, dims=("i", "j"))
    con.register("b", b, dims=("j", "k"))
    con.execute(f"CREATE TENSOR c AS {MATMUL}")
    stored = con.store.get("c")
    assert isinstance(stored, Tensor)
    assert isinstance(stored.relation.fields, PlacedFields)
    rows = con.execute("SELECT i, SUM(val) AS val FROM c GROUP BY i").fetch_numpy()
    assert (rows == (a @ b).sum(axis=1)).all()
    assert (con.execute("SELECT i, k, val FROM c").fetch_numpy() == a @ b).all()


def test_an_error_on_one_rank_is_one_for_all_and_the_session_goes_on(
    con: einsql.Connection,
) -> None:
    values = np.array([1, 2, 3, 2**62, 2**62, 2**62], np.int64)
    con.register("v", values, dims=("i",))
    for _ in range(3):
        with pytest.raises(einsql.DataError, match=r"[Oo]verflow"):
            con.execute("SELECT i // 3 AS g, SUM(val) AS val FROM v GROUP BY i // 3")
        assert con.execute("SELECT MAX(val) AS val FROM v").fetchone() == (2**62,)


def test_who_waits_for_shared_ranks_can_be_interrupted(con: einsql.Connection) -> None:
    other = einsql.connect(config={"mpi": con.cluster})
    held, done = threading.Event(), threading.Event()

    def hold(_: float) -> None:
        held.set()
        assert done.wait(60)

    con.progress = hold
    first = threading.Thread(target=con.execute, args=("SELECT SUM(r.i) AS s FROM range(9) r(i)",))
    first.start()
    assert held.wait(60)
    other.progress = lambda _: other.interrupt()
    with pytest.raises(einsql.InterruptedError):
        other.execute("SELECT SUM(r.i) AS s FROM range(8) r(i)")
    done.set()
    first.join()
    con.progress = other.progress = None
    assert other.execute("SELECT SUM(r.i) AS s FROM range(8) r(i)").fetchone() == (28,)
    other.close()


def test_a_registered_array_may_change_between_statements(con: einsql.Connection) -> None:
    values = np.arange(6.0)
    con.register("v", values, dims=("i",))
    assert con.execute("SELECT SUM(val) AS val FROM v").fetchone() == (15.0,)
    values[0] = 10.0
    assert con.execute("SELECT SUM(val) AS val FROM v").fetchone() == (25.0,)


def test_partial_results_merge_along_trees_of_more_sites_than_ranks(
    con: einsql.Connection,
) -> None:
    chance = np.random.default_rng(5)
    values = chance.choice([np.nan, -np.inf, 0.0, -0.0, 1.5, 2.0, 7.0], 160).astype(np.float32)
    sql = (
        "SELECT /*+ PARTITION(i=8) */ MIN(val) AS a, MAX(val) AS b, "
        "ARG_MIN(i, val) AS c, ARG_MAX(i, val) AS d, COUNT(*) AS n FROM v"
    )
    with einsql.connect() as alone:
        alone.register("v", values, dims=("i",))
        wanted = alone.execute(sql.replace("/*+ PARTITION(i=8) */", "")).fetchone()
    con.execute("SET sites = 8")
    con.register("v", values, dims=("i",))
    assert repr(con.execute(sql).fetchone()) == repr(wanted)
    # Two sites in the middle of the tree overflow, and nobody waits for them.
    big = np.zeros(160, np.int64)
    big[[50, 70]] = 2**62
    con.register("w", big, dims=("i",))
    with pytest.raises(einsql.DataError, match=r"[Oo]verflow"):
        con.execute("SELECT /*+ PARTITION(i=8) */ SUM(val) AS val FROM w")
    assert repr(con.execute(sql).fetchone()) == repr(wanted)


def test_closing_stops_the_statement_of_another_thread_and_closed_ranks_say_so() -> None:
    con = einsql.connect(config={"mpi": 2})
    cluster, met = con.cluster, []
    running = threading.Event()
    con.progress = lambda fraction: running.set()

    def work() -> None:
        try:
            con.execute("SELECT SUM(SIN(r.i * q.j)) AS s FROM range(40000) r(i), range(40000) q(j)")
        except BaseException as error:
            met.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert running.wait(60)
    con.close()
    thread.join()
    assert [type(error) for error in met] == [einsql.InterruptedError]
    with pytest.raises(einsql.InterfaceError, match="have shut down"):
        einsql.connect(config={"mpi": cluster})
