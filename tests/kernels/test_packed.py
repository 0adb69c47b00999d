"""Packed kernels answer what the reference answers, whatever the data and their layout."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
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
    Label,
    Operand,
    Output,
    Value,
)
from einsql.kernels import packed as packing
from einsql.kernels.compiler.cpu_features import Machine
from einsql.kernels.packed import compile_packed, factors, layout, run
from einsql.kernels.runtime import thread_pool
from tests.kernels.compiling import PROPERTY, cache_directory
from tests.kernels.nodes import Case, check, lay_out, no_tick, random_array
from tests.support.samples import sample

B, T, I32, I64 = DType.BOOLEAN, DType.TINYINT, DType.INTEGER, DType.BIGINT
H, F, D = DType.HALF, DType.FLOAT, DType.DOUBLE

__all__ = ["cache_directory"]  # its fixture serves every test here


@pytest.fixture(autouse=True)
def _small_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs whatever can be."""
    for least in ("LEAST", "AREA", "TERMS"):
        monkeypatch.setattr(layout, least, 1)
    monkeypatch.setattr(packing, "LEAST", 1)


def fn(name: str, dtype: DType, *args: Expr) -> Call:
    return Call(name, args, dtype)


# Random nodes ------------------------------------------------------------------------

_INTO = {"sum": (F, D, H, I32, I64), "product": (F, D), "min": (F, D, H, I32, I64, B),
         "max": (F, D, H, T, I64, B), "arg_min": (F, D, I32, I64, B), "arg_max": (F, D, I64),
         "bool_or": (B,), "bool_and": (B,)}  # fmt: skip
_FLOAT = ("add", "sub", "mul", "abs", "greatest", "least", "neg", "floor", "if")
_INTEGER = ("add", "sub", "mul", "abs", "greatest", "least", "if", "bitand", "xor")
_BOOLEAN = ("eq", "lt", "le", "ne", "and", "or", "not")


@st.composite
def sides(draw: st.DrawFn) -> Case:
    """Two operands that share labels, each with keys of its own, and one reduction."""
    reduction = draw(st.sampled_from(sorted(_INTO)))
    dtype = draw(st.sampled_from(_INTO[reduction]))
    pairs = reduction.startswith("arg_")
    # Sums of FLOAT stay exact, and products of few factors.
    long = reduction not in ("product",) and draw(st.integers(0, 3)) == 0
    extents = {
        "b": draw(st.sampled_from((1, 3))),
        "i": draw(st.sampled_from((1, 5, 13, 30))),
        "p": 2,
        "j": draw(st.sampled_from((1, 7, 33))),
        "k": 270 if long else draw(st.sampled_from((1, 4, 9))),
        "q": 3,
    }
    low = draw(st.sampled_from((-1, 0, 2)))
    axes = tuple(Axis(x, low, low + n) for x, n in extents.items())
    keep = {x for x in "bpq" if draw(st.booleans())} | set("ijk")
    axes = tuple(a for a in axes if a.label in keep)
    left = draw(st.permutations([x for x in "bipkq" if x in keep]))
    right = draw(st.permutations([x for x in "bjkq" if x in keep]))
    keys = draw(st.permutations([x for x in "bipj" if x in keep]))
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    specials = draw(st.integers(0, 2)) == 0
    types = [draw(st.sampled_from(_matching(dtype))) for _ in "lr"]
    operands, arrays = [], []
    for n, labels in enumerate((left, right)):
        bounds = {a.label: a for a in axes}
        pad = draw(st.sampled_from((0, 1)))
        source_keys = tuple(Key(x, bounds[x].lo - pad, bounds[x].hi) for x in labels)
        source = Input(f"r{n}", Schema(source_keys, (Field("val", types[n]),)))
        operands.append(Operand(source, tuple(labels)))
        values = random_array(source.schema.shape, types[n], rng, specials)
        arrays.append({"val": lay_out(values, draw(st.integers(0, 5)))})
    leaves: list[Expr] = [Value(n, "val", t) for n, t in enumerate(types)]
    term = draw(_joined(dtype, leaves))
    where: Expr = TRUE
    if not pairs and draw(st.integers(0, 2)) == 0:
        where = draw(st.sampled_from(_conditions(leaves)))
    args: tuple[Expr, ...] = (term,)
    out = dtype
    if pairs:
        args, out = (Label(draw(st.sampled_from(sorted(keep & set("kq"))))), term), I64
    output = Output("v", args, out, reduction, where)
    node = EinSum(axes, tuple(operands), TRUE, tuple(keys), (output,))
    return Case(node, tuple(arrays), inexact=reduction == "product")


