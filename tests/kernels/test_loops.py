"""Generated loops answer what the reference answers, and every template compiles."""

from __future__ import annotations

from itertools import chain, product

import numpy as np
import pytest
from hypothesis import given, settings

from einsql.core.bfloat16 import loaded
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.errors import DataError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Operand,
    Output,
)
from einsql.ir.functions import SCALARS, Failure, less
from einsql.ir.functions.casts import cast_array, cast_failure
from einsql.kernels.compiler import llvm_compiler
from einsql.kernels.kernel import Runner
from einsql.kernels.loops import loop_cuts, loop_nest
from einsql.kernels.loops.codegen import source
from einsql.kernels.loops.flatten_labels import flattened
from einsql.kernels.loops.generated import compile_loops
from einsql.kernels.loops.loop_cuts import Cut
from einsql.kernels.loops.loop_nest import Mode, plan_nest
from einsql.kernels.runtime import thread_pool
from tests.kernels.compiling import PROPERTY, cache_directory
from tests.kernels.nodes import Case, cases, check, no_tick
from tests.kernels.patterns import agree, axes, dyadic, fn, tensor, val
from tests.support.samples import sample

B, T, I32, I64 = DType.BOOLEAN, DType.TINYINT, DType.INTEGER, DType.BIGINT
H, F, D = DType.HALF, DType.FLOAT, DType.DOUBLE

__all__ = ["cache_directory"]  # its fixture serves every test here


@settings(PROPERTY, max_examples=sample(10, 40))
@given(cases())
def test_random_nodes(case: Case) -> None:
    check(case, compile_loops(case.node))


@settings(PROPERTY, max_examples=sample(6, 20))
@given(cases())
def test_random_nodes_in_many_boxes_on_two_threads(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop_cuts, "BOX", 8)
        patch.setattr(loop_cuts, "PARALLEL", 1)
        patch.setattr(loop_nest, "LONGEST", 64)
        patch.setattr(thread_pool, "threads", lambda: 2)
        check(case, compile_loops(case.node))


# Patterns --------------------------------------------------------------------------


X, Y = tensor("x", dyadic(9, 12), F), tensor("y", dyadic(12, 17, seed=1), F)
NANS = tensor("x", np.where(dyadic(6, 40) > 2, np.nan, dyadic(6, 40)), F)
PLUS = fn("add", F, val(0), val(1))
DISTANCE = fn("abs", F, fn("sub", F, val(0), val(1)))


def test_min_plus_runs_over_contiguous_rows() -> None:
    node = agree(
        axes(i=9, j=12, k=17), [(X, "ij"), (Y, "jk")], "ik", Output("val", (PLUS,), F, "min")
    )
    assert plan_nest(node).mode is Mode.ROW


@pytest.mark.parametrize("threads", [1, 2])
def test_large_min_plus(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "threads", lambda: threads)
    x, y = dyadic(300, 70), dyadic(70, 5000, seed=1)
    operands = (
        Operand(tensor("x", x, F)[0], ("i", "j")),
        Operand(tensor("y", y, F)[0], ("j", "k")),
    )
    node = EinSum(
        axes(i=300, j=70, k=5000), operands, TRUE, ("i", "k"), (Output("val", (PLUS,), F, "min"),)
    )
    seen: list[float] = []
    got = compile_loops(node)([{"val": x.astype("f")}, {"val": y.astype("f")}], seen.append)
    wanted = np.full((300, 5000), np.inf)
    for j in range(70):
        np.minimum(wanted, x[:, j, None] + y[None, j], out=wanted)
    np.testing.assert_array_equal(got["val"], wanted)
    assert len(seen) > 1
    assert seen[-1] == 1
    assert sorted(seen) == seen


def test_cancelling_stops_between_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "threads", lambda: 2)

    def cancel(_: float) -> None:
        raise KeyboardInterrupt

    node = EinSum(
        axes(i=2000, j=2000), (), TRUE, ("i",), (Output("val", (Label("j"),), I64, "max"),)
    )
    with pytest.raises(KeyboardInterrupt):
        compile_loops(node)([], cancel)


def test_distances_and_nearest_neighbour() -> None:
    y = tensor("y", dyadic(17, 12, seed=2), F)
    space = axes(i=9, j=12, k=17)
    agree(space, [(X, "ij"), (y, "kj")], "ik", Output("val", (DISTANCE,), F, "sum"))
    d = tensor("d", np.abs(dyadic(9, 17)), F)
    nearest = Output("at", (Label("k"), val(0)), I64, "arg_min")
    farthest = Output("far", (Label("k"), val(0)), I64, "arg_max", fn("le", B, val(0), val(0)))
    agree(axes(i=9, k=17), [(d, "ik")], "i", nearest, farthest)


