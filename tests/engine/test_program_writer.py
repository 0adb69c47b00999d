"""Programs that are repeated are written out: the same results, errors, progress and memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from einsql.core.schema import DType, Field, Key, Schema
from einsql.engine.executor import REPEATED, Program
from einsql.engine.step import Arrays
from einsql.errors import DataError, InterruptedError
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    Call,
    EinSum,
    Expr,
    Input,
    Node,
    Operand,
    Output,
    Value,
)
from einsql.kernels import compile_node
from einsql.kernels.kernel import CompiledNode, Runner
from tests.support.samples import sample

F, B = DType.FLOAT, DType.BIGINT
EXTENT = {"i": 5, "j": 7, "k": 4}
UNARY, BINARY = ("neg", "exp", "abs", "sqrt"), ("add", "sub", "mul", "div", "greatest", "least")


def _node(
    keys: str, operands: Sequence[tuple[Node, str]], args: Sequence[Expr], reduction: str | None
) -> EinSum:
    labels = sorted({*keys, *(x for _, o in operands for x in o)})
    outputs = tuple(Output(f"x{n}", (a,), F, reduction) for n, a in enumerate(args))
    return EinSum(
        tuple(Axis(x, 0, EXTENT[x]) for x in labels),
        tuple(Operand(node, tuple(o)) for node, o in operands),
        TRUE,
        tuple(keys),
        outputs,
    )


@st.composite
def _programs(draw: st.DrawFn) -> tuple[list[Node], dict[str, Arrays]]:
    """Roots of a graph of small nodes, each of which reads earlier ones, and its inputs."""
    made: list[tuple[Node, str]] = []
    given_fields: dict[str, Arrays] = {}
    for n in range(draw(st.integers(1, 3))):
        keys = "".join(draw(st.permutations("ijk"))[: draw(st.integers(0, 2))])
        schema = Schema(tuple(Key(x, 0, EXTENT[x]) for x in keys), (Field("x0", F),))
        made.append((Input(f"in{n}", schema), keys))
        rng = np.random.default_rng(draw(st.integers(0, 99)))
        array = rng.standard_normal(schema.shape).astype(np.float32)
        given_fields[f"in{n}"] = {"x0": np.asarray(array)}
    for _ in range(draw(st.integers(2, 6))):
        operands = [draw(st.sampled_from(made)) for _ in range(draw(st.integers(1, 2)))]
        values: list[Expr] = [Value(n, "x0", F) for n in range(len(operands))]
        labels = sorted({x for _, o in operands for x in o})
        reduction = draw(st.sampled_from([None, "sum", "max", "min"]))
        keys = "".join(draw(st.permutations(labels)))
        if reduction is not None:
            keys = keys[: draw(st.integers(0, len(keys)))]
        args: list[Expr] = []
        for _ in range(draw(st.integers(1, 2))):
            e = draw(st.sampled_from(values))
            for _ in range(draw(st.integers(0, 3))):
                if draw(st.booleans()):
                    e = Call(draw(st.sampled_from(UNARY)), (e,), F)
                else:
                    e = Call(draw(st.sampled_from(BINARY)), (e, draw(st.sampled_from(values))), F)
            args.append(e)
        made.append((_node(keys, operands, args, reduction), keys))
    nodes = [node for node, _ in made if isinstance(node, EinSum)]
    more = [draw(st.sampled_from(nodes)) for _ in range(draw(st.integers(0, 2)))]
    return [nodes[-1], *more], given_fields


def _compiled(node: EinSum) -> CompiledNode[Runner]:
    return compile_node(node, "never")


def _bytes(found: Sequence[Arrays]) -> list[dict[str, tuple[object, ...]]]:
    """The bits of arrays. A NaN is one value: NumPy's fmin takes the sign of either argument."""
    one_nan = ({n: np.where(a != a, a.dtype.type(np.nan), a) for n, a in f.items()} for f in found)
    return [{n: (a.dtype, a.shape, a.tobytes()) for n, a in f.items()} for f in one_nan]


@settings(max_examples=sample(25, 200))
@given(_programs())
def test_later_runs_are_as_the_first(made: tuple[list[Node], dict[str, Arrays]]) -> None:
    roots, inputs = made
    program = Program(roots[0], _compiled, more=roots[1:])
    names = {name for _, name in program.inputs}
    given_fields = {name: fields for name, fields in inputs.items() if name in names}
    before = {name: fields["x0"].copy() for name, fields in inputs.items()}
    first = _bytes(program.run(given_fields, lambda done: None))
    for _ in range(REPEATED + 1):
        assert _bytes(program.run(given_fields, lambda done: None)) == first
    assert all((inputs[n]["x0"].tobytes() == a.tobytes()) for n, a in before.items())


def _chain(length: int) -> Program:
    """x + x, several times over."""
    schema = Schema((Key("i", 0, 5),), (Field("x0", F),))
    node: Node = Input("in0", schema)
    for _ in range(length):
        x = Value(0, "x0", F)
        node = _node("i", [(node, "i")], [Call("add", (x, Call("exp", (x,), F)), F)], None)
    return Program(node, _compiled)


ONES: Mapping[str, Arrays] = {"in0": {"x0": np.ones(5, np.float32)}}


def test_progress_is_told_to_the_end_and_grows() -> None:
    program = _chain(30)
    for _ in range(REPEATED + 1):
        told: list[float] = []
        program.run(ONES, told.append)
        assert program._runs <= REPEATED
        assert told == sorted(told)
        assert told[-1] == 1.0
    assert 2 < len(told) < 30


def test_it_stops_between_steps() -> None:
    program = _chain(30)
    for _ in range(REPEATED + 1):
        program.run(ONES, lambda done: None)

    def stop(done: float) -> None:
        if done > 0.3:
            raise InterruptedError("stopped")

    with pytest.raises(InterruptedError):
        program.run(ONES, stop)
    assert program.run(ONES, lambda done: None)[0]["x0"].shape == (5,)


def test_errors_come_again() -> None:
    con = einsql.connect()
    x = np.ones(4)
    con.register("x", x, dims=("i",))
    text = "WITH y AS (SELECT i, val + 1 AS val FROM x) SELECT i, CAST(val AS INTEGER) AS n FROM y"
    for _ in range(REPEATED + 1):
        assert con.execute(text).fetch_numpy().tolist() == [2] * 4
    x[1] = 1e30
    with pytest.raises(DataError):
        con.execute(text)
    x[1] = 3
    assert con.execute(text).fetch_numpy().tolist() == [2, 4, 2, 2]


def test_results_are_kept() -> None:
    """A later run writes nothing that an earlier one gave."""
    con = einsql.connect()
    x = np.zeros((3, 4), np.float32)
    con.register("x", x, dims=("i", "j"))
    text = """
    WITH m AS (SELECT i, SUM(val) AS val FROM x GROUP BY i)
    SELECT x.i, x.j, (x.val - m.val) * 2 AS val FROM x JOIN m USING (i)"""
    kept = []
    for n in range(REPEATED + 3):
        x[...] = n
        kept.append(con.execute(text).fetch_numpy())
    assert [a[0, 0] for a in kept] == [-6.0 * n for n in range(REPEATED + 3)]