def _matching(dtype: DType) -> tuple[DType, ...]:
    """Types whose values an expression of a type may be made of."""
    if dtype is B:
        return (B, F, I32)
    return {T: (T,), I32: (I32, T), I64: (I64, I32), H: (H,), F: (F, H), D: (D, F)}[dtype]


@st.composite
def _joined(draw: st.DrawFn, dtype: DType, leaves: list[Expr]) -> Expr:
    """An expression over both sides."""
    if dtype is B:
        a, b = leaves
        if a.dtype is b.dtype is B:
            return fn(draw(st.sampled_from(_BOOLEAN[:-1])), B, a, b)
        tests = [e if e.dtype is B else fn("lt", B, Const(0, e.dtype), e) for e in leaves]
        return fn(draw(st.sampled_from(("and", "or", "eq"))), B, *tests)
    a, b = (e if e.dtype is dtype else fn("cast", dtype, e) for e in leaves)
    if dtype is H:
        return fn("if", H, fn("lt", B, a, b), a, b)
    names = _INTEGER if dtype.is_integer else _FLOAT
    e: Expr = fn(draw(st.sampled_from(names[:3])), dtype, a, b)
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(names))
        if name in ("abs", "neg", "floor"):
            e = fn(name, dtype, e)
        elif name == "if":
            e = fn("if", dtype, fn(draw(st.sampled_from(_BOOLEAN[:4])), B, a, b), e, b)
        else:
            other = draw(st.sampled_from((a, b, Const(2, dtype))))
            e = fn(name, dtype, e, other)
    return e


def _conditions(leaves: list[Expr]) -> list[Expr]:
    a, b = leaves
    tests: list[Expr] = [fn("lt", B, Label("i"), Label("j")), fn("le", B, Label("k"), Label("i"))]
    if a.dtype is b.dtype:
        tests.append(fn("ne", B, a, b))
    return tests


@settings(PROPERTY, max_examples=sample(3, 25))
@given(sides(), st.sampled_from((1, 2)), st.sampled_from((1, 10**6)))
def test_random_reductions_over_two_sides(case: Case, threads: int, terms: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factors, "TERMS", terms)  # from how many terms on BLAS may multiply
        patch.setattr(run, "SPAN", 16)
        patch.setattr(thread_pool, "threads", lambda: threads)
        runner = compile_packed(case.node)
        assert runner is not None
        check(case, runner)


# Data that matter ----------------------------------------------------------------------


def both(
    reduction: str,
    term: Expr,
    arrays: tuple[np.ndarray, np.ndarray],
    dtype: DType,
    where: Expr = TRUE,
    guard: Expr = TRUE,
) -> Case:
    """A reduction over the last axis of two matrices."""
    kinds = [kind for a in arrays if (kind := DType.of(a.dtype)) is not None]
    (m, k), (n, _) = (a.shape for a in arrays)
    axes = (Axis("i", 0, m), Axis("j", 0, n), Axis("k", 0, k))
    operands = tuple(
        Operand(
            Input(f"r{x}", Schema((Key("r", 0, e), Key("c", 0, k)), (Field("val", kinds[x]),))),
            (label, "k"),
        )
        for x, (label, e) in enumerate((("i", m), ("j", n)))
    )
    args = (Label("k"), term) if reduction.startswith("arg_") else (term,)
    output = Output("v", args, I64 if len(args) == 2 else dtype, reduction, where)
    node = EinSum(axes, operands, guard, ("i", "j"), (output,))
    return Case(node, tuple({"val": a} for a in arrays))


def packed(case: Case) -> Any:
    """The runner of a case, which packing must suit."""
    runner = compile_packed(case.node)
    assert runner is not None
    return runner


def plus(dtype: DType, name: str = "add") -> Call:
    return fn(name, dtype, Value(0, "val", dtype), Value(1, "val", dtype))


SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0]


@pytest.mark.parametrize(
    ("reduction", "dtype"),
    [("sum", F), ("min", F), ("max", F), ("arg_min", F), ("min", D), ("arg_max", D)],
)
def test_specials_in_every_position(reduction: str, dtype: DType) -> None:
    """Every pair of special values meets every other in a row of two terms."""
    rows = np.array([(x, y) for x in SPECIAL for y in SPECIAL], dtype.numpy)
    case = both(reduction, plus(dtype), (rows, rows[::-1].copy()), dtype)
    check(case, packed(case))


