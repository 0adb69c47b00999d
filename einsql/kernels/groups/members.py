"""The members of a group: nodes as matrix products, or as loops within limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import frexp, prod

from einsql.core.records import dataclass
from einsql.core.schema import PRESENT, DType
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Operand,
    Value,
    conjuncts,
    exprs,
    rewrite,
    subexpressions,
)
from einsql.ir.einsum.intervals import fits, interval
from einsql.kernels.groups.classes import Classes, is_free
from einsql.kernels.groups.limits import (
    Limit,
    Mask,
    Masks,
    asked,
    holds,
    limit,
    mask,
    masked,
    over,
)
from einsql.kernels.groups.orders import Order, arranged
from einsql.kernels.matmul.match import two_values
from einsql.kernels.scalars import bounds_of

MOST_WORK = 4
"""Greatest points per element read or written; with more, a separate kernel is faster."""
NARROWEST = 8
"""Width and depth below which tiles do not pay for a product."""

_LARGEST_EXPONENT = 64
"""Greatest exponent of a power of two whose inverse is a normal number of every type."""

Limits = frozenset[Limit]


@dataclass(frozen=True, slots=True)
class Product:
    """The product Σ scale · left · right; only the left side has the label cut into blocks.

    Attributes:
        left, right: The number of the operand and its field.
        summed: The label of the sum.
        wide: The key of the right side.
    """

    left: tuple[int, str]
    right: tuple[int, str]
    summed: str
    wide: str
    scale: float


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a group.

    Attributes:
        origin: The node of the graph that other nodes' operands reference.
        node: The node with its keys in the group's order, without presence and without its guard,
            which the limits replace.
        own: The class of each label.
        limits: The limits of the points that exist or are read.
        masks: The masks of the points.
        visible: True if its result is read outside the group.
        product: The matrix product that computes it; None for loops.
        divisor: The number of the node by which this sum, not each term, is divided; or None.
    """

    origin: EinSum
    node: EinSum
    own: dict[str, int]
    limits: Limits
    masks: Masks
    visible: bool
    product: Product | None = None
    divisor: EinSum | None = None

    @property
    def last(self) -> str:
        """The key along which the result is contiguous."""
        return last_key(self.node)

    def wide(self, labels: Iterable[str]) -> list[int]:
        """The classes with more than one value among those of some labels."""
        return [self.own[x] for x in labels if self.node.axis(x).extent > 1]


def last_key(node: EinSum) -> str:
    """The last key with more than one value, or else the last key."""
    wide = [k for k in node.keys if node.axis(k).extent > 1]
    return (wide or node.keys)[-1]


def members(
    nodes: Sequence[EinSum], classes: Classes, visible: Sequence[bool], order: Order
) -> list[Member] | None:
    """The nodes as members of a group; None if a node is unsupported or fusing does not pay.

    Args:
        nodes: The nodes in order.
        classes: The classes of their labels.
        visible: For each node, whether it is read outside the group.
        order: The order of the keys of every member.
    """
    block = classes.rows[-1]
    split = _within_limits(nodes, classes, asked(nodes, classes, visible))
    if split is None:
        return None
    resolved, limits, masks = split
    _narrow(nodes, resolved, limits, classes, visible)
    group: list[Member] = []
    bare = arranged(nodes, resolved, classes.of, order)
    for all_of in zip(nodes, bare, classes.of, limits, masks, visible, strict=True):
        m = Member(*all_of)
        m = replace(m, product=match_product(m.node, m.own, classes.rows, block))
        if m.product is None and not _loops(m.node):
            return None
        if m.visible and m.masks > over(m.masks, _kept(m.node, m.own)):
            return None  # results of the group have no flags of presence
        group.append(m)
    return group


def _within_limits(
    nodes: Sequence[EinSum], classes: Classes, ranges: Sequence[Masks]
) -> tuple[list[EinSum], list[Limits], list[Masks]] | None:
    """The nodes without guards, and the limits and masks of the guards.

    Args:
        nodes: The nodes in order.
        classes: The classes of their labels.
        ranges: The masks of each node that all of its readers have.
    """
    number = {id(n): at for at, n in enumerate(nodes)}
    resolved: list[EinSum] = []
    limits_of: list[Limits] = []
    hidden: list[Masks] = []
    for node, own, more in zip(nodes, classes.of, ranges, strict=True):
        inside = {
            n: number[id(o.source)] for n, o in enumerate(node.operands) if id(o.source) in number
        }
        shown = {n: _shown(nodes[p], classes.of[p], limits_of[p]) for n, p in inside.items()}
        behind = {
            n: hidden[p] - over(hidden[p], _kept(nodes[p], classes.of[p]))
            for n, p in inside.items()
        }
        limits: set[Limit] = set()
        masks: set[Mask] = set(more)
        for term in conjuncts(node.guard):
            if isinstance(term, Value) and term.field == PRESENT and term.operand in inside:
                limits |= shown[term.operand]
                masks |= behind[term.operand]
            elif (new := limit(term, node, own, classes.rows)) is not None:
                limits.add(new)
            elif (data := mask(term, node, own, number)) is not None:
                masks.add(data)
            else:
                return None
        if any(not b <= masks for b in behind.values()):
            return None
        if any(not held_by <= limits for held_by in shown.values()) or any(
            m.inner not in own.values() for m in limits
        ):
            return None
        limits = {m for m in limits if not holds(m, classes.bounds)}
        bare = _bare(node, frozenset(n for n, s in shown.items() if not s and not behind[n]))
        bare = masked(bare, own, frozenset(masks)) if bare is not None else None
        if bare is None:
            return None
        resolved.append(bare)
        limits_of.append(frozenset(limits))
        hidden.append(frozenset(masks))
    return resolved, limits_of, hidden


