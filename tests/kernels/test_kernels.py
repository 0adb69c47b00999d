"""Every kernel of the registry answers what the reference does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from einsql.core import buffer_pool
from einsql.core.schema import DType, Field, Key, Schema
from einsql.errors import DataError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Input,
    Operand,
    Output,
    Value,
)
from einsql.kernels import KERNELS, Arrays, Kernel, Runner, compile_node
from einsql.kernels.loops import loop_cuts
from einsql.kernels.matmul import layout, multiply, pieces, rows
from einsql.kernels.matmul.contraction import CONTRACTION
from einsql.kernels.registry import SEGMENTS, VECTOR, WINDOWS
from einsql.kernels.runtime import thread_pool
from einsql.kernels.segments import reduce
from einsql.kernels.vectorized import sums, vector
from einsql.kernels.vectorized.sums import accurate_sum
from einsql.kernels.vectorized.vector import compile_vector
from einsql.kernels.vectorized.views import VIEWS
from tests.kernels.indexed import convolutions, gathers, segments
from tests.kernels.nodes import Case, cases, check, lay_out, no_tick, random_array
from tests.support.samples import sample

D, F, H, I64 = DType.DOUBLE, DType.FLOAT, DType.HALF, DType.BIGINT


@st.composite
def _operands(
    draw: st.DrawFn, axes: tuple[Axis, ...], dtypes: tuple[DType, ...], most: int
) -> tuple[list[Operand], list[dict[str, np.ndarray]]]:
    """Operands whose two fields `x` and `y` have the given types, laid out at random.

    One in four has NaN, infinities and zeros of both signs.
    """
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    bounds = {a.label: (a.lo, a.hi) for a in axes}
    operands, arrays = [], []
    for n in range(draw(st.integers(1, most))):
        labels = draw(st.lists(st.sampled_from(sorted(bounds)), max_size=4))
        pad = draw(st.sampled_from((0, 0, 1)))
        keys = [Key(f"k{m}", bounds[x][0] - pad, bounds[x][1]) for m, x in enumerate(labels)]
        fields = [Field("x", draw(st.sampled_from(dtypes))), Field("y", dtypes[0])]
        source = Input(f"r{n}", Schema(tuple(keys), tuple(fields)))
        operands.append(Operand(source, tuple(labels)))
        kind = draw(st.integers(0, 5))
        shape = source.schema.shape
        specials = draw(st.integers(0, 3)) == 0
        made = {f.name: random_array(shape, f.dtype, rng, specials) for f in fields}
        arrays.append({name: lay_out(a, kind) for name, a in made.items()})
    return operands, arrays


@st.composite
def _axes(draw: st.DrawFn) -> tuple[Axis, ...]:
    labels = "ijklm"[: draw(st.integers(1, 5))]
    extents = st.sampled_from((2, 3, 1, 4, 2, 3, 0))
    return tuple(Axis(x, lo := draw(st.integers(-1, 1)), lo + draw(extents)) for x in labels)


@st.composite
def products(draw: st.DrawFn, dtypes: tuple[DType, ...] = (F, F, D, H)) -> Case:
    """Sums of products of at most two operands, their factors cast, scaled and squared."""
    axes = draw(_axes())
    dtype = draw(st.sampled_from(dtypes))
    narrower = {F: (F, H, DType.TINYINT), D: (D, F, DType.INTEGER), H: (H,)}[dtype]
    operands, arrays = draw(_operands(axes, narrower, 2))
    factors: list[Expr] = []
    for n, o in enumerate(operands):
        for name in draw(st.lists(st.sampled_from("xy"), min_size=1, max_size=2)):
            value = Value(n, name, o.source.schema.dtype(name))
            factors.append(value if value.dtype is dtype else Call("cast", (value,), dtype))
    if dtype is H:
        factors = factors[:1]
    elif draw(st.integers(0, 3)) == 0:
        factors.append(Const(draw(st.sampled_from((0.5, -2.0))), dtype))
    arg, *others = draw(st.permutations(factors))
    for f in others:
        arg = Call("mul", tuple(draw(st.permutations((arg, f)))), dtype)
    labels = [a.label for a in axes]
    keys = draw(st.permutations([x for x in labels if draw(st.booleans())]))
    output = Output("s", (arg,), dtype, "sum")
    node = EinSum(axes, tuple(operands), TRUE, tuple(keys), (output,))
    held = [set(o.labels) for o in operands]
    apart = any(x not in keys and not all(x in of for of in held) for x in labels)
    return Case(node, tuple(arrays), reordered=apart)


@st.composite
def copies(draw: st.DrawFn) -> Case:
    """Element-wise nodes whose outputs are values and literals."""
    axes = draw(_axes())
    operands, arrays = draw(_operands(axes, tuple(DType), 3))
    outputs = [Output("one", (Const(1, I64),), I64)]
    for n, o in enumerate(operands):
        f = o.source.schema.fields[draw(st.integers(0, 1))]
        outputs.append(Output(f"v{n}", (Value(n, f.name, f.dtype),), f.dtype))
    keys = draw(st.permutations([a.label for a in axes]))
    return Case(EinSum(axes, tuple(operands), TRUE, tuple(keys), tuple(outputs)), tuple(arrays))


@st.composite
def operations(draw: st.DrawFn) -> Case:
    """Element-wise nodes that are one float operation."""
    axes = draw(_axes())
    dtype = draw(st.sampled_from((F, D, H)))
    operands, arrays = draw(_operands(axes, (dtype,), 2))
    other = Value(0, "y", dtype) if draw(st.booleans()) else Const(0.5, dtype)
    args: list[Expr] = [Value(len(operands) - 1, "x", dtype), other]
    fn = draw(st.sampled_from(("add", "sub", "mul", "div")))
    output = Output("s", (Call(fn, tuple(draw(st.permutations(args))), dtype),), dtype)
    keys = draw(st.permutations([a.label for a in axes]))
    node = EinSum(axes, tuple(operands), TRUE, tuple(keys), (output,))
    return Case(node, tuple(arrays), inexact=True)  # the reference divides in DOUBLE


EXAMPLES: dict[str, tuple[st.SearchStrategy[Case], int]] = {
    VIEWS.name: (copies(), sample(12, 100)),
    CONTRACTION.name: (products(), sample(40, 300)),
    VECTOR.name: (st.one_of(cases(), operations(), gathers()), sample(50, 600)),
    WINDOWS.name: (convolutions(), sample(8, 60)),
    SEGMENTS.name: (segments(), sample(6, 30)),
    "loops": (products(), 3),  # has a test file of its own
}
OWN = {
    "running": "test_running.py",
    "sparse": "test_sparse.py",
    "packed": "test_packed.py",
    "sort": "test_holistic.py",
}
"""Kernels whose nodes are too large or too special for a strategy here, and their tests."""


def test_new_memory_is_garbage() -> None:
    """What conftest.py promises."""
    shown = {
        bytes(buffer_pool.empty((2, 600, 600), np.dtype("u1")).reshape(-1)[:3]) for _ in range(3)
    }
    assert shown == {bytes([byte] * 3) for byte in (0xFF, 0x7F, 0x80)}


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_kernel(kernel: Kernel) -> None:
    if kernel.name in OWN:
        assert Path(__file__).with_name(OWN[kernel.name]).exists()
        return
    strategy, examples = EXAMPLES[kernel.name]

    @settings(max_examples=examples)
    @given(strategy)
    def answers(case: Case) -> None:
        runner = kernel.match(case.node)
        assert runner is not None
        check(case, runner)

    answers()


@pytest.mark.parametrize("near", [0, 2**16], ids=["sorted", "scattered"])
def test_segments_on_two_threads(near: int) -> None:
    @settings(max_examples=sample(3, 15))
    @given(segments())
    def answers(case: Case) -> None:
        runner = SEGMENTS.match(case.node)
        assert runner is not None
        check(case, runner)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_pool, "threads", lambda: 2)
        patch.setattr(reduce, "NEAR", near)
        patch.setattr(reduce, "FILLED", 4 if near else 0)
        patch.setattr(loop_cuts, "PARALLEL", 1)
        patch.setattr(loop_cuts, "BOX", 8)
        patch.setattr(reduce, "PIECE", 4)
        answers()


@settings(max_examples=sample(20, 150))
@given(cases())
def test_registry_without_a_compiler(case: Case) -> None:
    runner = compile_node(case.node, jit="never").run
    check(case, runner)


@settings(max_examples=sample(15, 100))
@given(cases(), st.integers(1, 6))
def test_vector_in_blocks(case: Case, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector, "BLOCK", size)
        check(case, compile_vector(case.node))


@settings(max_examples=sample(25, 200))
@given(products(), st.sampled_from([1, 32]), st.sampled_from([0.0, 3.5e-10, 1.0]))
def test_contraction_in_pieces(case: Case, least: int, in_line: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "SPREAD", 0.0)
        patch.setattr(pieces, "LONG", 0.0)
        patch.setattr(pieces, "LEAST", least)
        patch.setattr(pieces, "BLOCK", 2)
        patch.setattr(pieces, "LINE", 2)
        patch.setattr(layout, "BLOCK", 1)
        patch.setattr(multiply, "LONG_SUM", 2)
        patch.setattr(rows, "IN_LINE", in_line)
        runner = CONTRACTION.match(case.node)
        assert runner is not None
        check(case, runner)


def _matmul(dtype: DType, *more: Output) -> EinSum:
    axes = tuple(Axis(x, 0, 8) for x in "ijk")
    schema = Schema((Key("r", 0, 8), Key("c", 0, 8)), (Field("val", dtype),))
    a, b = (Value(n, "val", dtype) for n in (0, 1))
    product = Output("val", (Call("mul", (a, b), dtype),), dtype, "sum")
    operands = (Operand(Input("a", schema), ("i", "k")), Operand(Input("b", schema), ("k", "j")))
    return EinSum(axes, operands, TRUE, ("i", "j"), (product, *more))


def test_outputs_are_shared_among_kernels() -> None:
    top = Output("top", (Value(0, "val", F),), F, "max")
    compiled = compile_node(_matmul(F, top), jit="never")
    name, runner = compiled.kernel, compiled.run
    assert name == "blas+vector"
    rng = np.random.default_rng(0)
    a, b = (rng.random((8, 8), np.float32) for _ in "ab")
    got = runner(({"val": a}, {"val": b}), no_tick)
    np.testing.assert_array_equal(got["val"], a @ b)
    np.testing.assert_array_equal(got["top"], np.broadcast_to(a.max(1)[:, None], (8, 8)))


def test_a_view_shares_memory() -> None:
    node = _matmul(F)
    value = Output("val", (Value(0, "val", F),), F)
    i, k = (Axis(x, 2, 8) for x in "ik")
    node = replace(node, axes=(i, k), operands=node.operands[:1], keys=("k", "i"), outputs=(value,))
    compiled = compile_node(node)
    name, runner = compiled.kernel, compiled.run
    a = np.arange(64, dtype=np.float32).reshape(8, 8)
    got = runner(({"val": a},), no_tick)["val"]
    assert name == "view"
    assert np.shares_memory(got, a)
    np.testing.assert_array_equal(got, a[2:, 2:].T)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("shape", [(20000, 3), (3, 20000), (300, 8, 31), (1, 70000), (7, 90, 111)])
def test_float_sums_are_at_least_pairwise(
    shape: tuple[int, ...], spread: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sums, "SPREAD", 1 if spread else 2**20)
    a = np.random.default_rng(1).random(shape, np.float32)
    subsets = [s for n in range(1, a.ndim + 1) for s in combinations(range(a.ndim), n)]
    for view, axes in product((a, a.T, np.asfortranarray(a)[::-1], a[:, 1:]), subsets):
        exact = np.add.reduce(view, axis=axes, dtype=np.float64)
        got = accurate_sum(view, axes, np.dtype(np.float32))
        assert got.dtype == np.float32
        terms = view.size // max(1, exact.size)
        bound = (16 + np.log2(terms)) * np.finfo(np.float32).eps
        assert np.all(np.abs(got - exact) <= bound * exact)
        if spread:  # whole numbers in DOUBLE, of which every one must be there once
            whole = np.rint(view * 9).astype(np.float64)
            got = accurate_sum(whole, axes, np.dtype(np.float64))
            np.testing.assert_array_equal(got, whole.sum(axis=axes))


@pytest.mark.parametrize("keys", ["ik", "j", "jk", "ij"])
def test_plain_sums_of_short_rows_are_rounded_once(keys: str) -> None:
    a = np.random.default_rng(3).standard_normal((110, 120, 90), np.float32)
    exact = np.einsum(f"ijk->{keys}", a.astype(np.float64))
    got = einsql.einsum(f"ijk->{keys}", a)
    np.testing.assert_array_equal(got, exact.astype(np.float32))


def _total(dtype: DType, values: list[int], reduction: str = "sum") -> Callable[[], np.ndarray]:
    schema = Schema((Key("i", 0, len(values)),), (Field("val", dtype),))
    output = Output("val", (Value(0, "val", dtype),), dtype, reduction)
    axes = (Axis("i", 0, len(values)),)
    node = EinSum(axes, (Operand(Input("x", schema), ("i",)),), TRUE, (), (output,))
    array = np.asarray(values, dtype.numpy)
    return lambda: compile_vector(node)(({"val": array},), no_tick)["val"]


def test_integer_totals_are_exact_or_refused() -> None:
    top = 2**63 - 1
    assert _total(I64, [top, top, -top, -top, 5])() == 5  # only the total counts
    assert _total(I64, [top, -1, 1])() == top
    assert _total(I64, [-top, -1])() == -top - 1
    assert _total(DType.TINYINT, [100, 100, -100])() == 100
    assert _total(I64, [2**31, 2**31, -1], "product")() == -(2**62)
    for values, reduction in [([top, 1], "sum"), ([-top, -2], "sum"), ([2**32] * 2, "product")]:
        with pytest.raises(DataError, match=r"Overflow in .* of BIGINT"):
            _total(I64, values, reduction)()
    with pytest.raises(DataError, match="Overflow in addition of TINYINT"):
        _total(DType.TINYINT, [100, 28])()


def test_a_cancelled_statement_stops() -> None:
    ticks: list[float] = []

    def tick(done: float) -> None:
        ticks.append(done)
        if len(ticks) == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vector, "BLOCK", 64)
        with pytest.raises(KeyboardInterrupt):
            compile_vector(_matmul(D))([{"val": np.ones((8, 8))}] * 2, tick)
    assert ticks == [1 / 8, 2 / 8]


SPECS = [
    "ik,kj->ij", "ik,jk->ji", "i,i->", "ik,k->i", "k,kj->j", "i,j->ji", "ij,ij->ji", "bik,bkj->bij",
    "kbi,kbj->ijb", "bik,bkj->ibj", "bk,kb->b", "kb,kb->b", "imk,kjn->ijmn", "mik,kn->inm",
    "ipk,kqj->ij", "ikl,lkj->ij", "klb,bnk->nb", "iik,kjj->ij", "bij,b->j", "ij->", "kij->ji",
    "i,jk->",
]  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
def test_contraction_of_every_layout(spec: str) -> None:
    inputs, result = spec.split("->")
    reads = inputs.split(",")
    axes = tuple(Axis(x, 0, 2 + n) for n, x in enumerate(dict.fromkeys("".join(reads))))
    extent = {a.label: a.extent for a in axes}
    rng = np.random.default_rng(3)
    arrays, operands = [], []
    for n, labels in enumerate(reads):
        keys = tuple(Key(f"k{m}", 0, extent[x]) for m, x in enumerate(labels))
        source = Input(f"r{n}", Schema(keys, (Field("val", D),)))
        operands.append(Operand(source, tuple(labels)))
        arrays.append(rng.integers(-9, 9, source.schema.shape).astype(np.float64))
    arg: Expr = Value(0, "val", D)
    if len(reads) == 2:
        arg = Call("mul", (arg, Value(1, "val", D)), D)
    output = Output("val", (arg,), D, "sum")
    node = EinSum(axes, tuple(operands), TRUE, tuple(result), (output,))
    compiled = compile_node(node)
    name, runner = compiled.kernel, compiled.run
    assert name == "blas"
    for kind in range(4):
        fields = [{"val": lay_out(a, kind)} for a in arrays]
        got = runner(fields, no_tick)["val"]
        np.testing.assert_array_equal(got, np.einsum(spec, *arrays))


def _column(
    fields: dict[str, tuple[DType, list[float]]], *outputs: Output, group: bool = False
) -> dict[str, np.ndarray]:
    """Runs outputs over one relation of rows `i`, reduced over all rows or grouped by `g`."""
    rows = len(next(iter(fields.values()))[1])
    schema = Schema((Key("i", 0, rows),), tuple(Field(n, t) for n, (t, _) in fields.items()))
    axes = [Axis("i", 0, rows)]
    if group:
        axes.append(Axis("g", 0, 3, Value(0, "g", I64)))
    keys = ("g",) if group else () if outputs[0].reduction else ("i",)
    source = Operand(Input("x", schema), ("i",))
    node = EinSum(tuple(axes), (source,), TRUE, keys, outputs)
    arrays = {n: np.asarray(v, t.numpy) for n, (t, v) in fields.items()}
    return compile_vector(node)([arrays], no_tick)


@pytest.mark.parametrize("size", [1, 3, 100])
def test_arg_extremes_take_the_least_argument(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector, "BLOCK", size)
    nan = float("nan")
    fields: dict[str, tuple[DType, list[float]]] = {
        "g": (I64, [0, 0, 0, 0, 1, 1, 1]),
        "a": (I64, [7, 5, 6, 4, 9, 8, 3]),
        "v": (D, [1.0, 0.0, 0.0, 1.0, nan, nan, 2.0]),
    }
    args = (Value(0, "a", I64), Value(0, "v", D))
    lowest, highest = (Output(r, args, I64, r) for r in ("arg_min", "arg_max"))
    got = _column(fields, lowest, highest, group=True)
    np.testing.assert_array_equal(got["arg_min"], [5, 3, 0])
    np.testing.assert_array_equal(got["arg_max"], [4, 8, 0])
    got = _column(fields, lowest, highest)
    assert (got["arg_min"].item(), got["arg_max"].item()) == (5, 8)


def test_errors_count_only_where_a_value_is_needed() -> None:
    a, b = Value(0, "a", I64), Value(0, "b", I64)
    zero = Const(0, I64)
    quotient = Call("idiv", (a, b), I64)
    none = Call("eq", (b, zero), DType.BOOLEAN)
    some = Call("not", (none,), DType.BOOLEAN)
    positive = Call("lt", (zero, quotient), DType.BOOLEAN)
    fields: dict[str, tuple[DType, list[float]]] = {"a": (I64, [6, 7, 8]), "b": (I64, [3, 0, -2])}
    lazy = {
        "case": (Call("if", (none, zero, quotient), I64), [2, 0, -4]),
        "and": (Call("and", (some, positive), DType.BOOLEAN), [True, False, False]),
        "or": (Call("or", (none, positive), DType.BOOLEAN), [True, True, False]),
    }
    for expr, wanted in lazy.values():
        got = _column(fields, Output("o", (expr,), expr.dtype))["o"]
        np.testing.assert_array_equal(got, wanted)
    assert _column(fields, Output("o", (quotient,), I64, "max", some))["o"] == 2
    eager = Call("if", (some, zero, quotient), I64)
    for output in (Output("o", (eager,), I64), Output("o", (quotient,), I64, "max")):
        with pytest.raises(DataError, match="zero"):
            _column(fields, output)


def test_a_gather_beside_its_own_row_label() -> None:
    """x[t[i], i] picks one element per row, and only rows within the axis's bounds."""
    chosen = Input("t", Schema((Key("i", 0, 4),), (Field("val", I64),)))
    x = Input("x", Schema((Key("w", 0, 6), Key("i", 0, 4)), (Field("val", D),)))
    output = Output("val", (Value(1, "val", D),), D, "sum")
    node = EinSum(
        (Axis("i", 0, 4), Axis("w", 2, 6, Value(0, "val", I64))),
        (Operand(chosen, ("i",)), Operand(x, ("w", "i"))),
        TRUE,
        ("i",),
        (output,),
    )
    t, table = np.asarray([2, 5, 1, 3]), np.arange(24.0).reshape(6, 4)
    got = compile_vector(node)([{"val": t}, {"val": table}], no_tick)["val"]
    np.testing.assert_array_equal(got, [8, 21, 0, 15])