def test_segments_gathers_and_windows() -> None:
    seg = tensor("s", [0, 2, 2, 5, -1, 0, 9, 1, 0], I64)
    segment = Axis("s", 0, 4, val(0, I64))
    total, count = Output("val", (val(1),), F, "sum"), Output(PRESENT, (TRUE,), B, "bool_or")
    agree((*axes(n=9, d=12), segment), [(seg, "n"), (X, "nd")], "sd", total, count)
    gathered = (*axes(n=9, d=12), Axis("w", 0, 9, val(0, I64)))
    agree(gathered, [(seg, "n"), (X, "wd")], "nd", Output("val", (val(1),), F, "sum"))
    window = Axis("p", 0, 40, fn("add", I64, Label("i"), Label("k")))
    signal, taps = tensor("x", dyadic(40), F), tensor("w", dyadic(5, seed=3), F)
    product_ = Output("val", (fn("mul", F, val(0), val(1)),), F, "sum")
    agree((*axes(i=38, k=5), window), [(signal, "p"), (taps, "k")], "i", product_)


def test_guards_offsets_and_second_passes() -> None:
    square = tensor("x", dyadic(8, 8), D, Key("i", 3, 11), Key("j", -2, 6))
    space = (Axis("i", 4, 9), Axis("j", -1, 6))
    below = fn("lt", B, Label("j"), Label("i"))
    odd = fn("eq", B, fn("mod", I64, Label("i"), Const(2, I64)), Const(1, I64))
    total = Output("val", (val(0, D),), D, "sum")
    agree(space, [(square, "ij")], "j", total, guard=fn("and", B, below, odd))
    mean = tensor("m", [1.5], D)
    delta = fn("sub", D, val(0, D), val(1, D))
    spread = Output("var", (fn("mul", D, delta, delta),), D, "sum")
    any_ = Output("any", (fn("lt", B, Const(2.0, D), delta),), B, "bool_or")
    agree((*space, Axis("z", 0, 1)), [(square, "ij"), (mean, "z")], "", spread, any_)


@pytest.mark.parametrize("keys", ["i", "j", "ij", ""])
def test_nan_is_above_everything(keys: str) -> None:
    both = [Output("low", (val(0),), F, "min"), Output("high", (val(0),), F, "max")]
    pairs = [
        Output("least", (Label("j"), val(0)), I64, "arg_min"),
        Output("most", (Label("j"), val(0)), I64, "arg_max"),
    ]
    agree(axes(i=6, j=40), [(NANS, "ij")], keys, *both, *pairs)


@pytest.mark.parametrize(("keys", "rows"), [("i", 6), ("", 6), ("i", 0), ("ij", 0)])
def test_empty_domains_give_identities(keys: str, rows: int) -> None:
    x = tensor("x", np.zeros((rows, 0)), F)
    outputs = [Output(r, (val(0),), F, r) for r in ("sum", "product", "min", "max")]
    agree(axes(i=rows, j=0), [(x, "ij")], keys, *outputs)


def test_a_failure_counts_only_where_it_is_selected() -> None:
    a = tensor("a", [1, 2**31 - 1, 5], I32)
    doubled = fn("add", I32, val(0, I32), val(0, I32))
    small = fn("lt", B, val(0, I32), Const(1000, I32))
    safe = fn("if", I32, small, doubled, val(0, I32))
    agree(axes(i=3), [(a, "i")], "i", Output("val", (safe,), I32))
    agree(axes(i=3), [(a, "i")], "", Output("val", (doubled,), I32, "max", small))
    agree(axes(i=3), [(a, "i")], "", Output("val", (doubled,), I32, "max"), guard=small)
    node = EinSum(
        axes(i=3), (Operand(a[0], ("i",)),), TRUE, ("i",), (Output("val", (doubled,), I32),)
    )
    with pytest.raises(DataError, match="Overflow in addition of INTEGER"):
        compile_loops(node)([a[1]], no_tick)


