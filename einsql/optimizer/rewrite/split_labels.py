"""Label splits: a contraction whose wide key is read by digits gets the digits as keys.

One product often serves several readers: the keys of a fused attention projection are
`o = (c · H + h) · D + d`, and each reader selects its c. With the labels h and d every reader's
part is a separate contraction, which can be cut by heads. The readers then contract instead
of gathering.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from einsql.core.records import dataclass
from einsql.ir.einsum.affine import affine_labels
from einsql.ir.einsum.graph import Axis, EinSum, Expr, Operand, Roots, exprs, labels_of, walk
from einsql.ir.einsum.graph_rewriting import relabel, view
from einsql.ir.einsum.intervals import bounds_of, fits, interval
from einsql.optimizer.rewrite.node_properties import fresh_names, readers, without_unread
from einsql.optimizer.rewrite.rules import Rule, rebuild


@dataclass(frozen=True, slots=True)
class _Split:
    """The digits by which a reader reads a key of its operand, the highest first.

    Attributes:
        key: The position of the key.
        digits: The reader's free labels with their bounds.
        define: The key's value in these labels.
    """

    key: int
    digits: tuple[Axis, ...]
    define: Expr

    @property
    def size(self) -> int:
        """The number of the key's values that are read."""
        return prod(a.extent for a in self.digits)


_Reads = dict[tuple[int, int], _Split]
"""The split of each read, by the identity of the reader and the number of the operand."""


def split_labels(roots: Roots) -> tuple[Roots, int]:
    """Splits each wide contraction whose readers all read it by digits."""
    reads = _splits(roots)
    split_nodes: dict[tuple[int, _Split], EinSum] = {}

    def visit(node: EinSum, over: EinSum) -> EinSum:
        operands, replaced = list(over.operands), set[str]()
        for n, o in enumerate(over.operands):
            split = reads.get((id(node), n))
            if split is not None:
                wide = o.source
                assert isinstance(wide, EinSum)
                if (id(wide), split) not in split_nodes:
                    split_nodes[id(wide), split] = _under_digits(wide, split)
                digits = tuple(a.label for a in split.digits)
                replaced.add(o.labels[split.key])
                labels = (*o.labels[: split.key], *digits, *o.labels[split.key + 1 :])
                operands[n] = Operand(split_nodes[id(wide), split], labels)
        if operands == list(over.operands):
            return over
        return without_unread(replace(over, operands=tuple(operands)), replaced)

    return rebuild(roots, visit) if reads else (roots, 0)


def _splits(roots: Roots) -> _Reads:
    """Every read of a contraction that may be split; its readers all read one key by digits."""
    readers_of = readers(*roots)
    agreed: _Reads = {}
    for wide in walk(*roots):
        if isinstance(wide, EinSum) and id(wide) in readers_of and len(wide.operands) > 1:
            for key in range(len(wide.keys)):
                splits = [_split(wide, key, *r) for r in readers_of[id(wide)]]
                sizes = {s: s.size for s in splits if s is not None}
                extent = wide.axis(wide.keys[key]).extent
                if None not in splits and sum(sizes.values()) <= extent:
                    pairs = zip(readers_of[id(wide)], splits, strict=True)
                    agreed |= {(id(r), n): s for (r, n), s in pairs if s is not None}
                    break
    return agreed


def _split(wide: EinSum, key: int, reader: EinSum, operand: int) -> _Split | None:
    """The split of a contraction's key by a reader; None unless it reads in mixed radix."""
    label = wide.keys[key]
    if wide.axis(label).define is not None or any(label in labels_of(e) for e in exprs(wide)):
        return None
    if wide.grid or label in dict(wide.hint):  # the complete key is cut
        return None
    with_key = [o for o in wide.operands if label in o.labels]
    if len(with_key) == len(wide.operands) or any(o.labels.count(label) > 1 for o in with_key):
        return None
    if all(a.label in wide.keys for a in wide.axes):
        return None
    read = reader.operands[operand].labels
    axis = reader.axis(read[key])
    if axis.define is None or axis.label in reader.keys or read.count(axis.label) > 1:
        return None
    form = affine_labels(reader).get(axis.label)
    axes = {a.label: a for a in reader.axes}
    if form is None or len(form.steps) < 2 or min(form.steps.values()) < 0:
        return None
    if not form.is_injective(axes):
        return None
    define, bounds = form.expr(), bounds_of(reader)
    inside = fits(interval(define, bounds), axis.lo, axis.hi - 1)
    if not inside or form.steps.keys() & set(read):
        return None
    digits = sorted(form.steps, key=form.steps.__getitem__, reverse=True)
    return _Split(key, tuple(axes[x] for x in digits), define)


def _under_digits(wide: EinSum, split: _Split) -> EinSum:
    """The part of a contraction that a reader reads, with digits for the key."""
    label = wide.keys[split.key]
    names = fresh_names((a.label for a in split.digits), {a.label for a in wide.axes})
    digits = tuple(replace(a, label=names[a.label]) for a in split.digits)
    define = relabel(split.define, names)
    axes: list[Axis] = []
    for a in wide.axes:
        axes += digits if a.label == label else (a,)
    operands = tuple(
        _taken_apart(wide, o, label, digits, define) if label in o.labels else o
        for o in wide.operands
    )
    return replace(
        wide, axes=tuple(axes), operands=operands, keys=_spelled(wide.keys, label, digits)
    )


def _taken_apart(
    wide: EinSum, operand: Operand, label: str, digits: tuple[Axis, ...], define: Expr
) -> Operand:
    """A map over an operand of the contraction, with digits in place of the key."""
    others = tuple(x for x in dict.fromkeys(operand.labels) if x != label)
    free = (replace(wide.axis(x), define=None) for x in others)
    derived = replace(wide.axis(label), define=define)
    keys = tuple(dict.fromkeys(_spelled(operand.labels, label, digits)))
    return Operand(view(operand, [*free, *digits, derived], keys), keys)


def _spelled(labels: tuple[str, ...], label: str, digits: tuple[Axis, ...]) -> tuple[str, ...]:
    """The labels with digits in place of one label."""
    at = labels.index(label)
    return (*labels[:at], *(a.label for a in digits), *labels[at + 1 :])


SPLIT_LABELS = Rule(
    "split-labels",
    "P[s, o] read at o = f(h, d) in mixed radix is P'[s, h, d] = P[s, f(h, d)]",
    graph=split_labels,
)
