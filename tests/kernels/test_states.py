"""Kernels reduce to states of several fields as the reference interpreter does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

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
    conj,
)
from einsql.ir.einsum.interpreter import evaluate
from einsql.ir.einsum.partial_states import merged_state, with_state
from einsql.ir.einsum.states import owners
from einsql.kernels import packed as packing
from einsql.kernels.loops import loop_cuts, loop_nest
from einsql.kernels.loops.generated import compile_loops
from einsql.kernels.loops.loop_nest import Mode, plan_nest
from einsql.kernels.packed import compile_packed
from einsql.kernels.packed import layout as layout_of_sides
from einsql.kernels.registry import compile_node
from einsql.kernels.runtime import thread_pool
from tests.kernels.compiling import cache_directory
from tests.kernels.laws import COUNTS, LAWS, MATRICES, WELFORD, WITNESS, Law, call, real
from tests.kernels.nodes import Arrays, Runner, no_tick
from tests.support.samples import spread

B, I32, I64, F, D = DType.BOOLEAN, DType.INTEGER, DType.BIGINT, DType.FLOAT, DType.DOUBLE

__all__ = ["cache_directory"]  # its fixture serves every test here

Extents = dict[str, int]


def tensor(name: str, labels: str, extents: Extents) -> Operand:
    keys = tuple(Key(x, 0, extents[x]) for x in labels)
    return Operand(Input(name, Schema(keys, (Field("v", D),))), tuple(labels))


def node_of(
    law: Law,
    keys: str,
    extents: Extents,
    reads: Sequence[str] = ("ijk", "jk"),
    selects: bool = False,
    fields: tuple[str, ...] | None = None,
) -> EinSum:
    """A node that reduces points over two tensors to a state."""
    operands = tuple(
        tensor("xy"[n], "".join(a for a in labels if a in extents), extents)
        for n, labels in enumerate(reads)
    )
    x, y = (Value(n, "v", D) for n in range(2))
    where = call("lt", x, real(0.5), dtype=B) if selects else TRUE
    at: Expr = Label("j" if "j" in extents else "i")
    axes = tuple(Axis(a, 0, n) for a, n in extents.items())
    return EinSum(axes, operands, TRUE, tuple(keys), law.outputs(x, y, at, where, fields))


def data_of(node: EinSum, seed: int = 0) -> list[Arrays]:
    """Numbers for a node's operands."""
    generator = np.random.default_rng(seed)
    return [
        {
            f.name: generator.integers(-8, 9, o.source.schema.shape) / 4
            for f in o.source.schema.fields
        }
        for o in node.operands
    ]


def check(node: EinSum, run: Runner, given: Sequence[Arrays] | None = None) -> None:
    """Compares a kernel with the interpreter."""
    given = data_of(node) if given is None else given
    inputs = {getattr(o.source, "name", ""): d for o, d in zip(node.operands, given, strict=True)}
    expected = evaluate(node, inputs)
    got = run(given, no_tick)
    assert set(got) == set(expected)
    for o in node.outputs:
        assert got[o.name].dtype == o.dtype.numpy
        rtol = 1e-5 if o.dtype is F else 1e-11
        np.testing.assert_allclose(got[o.name], expected[o.name], rtol, rtol, err_msg=o.name)