def test_integer_sums_are_exact_or_refused() -> None:
    ints = tensor("a", np.full(10, 2**31 - 1), I32)
    wide = Output("val", (fn("cast", I64, val(0, I32)),), I64, "sum")
    node = agree(axes(i=10), [(ints, "i")], "", wide)
    assert "bad |=" not in source(node)
    for dtype, values in ((I32, np.full(10, 2**31 - 1)), (I64, [2**62, 2**62])):
        a, fields = tensor("a", values, dtype)
        space = axes(i=len(fields["val"]))
        for keys in ((), ("z",)):  # running values in memory, and in registers
            node = EinSum(
                (*space, Axis("z", 0, 3)),
                (Operand(a, ("i",)),),
                TRUE,
                keys,
                (Output("val", (val(0, dtype),), dtype, "sum"),),
            )
            with pytest.raises(DataError, match=f"Overflow in addition of {dtype.value}"):
                compile_loops(node)([fields], no_tick)


def test_half_rounds_as_numpy_does() -> None:
    values = np.concatenate(
        [np.ldexp(1 + np.arange(64) / 8192, e) for e in range(-26, 15)] + [[0.0, -0.0, 1e-30]]
    )
    node = EinSum(
        axes(i=len(values)),
        (Operand(tensor("x", values, D)[0], ("i",)),),
        TRUE,
        ("i",),
        (Output("val", (fn("cast", H, fn("neg", D, val(0, D))),), H),),
    )
    got = compile_loops(node)([{"val": values}], no_tick)["val"]
    np.testing.assert_array_equal(got.view(np.uint16), (-values).astype(np.float16).view(np.uint16))


def test_statements_that_differ_in_numbers_share_a_kernel() -> None:
    def node(lo: int, extent: int, factor: float, name: str) -> EinSum:
        x = Input(name, Schema((Key(name, lo, lo + extent),), (Field("val", F),)))
        scaled = fn("mul", F, val(0), Const(factor, F))
        return EinSum(
            (Axis(name, lo, lo + extent),),
            (Operand(x, (name,)),),
            TRUE,
            (name,),
            (Output(name, (scaled,), F),),
        )

    assert source(node(0, 100, 2.0, "i")) == source(node(-3, 1000, 2.5, "j"))


@pytest.mark.parametrize(
    ("keys", "dtype"), [("", F), ("", D), ("j", F), ("i", D), ("ij", F)], ids=str
)
def test_long_rows_are_requested_ahead(keys: str, dtype: DType) -> None:
    rows, row = 70, loop_nest.BEYOND_CACHE // 64 + 7
    values = dyadic(rows, row), dyadic(rows, row, seed=1)
    x, y = (tensor(name, v, dtype) for name, v in zip("xy", values, strict=True))
    product = fn("mul", dtype, val(0, dtype), val(1, dtype))
    output = Output("val", (product,), dtype, None if keys == "ij" else "sum")
    operands = tuple(Operand(source, ("i", "j")) for source, _ in (x, y))
    node = EinSum(axes(i=rows, j=row), operands, TRUE, tuple(keys), (output,))
    assert plan_nest(node).reads_ahead
    assert ("prefetch(p" in source(node)) == (keys != "j")  # rows that are added need nothing
    result = compile_loops(node)([x[1], y[1]], no_tick)["val"]
    np.testing.assert_array_equal(result, np.einsum(f"ij,ij->{keys}", *values))


def test_the_right_array_of_many_is_requested() -> None:
    """The names of the second and of the eleventh array begin alike."""
    rows, row = 70, loop_nest.BEYOND_CACHE // 64 + 7
    values = [dyadic(rows, seed=n) for n in range(10)] + [dyadic(rows, row), dyadic(rows, row)]
    tensors = [tensor(f"x{n}", v, D) for n, v in enumerate(values)]
    total: Expr = val(0, D)
    for n in range(1, len(values)):
        total = fn("add", D, total, val(n, D))
    operands = tuple(
        Operand(source, ("i", "j")[: v.ndim])
        for (source, _), v in zip(tensors, values, strict=True)
    )
    node = EinSum(axes(i=rows, j=row), operands, TRUE, ("i",), (Output("val", (total,), D, "sum"),))
    assert source(node).count("prefetch(p") == 2
    result = compile_loops(node)([t[1] for t in tensors], no_tick)["val"]
    expected = sum(v if v.ndim == 2 else v[:, None] for v in values)
    np.testing.assert_array_equal(result, np.sum(expected, axis=1))


