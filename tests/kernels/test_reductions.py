"""Plain reductions by generated loops: several rows at once, on all threads, without loss."""

from __future__ import annotations

import numpy as np
import pytest

from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Const, EinSum, Label, Operand, Output
from einsql.kernels import compile_node, registry
from einsql.kernels.loops import loop_cuts
from einsql.kernels.loops.codegen import generate, source
from einsql.kernels.loops.generated import compile_loops
from einsql.kernels.loops.loop_nest import Mode, plan_nest
from einsql.kernels.loops.strips import JAMMED
from einsql.kernels.runtime import thread_pool
from tests.kernels.compiling import cache_directory
from tests.kernels.nodes import no_tick
from tests.kernels.patterns import agree, axes, dyadic, fn, tensor, val

B, I32, I64, F, D = DType.BOOLEAN, DType.INTEGER, DType.BIGINT, DType.FLOAT, DType.DOUBLE

__all__ = ["cache_directory"]  # its fixture serves every test here


@pytest.mark.parametrize("dtype", [F, D, I32])
@pytest.mark.parametrize("rows", [1, JAMMED, 2 * JAMMED + 3])
def test_columns(rows: int, dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are taken several at once, and one by one at the end; by two threads."""
    monkeypatch.setattr(thread_pool, "threads", lambda: 2)
    monkeypatch.setattr(loop_cuts, "PARALLEL", 1)
    monkeypatch.setattr(loop_cuts, "NARROW", 4)
    values = dyadic(rows, 21, seed=4)
    if dtype is not I32:
        values[0, 3], values[:, 5], values[-1, 7] = np.nan, np.nan, -np.inf
    x = tensor("x", values, dtype)
    wide = fn("cast", I64, val(0, I32)) if dtype is I32 else val(0, dtype)
    outputs = [
        Output("sum", (wide,), wide.dtype, "sum"),
        Output("least", (val(0, dtype),), dtype, "min"),
        Output("most", (val(0, dtype),), dtype, "max"),
        Output("many", (Const(1, I64),), I64, "sum", fn("lt", B, Const(0, dtype), val(0, dtype))),
    ]
    for output in outputs:
        node = agree(axes(i=rows, j=21), [(x, "ij")], "j", output)
        assert "for u in" in source(node)
    agree(axes(i=rows, j=21), [(x, "ij")], "j", *outputs)
    backwards = {"val": np.asfortranarray(x[1]["val"])}
    agree(axes(i=rows, j=21), [((x[0], backwards), "ij")], "j", *outputs)


def test_few_columns_of_many_rows_are_shared_by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "threads", lambda: 2)
    monkeypatch.setattr(loop_cuts, "PARALLEL", 1)
    values = dyadic(5000, 9)
    values[0, 3], values[-1, 3], values[7, 4] = np.inf, -np.inf, np.inf
    x = tensor("x", values, F)
    node = EinSum(
        axes(i=5000, j=9), (Operand(x[0], ("i", "j")),), TRUE, ("j",),
        (Output("s", (val(0),), F, "sum"),),
    )  # fmt: skip
    assert plan_nest(node).mode is Mode.ROW
    nest = plan_nest(node, alone=True)
    assert nest.mode is Mode.MEMORY
    assert "for u in" in generate(node, nest, frozenset()).source
    assert loop_cuts.cut(node, nest).slices > 1
    got = compile_loops(node)([x[1]], no_tick)["s"]
    with np.errstate(all="ignore"):
        wanted = x[1]["val"].sum(0, dtype=np.float64)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("keys", ["", "i"])
def test_long_sums_of_double_lose_nothing_on_the_way(keys: str) -> None:
    """Terms that cancel, and sums that leave the finite numbers."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((3, 50_000)) * 10.0 ** rng.integers(-8, 9, (3, 50_000))
    wide = values.astype(np.longdouble)
    x = tensor("x", values, D)
    node = EinSum(
        axes(i=3, j=50_000), (Operand(x[0], ("i", "j")),), TRUE, tuple(keys),
        (Output("s", (val(0, D),), D, "sum"),),
    )  # fmt: skip
    runner = compile_loops(node)
    exact = wide.sum(1) if keys else wide.sum()
    size = np.abs(wide).sum(1) if keys else np.abs(wide).sum()
    pairwise = np.abs(values.sum(1) - exact).max() if keys else abs(values.sum() - exact)
    error = np.max(np.abs(runner([x[1]], no_tick)["s"] - exact))
    assert error <= max(pairwise, 4 * np.finfo(np.float64).eps * np.max(size))
    for special in (np.inf, -np.inf, np.nan, 1.7e308):
        values[1, 2000] = values[1, 40_000] = special
        with np.errstate(all="ignore"):
            wanted = values.sum(1) if keys else values.sum()
        found = runner([{"val": values}], no_tick)["s"]
        np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
        np.testing.assert_array_equal(np.isinf(found), np.isinf(wanted))


def test_minima_of_rows_with_nan_vectorise() -> None:
    values = dyadic(4, 3000, seed=5)
    values[1], values[2, ::2], values[3] = np.nan, np.nan, np.inf
    x = tensor("x", values, F)
    some = fn("lt", B, Label("j"), Const(1500, I64))
    for where in (TRUE, some):
        outputs = [Output(r, (val(0),), F, r, where) for r in ("min", "max")]
        agree(axes(i=4, j=3000), [(x, "ij")], "i", *outputs)
        agree(axes(i=4, j=3000), [(x, "ij")], "", *outputs)


def test_a_large_angle_among_small_ones() -> None:
    values = dyadic(20, 30)
    x = tensor("x", values, F)
    outputs = [Output("s", (fn("sin", F, val(0)),), F), Output("c", (fn("cos", F, val(0)),), F)]
    node = EinSum(axes(i=20, j=30), (Operand(x[0], ("i", "j")),), TRUE, ("i", "j"), tuple(outputs))
    runner = compile_loops(node)
    assert "near_sin" in source(node)
    for angle in (1.0, 3e38, np.inf, 2.0**22):
        values[7, 3] = angle
        got = runner([{"val": values.astype(np.float32)}], no_tick)
        with np.errstate(all="ignore"):
            wide = values.astype(np.float32).astype(np.longdouble)
            np.testing.assert_allclose(got["s"], np.sin(wide).astype(float), rtol=1e-7)
            np.testing.assert_allclose(got["c"], np.cos(wide).astype(float), rtol=1e-7)


SHARED = [3.0, -0.1, np.pi, 1 + 2.0**-52, 2 - 2.0**-52, 2.0**-800, -(2.0**800)]
SHARED += [0.0, -0.0, np.inf, -np.inf, np.nan]
FAR_OFF = [2.0**-801, 5e-324, -1e300, 1.7976931348623157e308]


@pytest.mark.parametrize("dtype", [F, I64])
@pytest.mark.parametrize("far", [[], *([x] for x in FAR_OFF)])
def test_numbers_by_what_they_share_are_divided_exactly(dtype: DType, far: list[float]) -> None:
    """Also where a product with the inverse lies in the middle between two DOUBLEs."""
    rng = np.random.default_rng(5)
    shared = np.concatenate([SHARED, far, 1 + rng.integers(0, 2**52, 50) * 2.0**-52])
    if dtype is F:
        values = np.ldexp(rng.uniform(-2, 2, (len(shared), 500)), rng.integers(-149, 127, 500))
        values[:, :6] = 0.0, -0.0, np.inf, -np.inf, np.nan, 2.0**-149
    else:
        values = rng.integers(-(2**63), 2**63 - 1, (len(shared), 500))
        middles = shared[-50:, None] * (1 + rng.integers(1, 2**52, (50, 500)) * 2.0**-52)
        values[-50:] = middles * 2.0**60
    x, y = tensor("x", values, dtype), tensor("y", shared, D)
    wide = fn("cast", D, val(0, dtype))
    operands = (Operand(x[0], ("i", "j")), Operand(y[0], ("i",)))
    space = axes(i=len(shared), j=500)
    outputs = (Output("q", (fn("div", D, wide, val(1, D)),), D),)
    node = EinSum(space, operands, TRUE, ("i", "j"), outputs)
    assert "quotient(" in source(node)
    got = compile_loops(node)([x[1], y[1]], no_tick)["q"]
    with np.errstate(all="ignore"):
        exact = x[1]["val"].astype(np.float64) / shared[:, None]
    np.testing.assert_array_equal(got, exact)
    numbers = ~np.isnan(exact)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(exact[numbers]))


def test_long_plain_sums_are_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SMALL", 100)
    x = tensor("x", dyadic(20, 30), F)
    total = Output("s", (val(0),), F, "sum")
    square = Output("q", (fn("mul", F, val(0), val(0)),), F, "sum")
    operands = (Operand(x[0], ("i", "j")),)

    def kernel(*outputs: Output, jit: str = "always") -> str:
        return compile_node(EinSum(axes(i=20, j=30), operands, TRUE, ("i",), outputs), jit).kernel

    assert kernel(total) == "loops"
    assert kernel(total, jit="never") == "blas"
    assert kernel(square) == "blas"
    assert kernel(total, Output("m", (val(0),), F, "max")) == "loops"
