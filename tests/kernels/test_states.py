"""Kernels reduce to states of several fields as the reference interpreter does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

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
    Value,
)
from einsql.ir.einsum.interpreter import evaluate
from einsql.ir.einsum.partial_states import merged_state, with_state
from einsql.ir.einsum.states import StateField, define
from einsql.kernels.loops import loop_cuts, loop_nest
from einsql.kernels.loops.generated import compile_loops
from einsql.kernels.loops.loop_nest import Mode, plan_nest
from einsql.kernels.registry import compile_node
from einsql.kernels.runtime import thread_pool
from tests.kernels.compiling import cache_directory
from tests.kernels.laws import COUNTS, LAWS, MATRICES, WELFORD, WITNESS, Law, call, real
from tests.kernels.nodes import Arrays, Runner, no_tick

B, I64, F, D = DType.BOOLEAN, DType.BIGINT, DType.FLOAT, DType.DOUBLE

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


def check(node: EinSum, run: Runner, data: Sequence[Arrays] | None = None) -> None:
    """Compares a kernel with the interpreter."""
    data = data_of(node) if data is None else data
    expected = evaluate(node, {o.source.name: d for o, d in zip(node.operands, data, strict=True)})
    got = run(data, no_tick)
    assert set(got) == set(expected)
    for o in node.outputs:
        assert got[o.name].dtype == o.dtype.numpy
        rtol = 1e-5 if o.dtype is F else 1e-11
        np.testing.assert_allclose(got[o.name], expected[o.name], rtol, rtol, err_msg=o.name)


LAYOUTS = {
    "rows": ("i", {"i": 5, "j": 37}, Mode.REGISTERS),
    "columns": ("j", {"i": 37, "j": 9}, Mode.ROW),
    "everything": ("", {"i": 3, "j": 5, "k": 37}, Mode.REGISTERS),
    "middle": ("j", {"i": 3, "j": 5, "k": 37}, Mode.REGISTERS),
}


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
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("law", LAWS)
def test_loops_reduce_to_states(law: str, layout: str) -> None:
    keys, extents, _ = LAYOUTS[layout]
    node = node_of(LAWS[law], keys, extents, selects=layout != "rows")
    check(node, compile_loops(node))
