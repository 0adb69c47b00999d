"""Quotients and remainders by constants in loops, that are cut where they wrap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsql.core.schema import DType
from einsql.ir.einsum.affine import Affine
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Expr,
    Label,
    Operand,
    Output,
    Value,
)
from einsql.ir.einsum.intervals import interval
from einsql.kernels.loops import generated, loop_cuts, quotients
from einsql.kernels.loops.codegen import source
from einsql.kernels.loops.generated import compile_loops
from einsql.kernels.runtime import compile_cache, thread_pool
from tests.kernels.compiling import PROPERTY, cache_directory
from tests.kernels.indexed import PRESENCE
from tests.kernels.indexed import source as relation
from tests.kernels.interpreted import load
from tests.kernels.nodes import Case, check, lay_out, random_array
from tests.kernels.patterns import agree, axes, dyadic, fn, tensor, val
from tests.support.samples import sample

B, I32, I64, F, D = DType.BOOLEAN, DType.INTEGER, DType.BIGINT, DType.FLOAT, DType.DOUBLE
_WAYS = {
    # The keys of the result, the reduction and whether it is one of pairs.
    "elementwise": ("td", None),
    "rows": ("t", "sum"),
    "columns": ("d", "sum"),
    "total": ("", "sum"),
    "extreme": ("t", "arg_max"),
    "scattered": ("u", "sum"),
    "scattered rows": ("tu", "max"),
}

__all__ = ["cache_directory"]  # its fixture serves every test here


def whole(number: int, dtype: DType = I64) -> Const:
    return Const(number, dtype)


@st.composite
def wrapping(draw: st.DrawFn, base: Expr, dtype: DType) -> Expr:
    """Quotients and remainders of an expression by constants."""
    by, other = (whole(draw(st.integers(2, 40)), dtype) for _ in range(2))
    rest, times = Call("mod", (base, by), dtype), Call("idiv", (base, by), dtype)
    shifted = Call("add", (rest, whole(draw(st.integers(-9, 9)), dtype)), dtype)
    doubled = Call("mul", (whole(draw(st.sampled_from((2, -1, 3))), dtype), rest), dtype)
    return draw(
        st.sampled_from(
            (
                rest,
                times,
                Call("add", (doubled, times), dtype),
                Call("mod", (shifted, other), dtype),
                Call("idiv", (shifted, other), dtype),
                Call("sub", (base, rest), dtype),
                Call("mod", (times, other), dtype),
            )
        )
    )


@st.composite
def wrapped(draw: st.DrawFn) -> Case:
    """Nodes that read an operand at a label u that wraps along d."""
    dtype = draw(st.sampled_from((F, D)))
    space = [
        Axis("t", lo := draw(st.integers(-2, 2)), lo + draw(st.integers(1, 3))),
        Axis("d", lo := draw(st.integers(-70, 40)), lo + draw(st.integers(20, 90))),
    ]
    steps = {"d": draw(st.sampled_from((1, 1, 1, -1, 2, -3))), "t": draw(st.sampled_from((0, 5)))}
    base = Affine({x: s for x, s in steps.items() if s}, draw(st.integers(-50, 80))).expr()
    kind = draw(st.sampled_from((I64, I64, I32)))
    if kind is I32:
        base = Call("cast", (base,), I32)
    define = draw(wrapping(base, kind))
    bounds = {a.label: (a.lo, a.hi) for a in space}
    found = interval(define, bounds)
    assert found is not None
    low, high = found[0] + draw(st.sampled_from((0, 0, 1))), found[1] + 1
    space.append(Axis("u", low, max(low + 1, high - draw(st.sampled_from((0, 0, 2)))), define))
    if draw(st.integers(0, 3)) == 0:  # a label computed from one that wraps
        by = draw(st.integers(2, 9))
        define = Call("mod", (Call("add", (Label("u"), Label("d")), I64), whole(by)), I64)
        space.append(Axis("w", 1 - by, by, define))
    last = space[-1].label
    bounds = {a.label: (a.lo, a.hi) for a in space}
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    operands, arrays = [], []
    for n, labels in enumerate(("td", draw(st.sampled_from(("u", "tu", "ut"))), last)):
        made = relation(f"x{n}", dtype, *(bounds[x] for x in labels))
        operands.append(Operand(made, tuple(labels)))
        values = random_array(made.schema.shape, dtype, rng)
        arrays.append({"val": lay_out(values, draw(st.integers(0, 5)))})
    value = Call("add", (Value(0, "val", dtype), Value(1, "val", dtype)), dtype)
    number: Expr = Label("u")
    if draw(st.booleans()):
        number = draw(wrapping(Affine({"d": 1, "t": 3}, 7).expr(), I64))
    value = Call("sub", (value, Call("cast", (number,), dtype)), dtype)
    value = Call("add", (value, Value(2, "val", dtype)), dtype)
    even = Call("eq", (Call("mod", (Label("d"), whole(3)), I64), whole(0)), B)
    guard = even if draw(st.integers(0, 3)) == 0 else TRUE
    keys, reduction = _WAYS[draw(st.sampled_from(sorted(_WAYS)))]
    if reduction == "arg_max":
        output = Output("val", (Label("u"), value), I64, reduction)
    else:
        output = Output("val", (value,), dtype, reduction)
    outputs = (output, PRESENCE) if draw(st.booleans()) else (output,)
    node = EinSum(tuple(space), tuple(operands), guard, tuple(keys), outputs)
    return Case(node, tuple(arrays))


@settings(PROPERTY, max_examples=sample(20, 150))
@given(wrapped(), st.sampled_from((1, 3, 24)))
def test_random_loops_that_wrap(case: Case, least: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quotients, "LEAST_PIECE", least)
        patch.setattr(compile_cache, "load", load)
        check(case, compile_loops(case.node))


@settings(PROPERTY, max_examples=sample(8, 50))
@given(wrapped())
def test_random_loops_that_wrap_in_many_boxes(case: Case) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quotients, "LEAST_PIECE", 2)
        patch.setattr(loop_cuts, "BOX", 32)
        patch.setattr(loop_cuts, "PARALLEL", 1)
        patch.setattr(thread_pool, "threads", lambda: 2)
        patch.setattr(generated, "FEW", 0)  # teams call machine code
        patch.setattr(compile_cache, "load", load)
        check(case, compile_loops(case.node))


def turned(extent: int, by: int, shift: int) -> EinSum:
    """Checks a sum of rows and themselves turned within blocks of `by`; returns its node."""
    x = tensor("x", dyadic(5, extent), F)
    shifted = Call("add", (Label("d"), whole(shift)), I64)
    u = Axis("u", 0, min(by, extent), Call("mod", (shifted, whole(by)), I64))
    both = Output("val", (fn("add", F, val(0), val(1)),), F)
    return agree((*axes(t=5, d=extent), u), [(x, "td"), (x, "tu")], "td", both)


def test_long_pieces_divide_once() -> None:
    text = source(turned(64, 64, 32))
    assert "while" in text
    assert text.count("idiv(") == 1
    assert "remainder" not in text.split("@njit")[1]


def test_short_pieces_divide_as_floats() -> None:
    text = source(turned(64, 6, 3))
    assert "while" not in text
    assert "remainder_32(" in text


def test_what_does_not_wrap_is_not_cut() -> None:
    x = tensor("x", dyadic(5, 64), F)
    node = agree(axes(t=5, d=64), [(x, "td")], "td", Output("val", (val(0),), F))
    assert "while" not in source(node)


def test_columns_are_added_where_they_wrap_to() -> None:
    x = tensor("x", dyadic(7, 200), F)
    u = Axis("u", 0, 70, Call("mod", (Label("d"), whole(70)), I64))
    node = agree((*axes(t=7, d=200), u), [(x, "td")], "u", Output("val", (val(0),), F, "sum"))
    assert "while" in source(node)


def test_a_result_without_gaps_is_not_cleared(monkeypatch: pytest.MonkeyPatch) -> None:
    def cleared(*_: object) -> np.ndarray:
        raise AssertionError

    monkeypatch.setattr(generated, "starting", cleared)
    turned(64, 64, 32)


@pytest.mark.parametrize("dtype", [DType.TINYINT, I32, I64])
def test_integers_are_divided_at_their_ends(dtype: DType) -> None:
    low, high = dtype.range
    found = [low, low + 1, -7, -2, -1, 1, 2, 3, 7, high - 1, high]
    pairs = [(a, b) for a in [*found, 0] for b in found if (a, b) != (low, -1)]
    a, b = (tensor(n, x, dtype) for n, x in zip("ab", zip(*pairs, strict=True), strict=True))
    outputs = [
        Output(name, (fn(name, dtype, val(0, dtype), val(1, dtype)),), dtype)
        for name in ("idiv", "mod")
    ]
    node = agree(axes(i=len(pairs)), [(a, "i"), (b, "i")], "i", *outputs)
    assert ("idiv_32(" in source(node)) == (dtype is not I64)


@pytest.mark.parametrize("name", ["idiv", "mod"])
def test_integers_are_not_divided_by_zero(name: str) -> None:
    a, b = tensor("a", [3, 4, 5], I32), tensor("b", [1, 0, 2], I32)
    output = Output("val", (fn(name, I32, val(0, I32), val(1, I32)),), I32)
    agree(axes(i=3), [(a, "i"), (b, "i")], "i", output)
