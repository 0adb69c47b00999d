"""Conditions on the values of a matrix stored sparsely, asked of its stored elements alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Input,
    Operand,
    Output,
    Value,
    conj,
    conjuncts,
    labels_of,
    renumber,
    subexpressions,
)
from einsql.kernels.kernel import Runner, no_progress
from einsql.kernels.sparse.match import Side

Condition = Callable[[np.ndarray], np.ndarray]
"""Takes the stored values and tells which of them are meant."""

SIZES = 4
"""Numbers of elements that a condition is compiled for at a time."""


def split(side: Side) -> tuple[bool, Expr] | None:
    """Whether a side requires present elements, and its other conditions on their values.

    Returns:
        None if its guard reads anything but its operand's value.
    """
    asked = Value(side.operand, PRESENT, DType.BOOLEAN)
    terms = list(conjuncts(side.guard))
    rest = conj(*(t for t in terms if t != asked))
    reads = [e for e in subexpressions(rest) if isinstance(e, Value)]
    if labels_of(rest) or any(v.operand != side.operand or v.field == PRESENT for v in reads):
        return None
    return asked in terms, rest


def condition_of(
    side: Side, rest: Expr, field: Field, compile_node: Callable[[EinSum], Runner]
) -> Condition | None:
    """The conditions of a side; None for nothing.

    Args:
        side: The side.
        rest: The conditions.
        field: The operand's value.
        compile_node: Compiles a node.
    """
    if rest == TRUE:
        return None
    guard = renumber(rest, {side.operand: 0})

    @lru_cache(maxsize=SIZES)
    def compiled(stored: int) -> Runner:
        source = Input("stored", Schema((Key("n", 0, stored),), (field,)))
        kept = Output("kept", (guard,), DType.BOOLEAN)
        axes, operands = (Axis("n", 0, stored),), (Operand(source, ("n",)),)
        return compile_node(EinSum(axes, operands, TRUE, ("n",), (kept,)))

    return lambda values: compiled(len(values))([{field.name: values}], no_progress)["kept"]
