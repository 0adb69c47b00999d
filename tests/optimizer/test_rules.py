"""Each rule: where it fires, what it leaves, and that random graphs keep their meaning."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einsql.core.schema import PRESENT, DType
from einsql.errors import InterfaceError, InternalError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
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
from einsql.ir.einsum.printer import format_graph
from einsql.ir.einsum.states import EARLIER, LATER, State, StateField, define
from einsql.ir.hints import Ring
from einsql.optimizer import RULES, STAGES, Optimized, Rule, optimize
from einsql.optimizer.rewrite.rules import rebuild
from einsql.optimizer.rewrite.verify import verify
from tests.kernels.laws import WITNESS
from tests.optimizer.graphs import (
    assert_equal_results,
    data,
    equals,
    key,
    less,
    random_graph,
    random_join,
    tensor,
)
from tests.support.samples import sample

B, I64, D = DType.BOOLEAN, DType.BIGINT, DType.DOUBLE
NAMES = [r.name for r in RULES]
PRESENCE = Output(PRESENT, (TRUE,), B, "bool_or")


def val(n: int, dtype: DType = D) -> Value:
    return Value(n, "val", dtype)


_SIDES = (Value(EARLIER, "v", D), Value(LATER, "v", D))
(LAST,) = define(
    State(
        "last",
        (StateField("v", D, float("nan")),),
        (Call("if", (call("isnan", B, _SIDES[1]), *_SIDES), D),),
        ordered=True,
    )
)
"""The reduction to the last value that is not NaN, in the order of the axes."""


def einsum(
    text: str,
    *sources: Node,
    value: Expr | None = None,
    reduction: str | None = None,
    guard: Expr = TRUE,
    extra: tuple[Output, ...] = (),
    bounds: dict[str, tuple[int, int]] | None = None,
) -> EinSum:
    """A node by its labels, as in `ik,kj->ij`; bounds default to those of the keys."""
    inputs, keys = text.split("->")
    labels = inputs.split(",") if sources else []
    found: dict[str, tuple[int, int]] = {}
    for source, names in zip(sources, labels, strict=True):
        for k, name in zip(source.schema.keys, names, strict=True):
            found.setdefault(name, (k.lo, k.hi))
    found |= bounds or {}
    value = value if value is not None else val(0)
    return EinSum(
        tuple(Axis(x, *b) for x, b in found.items()),
        tuple(Operand(s, tuple(names)) for s, names in zip(sources, labels, strict=True)),
        guard,
        tuple(keys),
        (Output("val", (value,), value.dtype, reduction), *extra),
    )


def times(a: Expr, b: Expr) -> Expr:
    return call("mul", D, a, b)


def matmul(a: Node, b: Node) -> EinSum:
    return einsum("ik,kj->ij", a, b, value=times(val(0), val(1)), reduction="sum")


X, Y, Z = (tensor(name, (0, 4), (0, 4)) for name in "xyz")
SQUARED = call("exp", D, val(0))


def folding() -> EinSum:
    value = times(call("add", D, Const(1.0, D), Const(1.5, D)), times(val(0), Const(1.0, D)))
    guard = call("le", B, key(0), Label("i"))
    return einsum("ij->ij", X, value=value, guard=guard, extra=(PRESENCE,))


def narrowing() -> EinSum:
    guard = conj(less(Label("j"), key(3)), call("not", B, less(Label("j"), key(1))))
    return einsum("ij->i", X, reduction="sum", guard=guard)


def unifying() -> EinSum:
    return einsum("ij->i", X, reduction="sum", guard=equals(Label("i"), Label("j")))


def slicing() -> EinSum:
    total = einsum("ij->i", X, reduction="sum")
    return einsum("i->", total, reduction="max", bounds={"i": (1, 3)})


def filtering() -> EinSum:
    largest = einsum("ij->i", X, reduction="max", extra=(PRESENCE,))
    guard = conj(Value(0, PRESENT, B), call("ne", B, Label("i"), key(2)))
    return einsum("i->i", largest, value=SQUARED, guard=guard, extra=(PRESENCE,))


def triangle(dtype: DType = D) -> EinSum:
    """A sparse product of which only the part above the diagonal is selected."""
    x, y = (tensor(n, (0, 4), (0, 9), dtype=dtype, present=True) for n in "xy")
    there = conj(Value(0, PRESENT, B), Value(1, PRESENT, B))
    product = Call("mul", (val(0, dtype), val(1, dtype)), dtype)
    return einsum(
        "ik,jk->ij", x, y, value=product, reduction="sum",
        guard=conj(there, less(Label("i"), Label("j"))), extra=(PRESENCE,),
    )  # fmt: skip


def pulling(dtype: DType = D) -> EinSum:
    value = val(0, dtype)
    return einsum(
        "ij->ij", triangle(dtype), value=value, guard=Value(0, PRESENT, B), extra=(PRESENCE,)
    )


def pruning() -> EinSum:
    extra = (Output("unread", (val(1),), D, "max"),)
    sums = einsum("ij,ij->i", X, Y, reduction="sum", extra=extra)
    return einsum("i->i", sums, value=SQUARED)


def counting() -> EinSum:
    counts = einsum("ij->i", X, value=Const(1, I64), reduction="sum", extra=(PRESENCE,))
    guard = Value(0, PRESENT, B)
    return einsum("i->i", counts, value=val(0, I64), guard=guard, extra=(PRESENCE,))


def viewing() -> EinSum:
    turned = einsum("ij->ji", X, extra=(PRESENCE,), guard=less(Const(0.0, D), val(0)))
    value = times(val(0), val(1))
    guard = conj(Value(0, PRESENT, B), Value(1, PRESENT, B))
    return einsum("ij,jk->ik", turned, turned, value=value, reduction="sum", guard=guard)


def mapping() -> EinSum:
    return einsum("ij->i", einsum("ij->ij", X, value=SQUARED), reduction="sum")


def chaining() -> EinSum:
    value = times(times(val(0), val(1)), val(2))
    return einsum("ij,jk,kl->il", X, Y, Z, value=value, reduction="sum")


def sharing() -> EinSum:
    again = einsum("nm,mo->no", Y, X, value=times(val(1), val(0)), reduction="sum")
    return einsum("ij,ij->ij", matmul(Y, X), again, value=call("add", D, val(0), val(1)))


def splitting() -> EinSum:
    """A product whose sixteen columns are read as rows of four, half of them by each reader."""
    wide = matmul(X, tensor("w", (0, 4), (0, 16)))
    rows: list[Operand] = []
    axes = [Axis("i", 0, 4), Axis("h", 0, 2), Axis("d", 0, 4)]
    for n in range(2):
        high = call("add", I64, key(2 * n), Label("h"))
        define = call("add", I64, call("mul", I64, high, key(4)), Label("d"))
        axes.append(Axis(f"o{n}", 0, 16, define))
        rows.append(Operand(wide, ("i", f"o{n}")))
    total = Output("val", (times(val(0), val(1)),), D, "sum")
    return EinSum(tuple(axes), tuple(rows), TRUE, ("h", "i"), (total,))


def dividing() -> EinSum:
    """Sums over groups of two rows."""
    group = call("idiv", I64, Label("i"), key(2))
    total = Output("val", (val(0),), D, "sum")
    axes = (Axis("i", 0, 4), Axis("j", 0, 4), Axis("g", 0, 2, group))
    return EinSum(axes, (Operand(X, ("i", "j")),), TRUE, ("g", "j"), (total, PRESENCE))


def solving() -> EinSum:
    """Products of what lies two apart or less, by the distance."""
    apart = call("sub", I64, Label("i"), Label("j"))
    total = Output("val", (val(0),), D, "sum")
    axes = (Axis("i", 0, 4), Axis("j", 0, 4), Axis("d", -2, 3, apart))
    return EinSum(axes, (Operand(X, ("i", "j")),), TRUE, ("d",), (total, PRESENCE))


def showing() -> EinSum:
    """A product with rows of four that lie in one key of sixteen."""
    define = call("add", I64, call("mul", I64, Label("h"), key(4)), Label("d"))
    axes = (*(Axis(x, 0, 4) for x in "ihd"), Axis("o", 0, 16, define))
    rows = Operand(tensor("w", (0, 16)), ("o",)), Operand(X, ("i", "d"))
    total = Output("val", (times(val(0), val(1)),), D, "sum")
    return EinSum(axes, rows, TRUE, ("h", "i"), (total,))


def weighting(parts: int = 3) -> EinSum:
    """Weighted means with weights by a softmax whose keys have a hint; equal scores are exact."""
    x, v = tensor("x", (0, 4), (1, 9)), tensor("v", (1, 9), (0, 3))
    score = times(val(0), Const(0.0, D))
    most = replace(einsum("ij->i", x, value=score, reduction="max"), hint=(("j", parts),))
    power = call("exp", D, call("sub", D, score, val(1)))
    weights = einsum("ij,i->ij", x, most, value=power)
    total = einsum("ij->i", weights, reduction="sum")
    share = times(call("div", D, val(0), val(1)), val(2))
    return einsum("ij,i,jk->ik", weights, total, v, value=share, reduction="sum")


def ringing() -> EinSum:
    """The same means, with keys that pass around a ring of three sites."""
    return weighting(Ring(3))


def ordering() -> EinSum:
    """The last values of rows, of which a hint asks for parts."""
    return replace(einsum("ij->i", X, reduction=LAST), hint=(("j", 3),))


def turning() -> EinSum:
    """A map whose result has the operand's keys in the other order."""
    more = call("add", D, val(0), Const(1.0, D))
    axes = (Axis("i", 0, 4), Axis("j", 0, 4))
    operands = (Operand(X, ("i", "j")),)
    return EinSum(axes, operands, TRUE, ("j", "i"), (Output("val", (more,), D),))


