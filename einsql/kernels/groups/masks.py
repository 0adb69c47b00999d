"""Guards that read data: where such a mask does not hold, a row has no point.

Values there are 0 and extremes pass over them. Whether a row has any point is known at run
time alone, so nodes that run over such a label are weights and their sums, which tell it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Operand,
    Output,
    conj,
    conjuncts,
    labels_of,
    operands_of,
    relabel,
    renumber,
)
from einsql.ir.einsum.intervals import can_raise
from einsql.kernels.groups.classes import Classes


@dataclass(frozen=True, slots=True)
class Mask:
    """A condition, whose labels are numbers of classes.

    Attributes:
        term: The condition over the operands.
        operands: The operands of its condition, from outside of the group.
    """

    term: Expr
    operands: tuple[Operand, ...]

    @property
    def classes(self) -> frozenset[int]:
        """The classes that it depends on."""
        labels = labels_of(self.term).union(*(o.labels for o in self.operands))
        return frozenset(map(int, labels))


Masks = frozenset[Mask]


def mask(
    term: Expr, node: EinSum, own: Mapping[str, int], number: Mapping[int, int]
) -> Mask | None:
    """A term of a guard as a mask, or None if it is none.

    Args:
        term: A term that holds wherever a point exists.
        node: The node it belongs to.
        own: Class of each label.
        number: The nodes of the group, by identity.
    """
    read = sorted(operands_of(term))
    sources = [node.operands[n] for n in read]
    if not read or any(id(o.source) in number for o in sources):
        return None
    labels = labels_of(term).union(*(o.labels for o in sources))
    derived = any(node.axis(x).define is not None for x in labels)
    if derived or can_raise(term, {a.label: (a.lo, a.hi) for a in node.axes}):
        return None
    names = {x: str(own[x]) for x in labels}
    operands = tuple(Operand(o.source, tuple(names[x] for x in o.labels)) for o in sources)
    return Mask(relabel(renumber(term, {n: at for at, n in enumerate(read)}), names), operands)


def asked(nodes: Sequence[EinSum], classes: Classes, visible: Sequence[bool]) -> list[Masks]:
    """Masks by scalars alone that hold for a node because all of its readers have them.

    The optimizer drops such a condition from a node whose other values are never read.

    Args:
        nodes: In their order.
        classes: Their labels.
        visible: Whose results leave the group.
    """
    number = {id(n): at for at, n in enumerate(nodes)}
    masks: list[Masks] = [frozenset()] * len(nodes)
    for at in reversed(range(len(nodes))):
        node, own = nodes[at], classes.of[at]
        kept = {own[k] for k in node.keys}
        readers = [n for n, r in enumerate(nodes) if any(o.source is node for o in r.operands)]
        own_masks = {
            m for t in conjuncts(node.guard) if (m := mask(t, node, own, number)) is not None
        }
        masks[at] = frozenset(m for m in own_masks if not any(o.labels for o in m.operands))
        if readers and not visible[at]:
            common = frozenset.intersection(*(masks[n] for n in readers))
            masks[at] |= {m for m in common if m.classes <= kept}
    return masks


def masked(node: EinSum, own: Mapping[str, int], masks: Masks) -> EinSum | None:
    """A node whose masks hold in its expressions; None where that is unknown.

    Args:
        node: A node without a guard.
        own: Class of each label.
        masks: Where its points exist.
    """
    if not masks:
        return node
    kept = {own[k] for k in node.keys}
    floats = (DType.FLOAT, DType.DOUBLE)
    if any(o.dtype not in floats or o.args[0].dtype is not o.dtype for o in node.outputs):
        return None
    if any(not m.classes <= set(own.values()) for m in masks):
        return None
    if not node.is_elementwise:
        masks = over(masks, kept)
        if not masks or all(o.reduction == "sum" and o.where == TRUE for o in node.outputs):
            return node  # a sum of elements that are 0 there; `masks_fit` finds where they are not
    label = {str(c): x for x, c in own.items()}
    operands = list(node.operands)
    terms: list[Expr] = []
    for m in sorted(masks, key=_text):
        place = {n: len(operands) + n for n in range(len(m.operands))}
        terms.append(relabel(renumber(m.term, place), label))
        operands += [Operand(o.source, tuple(label[x] for x in o.labels)) for o in m.operands]
    test = conj(*terms)
    outputs: list[Output] = []
    for o in node.outputs:
        if o.where != TRUE:
            return None
        if o.reduction is None:
            value = Call("if", (test, o.args[0], Const(0.0, o.dtype)), o.dtype)
            outputs.append(replace(o, args=(value,)))
        else:
            outputs.append(replace(o, where=test))
    return replace(node, operands=tuple(operands), outputs=tuple(outputs))


def over(masks: Masks, kept: set[int]) -> Masks:
    """The masks that decide which points a node runs over, not which ones it has."""
    return frozenset(m for m in masks if not m.classes <= kept)


def unmasked(value: Expr) -> Expr:
    """A masked value where its masks hold, without the choice that masking added."""
    if isinstance(value, Call) and value.fn == "if" and value.args[2] == Const(0.0, value.dtype):
        return value.args[1]
    return value


def _text(m: Mask) -> str:
    """An order of masks that is the same in every process."""
    return repr((m.term, [o.labels for o in m.operands]))