LAYOUTS = {
    "rows": ("i", {"i": 5, "j": 37}, Mode.REGISTERS),
    "columns": ("j", {"i": 37, "j": 9}, Mode.ROW),
    "everything": ("", {"i": 5, "j": 37}, Mode.REGISTERS),
    "middle": ("j", {"i": 3, "j": 5, "k": 37}, Mode.REGISTERS),
}
CASES = [
    (law, layout)
    for n, law in enumerate(LAWS)
    for m, layout in enumerate(LAYOUTS)
    if law == "matrices" or (n + m) % 2 == 0
]
"""Order matters in every layout; the others share half of them."""


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def _threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few lanes, so that short loops have some; on two threads many boxes, too."""
    monkeypatch.setattr(loop_nest, "LANES", 4)
    if request.param == 2:
        monkeypatch.setattr(loop_cuts, "BOX", 64)
        monkeypatch.setattr(loop_cuts, "PARALLEL", 1)
        monkeypatch.setattr(loop_nest, "LONGEST", 512)
        monkeypatch.setattr(thread_pool, "threads", lambda: 2)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize(("law", "layout"), spread(CASES, 12))
def test_loops_reduce_to_states(law: str, layout: str) -> None:
    keys, extents, _ = LAYOUTS[layout]
    node = node_of(LAWS[law], keys, extents, selects=layout != "rows")
    check(node, compile_loops(node))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_running_values_are_placed_by_the_layout(layout: str) -> None:
    keys, extents, mode = LAYOUTS[layout]
    assert plan_nest(node_of(WELFORD, keys, extents)).mode is mode


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("law", ["counts", "matrices"])
def test_computed_keys(law: str) -> None:
    node = node_of(LAWS[law], "j", {"i": 3, "j": 5, "k": 7})
    third = Call("mod", (Label("k"), Const(3, I64)), I64)
    node = replace(node, axes=(*node.axes, Axis("m", 0, 3, third)), keys=("m", "j"))
    check(node, compile_loops(node))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("law", ["welford", "matrices"])
def test_guards_of_long_rows(law: str) -> None:
    """A guard ends the loop of the lanes, and another one skips points in it."""
    node = node_of(LAWS[law], "i", {"i": 6, "j": 23})
    assert plan_nest(node).lanes > 1
    ends = Call("le", (Label("j"), Call("mul", (Label("i"), Const(4, I64)), I64)), B)
    skips = Call("lt", (Value(0, "v", D), Const(0.75, D)), B)
    node = replace(node, guard=conj(ends, skips))
    check(node, compile_loops(node))


@pytest.mark.parametrize("extents", [{"i": 0, "j": 3}, {"i": 3, "j": 0}, {"i": 1, "j": 1}])
def test_short_extents(extents: Extents) -> None:
    node = node_of(COUNTS, "i", extents)
    check(node, compile_loops(node))


def test_lanes_are_merged_in_key_order() -> None:
    node = node_of(MATRICES, "", {"i": 2, "j": 150})
    assert plan_nest(node).lanes > 1
    check(node, compile_loops(node))


def test_strided_operands_and_some_fields_of_two_states() -> None:
    node = node_of(WELFORD, "i", {"i": 6, "j": 131}, fields=("mean", "m2"))
    x = Value(0, "v", D)
    other = WITNESS.outputs(call("neg", x), Value(1, "v", D), Label("j"), fields=("who",))
    total = Output("total", (x,), D, "sum")
    outputs = (*node.outputs, *(replace(o, name=f"w.{o.name[2:]}") for o in other), total)
    node = replace(node, outputs=outputs)
    first, second = data_of(node)
    given = [{"v": np.repeat(first["v"], 2, axis=1)[:, ::2]}, {"v": second["v"][::-1]}]
    for jit in ("always", "never"):
        check(node, compile_node(node, jit).run, given)
    check(node, compile_loops(node), given)


def selecting(node: EinSum, test: str) -> EinSum:
    """The node over the points at which a comparison of i with j holds."""
    where = Call(test, (Label("i"), Label("j")), B)
    return replace(node, outputs=tuple(replace(o, where=where) for o in node.outputs))


@pytest.mark.parametrize("keys", ["i", "j"])
def test_failures_of_merge(keys: str) -> None:
    """INTEGER counts overflow, at selected points only."""
    law = Law(COUNTS.state, lambda x, y, at: (TRUE, TRUE, Const(2**30, I32), at))
    node = node_of(law, keys, {"i": 3, "j": 3}, ("ij", "j"))
    run = compile_loops(selecting(node, "le"))
    with pytest.raises(DataError, match="Overflow in addition of INTEGER"):
        run(data_of(node), no_tick)
    one = selecting(node, "eq")
    check(one, compile_loops(one))


@pytest.mark.parametrize("law", ["matrices", "witness"])
def test_states_of_parts_merge_in_key_order(law: str) -> None:
    node = node_of(LAWS[law], "i", {"i": 3, "j": 9})
    part = with_state(replace(node, outputs=node.outputs[1:2]))
    given = data_of(node)
    fields = [f"s.{f.name}" for f in LAWS[law].state.fields]
    states = []
    for lo, hi in ((0, 4), (4, 9)):
        axes = tuple(replace(a, lo=lo, hi=hi) if a.label == "j" else a for a in node.axes)
        run = compile_loops(replace(part, axes=axes))
        states.append(tuple(run(given, no_tick)[f] for f in fields))
    first = node.outputs[0]
    merged = merged_state(first.reduction or "", first.dtype, *states)
    check(node, lambda *_: dict(zip(fields, merged, strict=True)), given)


def test_states_in_groups() -> None:
    """A value of each row depends on the state of the row; both run block by block."""
    rows = np.random.default_rng(0).random((300, 1000))
    with einsql.connect(config={"jit": "always"}) as con:
        con.register("x", rows, dims=("i", "j"))
        con.execute(
            "CREATE AGGREGATE middle(v DOUBLE) STATE (n DOUBLE INIT 0, m DOUBLE INIT 0) "
            "LIFT (CAST(1 AS DOUBLE), v) MERGE (a.n + b.n, "
            "a.m + (b.m - a.m) * (b.n / greatest(n, CAST(1 AS DOUBLE)))) FINISH (m)"
        )
        query = (
            "SELECT i, j, EXP(x.val) / s.v AS val FROM x JOIN (SELECT i, middle(EXP(val)) AS v "
            "FROM x GROUP BY i) s USING (i)"
        )
        assert "group" in str(con.explain(query))
        got = np.array(con.execute(query).fetchall())[:, 2].reshape(rows.shape)
    e = np.exp(rows)
    np.testing.assert_allclose(got, e / e.mean(axis=1, keepdims=True), 1e-12)


# Register tiles -----------------------------------------------------------------------


@pytest.fixture
def _packs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs whatever can be."""
    for least in ("LEAST", "AREA", "TERMS"):
        monkeypatch.setattr(layout_of_sides, least, 1)
    monkeypatch.setattr(packing, "LEAST", 1)