def shifting() -> EinSum:
    """Differences of a sparse tensor's elements and those one row before."""
    few = replace(tensor("few", (0, 5), (1, 4), present=True), sparse=True)
    before = call("sub", I64, Label("i"), key(1))
    axes = (Axis("i", 0, 5), Axis("j", 1, 4), Axis("h", 0, 5, before))
    operands = (Operand(few, ("i", "j")), Operand(few, ("h", "j")))
    guard = conj(Value(0, PRESENT, B), Value(1, PRESENT, B))
    apart = Output("val", (call("sub", D, val(0), val(1)),), D)
    return EinSum(axes, operands, guard, ("i", "j"), (apart, PRESENCE))


def swapping() -> EinSum:
    """A product whose operands and factors are in the other order than their names."""
    return matmul(Y, X)


def hoisting() -> EinSum:
    """A root of each column's number, which every row would compute again."""
    rows = tensor("rows", (0, 20), (0, 4))
    root = call("sqrt", D, call("abs", D, val(1)))
    return einsum("ij,j->ij", rows, tensor("column", (0, 4)), value=call("div", D, val(0), root))


def factoring() -> EinSum:
    """A product with exponentials of weights, which every column would compute again."""
    columns = tensor("columns", (0, 4), (0, 16))
    return einsum("ik,kj->ij", X, columns, value=times(SQUARED, val(1)), reduction="sum")


