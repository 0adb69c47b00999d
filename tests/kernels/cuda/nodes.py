"""Nodes that the tests of kernels on devices share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from einsql.core.schema import DType, Field, Key, Schema
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
from einsql.ir.functions import SCALARS
from tests.kernels.nodes import Case, random_array

B, I32, I64 = DType.BOOLEAN, DType.INTEGER, DType.BIGINT
H, F, D = DType.HALF, DType.FLOAT, DType.DOUBLE


def tensor(name: str, dtype: DType, **extents: int) -> Input:
    """A relation of one field."""
    keys = tuple(Key(k, 0, n) for k, n in extents.items())
    return Input(name, Schema(keys, (Field("val", dtype),)))


def pairs() -> list[Case]:
    """Reductions of two sides: each ⊕, types, labels in groups, edges of tiles, labels read."""

    def fn(name: str, dtype: DType, *args: Expr) -> Call:
        return Call(name, args, dtype)

    def side(n: int, dtype: DType) -> Value:
        return Value(n, "val", dtype)

    a, b = side(0, F), side(1, F)
    gap = fn("sub", F, a, b)
    whole, other = side(0, I32), side(1, I32)
    true, false = side(0, B), side(1, B)
    outputs = [
        Output("min-plus", (fn("add", F, a, b),), F, "min"),
        Output("max-abs", (fn("abs", F, gap),), F, "max"),
        Output("sum-of-squares", (fn("mul", F, gap, gap),), F, "sum"),
        Output("double", (fn("mul", D, side(0, D), side(1, D)),), D, "product"),
        Output("integers", (fn("mul", I32, whole, other),), I32, "sum"),
        Output("or-and", (fn("and", B, true, false),), B, "bool_or"),
        Output("arg-min", (Label("k"), fn("add", F, a, b)), I64, "arg_min"),
        Output("rows", (fn("add", F, a, b),), F, "max", fn("lt", B, Label("i"), Label("j"))),
        Output("half", (fn("cast", F, side(0, H)),), F, "sum", fn("lt", B, a, side(1, H))),
    ]
    cases = []
    for n, o in enumerate(outputs):
        read = {e.operand: e.dtype for e in _values(o)}
        left, right = read[0], read[1]
        if o.name == "half":
            left = right = H
            a16 = fn("cast", F, side(0, H)), fn("cast", F, side(1, H))
            o = Output("half", (fn("mul", F, *a16),), F, "max")
        extents = {"b": 2, "i": 5 + n % 3, "k": 3 + 5 * n, "j": 3}
        axes = tuple(Axis(x, 0, e) for x, e in extents.items())
        x = tensor("x", left, **{key: extents[key] for key in "ibk"})
        y = tensor("y", right, **{key: extents[key] for key in "bkj"})
        node = EinSum(axes, (Operand(x, tuple("ibk")), Operand(y, tuple("bkj"))), TRUE,
                      tuple("jbi"), (o,))  # fmt: skip
        rng = np.random.default_rng(n)
        specials = o.reduction in ("min", "max", "arg_min")
        arrays = (
            {"val": random_array(s.schema.shape, t, rng, specials)}
            for s, t in ((x, left), (y, right))
        )
        cases.append(Case(node, tuple(arrays), o.name == "double"))
    return cases


def awkward() -> list[Case]:
    """Keys computed from keys, from data, from both, and long sums of few keys."""
    x = tensor("x", F, i=6, j=20)
    to = tensor("to", I64, j=20)
    value = Output("value", (Value(0, "val", F),), F, "sum")
    half: Expr = Call("idiv", (Label("i"), Const(2, I64)), I64)
    found = Value(1, "val", I64)
    mixed: Expr = Call("add", (Label("i"), found), I64)
    i, j = Axis("i", 0, 6), Axis("j", 0, 20)
    read = Operand(x, ("i", "j")), Operand(to, ("j",))
    first = Output("arg", (Label("j"), Value(0, "val", F)), I64, "arg_max")
    some = Call("lt", (Value(0, "val", F), Const(1.0, F)), B)
    nodes = [
        ("key of a key", (i, j, Axis("d", 0, 2, half)), ("d", "i"), value),
        ("key in data", (i, j, Axis("d", 0, 3, found)), ("i", "d"), value),
        ("key in data, nothing else", (i, j, Axis("d", 1, 4, found)), ("d",), first),
        ("key of both", (i, j, Axis("d", 1, 7, mixed)), ("d", "i"), value),
        ("two keys in data", (i, j, Axis("d", 0, 3, found), Axis("e", 0, 2, half)), ("e", "d"),
         replace(value, where=some)),
        ("all", (i, j), (), replace(first, reduction="arg_min", where=some)),
    ]  # fmt: skip
    cases = []
    rng = np.random.default_rng(7)
    for name, axes, keys, output in nodes:
        node = EinSum(axes, read, TRUE, keys, (replace(output, name=name),))
        arrays = random_array((6, 20), F, rng, output is not value), rng.integers(-1, 5, 20)
        cases.append(Case(node, tuple({"val": a} for a in arrays)))
    whole = tensor("n", I64, i=40)
    total = Output("integers", (Value(0, "val", I64),), I64, "sum")
    node = EinSum((Axis("i", 0, 40),), (Operand(whole, ("i",)),), TRUE, (), (total,))
    large = np.full(40, 2**62 // 10)
    return [*cases, Case(node, ({"val": large // 4},)), Case(node, ({"val": large},))]


def _values(o: Output) -> list[Value]:
    found: list[Value] = []
    stack: list[Expr] = [*o.args, o.where]
    while stack:
        e = stack.pop()
        if isinstance(e, Value):
            found.append(e)
        elif isinstance(e, Call):
            stack += e.args
    return found


_INTEGERS = ("add", "sub", "mul", "idiv", "mod", "neg", "abs", "sign", "bitand", "bitor", "xor",
             "trunc", "round", "eq", "lt", "greatest")  # fmt: skip
_SKIPPED = ("and", "or", "not", "if", "within", "bitand", "bitor", "xor")


def scalars(dtype: DType) -> Case:
    """A node with one output per scalar function over one type, and awkward values."""
    if dtype.is_float:
        values = [0.0, -0.0, 0.5, -0.5, 1.5, -2.5, 3.0, -7.25, 1e-30, 40.0, np.inf, -np.inf, np.nan]
    else:
        values = [0, 1, -1, 2, -3, 7, 100, -100]
    x = np.array(values, dtype.numpy)
    y = np.roll(x, 3)
    y[y == 0] = 2
    schema = Schema((Key("i", 0, len(x)),), (Field("x", dtype), Field("y", dtype)))
    built_in = [name for name, f in SCALARS.items() if not f.opaque and name not in _SKIPPED]
    names = built_in if dtype.is_float else _INTEGERS
    outputs = []
    for name in names:
        entry = SCALARS[name]
        types = entry.types((dtype,) * entry.arity, True)
        if types is None or set(types.args) != {dtype}:
            continue
        args = tuple(Value(0, "xyx"[n], dtype) for n in range(entry.arity))
        outputs.append(Output(name, (Call(name, args, types.result),), types.result))
    node = EinSum((Axis("i", 0, len(x)),), (Operand(Input("r", schema), ("i",)),), TRUE,
                  ("i",), tuple(outputs))  # fmt: skip
    return Case(node, ({"x": x, "y": y},))
