"""What runs in Numba's CUDA simulator: `test_simulator.py` starts it in a process of its own.

The simulator is chosen by the environment when Numba is imported, so no other test may have
imported Numba before.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from einsql.core.schema import DType
from einsql.errors import DataError, NotSupportedError
from einsql.ir.einsum.graph import Call, EinSum, Value
from einsql.ir.functions import SCALARS
from einsql.kernels.cuda import Memory, compile_on_device, generated
from einsql.kernels.cuda.simulator import Simulator
from einsql.kernels.kernel import Arrays, Tick
from tests.kernels.compiling import PROPERTY
from tests.kernels.cuda.nodes import awkward, pairs, scalars
from tests.kernels.indexed import convolutions, gathers, segments
from tests.kernels.laws import WITNESS
from tests.kernels.nodes import Case, Runner, cases, check
from tests.kernels.test_kernels import copies, products
from tests.kernels.test_states import check as check_states
from tests.kernels.test_states import node_of
from tests.support.oracle.campaign import campaign
from tests.support.samples import sample

pytestmark = pytest.mark.skipif(
    os.environ.get("NUMBA_ENABLE_CUDASIM") != "1", reason="the simulator is not chosen"
)

EXAMPLES = int(os.environ.get("EINSQL_EXAMPLES", sample("2", "25")))


def runner(node: EinSum, memory: Memory, least: int = 16) -> Runner:
    """A node's runner over NumPy arrays, as those of the processor are."""
    run = compile_on_device(node, memory, least=least).run

    def on_arrays(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        handles = [{name: memory.given(a) for name, a in o.items()} for o in operands]
        return {name: h.host() for name, h in run(handles, tick).items()}

    return on_arrays


def agrees(case: Case, teams: bool, limit: int) -> None:
    """Asserts that the device answers what the reference does.

    Args:
        case: The node and its operands.
        teams: Whether threads share keys, and blocks do, wherever they can.
        limit: Bytes of the device's memory.
    """
    with pytest.MonkeyPatch.context() as patch:
        if teams:
            patch.setattr(generated, "LONG", 2)
            patch.setattr(generated, "EACH", 1)
            patch.setattr(Simulator, "blocks", 64)
        check(case, runner(case.node, Memory(Simulator(limit))))


LIMITS = st.sampled_from((1 << 30, 1 << 30, 2000, 300))


@settings(PROPERTY, max_examples=EXAMPLES)
@given(cases(), st.booleans(), LIMITS)
def test_random_nodes(case: Case, teams: bool, limit: int) -> None:
    agrees(case, teams, limit)


@settings(PROPERTY, max_examples=EXAMPLES)
@given(segments(), st.booleans(), LIMITS)
def test_segments(case: Case, teams: bool, limit: int) -> None:
    agrees(case, teams, limit)


@settings(PROPERTY, max_examples=EXAMPLES)
@given(st.one_of(products(), products(), copies()), LIMITS)
def test_products_and_views(case: Case, limit: int) -> None:
    agrees(case, False, limit)


@settings(PROPERTY, max_examples=EXAMPLES // 2)
@given(st.one_of(gathers(), convolutions()), LIMITS)
def test_computed_labels(case: Case, limit: int) -> None:
    agrees(case, False, limit)


@pytest.mark.parametrize("case", awkward(), ids=lambda c: c.node.outputs[0].name)
@pytest.mark.parametrize("teams", [False, True])
def test_computed_keys(case: Case, teams: bool) -> None:
    agrees(case, teams, 1 << 30)
    agrees(case, teams, 500)


def test_states_of_several_fields_are_reduced_by_the_processor() -> None:
    node = node_of(WITNESS, "i", {"i": 3, "j": 4}, ("ij", "j"))
    compiled = compile_on_device(node, Memory(Simulator()))
    assert not compiled.kernel.startswith("cuda")
    check_states(node, runner(node, Memory(Simulator())))


@pytest.mark.parametrize("case", pairs(), ids=lambda c: c.node.outputs[0].name)
def test_tiles(case: Case) -> None:
    name = compile_on_device(case.node, Memory(Simulator()), least=1).kernel
    assert name == "cuda tiles"
    check(case, runner(case.node, Memory(Simulator()), least=1))


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.DOUBLE, DType.INTEGER])
def test_every_scalar_function(dtype: DType) -> None:
    case = scalars(dtype)
    got = runner(case.node, Memory(Simulator()))(case.operands, lambda _: None)
    for o in case.node.outputs:
        call = o.args[0]
        assert isinstance(call, Call)
        args = [case.operands[0][a.field] for a in call.args if isinstance(a, Value)]
        with np.errstate(all="ignore"):
            wanted = np.asarray(SCALARS[call.fn].numpy(*args)).astype(o.dtype.numpy)
        eps = 8 * np.finfo(o.dtype.numpy).eps if o.dtype.is_float else 0
        np.testing.assert_allclose(got[o.name], wanted, rtol=eps, err_msg=o.name)


@pytest.fixture
def con() -> einsql.Connection:
    made = einsql.connect()
    made.execute("SET device = 'cuda'")
    return made


def kernels(con: einsql.Connection, sql: str) -> set[str]:
    lines = str(con.explain(sql)).partition("-- steps")[2].splitlines()
    return {" ".join(line.split()[1:3]) for line in lines if line}