def repeating() -> EinSum:
    """Sums of rows, for each element of a row."""
    return einsum("ij,ik->ij", X, Y, value=val(1), reduction="sum")


def selecting() -> EinSum:
    """The column of the least element of each row, which is compared and selected only."""
    node = einsum("ij->i", X)
    return replace(node, outputs=WITNESS.outputs(val(0), val(0), Label("j")))


def routing() -> EinSum:
    """Sums over the slots of a token of rows that the slots choose."""
    slots, rows = tensor("slots", (0, 4), (0, 2), dtype=I64), tensor("rows", (0, 3), (0, 4))
    axes = (Axis("i", 0, 4), Axis("s", 0, 2), Axis("h", 0, 4), Axis("e", 0, 3, val(1, I64)))
    operands = (Operand(X, ("i", "h")), Operand(slots, ("i", "s")), Operand(rows, ("e", "h")))
    value = Output("val", (times(val(0), val(2)),), D, "sum")
    return EinSum(axes, operands, TRUE, ("i",), (value, PRESENCE), (("e", 2),))


EXAMPLES: dict[str, Callable[[], EinSum]] = {
    "fold-constants": folding,
    "narrow-axes": narrowing,
    "unify-labels": unifying,
    "push-bounds": slicing,
    "push-filter": filtering,
    "pull-filter": pulling,
    "prune-outputs": pruning,
    "fold-reductions": counting,
    "inline-views": viewing,
    "fuse-maps": mapping,
    "factor-order": chaining,
    "share": sharing,
    "canonical-order": swapping,
    "hoist-invariants": hoisting,
    "hoist-factors": factoring,
    "narrow-keys": repeating,
    "narrow-states": selecting,
    "split-quotients": dividing,
    "solve-keys": solving,
    "split-labels": splitting,
    "split-keys": weighting,
    "ring-keys": ringing,
    "ordered-parts": ordering,
    "route-rows": routing,
    "show-digits": showing,
    "order-keys": turning,
    "shift-keys": shifting,
}