def test_min_plus_vectorises() -> None:
    operands = (Operand(X[0], ("i", "j")), Operand(Y[0], ("j", "k")))
    node = EinSum(
        axes(i=9, j=12, k=17), operands, TRUE, ("i", "k"), (Output("val", (PLUS,), F, "min"),)
    )
    _, code = llvm_compiler.optimised("test", source(node))
    assert "x float> " in str(code)


@pytest.mark.parametrize(
    "value",
    [fn("sin", F, val(0)), fn("cast", I32, val(0)), fn("cast", I32, fn("add", F, val(0), val(0)))],
    ids=str,
)
def test_checks_for_failures_vectorise(value: Call) -> None:
    operands = (Operand(X[0], ("i", "j")),)
    node = EinSum(
        axes(i=9, j=12), operands, TRUE, ("i", "j"), (Output("val", (value,), value.dtype),)
    )
    assert "bad |= " in source(node)
    _, code = llvm_compiler.optimised("test", source(node))
    assert "x float> " in str(code)


# Every scalar function ---------------------------------------------------------------


EDGES: dict[DType, list[float]] = {
    B: [False, True],
    **{t: [0, 1, -1, 2, -7, 100, *t.range] for t in (T, I32, I64)},
    F: [0.0, -0.0, 0.5, -2.5, 3.5, 1e30, -1e30, 128.0, np.inf, -np.inf, np.nan],
    D: [0.0, -0.0, 0.5, -2.5, 3.5, 1e300, -1e30, 127.5, np.inf, -np.inf, np.nan],
}


TOGETHER = 25
"""Functions in one kernel; twice as many take more than twice as long to compile."""


def calls_on(dtype: DType) -> list[Call]:
    """Every function that takes arguments of a type, and every cast from it."""
    calls = []
    for f in SCALARS.values():
        if f.opaque:  # of a user, in another test
            continue
        args: list[Expr] = [val(n % 2, dtype) for n in range(f.arity)]
        if f.name == "if":
            args = [fn("lt", B, *args[:2]), *args[:2]]
        typing = f.types(tuple(a.dtype for a in args), True)
        if typing is not None and typing.args == tuple(a.dtype for a in args):
            calls.append(Call(f.name, tuple(args), typing.result))
    return calls + [fn("cast", t, val(0, dtype)) for t in DType if t is not dtype]


def failure_of(call: Call) -> Failure | None:
    source_ = call.args[0].dtype
    if call.fn == "cast":
        return cast_failure(source_, call.dtype)
    return SCALARS[call.fn].fails.get(source_)