def test_the_program_of_explain_runs_on_the_device(con: einsql.Connection) -> None:
    con.register("x", np.ones((4, 6), np.float32), ("i", "j"))
    con.register("y", np.ones((6, 5), np.float32), ("j", "k"))
    sql = "SELECT i, k, SUM(x.val * y.val) AS v FROM x JOIN y USING (j) GROUP BY i, k"
    first, *_, last = str(con.explain(sql, level="program")).splitlines()
    assert first.startswith("s0 r0 := cuda gemm(x, y)  ")
    assert last == "-- on the device cuda"


def test_sql(con: einsql.Connection) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (5, 6)).astype(np.float32)
    w = rng.integers(-4, 5, (6, 3)).astype(np.float32)
    label = np.array([2, 0, 2, 1, 0])
    con.register("x", x, dims=("i", "j"))
    con.register("w", w, dims=("j", "k"))
    con.register("label", label, dims=("i",))
    layer = """
        WITH h AS (SELECT i, k, SUM(x.val * w.val) AS val FROM x JOIN w USING (j) GROUP BY i, k)
        SELECT i, k, GREATEST(val, 0) AS val FROM h"""
    assert kernels(con, layer) == {"cuda gemm", "cuda grid"}
    np.testing.assert_array_equal(con.execute(layer).fetch_numpy(), np.maximum(x @ w, 0))
    sums = "SELECT l.val AS c, SUM(x.val) AS val FROM x JOIN label l ON x.i = l.i GROUP BY l.val"
    wanted = [(c, float(x[label == c].sum())) for c in range(3)]
    assert con.execute(sums).fetchall() == wanted
    assert con.execute("SELECT MAX(val) AS top FROM x").fetchall() == [(x.max(),)]
    assert con.execute("SELECT i, val FROM x WHERE j = 2 AND val > 0").fetchall() == [
        (i, v) for i, v in enumerate(x[:, 2]) if v > 0
    ]
    with pytest.raises(DataError, match="Overflow in multiplication of BIGINT"):
        con.execute("SELECT i, l.val * 9223372036854775807 AS v FROM label l").fetchall()


def test_stored_tensors_change(con: einsql.Connection) -> None:
    con.execute("CREATE TENSOR t (i DIM(3), val FLOAT)")
    con.execute("INSERT INTO t VALUES (0, 1.0), (1, 2.0), (2, 4.0)")
    double = "SELECT i, val + val AS val FROM t"
    np.testing.assert_array_equal(con.execute(double).fetch_numpy(), [2, 4, 8])
    con.execute("UPDATE t SET val = t.val * 3")
    np.testing.assert_array_equal(con.execute(double).fetch_numpy(), [6, 12, 24])
    con.execute("CREATE TENSOR u AS SELECT i, val + 1 AS val FROM t")
    con.execute("DELETE FROM t WHERE i = 1")
    assert con.execute(double).fetchall() == [(0, 6.0), (2, 24.0)]
    np.testing.assert_array_equal(con.execute("SELECT i, val FROM u").fetch_numpy(), [4, 7, 13])


def test_registered_arrays_may_change(con: einsql.Connection) -> None:
    a = np.ones(3, np.float32)
    con.register("a", a, dims=("i",))
    total = "SELECT SUM(val) AS val FROM a"
    assert con.execute(total).fetchall() == [(3.0,)]
    a[0] = 5
    assert con.execute(total).fetchall() == [(7.0,)]


def test_one_site_alone(con: einsql.Connection) -> None:
    con.execute("SET sites = 2")
    with pytest.raises(NotSupportedError, match="single site"):
        con.execute("SELECT SUM(i) AS s FROM range(3) AS r(i)")


def test_random_queries() -> None:
    report = campaign(EXAMPLES, 5, settings={"jit": "never", "device": "cuda"}, repros=0)
    assert not report.findings, report.text()


@pytest.mark.parametrize("limit", [300, 1000, 4000])
def test_whatever_does_not_fit(limit: int) -> None:
    """Maps, products, reductions and segments over keys, with memory for a part of them."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (9, 8)).astype(np.float32) for _ in "ab")
    g = rng.integers(0, 3, 9)
    con = einsql.connect(config={"device": "cuda", "device_memory": f"{limit}B"})
    for name, array, dims in (("a", a, "ij"), ("b", b, "kj"), ("g", g, "i")):
        con.register(name, array, dims=tuple(dims))
    queries = {
        "SELECT i, k, SUM(a.val * b.val) AS v FROM a JOIN b USING (j) GROUP BY i, k": a @ b.T,
        "SELECT i, k, MIN(a.val + b.val) AS v FROM a JOIN b USING (j) GROUP BY i, k": (
            a[:, None] + b
        ).min(2),
        "SELECT j, i, a.val * 2 + j AS v FROM a": a.T * 2 + np.arange(8)[:, None],
        "SELECT SUM(val) AS v FROM a": a.sum(),
        "SELECT g.val AS c, j, SUM(a.val) AS v FROM a JOIN g USING (i) GROUP BY g.val, j": [
            a[g == c].sum(0) for c in range(3)
        ],
    }
    for sql, wanted in queries.items():
        np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), wanted, err_msg=sql)