def fired(result: Optimized) -> Counter[str]:
    counts: Counter[str] = Counter()
    for step in result.trace:
        counts[step.rule.name] += step.fired
    return counts


def check(graph: EinSum, seed: int, disabled: frozenset[str] = frozenset()) -> Optimized:
    verify(graph, graph.schema, {}, drops_flags=False)
    result = optimize(graph, disabled=disabled, sited=True, alone=True)
    assert_equal_results(graph, result.root, data(graph, seed))
    return result


def only(root: Node) -> EinSum:
    """The one EinSum node of a graph."""
    (node,) = (n for n in walk(root) if isinstance(n, EinSum))
    return node


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_every_rule_has_a_law_and_fires_alone(rule: Rule) -> None:
    assert rule.law
    graph = EXAMPLES[rule.name]()
    alone = check(graph, 1, disabled=frozenset(NAMES) - {rule.name})
    assert set(fired(alone)) == {rule.name}
    assert rule.name not in fired(check(graph, 1, disabled=frozenset({rule.name})))


def test_no_rule_is_without_an_example() -> None:
    assert set(EXAMPLES) == set(NAMES)
    assert len(NAMES) == len(set(NAMES))
    assert [r for s in STAGES for r in s.rules if r.name not in NAMES] == []


@settings(max_examples=sample(30, 250))
@given(seed=st.integers(0, 2**32), off=st.sets(st.sampled_from(NAMES), max_size=5))
def test_random_graphs_keep_their_meaning(seed: int, off: set[str]) -> None:
    check(random_graph(seed), seed, disabled=frozenset(off))


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_each_rule_alone_keeps_the_meaning(rule: Rule) -> None:
    for seed in range(sample(15, 120)):
        graph = random_join(seed) if seed % 3 == 0 else random_graph(seed)
        check(graph, seed, disabled=frozenset(NAMES) - {rule.name})


def in_order(root: EinSum) -> EinSum:
    """The graph with last positive values in place of sums and extremes."""

    def ordered(o: Output) -> Output:
        if o.reduction not in ("sum", "min", "max") or {o.dtype, o.args[0].dtype} != {D}:
            return o
        positive = Call("lt", (Const(0.0, D), o.args[0]), B)
        return replace(o, reduction=LAST, where=conj(o.where, positive))

    def visit(_: EinSum, node: EinSum) -> EinSum:
        return replace(node, outputs=tuple(map(ordered, node.outputs)))

    ((new,), _) = rebuild((root,), visit)
    assert isinstance(new, EinSum)
    return new


