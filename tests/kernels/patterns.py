"""Nodes over arrays in a line or two, compared with the reference as generated loops."""

from __future__ import annotations

from typing import Any

import numpy as np

from einsql.core.schema import DType, Field, Key, Schema
from einsql.ir.einsum.graph import TRUE, Axis, Call, EinSum, Expr, Input, Operand, Output, Value
from einsql.kernels.loops.generated import compile_loops
from tests.kernels.nodes import Case, check

F = DType.FLOAT


def tensor(name: str, values: Any, dtype: DType, *keys: Key) -> tuple[Input, dict[str, np.ndarray]]:
    array = np.asarray(values, dtype.numpy)
    found = keys or tuple(Key(f"k{n}", 0, e) for n, e in enumerate(array.shape))
    return Input(name, Schema(found, (Field("val", dtype),))), {"val": array}


def axes(**extents: int) -> tuple[Axis, ...]:
    return tuple(Axis(label, 0, extent) for label, extent in extents.items())


def val(operand: int, dtype: DType = F) -> Value:
    return Value(operand, "val", dtype)


def fn(name: str, dtype: DType, *args: Expr) -> Call:
    return Call(name, args, dtype)


def agree(
    space: tuple[Axis, ...],
    read: list[tuple[tuple[Input, dict[str, np.ndarray]], str]],
    keys: str,
    *outputs: Output,
    guard: Expr = TRUE,
) -> EinSum:
    """Asserts agreement with the reference; operands are read with one-letter labels."""
    operands = tuple(Operand(source, tuple(labels)) for (source, _), labels in read)
    node = EinSum(space, operands, guard, tuple(keys), outputs)
    check(Case(node, tuple(fields for (_, fields), _ in read)), compile_loops(node))
    return node


def dyadic(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-16, 16, shape) / 4
