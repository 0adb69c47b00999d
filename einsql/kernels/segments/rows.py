"""Labels found in data: the labels that number rows, and the values of derived labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Operand,
    Output,
    operands_of,
    renumber,
)
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.scalars import labels_read
from einsql.kernels.vectorized.vector import compile_vector
from einsql.kernels.vectorized.views import VIEWS


@dataclass(frozen=True, slots=True)
class Rows:
    """The free labels of a node in two groups.

    Attributes:
        labels: The labels that decide derived labels or are reduced; they number rows.
        features: The remaining labels, all keys, in the order of the result.
        derived: The derived axes.
    """

    labels: tuple[str, ...]
    features: tuple[str, ...]
    derived: tuple[Axis, ...]


def rows_of(node: EinSum) -> Rows | None:
    """The rows of a node with data-dependent labels; None for other nodes."""
    derived = tuple(a for a in node.axes if a.define is not None)
    if not derived or node.guard != TRUE or any(a.extent == 0 for a in node.axes):
        return None
    names = {a.label for a in derived}
    read = {x for a in derived if a.define is not None for x in labels_read(node, a.define)} - names
    labels = tuple(
        a.label
        for a in node.axes
        if a.define is None and (a.label in read or a.label not in node.keys)
    )
    if not labels or not any(operands_of(a.define) for a in derived if a.define is not None):
        return None
    features = tuple(k for k in node.keys if k not in names and k not in labels)
    return Rows(labels, features, derived)


Numbers = dict[str, np.ndarray]
"""The one-dimensional values of derived labels at every row."""


def numbering(node: EinSum, rows: Rows) -> Callable[[Sequence[Arrays], Tick], Numbers]:
    """Creates a function that computes the derived labels of every row."""
    parts = [_number(node, rows, a) for a in rows.derived]

    def numbers(operands: Sequence[Arrays], tick: Tick) -> Numbers:
        by_label: Numbers = {}
        for axis, (run, used) in zip(rows.derived, parts, strict=True):
            result = run([operands[n] for n in used], tick)[axis.label]
            by_label[axis.label] = np.ascontiguousarray(result, np.int64).reshape(-1)
        return by_label

    return numbers


def _number(node: EinSum, rows: Rows, axis: Axis) -> tuple[Runner, list[int]]:
    """Creates a runner of one derived label over the rows; returns it and its operands."""
    assert axis.define is not None
    needed: set[str] = set()
    todo = labels_read(node, axis.define)
    derived = {a.label: a for a in rows.derived}
    while todo:
        x = todo.pop()
        define = derived[x].define if x in derived else None
        if x not in needed and define is not None:
            todo |= labels_read(node, define)
        needed.add(x)
    axes = tuple(a for a in node.axes if a.label in rows.labels or a.label in needed)
    defines = [axis.define, *(a.define for a in axes if a.define is not None)]
    used = sorted({n for e in defines for n in operands_of(e)})
    numbers = {n: m for m, n in enumerate(used)}
    value = renumber(axis.define, numbers)
    part = EinSum(
        tuple(Axis(a.label, a.lo, a.hi, a.define and renumber(a.define, numbers)) for a in axes),
        tuple(node.operands[n] for n in used),
        TRUE,
        rows.labels,
        (Output(axis.label, (value,), axis.define.dtype),),
    )
    return VIEWS.match(part) or compile_vector(part), used


def inside(axis: Axis, numbers: np.ndarray) -> np.ndarray | None:
    """The rows at which a derived label exists; None for all."""
    if not len(numbers) or (axis.lo <= numbers.min() and numbers.max() < axis.hi):
        return None
    return (axis.lo <= numbers) & (numbers < axis.hi)


def row_parts(operand: Operand, rows: Rows) -> tuple[list[int], list[int]] | None:
    """The positions of an operand's labels that select a row, and of the labels within it.

    Returns:
        None if a feature is read twice or decides the row's number.
    """
    features = [n for n, x in enumerate(operand.labels) if x in rows.features]
    names = [operand.labels[n] for n in features]
    if len(set(names)) < len(names):
        return None
    return [n for n in range(len(operand.labels)) if n not in features], features


def size(node: EinSum, labels: Sequence[str]) -> int:
    """The product of the extents of labels."""
    return prod(node.axis(x).extent for x in labels)