def test_states_stay_in_the_order_of_the_axes() -> None:
    for seed in sample(range(20), range(150)):
        check(in_order(random_join(seed) if seed % 3 == 0 else random_graph(seed)), seed)
    turned = einsum("ij->", X, reduction="sum")
    equal = einsum("ik,kj->", X, Y, value=val(1), reduction="sum")
    equal = replace(equal, guard=equals(Label("i"), Label("j")))
    for graph in (turned, equal):
        for seed in range(10):
            check(in_order(graph), seed)
            check(in_order(replace(graph, axes=graph.axes[::-1])), seed)


@settings(max_examples=sample(15, 120))
@given(seed=st.integers(0, 2**32))
def test_joins_keep_their_meaning_in_every_order(seed: int) -> None:
    check(random_join(seed), seed)


def test_rules_fire_on_random_graphs() -> None:
    counts: Counter[str] = Counter()
    for seed in range(20):
        counts += fired(check(random_join(seed), seed))
    for rare in (
        splitting,
        dividing,
        solving,
        showing,
        pulling,
        hoisting,
        factoring,
        weighting,
        selecting,
        ringing,
        ordering,
        routing,
        shifting,
    ):  # random graphs seldom read keys digit by digit
        counts += fired(check(rare(), 0))
    for seed in range(300):
        if set(counts) == set(NAMES):
            break
        counts += fired(check(random_graph(seed), seed))
    assert set(counts) == set(NAMES)


def test_range_conditions_become_bounds() -> None:
    node = only(optimize(narrowing()).root)
    assert node.guard == TRUE
    assert [(a.lo, a.hi) for a in node.axes] == [(0, 4), (1, 3)]


def test_equal_labels_become_a_diagonal() -> None:
    node = only(optimize(unifying()).root)
    assert node.operands[0].labels == ("i", "i")


def test_a_join_on_a_value_becomes_a_gather() -> None:
    words = Input("words", tensor("words", (0, 5), dtype=I64).schema)
    guard = equals(Label("w"), Value(1, "val", I64))
    node = only(optimize(einsum("wd,t->td", X, words, reduction="sum", guard=guard)).root)
    assert node.axis("w").define == Value(1, "val", I64)
    assert node.guard == TRUE


def test_presence_of_a_dense_aggregate_is_proven() -> None:
    causal = call("le", B, Label("j"), Label("i"))
    largest = einsum("ij->i", X, reduction="max", guard=causal, extra=(PRESENCE,))
    assert [o.name for o in only(optimize(largest).root).outputs] == ["val"]


def test_a_condition_on_keys_stays_known_behind_a_sum() -> None:
    causal = call("le", B, Label("j"), Label("i"))
    scores = einsum(
        "ik,jk->ij", X, Y, value=times(val(0), val(1)), reduction="sum", guard=causal,
        extra=(PRESENCE,),
    )  # fmt: skip
    there = Value(0, PRESENT, B)
    largest = einsum("ij->i", scores, reduction="max", guard=there, extra=(PRESENCE,))
    result = check(largest, 0)
    found = [n for n in walk(result.root) if isinstance(n, EinSum)]
    assert [[o.name for o in n.outputs] for n in found] == [["val"], ["val"]]
    assert all(n.guard == causal for n in found)


def test_a_reader_of_a_repeated_value_reads_the_value() -> None:
    """A product that carries a bias as MAX(c.val) is left alone, and the bias is added after."""
    z = tensor("z", (0, 4))
    bias = Output("bias", (val(2),), D, "max")
    product = einsum(
        "ik,kj,j->ij", X, Y, z, value=times(val(0), val(1)), reduction="sum", extra=(bias,)
    )
    both = call("add", D, val(0), Value(0, "bias", D))
    inner, outer = (
        n
        for n in walk(check(einsum("ij->ij", product, value=both), 0).root)
        if isinstance(n, EinSum)
    )
    assert [o.source for o in inner.operands] == [X, Y]
    assert {o.source: o.labels for o in outer.operands} == {inner: ("i", "j"), z: ("j",)}