def test_infinite_distances_do_not_need_the_exact_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs without an edge here and there: infinity plus infinity is no NaN."""
    seen = []
    compute = run._Part.compute

    def noted(self: Any, variant: Any, *rest: Any) -> Any:
        seen.append(variant.tame)
        return compute(self, variant, *rest)

    monkeypatch.setattr(run._Part, "compute", noted)
    a = np.where(np.eye(9) > 0, 0, np.inf).astype("f")
    case = both("min", plus(F), (a, a), F)
    check(case, packed(case))
    a[3, 4] = -np.inf
    check(case := both("min", plus(F), (a, a), F), packed(case))
    assert seen == [True, False]


def test_sums_that_leave_float_on_the_way_come_back() -> None:
    a = np.array([[3e38, 3e38, -3e38, -3e38, 1.0]], np.float32)
    case = both("sum", plus(F), (a, np.zeros_like(a)), F)
    np.testing.assert_array_equal(packed(case)(case.operands, no_tick)["v"], [[1.0]])


@pytest.mark.parametrize("term", ["Σ|x−y|", "Σ(x−y)²"])
def test_sums_are_no_worse_than_pairwise(term: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((40, 5000), np.float32), rng.random((50, 5000), np.float32)
    difference = plus(F, "sub")
    square = term == "Σ(x−y)²"
    e = fn("mul", F, difference, difference) if square else fn("abs", F, difference)
    case = both("sum", e, (a, b), F)
    got = packed(case)(case.operands, no_tick)["v"]
    terms = a[:, None] - b[None]
    terms = terms * terms if square else np.abs(terms)
    exact = terms.sum(-1, dtype=np.float64)
    error, pairwise = (np.abs(x - exact) / exact for x in (got, terms.sum(-1)))
    assert error.max() <= pairwise.max()
    assert error.mean() <= pairwise.mean()


def test_integers_are_exact_or_refused() -> None:
    rng = np.random.default_rng(1)
    for dtype, low, high in [(I32, -(2**15), 2**15), (I64, -(2**31), 2**31), (T, -4, 5)]:
        a, b = (rng.integers(low, high, (9, 300)).astype(dtype.numpy) for _ in "ab")
        for name in ("sub", "mul"):
            if dtype is not T:
                case = both("sum", fn("cast", I64, plus(dtype, name)), (a, b), I64)
                check(case, packed(case))
        case = both("max", plus(dtype, "sub"), (a, b), dtype)
        check(case, packed(case))
    top = np.full((9, 5), 2**31 - 1, np.int32)
    for reduction, dtype in [("min", I32), ("sum", I32)]:
        term = plus(I32) if reduction == "min" else plus(I32, "greatest")
        case = both(reduction, term, (top, top), dtype)
        with pytest.raises(DataError, match="Overflow in addition of INTEGER"):
            packed(case)(case.operands, no_tick)
    beyond = np.full((9, 5), 2**62, np.int64)
    case = both("sum", plus(I64, "least"), (beyond, beyond), I64)
    with pytest.raises(DataError, match="Overflow in addition of BIGINT"):
        packed(case)(case.operands, no_tick)
    # What a filter excludes may overflow.
    case = both("min", plus(I32), (top, top), I32, where=fn("lt", B, Label("i"), Const(0, I64)))
    check(case, packed(case))


def test_guards_filters_and_labels() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(-9, 9, (20, 33)).astype("f") for _ in "ab")
    causal = fn("le", B, Label("k"), Label("i"))
    apart = fn("ne", B, Label("i"), Label("j"))
    for reduction in ("min", "max", "sum"):
        case = both(reduction, plus(F), (a, b), F, where=apart, guard=causal)
        check(case, packed(case))
    equal = fn("eq", B, Value(0, "val", F), Value(1, "val", F))
    one = fn("cast", I64, Const(1, I32))
    case = both("sum", one, (a, b), I64, where=equal)
    check(case, packed(case))
    weighed = fn("mul", F, plus(F), fn("cast", F, Label("k")))
    case = both("sum", weighed, (a, b), F)
    check(case, packed(case))


def test_several_outputs_and_operands() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-9, 9, (20, 33)).astype("f") for _ in "ab")
    case = both("min", plus(F), (a, b), F)
    bias = Input("bias", Schema((Key("j", 0, 20),), (Field("val", F),)))
    shifted = fn("add", F, plus(F), Value(2, "val", F))
    outputs = (
        *case.node.outputs,
        Output("n", (Label("k"), shifted), I64, "arg_max"),
        Output("any", (fn("lt", B, Value(0, "val", F), Value(1, "val", F)),), B, "bool_or"),
    )
    node = replace(
        case.node, operands=(*case.node.operands, Operand(bias, ("j",))), outputs=outputs
    )
    fields = {"val": rng.integers(-9, 9, 20).astype("f")}
    check(Case(node, (*case.operands, fields)), packed(Case(node, ())))


def test_log_sum_exp_streams_twice() -> None:
    """The second pass reads the maxima, which have keys of both sides and no term."""
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal((130, 70), np.float32) * 30 for _ in "ab")
    a[3, 5:], b[7] = -np.inf, np.inf
    con = einsql.connect()
    con.register("a", a, dims=("i", "k"))
    con.register("b", b, dims=("j", "k"))
    sql = """SELECT i, j, LOGSUMEXP(a.val + b.val) FILTER (WHERE k <= i) AS val
        FROM a JOIN b USING (k) GROUP BY i, j"""
    assert str(con.explain(sql)).count("packed") == 2
    got = con.execute(sql).fetch_numpy()
    with np.errstate(all="ignore"):
        terms = a[:, None].astype("d") + b[None]
    terms[np.broadcast_to(np.arange(70) > np.arange(130)[:, None, None], terms.shape)] = -np.inf
    with np.errstate(all="ignore"):
        wanted = np.logaddexp.reduce(terms, -1)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-4)


# Runs ----------------------------------------------------------------------------------


def test_pieces_tick_and_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PIECE", 2**10)
    monkeypatch.setattr(thread_pool, "threads", lambda: 1)
    a = np.arange(64 * 40, dtype="f").reshape(64, 40)
    case = both("max", plus(F), (a, a), F)
    seen: list[float] = []
    got = packed(case)(case.operands, seen.append)["v"]
    np.testing.assert_array_equal(got, (a[:, None] + a[None]).max(-1))
    assert len(seen) > 4
    assert seen == sorted(seen)
    assert seen[-1] == 1

    def cancel(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packed(case)(case.operands, cancel)


@pytest.mark.parametrize("registers", [(16, 16, False), (16, 32, True), (32, 16, True)])
def test_other_processors(
    registers: tuple[int, int, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles for shorter and fewer registers, as SSE, NEON and AVX2 have them."""
    monkeypatch.setattr(run, "machine", lambda: Machine(*registers))
    rng = np.random.default_rng(4)
    a, b = (rng.integers(-9, 9, (20, 33)).astype("f") for _ in "ab")
    for reduction in ("sum", "arg_max"):
        case = both(reduction, fn("abs", F, plus(F, "sub")), (a, b), F)
        check(case, packed(case))


