"""Random well-formed EinSum graphs over tiny domains, and the data they read.

Floats are small dyadic rationals, so sums and products are exact in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np

from einsql.core.schema import PRESENT, DType, Field, Key, Schema, valid
from einsql.errors import DataError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Const,
    EinSum,
    Expr,
    Input,
    Label,
    Node,
    Operand,
    Output,
    Value,
    call,
    conj,
    walk,
)
from einsql.ir.einsum.graph_rewriting import negate
from einsql.ir.einsum.interpreter import Fields, evaluate

B, I32, I64, D = DType.BOOLEAN, DType.INTEGER, DType.BIGINT, DType.DOUBLE
_REDUCTIONS = {
    B: ("bool_or", "bool_and"),
    I32: ("sum", "min", "max", "bit_xor"),
    I64: ("sum", "min", "max", "product", "arg_min", "bit_and", "bit_or"),
    D: ("sum", "sum", "min", "max"),
}
_CHAINS = {"sum": "mul", "min": "add", "max": "add", "bool_or": "and", "bool_and": "or"}


def key(value: int) -> Const:
    return Const(value, I64)


def less(a: Expr, b: Expr) -> Expr:
    return call("lt", B, a, b)


def equals(a: Expr, b: Expr) -> Expr:
    return call("eq", B, a, b)


def tensor(name: str, *keys: tuple[int, int], dtype: DType = D, present: bool = False) -> Input:
    """An input with keys k0, k1, … of the given bounds and one value."""
    fields = (Field("val", dtype), *([Field(PRESENT, B)] if present else []))
    return Input(
        name, Schema(tuple(Key(f"k{n}", lo, hi) for n, (lo, hi) in enumerate(keys)), fields)
    )


def data(root: Node, seed: int) -> dict[str, Fields]:
    """Random fields for every input of a graph."""
    rng = np.random.default_rng(seed)
    made: dict[str, Fields] = {}
    for node in walk(root):
        if isinstance(node, Input) and node.name not in made:
            made[node.name] = {
                f.name: _array(rng, node.schema.shape, f.dtype) for f in node.schema.fields
            }
    return made


def _array(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype is B:
        return np.asarray(rng.random(shape) < 0.7)
    values = rng.integers(-1, 4, shape)
    return np.asarray(values / 2 if dtype.is_float else values, dtype.numpy)


def run(root: Node, inputs: dict[str, Fields]) -> Fields | DataError:
    try:
        return evaluate(root, inputs)
    except DataError as error:
        return error


def assert_equal_results(before: Node, after: Node, inputs: dict[str, Fields]) -> None:
    """The second graph answers as the first does; it may raise less, never more."""
    wanted, got = run(before, inputs), run(after, inputs)
    if isinstance(wanted, DataError):
        return
    assert not isinstance(got, DataError), got
    shape = before.schema.shape
    present = wanted.get(PRESENT, np.ones(shape, bool))
    np.testing.assert_array_equal(got.get(PRESENT, np.ones(shape, bool)), present)
    for f in before.schema.fields:
        found = got.get(f.name, np.ones(shape, bool))
        np.testing.assert_array_equal(found[present], wanted[f.name][present], err_msg=f.name)


def random_graph(seed: int) -> EinSum:
    """A graph of 1–5 EinSum nodes; the same seed gives the same graph."""
    return _Builder(Random(seed)).graph()


@dataclass
class _Draft:
    """A node in the making."""

    axes: dict[str, Axis] = field(default_factory=dict)
    operands: list[Operand] = field(default_factory=list)
    lazy: list[int] = field(default_factory=list)
    guard: list[Expr] = field(default_factory=list)

    def readable(self) -> list[Value]:
        """Values an expression may read wherever the point exists."""
        return [
            Value(n, f.name, f.dtype)
            for n, o in enumerate(self.operands)
            if n not in self.lazy
            for f in o.source.schema.fields
            if f.name != PRESENT
        ]


class _Builder:
    def __init__(self, random: Random) -> None:
        self.random = random
        self.pool: list[Node] = [self.input(f"x{n}") for n in range(random.randint(1, 3))]

    def chance(self, p: float) -> bool:
        return self.random.random() < p

    def graph(self) -> EinSum:
        node = self.node()
        for _ in range(self.random.choice((0, 1, 1, 2, 2, 3, 4))):
            self.pool.append(node)
            if self.chance(0.2):
                self.pool.append(self.node())
            node = self.node(last=node)
        return node

    def input(self, name: str) -> Input:
        keys = tuple(Key(f"k{n}", *self.bounds()) for n in range(self.random.choice((0, 1, 2, 2))))
        dtype = self.random.choice((D, D, D, I32, I64, B))
        fields = [Field("val", dtype)]
        if self.chance(0.3):
            fields.append(Field("w", self.random.choice((I64, B))))
        if self.chance(0.25):
            fields.append(Field(PRESENT, B))
        return Input(name, Schema(keys, tuple(fields)))

    def bounds(self) -> tuple[int, int]:
        lo = self.random.choice((0, 0, 0, 1, -1))
        return lo, lo + self.random.choice((3, 3, 2, 2, 4, 3, 2, 1, 4, 2, 3, 0))

    def node(self, last: Node | None = None) -> EinSum:
        draft = _Draft()
        if self.chance(0.15):
            draft.axes["z"] = Axis("z", *self.bounds())
        count = self.random.choice((1, 1, 2, 2, 3)) if last else self.random.choice((0, 1, 2, 3))
        for n in range(count):
            self.operand(draft, last if last and n == 0 else self.random.choice(self.pool))
        if self.chance(0.2):
            self.derived(draft)
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            draft.guard.append(self.condition(draft))
        self.random.shuffle(draft.guard)
        for n, o in enumerate(draft.operands):  # presence first, as reading needs it
            if o.source.schema.has(PRESENT) and n not in draft.lazy:
                draft.guard.insert(0, Value(n, PRESENT, B))
        return self.finish(draft)

    def operand(self, draft: _Draft, source: Node) -> None:
        labels = []
        for k in source.schema.keys:
            old = [a for a in draft.axes.values() if a.define is None]
            if old and self.chance(0.6):
                a = self.random.choice(old)
                lo, hi = max(a.lo, k.lo), min(a.hi, k.hi)
                draft.axes[a.label] = Axis(a.label, lo, max(lo, hi))
                labels.append(a.label)
                continue
            label = f"{'ijlmn'[len(draft.axes) % 5]}{len(draft.axes)}"
            lo, hi = k.lo, k.hi
            if self.chance(0.2) and hi - lo > 1:
                lo, hi = self.random.choice(((lo + 1, hi), (lo, hi - 1)))
            define = self.definition(draft) if self.chance(0.12) and draft.axes else None
            draft.axes[label] = Axis(label, lo, hi, define)
            labels.append(label)
        draft.operands.append(Operand(source, tuple(labels)))
        if source.schema.has(PRESENT) and self.chance(0.1):
            draft.lazy.append(len(draft.operands) - 1)

    def derived(self, draft: _Draft) -> None:
        if draft.axes:
            draft.axes["d"] = Axis("d", *self.bounds(), self.definition(draft))

    def definition(self, draft: _Draft) -> Expr:
        wide = [v for v in draft.readable() if v.dtype is I64]
        if wide and self.chance(0.4):
            return self.random.choice(wide)
        label = Label(self.random.choice(list(draft.axes)))
        shifted = call("add", I64, label, key(self.random.choice((1, -1))))
        halved = call("idiv", I64, label, key(2))
        return self.random.choice((label, label, shifted, halved))

    def condition(self, draft: _Draft) -> Expr:
        labels = [Label(x) for x in draft.axes]
        values = draft.readable()
        if labels and self.chance(0.7):
            a: Expr = self.random.choice(labels)
            if self.chance(0.2):
                a = call(self.random.choice(("add", "sub")), I64, a, key(1))
            b: Expr = key(self.random.randint(-1, 3))
            if len(labels) > 1 and self.chance(0.5):
                b = self.random.choice(labels)
            if self.chance(0.15):
                a, b = call("cast", D, a), Const(self.random.choice((0.5, 1.0, 2.5)), D)
            if self.chance(0.3):
                a, b = b, a
            e = call(self.random.choice(("eq", "lt", "le", "eq", "ne")), B, a, b)
        elif values:
            v = self.random.choice(values)
            e = v if v.dtype is B else less(Const(0.0 if v.dtype is D else 0, v.dtype), v)
        else:
            e = self.random.choice((TRUE, TRUE, less(key(0), key(1))))
        return negate(e) if self.chance(0.2) else e

    def expr(self, draft: _Draft, dtype: DType, depth: int) -> Expr:
        if depth == 0 or self.chance(0.3):
            found: list[Expr] = [v for v in draft.readable() if v.dtype is dtype]
            if dtype is I64:
                found += [Label(x) for x in draft.axes]
            if found and self.chance(0.85):
                return self.random.choice(found)
            values = {B: (True, False), D: (1.0, 0.5, 0.0)}.get(dtype, (1, 0, 2))
            return Const(self.random.choice(values), dtype)
        if dtype is B:
            if self.chance(0.5):
                return self.condition(draft)
            fn = self.random.choice(("and", "or"))
            return call(fn, B, self.expr(draft, B, depth - 1), self.expr(draft, B, depth - 1))
        if self.chance(0.1):
            other = self.random.choice((I32, I64))
            return call("cast", dtype, self.expr(draft, other, depth - 1))
        if self.chance(0.15):
            arms = self.expr(draft, dtype, depth - 1), self.expr(draft, dtype, depth - 1)
            return call("if", dtype, self.condition(draft), *arms)
        fns = ["add", "sub", "mul", "mul", "greatest"] + ["idiv"] * dtype.is_integer
        args = self.expr(draft, dtype, depth - 1), self.expr(draft, dtype, depth - 1)
        return call(self.random.choice(fns), dtype, *args)

    def chain(self, draft: _Draft, dtype: DType, fn: str) -> Expr:
        found: list[Expr] = [v for v in draft.readable() if v.dtype is dtype]
        parts = found or [self.expr(draft, dtype, 0)]
        result = parts[0]
        for p in parts[1:]:
            result = call(fn, dtype, result, p)
        return result

    def finish(self, draft: _Draft) -> EinSum:
        known: set[str] = set()
        axes = []
        for a in sorted(draft.axes.values(), key=lambda a: a.define is not None):
            axes.append(a)
            known.add(a.label)
        free = [a.label for a in axes if a.define is None]
        derived = [a.label for a in axes if a.define is not None]
        pointwise = self.chance(0.45) or not free
        keys = free if pointwise else [x for x in free if self.chance(0.5)]
        keys += [x for x in derived if self.chance(0.3 if pointwise else 0.6)]
        self.random.shuffle(keys)
        guard = conj(*draft.guard)
        outputs = [
            self.output(draft, name, pointwise) for name in ("val", "w")[: 1 + self.chance(0.3)]
        ]
        if self.chance(0.2):
            outputs.append(self.flag(draft, valid("val"), pointwise))
        if guard != TRUE or derived:
            simple = pointwise and not derived and self.chance(0.4)
            if pointwise or self.chance(0.7):
                args, reduction = ((guard,), None) if simple else ((TRUE,), "bool_or")
                outputs.append(Output(PRESENT, args, B, reduction))
        elif self.chance(0.3):
            outputs.append(Output(PRESENT, (TRUE,), B, "bool_or"))
        return EinSum(tuple(axes), tuple(draft.operands), guard, tuple(keys), tuple(outputs))

    def output(self, draft: _Draft, name: str, pointwise: bool) -> Output:
        dtype = self.random.choice((D, D, D, I32, I64, B))
        if pointwise and self.chance(0.9):
            return Output(name, (self.guarded(draft, self.expr(draft, dtype, 2)),), dtype)
        reduction = self.random.choice(_REDUCTIONS[dtype])
        where = self.condition(draft) if self.chance(0.15) else TRUE
        if reduction == "arg_min":
            return Output(
                name, (self.expr(draft, dtype, 1), self.expr(draft, D, 1)), dtype, reduction, where
            )
        if reduction in _CHAINS and self.chance(0.5):
            arg = self.chain(draft, dtype, _CHAINS[reduction])
        else:
            arg = self.guarded(draft, self.expr(draft, dtype, 2))
        return Output(name, (arg,), dtype, reduction, where)

    def guarded(self, draft: _Draft, expr: Expr) -> Expr:
        """Sometimes reads an operand whose presence the guard does not ask for."""
        for n in draft.lazy:
            for f in draft.operands[n].source.schema.fields:
                if f.dtype is expr.dtype and f.name != PRESENT:
                    asked = Value(n, PRESENT, B)
                    return call("if", expr.dtype, asked, Value(n, f.name, f.dtype), expr)
        return expr

    def flag(self, draft: _Draft, name: str, pointwise: bool) -> Output:
        e = self.expr(draft, B, 1)
        if pointwise:
            return Output(name, (e,), B)
        return Output(name, (TRUE,), B, "bool_or", e)


def random_join(seed: int) -> EinSum:
    """A reduction over a join of 3–6 inputs, as contraction order is chosen for."""
    random = Random(seed)
    dtype, small = random.choice(((D, D), (D, D), (I64, DType.TINYINT), (B, B)))
    bounds = {x: random.choice(((0, 1), (0, 2), (0, 3), (1, 3))) for x in "ijklm"}
    operands = _join_operands(random, small, bounds)
    read = {x for o in operands for x in o.labels} | set(random.choice(("", "", "", "i")))
    used = sorted(read)
    values = [Value(n, "val", small) for n in range(len(operands))]
    guard = _join_guard(random, operands, used, values)
    outputs = [
        _join_output(random, name, dtype, values, used)
        for name in ("val", "w")[: random.choice((1, 1, 2))]
    ]
    if guard:
        outputs.append(Output(PRESENT, (TRUE,), B, "bool_or"))
    axes = tuple(Axis(x, *bounds[x]) for x in used)
    keys = tuple(x for x in used if random.random() < 0.4)
    return EinSum(axes, operands, conj(*guard), keys, tuple(outputs))


def _join_operands(
    random: Random, dtype: DType, bounds: dict[str, tuple[int, int]]
) -> tuple[Operand, ...]:
    operands = []
    for n in range(random.choice((3, 3, 4, 5))):
        labels = tuple(random.sample("ijklm", random.choice((0, 1, 2, 2, 2))))
        has_flag = random.random() < 0.3
        source = tensor(f"x{n}", *(bounds[x] for x in labels), dtype=dtype, present=has_flag)
        operands.append(Operand(source, labels))
    if random.random() < 0.3:
        operands.append(random.choice(operands))
    return tuple(operands)


def _join_guard(
    random: Random, operands: tuple[Operand, ...], used: list[str], values: list[Value]
) -> list[Expr]:
    guard: list[Expr] = [
        Value(n, PRESENT, B) for n, o in enumerate(operands) if o.source.schema.has(PRESENT)
    ]
    for _ in range(random.choice((0, 0, 1, 2))):
        if len(used) > 1 and random.random() < 0.6:
            labels = [Label(x) for x in random.sample(used, 2)]
            guard.append(call(random.choice(("le", "ne")), B, *labels))
        else:
            guard.append(call(random.choice(("le", "eq")), B, *random.sample(values, 2)))
    return guard


def _join_output(
    random: Random, name: str, dtype: DType, values: list[Value], used: list[str]
) -> Output:
    reductions = {B: ("bool_or", "bool_and"), I64: ("sum", "max"), D: ("sum", "sum", "min", "max")}
    reduction = random.choice(reductions[dtype])
    read: list[Expr] = [v for v in values if random.random() < 0.9] or [values[0]]
    if random.random() < 0.2 and used:
        read.append(less(Label(used[0]), key(1)))
    terms = [e if e.dtype is dtype else call("cast", dtype, e) for e in read]
    arg = terms[0]
    for term in terms[1:]:
        arg = call(_CHAINS[reduction], dtype, arg, term)
    return Output(name, (arg,), dtype, reduction)