def test_a_count_over_a_dense_domain_is_a_constant() -> None:
    node = only(optimize(counting()).root)
    assert node.outputs == (Output("val", (Const(4, I64),), I64),)


@pytest.mark.parametrize(
    ("each", "exact"),
    [(2.0, 8.0), (-0.0, 0.0), (2.0**51, 2.0**53), (2.0**52, None), (0.5, None), (np.inf, None)],
)
def test_a_sum_of_a_constant_folds_where_every_order_is_exact(
    each: float, exact: float | None
) -> None:
    node = only(optimize(einsum("ij->i", X, value=Const(each, D), reduction="sum")).root)
    (output,) = node.outputs
    if exact is None:
        assert output.reduction == "sum"
    else:
        assert output == Output("val", (Const(exact, D),), D)
        assert not np.signbit(exact)


def test_an_overflowing_constant_is_left_to_raise() -> None:
    big = Const(2**62, I64)
    node = only(optimize(einsum("ij->i", X, value=big, reduction="sum")).root)
    assert node.outputs[0].reduction == "sum"
    doubled = Call("add", (big, big), I64)
    assert only(optimize(einsum("ij->ij", X, value=doubled)).root).outputs[0].args == (doubled,)


def test_negative_zero_is_no_neutral_element() -> None:
    minus = Const(-0.0, D)
    node = only(optimize(einsum("ij->ij", X, value=call("add", D, val(0), minus))).root)
    assert isinstance(node.outputs[0].args[0], Call)


def test_a_contraction_keeps_its_operands_computed() -> None:
    graph = matmul(einsum("ij->ij", X, value=SQUARED), Y)
    assert format_graph(optimize(graph).root) == format_graph(graph)


def test_a_product_summed_later_becomes_a_contraction() -> None:
    pairs = einsum("ik,kj->ikj", X, Y, value=times(val(0), val(1)))
    node = only(optimize(einsum("ikj->ij", pairs, reduction="sum")).root)
    assert len(node.operands) == 2


def test_views_vanish_whoever_reads_them() -> None:
    assert all(o.source is X for o in only(optimize(viewing()).root).operands)


def test_a_chain_is_split_by_size() -> None:
    a, b, c = tensor("a", (0, 9), (0, 2)), tensor("b", (0, 2), (0, 9)), tensor("c", (0, 9), (0, 1))
    value = times(times(val(0), val(1)), val(2))
    graph = einsum("ij,jk,kl->il", a, b, c, value=value, reduction="sum")
    first, last = (n for n in walk(optimize(graph).root) if isinstance(n, EinSum))
    assert {o.source for o in first.operands} == {b, c}
    assert {o.source for o in last.operands} == {a, first}


def test_one_dense_loop_is_not_split() -> None:
    value = times(times(val(0), val(1)), val(2))
    graph = einsum("ij,ij,ij->", X, Y, Z, value=value, reduction="sum")
    assert optimize(graph, disabled=frozenset({"share"})).root is graph


def test_integer_chains_are_split_only_if_safe() -> None:
    def chain(dtype: DType) -> EinSum:
        parts = [tensor(n, (0, 3), (0, 3), dtype=dtype) for n in "abc"]
        wide = [call("cast", I64, val(n, dtype)) for n in range(3)]
        value = call("mul", I64, call("mul", I64, wide[0], wide[1]), wide[2])
        return einsum("ij,jk,kl->il", *parts, value=value, reduction="sum")

    assert "factor-order" in fired(optimize(chain(DType.TINYINT)))
    assert "factor-order" not in fired(optimize(chain(DType.INTEGER)))


def test_equal_nodes_are_computed_once() -> None:
    assert len([n for n in walk(optimize(sharing()).root) if isinstance(n, EinSum)]) == 2


def test_a_long_chain_of_maps_stays_small() -> None:
    node: Node = X
    for _ in range(40):
        node = einsum("ij->ij", node, value=times(val(0), val(0)))
    assert isinstance(node, EinSum)
    assert len(format_graph(optimize(node).root)) < 20_000