def _kept(node: EinSum, own: Mapping[str, int]) -> set[int]:
    return {own[k] for k in node.keys}


def _shown(node: EinSum, own: Mapping[str, int], limits: Limits) -> Limits:
    """The limits of a node's result; within its other limits every row has points."""
    kept = _kept(node, own)
    return frozenset(m for m in limits if m.inner in kept)


def _bare(node: EinSum, full: frozenset[int]) -> EinSum | None:
    """The node without guard and presence; the presence of `full` operands is TRUE."""

    def visit(e: Expr) -> Expr:
        full_presence = isinstance(e, Value) and e.field == PRESENT and e.operand in full
        return TRUE if full_presence else _multiplied(e)

    outputs = tuple(
        replace(o, args=tuple(rewrite(a, visit) for a in o.args), where=rewrite(o.where, visit))
        for o in node.outputs
        if o.name != PRESENT
    )
    # A presence flag only states that a point exists.
    flags = [(*o.args, o.where) for o in node.outputs if o.name == PRESENT]
    if not outputs or any(flag != (TRUE, TRUE) for flag in flags):
        return None
    bounds = bounds_of(node)
    for a in node.axes:
        if a.define is not None and (
            a.label in node.keys or not fits(interval(a.define, bounds), a.lo, a.hi - 1)
        ):
            return None
    axes = tuple(replace(a, define=None) if is_free(node, a) else a for a in node.axes)
    bare = replace(node, axes=axes, guard=TRUE, outputs=outputs)
    reads = (e for x in exprs(bare) for e in subexpressions(x))
    if any(isinstance(e, Value) and e.field == PRESENT and e.operand in full for e in reads):
        return None  # in the definition of a derived label
    return bare


def _multiplied(e: Expr) -> Expr:
    """Replaces a division by a power of two by the equal, faster product."""
    if not isinstance(e, Call) or e.fn != "div" or e.dtype not in (DType.FLOAT, DType.DOUBLE):
        return e
    by = e.args[1]
    if not isinstance(by, Const) or by.dtype is not e.dtype or e.args[0].dtype is not e.dtype:
        return e
    fraction, exponent = frexp(by.value)
    if abs(fraction) != 0.5 or abs(exponent) > _LARGEST_EXPONENT:
        return e
    return Call("mul", (e.args[0], Const(1 / by.value, e.dtype)), e.dtype)


def _narrow(
    nodes: Sequence[EinSum],
    resolved: Sequence[EinSum],
    limits_of: list[Limits],
    classes: Classes,
    visible: Sequence[bool],
) -> None:
    """Restricts a product to the limits that all of its readers have."""
    for at in reversed(range(len(nodes))):
        node, own = resolved[at], classes.of[at]
        if visible[at] or not all(o.reduction == "sum" and o.dtype.is_float for o in node.outputs):
            continue
        kept = {own[k] for k in node.keys}
        asked = [
            limits_of[n]
            for n, reader in enumerate(nodes)
            if any(o.source is nodes[at] for o in reader.operands)
        ]
        if asked:
            limits_of[at] |= frozenset(m for m in frozenset.intersection(*asked) if m.inner in kept)


# Products


def is_product(node: EinSum) -> bool:
    """True if a sum reads an operand's terms repeatedly, for keys that the operand lacks."""
    summed = set(node.reduced)
    keys = set(node.keys)
    return any(summed & set(o.labels) and keys - set(o.labels) for o in node.operands)


def match_product(
    node: EinSum, own: Mapping[str, int], rows: Sequence[int], block: int
) -> Product | None:
    """Matches a node that is a matrix product per block; None for other nodes."""
    if len(node.outputs) != 1 or any(a.define is not None for a in node.axes):
        return None
    (output,) = node.outputs
    if output.reduction != "sum" or output.dtype not in (DType.FLOAT, DType.DOUBLE):
        return None
    factors = two_values(output) if output.where == TRUE else None
    if factors is None:
        return None
    a, b, scale = factors
    for first, second in ((a, b), (b, a)):
        left, right = node.operands[first.operand], node.operands[second.operand]
        labels = _sides(node, own, rows, block, left, right)
        if labels is not None:
            return Product(
                (first.operand, first.field), (second.operand, second.field), *labels, scale
            )
    return None


def _sides(
    node: EinSum,
    own: Mapping[str, int],
    rows: Sequence[int],
    block: int,
    left: Operand,
    right: Operand,
) -> tuple[str, str] | None:
    """The only summed label and the only key of the right side, or None."""
    if any(len(set(o.labels)) < len(o.labels) for o in (left, right)):
        return None
    if block not in {own[x] for x in left.labels} or block in {own[x] for x in right.labels}:
        return None
    inner = [[x for x in o.labels if own[x] not in rows] for o in (left, right)]
    if len(inner[0]) != 1 or len(inner[1]) != 2 or inner[0][0] not in inner[1]:
        return None
    summed = inner[0][0]
    wide = next(x for x in inner[1] if x != summed)
    inside = [a.label for a in node.axes if own[a.label] not in rows]
    if sorted(inside) != sorted((summed, wide)) or last_key(node) != wide or summed in node.keys:
        return None
    if min(node.axis(summed).extent, node.axis(wide).extent) < NARROWEST:
        return None
    return summed, wide


# Loops


def _loops(node: EinSum) -> bool:
    """True if generated loops run the node at about memory bandwidth."""
    sizes = [prod(a.extent for a in node.axes if a.label in o.labels) for o in node.operands]
    fields = [f.dtype for o in node.operands for f in o.source.schema.fields]
    fields += [o.dtype for o in node.outputs]
    short = any(t.is_short for t in fields)
    return node.points <= MOST_WORK * max(node.schema.size, *sizes, 1) and not short