def test_explain_names_the_kernel() -> None:
    con = einsql.connect()
    a = np.zeros((300, 300), np.float32)
    con.register("a", a, dims=("i", "j"))
    sql = """SELECT a.i, b.i AS k, MIN(a.val + b.val) AS val FROM a JOIN a b USING (j)
        GROUP BY a.i, b.i"""
    assert "packed" in str(con.explain(sql))


def test_what_does_not_pay_is_left_to_loops() -> None:
    node = both("min", plus(F), (np.zeros((9, 9), "f"),) * 2, F).node
    assert compile_packed(replace(node, keys=("i",))) is None
    sine = replace(node.outputs[0], args=(fn("sin", F, plus(F)),))
    assert compile_packed(replace(node, outputs=(sine,))) is None


def test_values_of_both_sides_keep_their_types() -> None:
    """Integers beyond 2^53 beside floats: no DOUBLE is between them."""
    a = np.full((6, 20), 2**53)
    a[::2] += 1
    b = np.linspace(-1, 0.1, 100, dtype=np.float32).reshape(5, 20)
    above = fn("lt", B, Const(2**53, I64), Value(0, "val", I64))
    positive = fn("lt", B, Const(0, F), Value(1, "val", F))
    case = both("arg_min", fn("or", B, above, positive), (a, b), B)
    check(case, packed(case))