def test_until_stops_after_a_rule() -> None:
    assert set(fired(optimize(counting(), until="fold-constants"))) <= {"fold-constants"}


def test_the_trace_prints_each_step() -> None:
    (step, *_) = optimize(mapping()).trace
    assert step.before == format_graph(mapping())
    assert step.after != step.before
    assert step.seconds >= 0


def test_unknown_rules_are_refused() -> None:
    with pytest.raises(InterfaceError, match=r"fold-constants"):
        optimize(mapping(), disabled=frozenset({"fold-constant"}))
    with pytest.raises(InterfaceError):
        optimize(mapping(), until="nothing")


def test_inputs_are_left_alone() -> None:
    assert optimize(X) == Optimized((X,), ())


@pytest.mark.parametrize(
    "broken",
    [
        einsum("ij->ij", X, value=Value(1, "val", D)),
        einsum("ij->ij", X, value=Value(0, "val", DType.FLOAT)),
        einsum("ij->i", X),
        einsum("ij->ij", X, bounds={"i": (0, 5)}),
        einsum("ij->ij", X, guard=Label("i")),
        einsum("ij->ij", X, value=call("cast", D, Label("k"))),
    ],
)
def test_the_verifier_names_malformed_nodes(broken: EinSum) -> None:
    with pytest.raises(InternalError):
        verify(broken, broken.schema, {}, drops_flags=False)


def test_the_verifier_keeps_the_schema() -> None:
    graph = einsum("ij->ij", X, extra=(PRESENCE,))
    bare = einsum("ij->ij", X)
    verify(bare, graph.schema, {}, drops_flags=True)
    with pytest.raises(InternalError):
        verify(bare, graph.schema, {}, drops_flags=False)
    with pytest.raises(InternalError):
        verify(einsum("ij->ji", X), bare.schema, {}, drops_flags=True)


def test_no_error_is_added_by_a_filter_that_moves() -> None:
    totals = einsum("ij->i", X, reduction="sum", guard=less(Const(0.0, D), val(0)))
    by = call("idiv", D, Const(1.0, D), val(0))
    guard = conj(call("ne", B, val(0), Const(0.0, D)), less(by, Const(1.0, D)))
    graph = einsum("i->i", totals, guard=guard, extra=(PRESENCE,))
    inputs = {"x": {"val": np.zeros((4, 4))}}
    assert_equal_results(graph, optimize(graph).root, inputs)


def test_keys_lie_as_the_operand_with_most_of_them() -> None:
    root = optimize(turning(), alone=True).root
    assert isinstance(root, EinSum)
    assert root.keys == turning().keys
    (source,) = root.operands
    assert isinstance(source.source, EinSum)
    assert source.source.keys == ("i", "j")
    assert only(optimize(turning()).root).keys == ("j", "i")  # sites cut results by their keys


def test_keys_that_readers_reduce_lie_last() -> None:
    """A batched product of other factors first, whose rows are reduced: softmax by joins."""
    y, z = tensor("y", (0, 3), (0, 4), (0, 5)), tensor("z", (0, 3), (0, 6), (0, 5))
    axes = tuple(Axis(x, 0, n) for x, n in zip("bijk", (3, 4, 6, 5), strict=True))
    total = Output("val", (times(val(0), val(1)),), D, "sum")
    operands = (Operand(z, ("b", "j", "k")), Operand(y, ("b", "i", "k")))
    scores = EinSum(axes, operands, TRUE, ("j", "i", "b"), (total,))
    most = Output("val", (val(0),), D, "max")
    domain = tuple(Axis(x, 0, n) for x, n in zip("bij", (3, 4, 6), strict=True))
    top = EinSum(domain, (Operand(scores, ("j", "i", "b")),), TRUE, ("b", "i"), (most,))
    node = check(top, 0).root
    assert isinstance(node, EinSum)
    assert isinstance(node.operands[0].source, EinSum)
    assert node.operands[0].labels == ("b", "i", "j")
