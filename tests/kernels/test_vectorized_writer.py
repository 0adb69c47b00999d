"""Nodes that run again are written out: the same results, bit for bit, and the same errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings

from einsql.core.schema import DType, Field, Key, Schema
from einsql.errors import DataError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    Const,
    EinSum,
    Input,
    Label,
    Operand,
    Output,
    Value,
)
from einsql.kernels.kernel import Arrays, Runner
from einsql.kernels.vectorized import program_writer
from einsql.kernels.vectorized.program_writer import compile_program
from einsql.kernels.vectorized.vector import compile_vector
from tests.kernels.nodes import Case, cases, no_tick
from tests.support.samples import sample

F, I64 = DType.FLOAT, DType.BIGINT


def outcome(run: Runner, arrays: list[Arrays]) -> dict[str, tuple[object, ...]] | str:
    """The bytes of every field, or what was raised."""
    try:
        found = run(arrays, no_tick)
    except DataError as error:
        return str(error)
    return {n: (a.dtype, a.shape, a.tobytes()) for n, a in found.items()}


@settings(max_examples=sample(25, 400))
@given(cases())
def test_later_runs_are_as_the_first(case: Case) -> None:
    runner = compile_vector(case.node)
    first = outcome(runner, [*case.operands])
    for _ in range(2):
        assert outcome(runner, [*case.operands]) == first


def written(node: EinSum, arrays: list[Arrays], monkeypatch: pytest.MonkeyPatch) -> Runner:
    """The node's runner once it has been written out."""
    made: list[Runner | None] = []
    compiled: Callable[..., Runner | None] = compile_program

    def noted(*given: object) -> Runner | None:
        made.append(compiled(*given))
        return made[-1]

    monkeypatch.setattr(program_writer, "compile_program", noted)
    runner = compile_vector(node)
    for _ in range(2):
        outcome(runner, arrays)
    assert len(made) == 1
    assert made[0] is not None
    return runner


def _node(outputs: tuple[Output, ...], keys: str = "i", guard: object = TRUE) -> EinSum:
    schema = Schema((Key("i", 0, 4),), (Field("val", F),))
    operand = Operand(Input("x", schema), ("i",))
    return EinSum((Axis("i", 0, 4),), (operand,), guard, tuple(keys), outputs)  # type: ignore[arg-type]  # any expression


X = Value(0, "val", F)
DOUBLED = Call("add", (X, X), F)


def test_outputs_share_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither with each other nor with an operand: what is stored of them is written in place."""
    outputs = (Output("a", (DOUBLED,), F), Output("b", (DOUBLED,), F), Output("c", (X,), F))
    x = np.arange(4, dtype=np.float32)
    run = written(_node(outputs), [{"val": x}], monkeypatch)
    found = run([{"val": x}], no_tick)
    arrays = [x, *found.values()]
    for n, a in enumerate(arrays):
        assert not any(np.shares_memory(a, b) for b in arrays[n + 1 :])


def test_results_outlive_later_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    run = written(_node((Output("a", (DOUBLED,), F),)), [{"val": np.ones(4, "f4")}], monkeypatch)
    kept = run([{"val": np.full(4, 3, np.float32)}], no_tick)["a"]
    run([{"val": np.zeros(4, np.float32)}], no_tick)
    assert kept.tolist() == [6.0] * 4


def test_sums_have_the_memory_order_of_the_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later sum adds in the order of its terms in memory."""
    extents = {"i": 3, "j": 4, "k": 5}
    schema = Schema(tuple(Key(x, 0, n) for x, n in extents.items()), (Field("val", DType.DOUBLE),))
    term = Call("exp", (Value(0, "val", DType.DOUBLE),), DType.DOUBLE)
    node = EinSum(
        tuple(Axis(x, 0, n) for x, n in extents.items()),
        (Operand(Input("x", schema), tuple(extents)),),
        TRUE,
        ("k", "i"),
        (Output("s", (term,), DType.DOUBLE, "sum"),),
    )
    arrays: list[Arrays] = [{"val": np.random.default_rng(0).random((3, 4, 5))}]
    first = compile_vector(node)(arrays, no_tick)["s"]
    later = written(node, arrays, monkeypatch)(arrays, no_tick)["s"]
    assert later.strides == first.strides
    assert later.tobytes() == first.tobytes()


def test_signs_of_zero_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.0 and -0.0 are equal, and different constants."""
    zeros = (Call("mul", (X, Const(z, F)), F) for z in (0.0, -0.0))
    outputs = tuple(Output(n, (e,), F) for n, e in zip("ab", zeros, strict=True))
    ones: list[Arrays] = [{"val": np.ones(4, np.float32)}]
    run = written(_node(outputs), ones, monkeypatch)
    assert [bool(np.signbit(a).any()) for a in run(ones, no_tick).values()] == [False, True]


def test_a_failure_comes_at_selected_points_only(monkeypatch: pytest.MonkeyPatch) -> None:
    cast = Call("cast", (X,), I64)
    guard = Call("lt", (Label("i"), Const(2, I64)), DType.BOOLEAN)
    node = _node((Output("most", (cast,), I64, "max"),), "", guard)
    x = np.array([1, 2, 1e30, 1e30], np.float32)
    run = written(node, [{"val": x}], monkeypatch)
    assert run([{"val": x}], no_tick)["most"] == 2
    with pytest.raises(DataError, match="out of range"):
        run([{"val": x[::-1]}], no_tick)


def test_operands_of_other_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written for one layout reads every other."""
    x = np.arange(8, dtype=np.float32)
    run = written(_node((Output("a", (DOUBLED,), F),)), [{"val": x[:4]}], monkeypatch)
    frozen = x[::2].copy()
    frozen.flags.writeable = False
    for given_array in (x[::2], x[6::-2], np.broadcast_to(x[1], 4), frozen):
        found = run([{"val": given_array}], no_tick)["a"]
        assert found.tolist() == (2 * given_array).tolist()
        assert found.flags.writeable