@pytest.mark.usefixtures("_packs")
@pytest.mark.parametrize("law", LAWS)
def test_tiles_of_states(law: str) -> None:
    extents = {"i": 7, "j": 11, "k": 19}
    node = node_of(LAWS[law], "ij", extents, ("ik", "kj"), law in ("best", "matrices"))
    x, y = Value(0, "v", D), Value(1, "v", D)
    first = call("add", x, y) if law == "welford" else x
    outputs = LAWS[law].outputs(first, y, Label("k"), node.outputs[0].where)
    node = replace(node, outputs=outputs[1:] if law == "welford" else outputs)
    run = compile_packed(node)
    assert run is not None
    given = data_of(node)
    check(node, run, given)
    if law in ("best", "witness"):
        given[0]["v"][:, ::3] = np.nan
        check(node, run, given)
        given[1]["v"][...] = np.inf
        check(node, run, given)


@pytest.mark.usefixtures("_packs")
def test_tiles_with_several_reduced_labels_and_a_moved_one() -> None:
    extents = {"i": 9, "j": 8, "k": 5, "l": 3}
    node = node_of(WITNESS, "ij", extents, ("ikl", "klj"))
    at = call("add", call("mul", Label("k"), Const(3, I64)), Label("l"))
    x, y = Value(0, "v", D), Value(1, "v", D)
    node = replace(node, outputs=WITNESS.outputs(x, y, at))
    run = compile_packed(node)
    assert run is not None
    check(node, run)
    node = node_of(WITNESS, "ij", {"i": 9, "j": 8, "k": 5}, ("ik", "kj"))
    axes = tuple(replace(a, lo=2) if a.label == "k" else a for a in node.axes)
    node = replace(node, axes=axes, outputs=WITNESS.outputs(x, y, Label("k")))
    run = compile_packed(node)
    assert run is not None
    check(node, run)


@pytest.mark.usefixtures("_packs")
def test_equal_states_are_reduced_once() -> None:
    """Two aggregates with one law that return different fields share their running values."""
    node = node_of(WITNESS, "ij", {"i": 8, "j": 9, "k": 7}, ("ik", "kj"))
    twin = replace(WITNESS, state=replace(WITNESS.state, name="twin"))
    args = Value(0, "v", D), Value(1, "v", D), Label("k")
    outputs = WITNESS.outputs(*args, fields=("best",))
    outputs += tuple(replace(o, name="t.who") for o in twin.outputs(*args, fields=("who",)))
    node = replace(node, outputs=outputs)
    assert owners(node.outputs) == [0, 0]
    run = compile_packed(node)
    assert run is not None
    check(node, run)
    check(node, compile_loops(node))


def test_slow_merges_are_not_packed() -> None:
    """Tiles have no code for the functions, so loops are taken."""
    merge = tuple(call("cbrt", e) for e in WITNESS.state.merge[:1])
    law = Law(replace(WITNESS.state, merge=(*merge, WITNESS.state.merge[1])), WITNESS.lift)
    node = node_of(law, "ij", {"i": 128, "j": 128, "k": 128}, ("ik", "kj"))
    assert compile_packed(node) is None
    assert compile_node(node).kernel == "loops"
