"""Sums that keep their parts: Σₙ xₙ = Σₚ Σ_{n in part p} xₙ, without the sum over the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Input,
    Label,
    Node,
    Operand,
    Output,
    Value,
    bigint,
    call,
)
from einsql.ir.einsum.graph_rewriting import fresh
from einsql.ir.einsum.sharded_notation import grid_of
from einsql.ir.layout import Mesh

PART = "part"
"""The wanted name of the key that numbers the parts."""
_KEPT = (DType.FLOAT, DType.DOUBLE)
"""The types of sums that are kept; others are stored in a type other than the one they add in."""


def keeps_parts(node: EinSum) -> bool:
    """True for plain sums of floats, whose parts are tensors of the same type."""
    sums = all(o.reduction == "sum" and o.dtype in _KEPT for o in node.outputs)
    return sums and node.guard == TRUE


def without_true_flags(node: EinSum) -> EinSum:
    """The node without flags that are true for every key, as in a sum over dense operands."""
    free = [a for a in node.axes if a.define is None]
    is_total = node.guard == TRUE and len(free) == len(node.axes) and all(a.extent for a in free)
    if not is_total or any(o.source.schema.has(PRESENT) for o in node.operands):
        return node
    flags = [
        o
        for o in node.outputs
        if o.dtype is DType.BOOLEAN and o.args == (TRUE,) and o.where == TRUE
    ]
    return replace(node, outputs=tuple(o for o in node.outputs if o not in flags))


def divided(node: EinSum, label: str, number: int) -> EinSum:
    """The node with a first key that numbers equal parts of a reduced label.

    Args:
        node: A sum.
        label: A label that it reduces and that is not derived.
        number: The number of parts; the last ones may be empty.
    """
    axis, labels = node.axis(label), [a.label for a in node.axes]
    if axis.extent == number and axis.lo == 0:
        return replace(node, keys=(label, *node.keys))
    part = fresh(PART, labels)
    place = fresh("place", [*labels, part])
    length = max(1, -(-axis.extent // number))
    position = call(
        "add", DType.BIGINT, call("mul", DType.BIGINT, Label(part), bigint(length)), Label(place)
    )
    if axis.lo:
        position = call("add", DType.BIGINT, position, bigint(axis.lo))
    free = [a for a in node.axes if a.define is None and a.label != label]
    derived = [replace(axis, define=position), *(a for a in node.axes if a.define is not None)]
    axes = (Axis(part, 0, number), Axis(place, 0, length), *free, *derived)
    return replace(node, axes=axes, keys=(part, *node.keys))


def cut_axes(node: EinSum, mesh: Mesh) -> dict[str, tuple[str, ...]]:
    """The mesh axes along which a node's requested grid cuts each label, the outer one first."""
    if len(node.grid) != len(mesh.axes):
        return {}
    cut: dict[str, list[tuple[int, str]]] = {a.label: [] for a in node.axes}
    for (name, _), entry in zip(mesh.axes, node.grid, strict=True):
        if entry.label in cut:
            cut[entry.label].append((entry.depth, name))
    return {label: tuple(name for _, name in sorted(names)) for label, names in cut.items()}


def pending_label(node: EinSum, mesh: Mesh) -> str | None:
    """The reduced label that the requested grid cuts; None if it cuts none or several."""
    cut = cut_axes(node, mesh)
    labels = [label for label in node.reduced if cut.get(label)]
    return labels[0] if len(labels) == 1 else None


def parts_of(node: Node, mesh: Mesh) -> tuple[EinSum, tuple[str, ...]] | None:
    """The parts of a sum that the requested grid leaves partial, with a first key of the parts.

    Args:
        node: A sum, or another name of one.
        mesh: The mesh of the sites.

    Returns:
        The parts, and the mesh axes of their first key. None if nothing is partial, or the parts
        are no plain sums of floats.
    """
    if isinstance(node, Input) or node.guard != TRUE:
        return None
    label = pending_label(node, mesh)
    if label is not None:
        if not keeps_parts(node):
            return None
        cut = cut_axes(node, mesh)
        over = cut[label]
        parts = divided(node, label, _points(mesh, over))
        grid = grid_of(mesh, parts.keys, [over, *(cut[key] for key in node.keys)])
        return replace(parts, hint=(), grid=grid), over
    if len(node.operands) != 1 or not _is_renaming(node):
        return None
    (operand,) = node.operands
    inner = parts_of(operand.source, mesh)
    if inner is None:
        return None
    source, over = inner
    part = fresh(PART, (a.label for a in node.axes))
    axes = (Axis(part, 0, source.schema.keys[0].hi), *node.axes)
    operands = (Operand(source, (part, *operand.labels)),)
    return replace(node, axes=axes, operands=operands, keys=(part, *node.keys), hint=()), over


def sum_over_first_key(node: Node, mesh: Mesh, axes: Sequence[Sequence[str]]) -> EinSum:
    """The sum over a node's first key, on the grid of the mesh that cuts the node's keys.

    Args:
        node: The parts of a sum.
        mesh: The mesh of the sites.
        axes: For each key of the node the mesh axes that cut it, the outer one first.
    """
    keys = node.schema.keys
    labels = tuple(k.name for k in keys)
    outputs = tuple(
        Output(f.name, (Value(0, f.name, f.dtype),), f.dtype, "sum") for f in node.schema.fields
    )
    domain = tuple(Axis(k.name, k.lo, k.hi) for k in keys)
    grid = grid_of(mesh, labels, axes)
    return EinSum(domain, (Operand(node, labels),), TRUE, labels[1:], outputs, (), grid)


def _points(mesh: Mesh, axes: Sequence[str]) -> int:
    return prod(size for name, size in mesh.axes if name in axes)


def _is_renaming(node: EinSum) -> bool:
    """True if a node reads every element of its operand once, under other names."""
    free = {a.label for a in node.axes if a.define is None}
    plain = all(isinstance(v, Value) for o in node.outputs for v in o.args)
    return node.is_elementwise and plain and set(node.operands[0].labels) == free == set(node.keys)
