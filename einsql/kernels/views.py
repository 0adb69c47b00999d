"""Results that are views: slices, transpositions, diagonals and broadcasts, without a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from einsql.bfloat16 import stored
from einsql.einsum import TRUE, Const, EinSum, Expr, Operand, Output, Value
from einsql.kernels.kernel import Fields, Kernel, Runner, Tick

View = Callable[[np.ndarray], np.ndarray]

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def window(node: EinSum, operand: Operand) -> tuple[slice, ...] | None:
    """The part of an operand that the domain reads, or None for all of it.

    Args:
        node: A node whose axes bound the operand's labels.
        operand: One of its operands, read through free axes only.
    """
    axes = [node.axis(label) for label in operand.labels]
    keys = operand.source.schema.keys
    if all((a.lo, a.hi) == (k.lo, k.hi) for a, k in zip(axes, keys, strict=True)):
        return None
    return tuple(
        slice(a.lo - k.lo, a.lo - k.lo + a.extent) for a, k in zip(axes, keys, strict=True)
    )


def arrangement(labels: Sequence[str], order: Sequence[str]) -> View | None:
    """How to turn axes `labels`, some repeated, into `order`, or None if they are that.

    A repeated label becomes the diagonal.
    """
    if tuple(labels) == tuple(order):
        return None
    if len(labels) == len(order):
        turn = tuple(labels.index(x) for x in order)
        return lambda array: array.transpose(turn)
    letter = {label: _LETTERS[n] for n, label in enumerate(order)}
    spec = "".join(letter[x] for x in labels) + "->" + "".join(letter[x] for x in order)
    return lambda array: np.einsum(spec, array)


def reading(node: EinSum, operand: Operand, order: Sequence[str]) -> View | None:
    """How to view an operand with one axis per label of `order`, or None for as it is.

    Args:
        node: A node whose axes bound the operand's labels.
        operand: One of its operands, read through free axes only.
        order: The operand's distinct labels, in the wanted order.
    """
    part = window(node, operand)
    arrange = arrangement(operand.labels, order)
    if part is None:
        return arrange
    if arrange is None:
        return lambda array: array[part]
    return lambda array: arrange(array[part])


def matches(node: EinSum) -> bool:
    """True for element-wise nodes of free axes whose outputs are plain values or literals.

    Where a guard does not hold values are arbitrary; a flag may be the guard itself.
    """
    return (
        is_plain(node, node.guard)
        and all(a.define is None and a.label in node.keys for a in node.axes)
        and all(is_plain(node, _value(node, o)) for o in node.outputs)
        and all(o.reduction is None or _is_guard(o) for o in node.outputs)
        and all(_value(node, o).dtype is o.dtype for o in node.outputs)
    )


def _is_guard(o: Output) -> bool:
    return o.reduction == "bool_or" and o.args == (TRUE,) and o.where == TRUE


def _value(node: EinSum, o: Output) -> Expr:
    """What an output is at the one point of its key."""
    return o.args[0] if o.reduction is None else node.guard


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """The outputs of a node that computes nothing.

    Attributes:
        literals: Those that are the same everywhere, by name.
        reads: The others: their name, the operand, its field, and how it is viewed.
    """

    literals: dict[str, np.ndarray]
    reads: tuple[tuple[str, int, str, View | None], ...]


def plan_views(node: EinSum) -> ViewPlan | None:
    """How each output is a view, or None for a node that computes something."""
    if not matches(node):
        return None
    shape = node.schema.shape
    literals: dict[str, np.ndarray] = {}
    reads: list[tuple[str, int, str, View | None]] = []
    for o in node.outputs:
        arg = _value(node, o)
        if isinstance(arg, Const):
            literal = stored(np.asarray(arg.value, o.dtype.carrier), o.dtype)
            literals[o.name] = np.broadcast_to(literal, shape)
        elif isinstance(arg, Value):
            view = spread(node, node.operands[arg.operand], shape)
            reads.append((o.name, arg.operand, arg.field, view))
    return ViewPlan(literals, tuple(reads))


def compile_views(node: EinSum) -> Runner | None:
    """Matches element-wise nodes that compute nothing."""
    plan = plan_views(node)
    if plan is None:
        return None
    literals, reads = plan.literals, plan.reads

    def run(operands: Sequence[Fields], tick: Tick) -> dict[str, np.ndarray]:
        fields = literals.copy()
        for name, operand, field, view in reads:
            array = operands[operand][field]
            fields[name] = array if view is None else view(array)
        return fields

    return run


def is_plain(node: EinSum, expr: Expr) -> bool:
    """True for literals and for operand values that can be viewed."""
    if isinstance(expr, Value):
        return len(set(node.operands[expr.operand].labels)) <= len(_LETTERS)
    return isinstance(expr, Const)


def spread(node: EinSum, operand: Operand, shape: tuple[int, ...]) -> View | None:
    """The operand as an array over all keys, repeated along those it does not have."""
    held = [k for k in node.keys if k in operand.labels]
    view = reading(node, operand, held)
    if len(held) == len(node.keys):
        return view
    if not held and view is None and prod(shape) < 2**31:  # `ndarray` counts the bytes
        return lambda scalar: _repeated(scalar, shape)
    lift = tuple(slice(None) if k in operand.labels else None for k in node.keys)

    def repeat(array: np.ndarray) -> np.ndarray:
        return np.broadcast_to((array if view is None else view(array))[lift], shape)

    return repeat


def _repeated(scalar: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """As `numpy.broadcast_to` of an array without axes, in a fifth of the time."""
    made = np.ndarray(shape, scalar.dtype, scalar, 0, (0,) * len(shape))
    made.flags.writeable = False
    return made


VIEWS = Kernel(
    "view", "outputs are values re-indexed: strides change, nothing moves", compile_views
)
