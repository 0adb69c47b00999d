"""Guards of nodes in a group: limits on keys, and masks that read data.

A point exists where every limit holds. A limit Σ factor · key + constant ≥ 0 over the keys
of a row and one inner label bounds the range of that label in the row.

A point is absent where a mask does not hold. Its value is 0, and extremes ignore it. Whether a
row has any point is known only at run time. So the nodes that run over such a label are weights
and their sums, which detect empty rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.affine import Affine, affine
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
)
from einsql.ir.einsum.graph_rewriting import relabel, renumber
from einsql.ir.einsum.intervals import can_raise
from einsql.kernels.groups.classes import Classes
from einsql.kernels.scalars import bounds_of


@dataclass(frozen=True, slots=True)
class Limit:
    """The condition Σ factor · key + constant ≥ 0.

    Attributes:
        inner: The class of the inner label.
        rises: True for a lower bound of the label, False for an upper bound.
        factors: The class and factor of each key of the row with a nonzero factor.
        constant: The constant.
    """

    inner: int
    rises: bool
    factors: tuple[tuple[int, int], ...]
    constant: int

    def edge(self, bounds: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
        """The least and greatest edge over all rows.

        The edge is the label's first value for a lower bound, and the exclusive upper bound
        otherwise.
        """
        sign = -1 if self.rises else 1
        at = [sign * self.constant + (not self.rises)] * 2
        for c, factor in self.factors:
            lo, hi = bounds[c]
            ends = sorted((sign * factor * lo, sign * factor * (hi - 1)))
            at = [at[0] + ends[0], at[1] + ends[1]]
        return at[0], at[1]


def limit(term: Expr, node: EinSum, own: Mapping[str, int], rows: Sequence[int]) -> Limit | None:
    """Converts a term of a guard to a limit; None if it is not a limit.

    Args:
        term: A term that holds wherever a point exists.
        node: The term's node.
        own: The class of each label.
        rows: The classes of the row.
    """
    if not isinstance(term, Call) or term.fn not in ("le", "lt"):
        return None
    if can_raise(term, bounds_of(node)):
        return None
    labels = {a.label: Affine({a.label: 1}, 0) for a in node.axes}
    first, second = (affine(a, labels) for a in term.args)
    if first is None or second is None:
        return None
    rest = second.plus(first.scaled(-1))
    factors = {own[x]: f for x, f in rest.steps.items()}
    constant = rest.offset - (term.fn == "lt")
    inner = [c for c in factors if c not in rows]
    if len(inner) != 1 or abs(factors[inner[0]]) != 1:
        return None
    outer = tuple(sorted((c, f) for c, f in factors.items() if c in rows))
    return Limit(inner[0], factors[inner[0]] > 0, outer, constant)


def holds(x: Limit, bounds: Mapping[int, tuple[int, int]]) -> bool:
    """True if a limit excludes no value of its label in any row."""
    lo, hi = bounds[x.inner]
    least, most = x.edge(bounds)
    return most <= lo if x.rises else least >= hi


def never_empty(limits: frozenset[Limit], bounds: Mapping[int, tuple[int, int]]) -> bool:
    """True if every row provably has a point within the limits."""
    below = [m for m in limits if m.rises]
    above = [m for m in limits if not m.rises]
    if any(hi <= lo for lo, hi in (bounds[m.inner] for m in limits)):
        return False
    if any(m.edge(bounds)[1] >= bounds[m.inner][1] for m in below):
        return False
    if any(m.edge(bounds)[0] <= bounds[m.inner][0] for m in above):
        return False
    pairs = ((m, n) for m in below for n in above if m.inner == n.inner)
    return all(_least_gap(m, n, bounds) > 0 for m, n in pairs)


def _least_gap(below: Limit, above: Limit, bounds: Mapping[int, tuple[int, int]]) -> int:
    """The least number of values between two limits over all rows."""
    factors = dict(above.factors)
    for c, f in below.factors:
        factors[c] = factors.get(c, 0) + f
    least = above.constant + 1 + below.constant
    for c, f in factors.items():
        lo, hi = bounds[c]
        least += min(f * lo, f * (hi - 1))
    return least


@dataclass(frozen=True, slots=True)
class Mask:
    """A condition with numbers of classes as labels.

    Attributes:
        term: The condition over the operands.
        operands: The operands of the condition, from outside the group.
    """

    term: Expr
    operands: tuple[Operand, ...]

    @property
    def classes(self) -> frozenset[int]:
        """The classes that the condition depends on."""
        labels = labels_of(self.term).union(*(o.labels for o in self.operands))
        return frozenset(map(int, labels))


Masks = frozenset[Mask]


def mask(
    term: Expr, node: EinSum, own: Mapping[str, int], number: Mapping[int, int]
) -> Mask | None:
    """Converts a term of a guard to a mask; None if it is not a mask.

    Args:
        term: A term that holds wherever a point exists.
        node: The term's node.
        own: The class of each label.
        number: The numbers of the group's nodes by identity.
    """
    read = sorted(operands_of(term))
    sources = [node.operands[n] for n in read]
    if not read or any(id(o.source) in number for o in sources):
        return None
    labels = labels_of(term).union(*(o.labels for o in sources))
    derived = any(node.axis(x).define is not None for x in labels)
    if derived or can_raise(term, bounds_of(node)):
        return None
    names = {x: str(own[x]) for x in labels}
    operands = tuple(Operand(o.source, tuple(names[x] for x in o.labels)) for o in sources)
    return Mask(relabel(renumber(term, {n: at for at, n in enumerate(read)}), names), operands)


def asked(nodes: Sequence[EinSum], classes: Classes, visible: Sequence[bool]) -> list[Masks]:
    """The scalar masks of each node that all of its readers have.

    The optimizer removes such a condition from a node whose other values are never read.

    Args:
        nodes: The nodes in order.
        classes: The classes of their labels.
        visible: For each node, whether it is read outside the group.
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
    """Adds masks to a node's expressions; None if the effect on a reduction is unknown.

    Args:
        node: A node without a guard.
        own: The class of each label.
        masks: The masks of its points.
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
            return node  # masked elements are 0; `masks_fit` detects other cases
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
    """The masks that restrict the points a node reduces, not its keys."""
    return frozenset(m for m in masks if not m.classes <= kept)


def unmasked(value: Expr) -> Expr:
    """A masked value without the choice that masking added."""
    if isinstance(value, Call) and value.fn == "if" and value.args[2] == Const(0.0, value.dtype):
        return value.args[1]
    return value


def _text(m: Mask) -> str:
    """A sort key of masks that is the same in every process."""
    return repr((m.term, [o.labels for o in m.operands]))
