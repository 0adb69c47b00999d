"""The device itself; without a GPU, CuPy and numba-cuda these tests are skipped.

With EINSQL_GPU=1, which `make gpu` sets, they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings

import einsql
from einsql.errors import OperationalError
from einsql.kernels.cuda import Memory, compile_on_device, device
from einsql.kernels.cuda.device import simulated
from einsql.kernels.kernel import Arrays, Tick
from tests.kernels.compiling import PROPERTY
from tests.kernels.cuda.nodes import pairs
from tests.kernels.nodes import Case, cases, check


def _lack() -> str:
    """Why there is no GPU, or nothing."""
    if simulated():
        return "the simulator is chosen"
    try:
        device()
    except OperationalError as error:
        return error.reason
    return ""


LACK = _lack()
if LACK and os.environ.get("EINSQL_GPU") == "1":
    pytest.fail(LACK, pytrace=False)
pytestmark = [
    pytest.mark.skipif(bool(LACK), reason=LACK),
    pytest.mark.filterwarnings("ignore:::cupy", "ignore:::numba"),  # CI does not have them
]


def run(case: Case, memory: Memory, least: int = 16) -> None:
    compute = compile_on_device(case.node, memory, least=least).run

    def on_arrays(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        handles = [{name: memory.given(a) for name, a in o.items()} for o in operands]
        return {name: h.host() for name, h in compute(handles, tick).items()}

    check(case, on_arrays)


@settings(PROPERTY, max_examples=60)
@given(cases())
def test_random_nodes(case: Case) -> None:
    run(case, Memory(device()))


@pytest.mark.parametrize("case", pairs(), ids=lambda c: c.node.outputs[0].name)
def test_tiles(case: Case) -> None:
    run(case, Memory(device()), least=1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
def test_products(dtype: type, turned: str) -> None:
    rng = np.random.default_rng(0)
    a: np.ndarray = rng.integers(-3, 4, (3, 130, 70)).astype(dtype)
    b: np.ndarray = rng.integers(-3, 4, (3, 70, 90)).astype(dtype)
    given_a = np.asarray(np.swapaxes(a, 1, 2), order="C").swapaxes(1, 2) if "a" in turned else a
    given_b = np.asarray(np.swapaxes(b, 1, 2), order="C").swapaxes(1, 2) if "b" in turned else b
    con = einsql.connect(config={"device": "cuda"})
    con.register("a", given_a, dims=("s", "i", "k"))
    con.register("b", given_b, dims=("s", "k", "j"))
    got = con.execute(
        "SELECT s, j, i, SUM(a.val * b.val) AS v FROM a JOIN b USING (s, k) GROUP BY s, j, i"
    ).fetch_numpy()
    np.testing.assert_array_equal(got, np.swapaxes(a.astype(float) @ b.astype(float), 1, 2))


def test_tf32_rounds_and_float32_does_not() -> None:
    a = np.full((64, 64), 1 + 2.0**-20, np.float32)
    con = einsql.connect(config={"device": "cuda"})
    con.register("a", a, dims=("i", "j"))
    square = (
        "SELECT a.i, b.j, SUM(a.val * b.val) AS v FROM a JOIN a b ON a.j = b.i GROUP BY a.i, b.j"
    )
    exact = float(64 * np.float64(a[0, 0]) ** 2)
    assert abs(con.execute(square).fetch_numpy()[0, 0] - exact) < 1e-5
    con.execute("SET matmul_precision = 'tf32'")
    assert abs(con.execute(square).fetch_numpy()[0, 0] - 64) < 1e-5
