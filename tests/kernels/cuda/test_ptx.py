"""Generated kernels compile to PTX, which takes numba-cuda but no GPU."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from einsql.core.schema import DType
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
from einsql.kernels.cuda import Memory, compile_on_device, generated
from einsql.kernels.cuda.device import load, simulated
from einsql.kernels.cuda.simulator import Simulator
from tests.kernels.cuda.nodes import pairs, scalars, tensor

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("numba_cuda") is None,
        reason="numba-cuda[cu13] is not installed (einsql[cuda])",
    ),
    pytest.mark.skipif(simulated(), reason="the simulator compiles nothing"),
]

B, I32, I64 = DType.BOOLEAN, DType.INTEGER, DType.BIGINT
H, F, D = DType.HALF, DType.FLOAT, DType.DOUBLE


@pytest.fixture(autouse=True)
def device_of_compute_capability_9(monkeypatch: pytest.MonkeyPatch) -> None:
    """What numba-cuda asks the driver for when a kernel calls a function."""
    device = SimpleNamespace(compute_capability=(9, 0))
    monkeypatch.setattr("numba.cuda.dispatcher.get_current_device", lambda: device)


class Compiling(Simulator):
    """Compiles what is launched, and launches nothing."""

    threads = 256
    tile = (8, 8)
    blocks = 0  # as if there were work enough for the largest tiles

    def __init__(self) -> None:
        super().__init__()
        self.made: list[str] = []

    def launch(self, source: str, blocks: int, args: Sequence[Any]) -> None:
        import numba

        nb: Any = numba  # partly typed
        kinds = [nb.int64 if isinstance(a, int) else nb.typeof(a) for a in args]
        kernel = load(source)
        text, _ = nb.cuda.compile(
            kernel.py_func, tuple(kinds), cc=(9, 0), device=False, abi="numba"
        )  # fmt: skip
        assert ".entry" in text
        if "cuda.local.array" in source:
            assert ".local" not in text  # they are registers
        self.made.append(text)


def compiled(node: EinSum, operands: Sequence[dict[str, np.ndarray]]) -> str:
    memory = Memory(Compiling())
    compiled = compile_on_device(node, memory)
    name, run = compiled.kernel, compiled.run
    handles = [{key: memory.given(a) for key, a in o.items()} for o in operands]
    run(handles, lambda _: None)
    return name


@pytest.mark.parametrize("case", pairs(), ids=lambda c: c.node.outputs[0].name)
@pytest.mark.parametrize("tiled", [True, False])
def test_two_sides(case: Any, tiled: bool) -> None:
    memory = Memory(Compiling())
    compiled = compile_on_device(case.node, memory, least=1 if tiled else 1000)
    name, run = compiled.kernel, compiled.run
    assert name == ("cuda tiles" if tiled else "cuda grid")
    run([{k: memory.given(a) for k, a in o.items()} for o in case.operands], lambda _: None)


@pytest.mark.parametrize("dtype", [F, D])
def test_products_are_rounded_before_they_are_added(dtype: DType) -> None:
    x = Value(0, "val", dtype)
    square = Call("pow", (x, Const(2.0, dtype)), dtype)
    outputs = tuple(
        Output(f"v{n}", (Call("add", (product, x), dtype),), dtype)
        for n, product in enumerate((Call("mul", (x, x), dtype), square))
    )
    operand = Operand(tensor("x", dtype, i=8), ("i",))
    node = EinSum((Axis("i", 0, 8),), (operand,), TRUE, ("i",), outputs)
    device = Compiling()
    memory = Memory(device)
    run = compile_on_device(node, memory).run
    run([{"val": memory.given(np.zeros(8, dtype.numpy))}], lambda _: None)
    (text,) = device.made
    assert "mul.rn" in text
    assert "fma" not in text


@pytest.mark.parametrize("dtype", [F, D, I32, I64])
def test_scalar_functions(dtype: DType) -> None:
    case = scalars(dtype)
    assert compiled(case.node, case.operands) == "cuda grid"


def _reductions(dtype: DType) -> tuple[Output, ...]:
    value = Value(0, "val", dtype)
    names = ["min", "max", "arg_min", "arg_max"]
    names += ["bool_or", "bool_and"] if dtype is B else ["sum"] + ["product"] * (dtype is not H)
    names += ["bit_and", "bit_or", "bit_xor"] if dtype.is_integer else []
    found = []
    for name in names:
        if name.startswith("arg_"):
            found.append(Output(name, (Label("j"), value), I64, name))
        else:
            found.append(Output(name, (value,), dtype, name))
    return tuple(found)


@pytest.mark.parametrize("dtype", [B, DType.TINYINT, I32, I64, H, F, D])
def test_reductions_by_threads_and_by_teams(dtype: DType, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = (Axis("i", 0, 3), Axis("j", 0, 40))
    operand = Operand(tensor("x", dtype, i=3, j=40), ("i", "j"))
    node = EinSum(axes, (operand,), TRUE, ("i",), _reductions(dtype))
    fields = [{"val": np.zeros((3, 40), dtype.numpy)}]
    assert compiled(node, fields) == "cuda grid"
    monkeypatch.setattr(generated, "LONG", 2)
    monkeypatch.setattr(Compiling, "blocks", 4096)
    assert compiled(node, fields) == "cuda grid"


def test_segments_gathers_guards_and_casts(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Value(1, "val", I64)
    axes = (Axis("e", 0, 50), Axis("f", 0, 4), Axis("s", 0, 6, index))
    operands = (
        Operand(tensor("x", F, e=50, f=4), ("e", "f")),
        Operand(tensor("to", I64, e=50), ("e",)),
        Operand(tensor("scale", D, s=6), ("s",)),
    )
    wide: Expr = Call("cast", (Value(0, "val", F),), D)
    whole = Call("cast", (Call("mul", (wide, Value(2, "val", D)), D),), I32)
    guard = Call("lt", (Label("f"), Const(3, I64)), B)
    outputs = (
        Output("total", (whole,), I32, "sum"),
        Output("half", (Call("cast", (wide,), H),), H, "max"),
    )
    node = EinSum(axes, operands, guard, ("s", "f"), outputs)
    fields: list[dict[str, np.ndarray]] = [
        {"val": np.zeros((50, 4), np.float32)},
        {"val": np.zeros(50, np.int64)},
        {"val": np.zeros(6)},
    ]
    assert compiled(node, fields) == "cuda grid"
    monkeypatch.setattr(generated, "LONG", 2)
    monkeypatch.setattr(Compiling, "blocks", 4096)
    assert compiled(node, fields) == "cuda grid"
