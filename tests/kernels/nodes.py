"""Random EinSum nodes over small domains, with operands in awkward memory layouts.

Data are small dyadic rationals, so sums and products are exact in every float type and
results compare exactly; `Case.inexact` marks the nodes that end in a rounding function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from einsql.core.bfloat16 import loaded, rounded, stored
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
    Value,
    exprs,
    subexpressions,
)
from einsql.ir.einsum.interpreter import evaluate
from einsql.ir.functions import SCALARS

Arrays = Mapping[str, np.ndarray]
Runner = Callable[[Sequence[Arrays], Callable[[float], None]], dict[str, np.ndarray]]

B, T, I32, I64 = DType.BOOLEAN, DType.TINYINT, DType.INTEGER, DType.BIGINT
H, BF, F, D = DType.HALF, DType.BFLOAT16, DType.FLOAT, DType.DOUBLE
TYPES = (B, T, I32, I64, H, BF, F, D)
_INTEGER_FNS = ("add", "sub", "mul", "neg", "abs", "greatest", "least", "idiv", "mod", "bitand",
                "bitor", "xor", "if")  # fmt: skip
_FLOAT_FNS = ("add", "sub", "mul", "neg", "abs", "greatest", "least", "floor", "ceil", "trunc",
              "round", "if")  # fmt: skip
_BOOLEAN_FNS = ("eq", "ne", "lt", "le", "and", "or", "not", "isnan", "isinf", "isfinite", "if")
_ROUNDING_FNS = ("exp", "sqrt", "cbrt", "sin", "cos", "atan", "tanh", "erf", "div", "asinh")
_BITS = ("bit_and", "bit_or", "bit_xor")
_REDUCTIONS = {
    B: ("bool_or", "bool_and", "min", "max", "arg_min", "arg_max"),
    H: ("sum", "min", "max"),
    BF: ("sum", "min", "max"),
    F: ("sum", "min", "max", "product"),
    D: ("sum", "min", "max", "product"),
    T: ("sum", "min", "max", "arg_min", "arg_max", *_BITS),
    I32: ("sum", "min", "max", "product", "arg_min", "arg_max", *_BITS),
    I64: ("sum", "min", "max", "product", "arg_min", "arg_max", *_BITS),
}


@dataclass(frozen=True)
class Case:
    """A node, the fields of each operand (strided, read-only, …) and how it compares.

    Attributes:
        inexact: It ends in a rounding function.
        reordered: Factors are taken out of sums: NaN and infinity may trade places.
    """

    node: EinSum
    operands: tuple[dict[str, np.ndarray], ...]
    inexact: bool = False
    reordered: bool = False


@dataclass
class _Scope:
    """What an expression may read."""

    leaves: list[Expr]
    huge: bool


@st.composite
def cases(draw: st.DrawFn, *, errors: bool = True) -> Case:
    """Nodes with 0–3 operands, 0–3 free and 0–2 derived axes and 1–3 outputs.

    Args:
        draw: Hypothesis's source of choices.
        errors: Whether integer extremes, and so overflow, may occur often.
    """
    huge = errors and draw(st.integers(0, 4)) == 0
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    specials = draw(st.integers(0, 2)) == 0
    scope = _Scope([], huge)
    axes: list[Axis] = []
    operands: list[Operand] = []
    wanted = draw(st.integers(0, 3))

    for name in "ijk"[: draw(st.sampled_from((1, 2, 2, 3, 3, 0)))]:
        lo = draw(st.integers(-2, 2))
        axes.append(Axis(name, lo, lo + draw(st.sampled_from((2, 3, 1, 4, 0)))))
        scope.leaves.append(Label(name))
    for derived in ["", *"de"[: draw(st.sampled_from((0, 0, 0, 1, 1, 2)))]]:
        if derived:
            axes.append(draw(_derived_axis(derived, scope)))
            scope.leaves.append(Label(derived))
        for _ in range(draw(st.integers(0, wanted - len(operands)))):
            operands.append(draw(_operand(len(operands), axes, operands)))
            source = operands[-1].source
            scope.leaves += [
                Value(len(operands) - 1, f.name, f.dtype) for f in source.schema.fields
            ]

    guard = draw(_expr(scope, B, 2)) if draw(st.integers(0, 2)) == 0 else TRUE
    labels = [a.label for a in axes]
    if draw(st.integers(0, 2)) == 0:  # at most one point per key
        keys = draw(st.permutations([a.label for a in axes if not a.define or draw(st.booleans())]))
    else:
        keys = draw(st.permutations([x for x in labels if draw(st.booleans())]))
    inexact = draw(st.integers(0, 5)) == 0
    points = int(np.prod([a.extent for a in axes if a.define is None]))
    elementwise_ok = all(a.label in keys for a in axes if a.define is None)
    outputs = tuple(
        draw(_output(f"v{n}", scope, elementwise_ok, inexact, points))
        for n in range(draw(st.sampled_from((1, 1, 2, 3))))
    )
    if draw(st.integers(0, 4)) == 0:
        where = draw(_expr(scope, B, 1))
        outputs += (Output(PRESENT, (TRUE,), B, "bool_or", where),)
    node = EinSum(tuple(axes), tuple(operands), guard, tuple(keys), outputs)
    return Case(node, _arrays(draw, node, rng, specials, huge), inexact)


@st.composite
def _derived_axis(draw: st.DrawFn, name: str, scope: _Scope) -> Axis:
    dtype = draw(st.sampled_from((I64, I64, I32, T)))
    base = draw(_expr(scope, dtype, draw(st.integers(0, 1))))
    number = Const(draw(st.sampled_from((2, 3, 1))), dtype)
    kind = draw(st.sampled_from(("plain", "affine", "segment", "mod")))
    if kind == "affine":
        base = Call("add", (Call("mul", (base, number), dtype), Const(1, dtype)), dtype)
    elif kind == "segment":
        base = Call("idiv", (base, number), dtype)
    elif kind == "mod":
        base = Call("mod", (base, number), dtype)
    lo = draw(st.integers(-2, 1))
    return Axis(name, lo, lo + draw(st.sampled_from((3, 4, 2, 1, 0))), base)


@st.composite
def _operand(draw: st.DrawFn, number: int, axes: list[Axis], before: list[Operand]) -> Operand:
    bounds = {a.label: (a.lo, a.hi) for a in axes}
    if before and draw(st.integers(0, 3)) == 0:  # the same relation a second time
        source = draw(st.sampled_from(before)).source
        fits = [
            [x for x, (lo, hi) in bounds.items() if k.lo <= lo and hi <= k.hi]
            for k in source.schema.keys
        ]
        if all(fits):
            return Operand(source, tuple(draw(st.sampled_from(f)) for f in fits))
    labels = draw(st.lists(st.sampled_from(sorted(bounds)), max_size=3)) if bounds else []
    keys = tuple(
        Key(
            f"k{n}",
            bounds[x][0] - draw(st.sampled_from((0, 0, 1))),
            bounds[x][1] + draw(st.sampled_from((0, 0, 2))),
        )
        for n, x in enumerate(labels)
    )
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    fields = tuple(Field(f"f{n}", t) for n, t in enumerate(types))
    return Operand(Input(f"r{number}", Schema(keys, fields)), tuple(labels))


@st.composite
def _output(
    draw: st.DrawFn, name: str, scope: _Scope, elementwise_ok: bool, inexact: bool, points: int
) -> Output:
    dtype = draw(st.sampled_from((F, D) if inexact else TYPES))
    depth = draw(st.integers(0, 3 if dtype is B else 2))
    arg = draw(_expr(scope, dtype, depth))
    if inexact:
        fn = draw(st.sampled_from(_ROUNDING_FNS))
        args = (Const(1.0, dtype), arg) if fn == "div" else (arg,)
        arg = Call(fn, args, dtype)
    if elementwise_ok and draw(st.integers(0, 2)) > 0:
        return Output(name, (arg,), dtype)
    reductions = [
        r
        for r in _REDUCTIONS[dtype]
        # A long FLOAT product leaves the range in which it is exact.
        if not (r == "product" and dtype.is_float and (inexact or points > 8))
    ]
    reduction = draw(st.sampled_from(reductions))
    where = draw(_expr(scope, B, 2)) if draw(st.integers(0, 2)) == 0 else TRUE
    if reduction.startswith("arg_"):
        value = draw(_expr(scope, draw(st.sampled_from(TYPES)), 1))
        return Output(name, (arg, value), dtype, reduction, where)
    return Output(name, (arg,), dtype, reduction, where)


@st.composite
def _expr(draw: st.DrawFn, scope: _Scope, dtype: DType, depth: int) -> Expr:
    """A well-typed expression of a type."""
    if depth == 0 or dtype.is_short or draw(st.integers(0, 4)) == 0:
        return draw(_leaf(scope, dtype))
    if draw(st.integers(0, 7)) == 0:
        source = draw(st.sampled_from(_castable(scope, dtype)))
        return Call("cast", (draw(_expr(scope, source, depth - 1)),), dtype)
    if dtype is T and draw(st.integers(0, 4)) == 0:
        kind = draw(st.sampled_from((F, D, I64)))
        return Call("sign", (draw(_expr(scope, kind, depth - 1)),), T)
    fn = draw(
        st.sampled_from(
            _BOOLEAN_FNS if dtype is B else _FLOAT_FNS if dtype.is_float else _INTEGER_FNS
        )
    )
    inner = dtype
    if fn in ("eq", "ne", "lt", "le"):
        inner = draw(st.sampled_from((B, T, I32, I64, F, D)))
    elif fn in ("isnan", "isinf", "isfinite"):
        inner = draw(st.sampled_from((F, D)))
    types = [inner] * SCALARS[fn].arity
    if fn == "if":
        types[0] = B
    return Call(fn, tuple(draw(_expr(scope, t, depth - 1)) for t in types), dtype)


def _castable(scope: _Scope, dtype: DType) -> list[DType]:
    """Types whose values in this scope a type holds exactly, or refuses."""
    rounds = scope.huge and dtype.is_float
    return [t for t in TYPES if t is not dtype and not (rounds and t.is_integer)]


@st.composite
def _leaf(draw: st.DrawFn, scope: _Scope, dtype: DType) -> Expr:
    same = [e for e in scope.leaves if e.dtype is dtype]
    if same and draw(st.integers(0, 4)) > 0:
        return draw(st.sampled_from(same))
    others = [e for e in scope.leaves if e.dtype in _castable(scope, dtype)]
    if others and draw(st.integers(0, 4)) > 0:
        return Call("cast", (draw(st.sampled_from(others)),), dtype)
    if dtype is B:
        return Const(draw(st.booleans()), B)
    if dtype.is_float:
        return Const(draw(st.sampled_from((0.0, 1.0, -1.0, 0.5, 2.0, -1.5))), dtype)
    choices = [0, 1, 2, 3, -1, -2]
    return Const(draw(st.sampled_from([*choices, *dtype.range] if scope.huge else choices)), dtype)


def _arrays(
    draw: st.DrawFn, node: EinSum, rng: np.random.Generator, specials: bool, huge: bool
) -> tuple[dict[str, np.ndarray], ...]:
    made: dict[int, dict[str, np.ndarray]] = {}
    for operand in node.operands:
        source = operand.source
        if id(source) not in made:
            made[id(source)] = {
                f.name: lay_out(
                    random_array(source.schema.shape, f.dtype, rng, specials, huge),
                    draw(st.integers(0, 5)),
                )
                for f in source.schema.fields
            }
    return tuple(made[id(o.source)] for o in node.operands)


def random_array(
    shape: tuple[int, ...],
    dtype: DType,
    rng: np.random.Generator,
    specials: bool = False,
    huge: bool = False,
) -> np.ndarray:
    """Small dyadic values as a field holds them, some NaN and infinite or integer extremes."""
    if dtype is B:
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.is_integer:
        values = np.asarray(rng.integers(-3, 5, shape), dtype=dtype.numpy)
        extremes: list[float] = list(dtype.range) if huge else []
    else:
        values = np.asarray(rng.integers(-8, 9, shape) / 2, dtype=dtype.carrier)
        extremes = [np.nan, np.inf, -np.inf, -0.0] if specials else []
    for x in extremes:
        values = np.where(rng.random(shape) < 0.1, np.asarray(x, values.dtype), values)
    return np.asarray(stored(values, dtype), dtype=dtype.numpy)


def lay_out(values: np.ndarray, kind: int) -> np.ndarray:
    """The same values (for kind 4: one value along axis 0) in another memory layout."""
    if values.ndim == 0:
        return values
    if kind == 1:
        return np.asfortranarray(values)
    if kind == 2:  # every second element of a larger buffer
        buffer = np.zeros([2 * n for n in values.shape], values.dtype)
        view = buffer[tuple(slice(None, None, 2) for _ in values.shape)]
        view[...] = values
        return view
    if kind == 3:  # negative strides
        turn = tuple(slice(None, None, -1) for _ in values.shape)
        return np.ascontiguousarray(values[turn])[turn]
    if kind == 4 and values.shape[0]:
        return np.broadcast_to(values[:1], values.shape)
    if kind == 5:
        values.flags.writeable = False
    return values


def no_tick(_: float) -> None:
    """Progress that nobody watches."""


def expected(case: Case) -> dict[str, np.ndarray] | DataError:
    """What the reference answers, floats as float64."""
    inputs = {
        o.source.name: f
        for o, f in zip(case.node.operands, case.operands, strict=True)
        if isinstance(o.source, Input)
    }
    try:
        return evaluate(case.node, inputs)
    except DataError as error:
        return error


def check(case: Case, runner: Runner) -> None:
    """Asserts that a kernel's runner answers what the reference does.

    Element-wise outputs count where the point exists, reductions everywhere, and neither
    where presence is false.
    """
    node = case.node
    frozen = [{n: _read_only(a) for n, a in fields.items()} for fields in case.operands]
    wanted = expected(case)
    got: dict[str, np.ndarray] | DataError
    try:
        got = runner(frozen, no_tick)
    except DataError as error:
        got = error
    if isinstance(wanted, DataError) or isinstance(got, DataError):
        both = isinstance(wanted, DataError) and isinstance(got, DataError)
        assert both or _depends_on_order(node, wanted, got), (wanted, got)
        return
    assert set(got) == {o.name for o in node.outputs}
    exists = _exists(case)
    for o in node.outputs:
        a, e = got[o.name], wanted[o.name]
        assert isinstance(a, np.ndarray), o
        assert a.dtype == o.dtype.numpy, o
        assert a.shape == node.schema.shape, o
        seen = np.ones(e.shape, dtype=bool)
        if PRESENT in wanted and o.name != PRESENT:
            seen &= wanted[PRESENT]
        if o.reduction is None:
            seen &= exists
        _compare(loaded(a, o.dtype)[seen], e[seen], o, case)


def _compare(got: np.ndarray, wanted: np.ndarray, o: Output, case: Case) -> None:
    if case.reordered:
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(got), finite, err_msg=str(o))
        got, wanted = got[finite], wanted[finite]
    if not o.dtype.is_float or not (case.inexact or o.dtype.is_short):
        np.testing.assert_array_equal(got, wanted, err_msg=str(o))
        return
    # Every value is a sum of at most 64 terms below 2^10; the short types round each once.
    with np.errstate(over="ignore"):
        wanted = rounded(wanted) if o.dtype is BF else wanted.astype(o.dtype.numpy)
    limits = np.finfo(o.dtype.carrier)
    tolerance = 16 * (2.0**-7 if o.dtype is BF else float(limits.eps))
    sized = np.abs(wanted.astype(np.float64))
    usual = np.isfinite(wanted) & (sized < limits.max / 1e3)
    np.testing.assert_array_equal(np.isnan(got[~usual]), np.isnan(wanted[~usual]))
    np.testing.assert_allclose(
        got[usual].astype(np.float64),
        wanted[usual].astype(np.float64),
        rtol=tolerance,
        atol=tolerance * (64 if o.reduction == "sum" else 1),
        err_msg=str(o),
    )


def _exists(case: Case) -> np.ndarray:
    """Where a point of the node's result exists at all."""
    probe = Output("exists", (TRUE,), B, "bool_or")
    found = expected(replace(case, node=replace(case.node, outputs=(probe,))))
    assert not isinstance(found, DataError)
    return found["exists"]


def _depends_on_order(node: EinSum, *results: dict[str, np.ndarray] | DataError) -> bool:
    """Integer sums and products may leave the range in one order and not in another."""
    error = next(r for r in results if isinstance(r, DataError))
    reduced = {o.dtype for o in node.outputs if o.reduction in ("sum", "product")}
    return any(
        t.is_integer and error.reason.startswith("Overflow") and error.reason.endswith(t.value)
        for t in reduced
    )


def _read_only(values: np.ndarray) -> np.ndarray:
    view = values.view()
    view.flags.writeable = False
    return view


def functions_used(node: EinSum) -> set[str]:
    """Names of the scalar functions a node calls."""
    return {s.fn for e in exprs(node) for s in subexpressions(e) if isinstance(s, Call)}