def test_an_embedding_lookup_takes_rows() -> None:
    """E[tokens[i], j]: a derived label that is no key gathers."""
    tokens = Input("t", Schema((Key("i", 0, 5),), (Field("val", DType.INTEGER),)))
    table = Input("e", Schema((Key("w", 1, 10), Key("j", 0, 4)), (Field("val", F),)))
    define = Call("cast", (Value(0, "val", DType.INTEGER),), I64)
    node = EinSum(
        (Axis("i", 0, 5), Axis("j", 0, 4), Axis("w", 1, 9, define)),
        (Operand(tokens, ("i",)), Operand(table, ("w", "j"))),
        TRUE,
        ("i", "j"),
        (Output("val", (Value(1, "val", F),), F),),
    )
    rows = np.asarray([3, 1, 8, 3, 5], np.int32)
    e = np.random.default_rng(2).random((9, 4), np.float32)
    runner: Runner = compile_node(node, jit="always").run
    operands: tuple[Arrays, Arrays] = ({"val": rows}, {"val": e})
    for array in (e, np.asfortranarray(e)):
        operands = ({"val": rows}, {"val": array})
        np.testing.assert_array_equal(runner(operands, no_tick)["val"], e[rows - 1])
    runner = compile_node(replace(node, keys=("j", "i")), jit="never").run
    np.testing.assert_array_equal(runner(operands, no_tick)["val"], e[rows - 1].T)


@settings(max_examples=sample(25, 200))
@given(st.one_of(cases(), copies(), products(), operations(), gathers(), segments()))
def test_only_views_alias_operands(case: Case) -> None:
    """What says which inputs a result may show relies on it."""
    compiled = compile_node(case.node)
    name, runner = compiled.kernel, compiled.run
    if "view" in name.split("+"):
        return
    try:
        found = runner([*case.operands], lambda _: None)
    except DataError:
        return
    held = [a for fields in case.operands for a in fields.values()]
    assert not any(np.shares_memory(a, b) for a in found.values() for b in held)