@pytest.mark.parametrize("dtype", list(EDGES), ids=lambda t: t.value)
def test_every_template_agrees_with_numpy(dtype: DType) -> None:
    """A few kernels per type; axis k selects what may raise, axis i the pairs of edge values."""
    calls = calls_on(dtype)
    pairs = np.array(list(product(EDGES[dtype], repeat=2)), dtype.numpy)
    read = [tensor("xy"[n], pairs[:, n], dtype) for n in (0, 1)]
    outputs = []
    for n, call in enumerate(calls):
        arg: Expr = call
        if failure_of(call) is not None:
            chosen = fn("eq", B, Label("k"), Const(n, I64))
            arg = fn("if", call.dtype, chosen, call, Const(0, call.dtype))
        outputs.append(Output(f"v{n}", (arg,), call.dtype))

    parts = [tuple(outputs[n : n + TOGETHER]) for n in range(0, len(outputs), TOGETHER)]

    def run(k: int, lo: int, hi: int, part: int) -> dict[str, np.ndarray]:
        space = (Axis("k", k, k + 1), Axis("i", lo, hi))
        operands = tuple(Operand(t, ("i",)) for t, _ in read)
        node = EinSum(space, operands, TRUE, ("k", "i"), parts[part])
        got = compile_loops(node)([fields for _, fields in read], no_tick)
        return {name: values[0] for name, values in got.items()}

    everywhere: dict[str, np.ndarray] = {}
    for part in range(len(parts)):
        everywhere |= run(-1, 0, len(pairs), part)
    for k, call in enumerate(calls):
        args = [pairs[:, n % 2] for n in range(len(call.args))]
        if call.fn == "if":
            args = [less(*args[:2]), *args[:2]]
        failure = failure_of(call)
        with np.errstate(all="ignore"):
            wanted = args[0] if call.fn == "cast" else SCALARS[call.fn].numpy(*args)
            wanted = cast_array(wanted, call.dtype)
            failing = np.zeros(len(pairs), bool) if failure is None else failure.numpy(*args)
        if failure is None:
            compare(everywhere[f"v{k}"], wanted, call)
            continue
        for n in np.flatnonzero(failing)[:: max(1, failing.sum() // 4)]:
            with pytest.raises(DataError) as error:
                run(k, int(n), int(n) + 1, k // TOGETHER)
            assert error.value.reason == failure.reason, (call, pairs[n])
        edges = np.flatnonzero(np.diff(np.concatenate([[True], failing, [True]])))
        for lo, hi in zip(edges[::2], edges[1::2], strict=True):
            found = run(k, int(lo), int(hi), k // TOGETHER)
            compare(found[f"v{k}"], wanted[lo:hi], call)


def compare(got: np.ndarray, wanted: np.ndarray, call: Call) -> None:
    exact = call.fn == "cast" or SCALARS[call.fn].cheap
    assert got.dtype == call.dtype.numpy
    got = loaded(got, call.dtype)
    if exact or not call.dtype.is_float:
        np.testing.assert_array_equal(got, wanted, err_msg=str(call))
    else:
        tolerance = 8 * float(np.finfo(call.dtype.numpy).eps)
        np.testing.assert_allclose(got, wanted, rtol=tolerance, err_msg=str(call))


def test_every_function_is_reached() -> None:
    reached = {c.fn for dtype in EDGES for c in calls_on(dtype)}
    assert reached >= {name for name, f in SCALARS.items() if not f.opaque}


def test_boxes_cover_a_domain_once_and_are_made_one_at_a_time() -> None:
    cut = Cut((5, 1, 4), (3, 1, 2), (True, True, False))
    boxes = list(chain.from_iterable(boxes for _, boxes in cut.groups()))
    points = [p for box in boxes for p in product(*(range(lo, hi) for lo, hi in box))]
    assert len(boxes) == cut.size
    assert sorted(points) == list(product(range(5), range(1), range(4)))
    assert [len({box[0] for box in group}) for _, group in cut.groups()] == [1] * cut.grouped
    vast = Cut((2**30, 2**30), (2**20, 2**20), (True, False))
    assert next(next(vast.groups())[1]) == ((0, 1024), (0, 1024))
    sliced = Cut((5, 8), (1, 6), (True, False), 1, 3)
    assert [[box[1] for box in group] for _, group in sliced.groups()] == [
        [(0, 1), (1, 2)],
        [(2, 4), (4, 5)],
        [(5, 6), (6, 8)],
    ]


@pytest.mark.parametrize("reduction", ["arg_min", "arg_max"])
@pytest.mark.parametrize("dtype", [F, I64])
def test_arguments_of_long_rows(reduction: str, dtype: DType) -> None:
    """Rows of several strips, with extremes that come again, zeros of both signs and NaN."""
    values = dyadic(6, 150, seed=3).astype(dtype.numpy)
    if dtype is F:
        values[1], values[2, ::7], values[3] = np.nan, np.nan, np.where(dyadic(150) > 0, 0.0, -0.0)
    values[4], values[5] = np.arange(150), np.arange(150)[::-1]
    x = tensor("x", values, dtype)
    for key in (Label("j"), fn("neg", I64, Label("j"))):  # the least one comes first, or last
        output = Output("at", (key, val(0, dtype)), I64, reduction)
        agree(axes(i=6, j=150), [(x, "ij")], "i", output)
        agree(axes(i=6, j=150), [(x, "ij")], "", output)


def test_slices_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reductions to few keys run on all threads, each slice with its own running values."""
    monkeypatch.setattr(thread_pool, "threads", lambda: 2)
    monkeypatch.setattr(loop_cuts, "PARALLEL", 1)
    values = dyadic(30, 40)
    values[20, 5] = np.nan
    x = tensor("x", values, F)
    node = agree(
        axes(i=30, j=40),
        [(x, "ij")],
        "",
        Output("sum", (fn("if", F, fn("isnan", B, val(0)), Const(0.0, F), val(0)),), F, "sum"),
        Output("least", (val(0),), F, "min"),
        Output("most", (val(0),), F, "max"),
        Output("all", (fn("lt", B, val(0), Const(9.0, F)),), B, "bool_and"),
        Output("at", (Label("i"), val(0)), I64, "arg_max"),
        Output("count", (Const(1, I64),), I64, "sum"),
    )
    assert loop_cuts.cut(node, plan_nest(node)).slices > 1
    digits = tensor("d", np.arange(1200).reshape(30, 40), I64)
    digit = fn("mod", I64, val(0, I64), Const(3, I64))
    keys = (*axes(i=30, j=40), Axis("k", 0, 3, digit))
    counted = agree(keys, [(digits, "ij")], "k", Output("n", (val(0, I64),), I64, "sum"))
    assert plan_nest(counted).mode is Mode.MEMORY
    assert loop_cuts.cut(counted, plan_nest(counted)).slices > 1


def test_a_sum_over_slices_that_overflows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_pool, "threads", lambda: 2)
    monkeypatch.setattr(loop_cuts, "PARALLEL", 1)
    values = np.zeros((2, 40), np.int64)
    values[0, 0] = values[1, 0] = 2**62
    x = tensor("x", values, I64)
    agree(axes(i=2, j=40), [(x, "ij")], "", Output("s", (val(0, I64),), I64, "sum"))


def test_every_half_is_read_and_written() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    x = tensor("x", halves, H)
    node = EinSum(
        axes(i=256, j=256),
        (Operand(x[0], ("i", "j")),),
        TRUE,
        ("i", "j"),
        (
            Output("wide", (fn("cast", D, val(0, H)),), D),
            Output("same", (fn("greatest", H, val(0, H), val(0, H)),), H),
            Output(
                "rounded",
                (fn("cast", H, fn("div", D, Const(1.0, D), fn("cast", D, val(0, H)))),),
                H,
            ),
        ),
    )
    got = compile_loops(EinSum(node.axes, node.operands, TRUE, node.keys, node.outputs[:2]))(
        [x[1]], no_tick
    )
    np.testing.assert_array_equal(got["wide"], halves.astype(np.float64))
    np.testing.assert_array_equal(got["same"], halves)
    np.testing.assert_array_equal(np.signbit(got["same"]), np.signbit(halves))
    with np.errstate(all="ignore"):
        inverse = 1 / halves.astype(np.float64)
    kept = np.where(np.abs(inverse) < 65520, halves, np.float16(1))
    rounded = EinSum(node.axes, node.operands, TRUE, node.keys, node.outputs[2:])
    got = compile_loops(rounded)([{"val": kept}], no_tick)
    np.testing.assert_array_equal(got["rounded"], (1 / kept.astype(np.float64)).astype(np.float16))


def test_small_powers_are_products() -> None:
    values = np.array([[-2.5, -0.0, 0.0, 3.0, np.inf, -np.inf, np.nan, 1024.0]])
    x = tensor("x", values, F)
    for exponent in (2.0, 3.0, 4.0):
        power = fn("pow", F, val(0), Const(exponent, F))
        node = agree(axes(i=1, j=8), [(x, "ij")], "ij", Output("p", (power,), F))
        assert "**" not in source(node)


def merged(node: EinSum) -> EinSum:
    """The node that is compiled for contiguous operands."""
    nodes: list[EinSum] = []

    def compile_node(part: EinSum) -> Runner:
        nodes.append(part)
        return compile_loops(part)

    flattened(node, compile_node)
    return nodes[0]


def test_labels_side_by_side_become_one() -> None:
    values = dyadic(3, 4, 5)
    x, y = tensor("x", values, F), tensor("y", values[0] + 1, F)
    sums = Output("s", (PLUS,), F, "sum")
    for keys, left in (("ijk", "ij"), ("i", "ij"), ("jk", "ij"), ("j", "ijk"), ("", "ij")):
        node = agree(axes(i=3, j=4, k=5), [(x, "ijk"), (y, "jk")], keys, sums)
        assert "".join(a.label for a in merged(node).axes) == left
    backwards = {"val": values.astype("f")[:, ::-1]}
    agree(axes(i=3, j=4, k=5), [((x[0], backwards), "ijk"), (y, "jk")], "i", sums)
    low = tensor("x", values[:, :1], F, Key("a", -2, 1), Key("b", 5, 6), Key("c", 0, 5))
    space = (Axis("i", -2, 1), Axis("j", 5, 6), Axis("k", 0, 5))
    agree(space, [(low, "ijk")], "ij", Output("s", (val(0),), F, "sum"))
    counted = Output("s", (fn("cast", F, Label("k")),), F, "sum")
    assert len(merged(agree(axes(i=3, j=4, k=5), [(x, "ijk")], "ij", counted)).axes) == 2
    part = (Axis("i", 0, 3), Axis("j", 1, 4), Axis("k", 0, 5))
    node = EinSum(part, (Operand(x[0], tuple("ijk")),), TRUE, (), (counted,))
    assert merged(node) is node
