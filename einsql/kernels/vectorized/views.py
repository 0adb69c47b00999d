"""Results that are views: slices, transpositions, diagonals and broadcasts without copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from einsql.core.bfloat16 import stored
from einsql.core.records import dataclass
from einsql.core.source_writer import FieldSource, Page
from einsql.ir.einsum.graph import TRUE, Const, EinSum, Expr, Operand, Output, Value
from einsql.kernels.kernel import Arrays, Kernel, Runner, Tick, WithWriter

View = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, slots=True)
class Turned:
    """A view with axes in another order.

    Attributes:
        turn: The old axes in the new order.
    """

    turn: tuple[int, ...]

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """The view of an array."""
        return array.transpose(self.turn)


@dataclass(frozen=True, slots=True)
class Seen:
    """A view of a part of an array, transposed, and broadcast along missing keys.

    Attributes:
        part: The slices of the part; None for the complete array.
        arrange: The transposition of its axes; None for the same order.
        lift: The index that inserts axes of length 1; None for no new axes.
        shape: The shape after broadcasting.
    """

    part: tuple[slice, ...] | None
    arrange: View | None
    lift: tuple[slice | None, ...] | None = None
    shape: tuple[int, ...] = ()

    def __call__(self, array: np.ndarray) -> np.ndarray:
        """The view of an array."""
        array = array if self.part is None else array[self.part]
        array = array if self.arrange is None else self.arrange(array)
        return array if self.lift is None else np.broadcast_to(array[self.lift], self.shape)


def write_view(page: Page, view: View | None, name: str) -> str:
    """Writes a view of an array.

    Args:
        page: The generated function.
        view: The view; None for the unchanged array.
        name: The array's name.

    Returns:
        The name of the view.
    """
    text = name
    if isinstance(view, Seen):
        text = text if view.part is None else f"{text}[{page.held(view.part)}]"
        text = _turned(page, view.arrange, text)
        if view.lift is not None:
            lifted = f"{text}[{page.held(view.lift)}]"
            text = f"{page.held(np.broadcast_to, 'f')}({lifted}, {view.shape!r})"
    else:
        text = _turned(page, view, text)
    return name if text == name else page.line(text)


def _turned(page: Page, arrange: View | None, text: str) -> str:
    if isinstance(arrange, Turned):
        return f"{text}.transpose({arrange.turn!r})"
    return text if arrange is None else f"{page.held(arrange, 'f')}({text})"


def unrepeated(array: Any) -> Any:
    """The distinct elements of a host or device array: broadcast axes have length 1."""
    return array[tuple(slice(0, 1) if s == 0 else slice(None) for s in array.strides)]


_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def window(node: EinSum, operand: Operand) -> tuple[slice, ...] | None:
    """The slices of an operand that the domain reads, or None for the complete operand.

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
    """The transposition of axes `labels`, possibly repeated, to `order`; None if they are equal.

    A repeated label becomes the diagonal.
    """
    if tuple(labels) == tuple(order):
        return None
    if len(labels) == len(order):
        return Turned(tuple(labels.index(x) for x in order))
    letter = {label: _LETTERS[n] for n, label in enumerate(order)}
    spec = "".join(letter[x] for x in labels) + "->" + "".join(letter[x] for x in order)
    return lambda array: np.einsum(spec, array)


def reading(node: EinSum, operand: Operand, order: Sequence[str]) -> View | None:
    """The view of an operand with one axis per label of `order`; None if it is unchanged.

    Args:
        node: A node whose axes bound the operand's labels.
        operand: One of its operands, read through free axes only.
        order: The operand's distinct labels in the target order.
    """
    part = window(node, operand)
    arrange = arrangement(operand.labels, order)
    return arrange if part is None else Seen(part, arrange)


def matches(node: EinSum) -> bool:
    """True for element-wise nodes of free axes whose outputs are plain values or literals.

    Values are arbitrary where a guard does not hold. A flag may be the guard itself.
    """
    return (
        is_plain(node, node.guard)
        and all(a.define is None and a.label in node.keys for a in node.axes)
        and all(is_plain(node, _value(node, o)) for o in node.outputs)
        and all(o.reduction is None or is_presence(o) for o in node.outputs)
        and all(_value(node, o).dtype is o.dtype for o in node.outputs)
    )


def is_presence(o: Output) -> bool:
    """True for the presence flag of a key."""
    return o.reduction == "bool_or" and o.args == (TRUE,) and o.where == TRUE


def _value(node: EinSum, o: Output) -> Expr:
    """The value of an output at the only point of its key."""
    return o.args[0] if o.reduction is None else node.guard


@dataclass(frozen=True, slots=True)
class ViewPlan:
    """The outputs of a node without computation.

    Attributes:
        literals: The constant outputs by name.
        reads: The name, operand, field and view of each other output.
    """

    literals: dict[str, np.ndarray]
    reads: tuple[tuple[str, int, str, View | None], ...]


def plan_views(node: EinSum) -> ViewPlan | None:
    """The plan of a node whose outputs are views or literals; None for other nodes."""
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
    """Matches element-wise nodes without computation."""
    plan = plan_views(node)
    if plan is None:
        return None
    literals, reads = plan.literals, plan.reads

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        fields = literals.copy()
        for name, operand, field, view in reads:
            array = operands[operand][field]
            fields[name] = array if view is None else view(array)
        return fields

    def write(page: Page, laid: Sequence[FieldSource]) -> dict[str, str]:
        names = {name: page.line(page.held(array)) for name, array in literals.items()}
        for name, operand, field, view in reads:
            names[name] = write_view(page, view, laid[operand].array(field))
        return names

    return WithWriter(run, write)


def is_plain(node: EinSum, expr: Expr) -> bool:
    """True for literals and for operand values that a view can represent."""
    if isinstance(expr, Value):
        return len(set(node.operands[expr.operand].labels)) <= len(_LETTERS)
    return isinstance(expr, Const)


def spread(node: EinSum, operand: Operand, shape: tuple[int, ...]) -> View | None:
    """The view of an operand over all keys, broadcast along missing keys."""
    keys = [k for k in node.keys if k in operand.labels]
    view = reading(node, operand, keys)
    if len(keys) == len(node.keys):
        return view
    if not keys and view is None and prod(shape) < 2**31:  # `ndarray` counts the bytes
        return Repeated(shape)
    lift = tuple(slice(None) if k in operand.labels else None for k in node.keys)
    if isinstance(view, Seen):
        return Seen(view.part, view.arrange, lift, shape)
    return Seen(None, view, lift, shape)


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same as `numpy.broadcast_to` of an array without axes, in a fifth of the time.

    Attributes:
        shape: The shape after broadcasting.
    """

    shape: tuple[int, ...]

    def __call__(self, scalar: np.ndarray) -> np.ndarray:
        """The view of an array."""
        view = np.ndarray(self.shape, scalar.dtype, scalar, 0, (0,) * len(self.shape))
        view.flags.writeable = False
        return view


VIEWS = Kernel(
    "view",
    "outputs are values re-indexed: strides change, nothing moves",
    compile_views,
    takes_half=True,
    makes_views=True,
)
