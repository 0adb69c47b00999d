"""The order of keys: a result is stored in the order of its greatest operand's keys.

The keys of a query's result are in the order of GROUP BY or of SELECT, which says nothing about
memory. A kernel that writes across the order in which it reads takes many times as long, and
groups of nodes need keys in one order. A result with keys in another order becomes a view, which
costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import Axis, EinSum, Node, Operand, Roots, Value, walk
from einsql.ir.einsum.graph_rewriting import view
from einsql.optimizer.rewrite.node_properties import direct_labels
from einsql.optimizer.rewrite.rules import Rule


def order_keys(roots: Roots) -> tuple[Roots, int]:
    """Orders the keys of every node, and reads those of roots through views."""
    uses = _Uses.of(roots)
    is_root = {id(root) for root in roots}
    done: dict[int, Node] = {}
    places: dict[int, tuple[int, ...]] = {}
    """The positions of the old keys in the new order, of nodes that change."""
    for node in walk(*roots):
        if not isinstance(node, EinSum):
            done[id(node)] = node
            continue
        operands = tuple(
            Operand(done[id(o.source)], _permuted(o.labels, places.get(id(o.source))))
            for o in node.operands
        )
        same = all(a.source is b.source for a, b in zip(operands, node.operands, strict=True))
        over = node if same else replace(node, operands=operands)
        wanted = uses.wanted.get(id(node), ())
        keys = _ordered(over, wanted, uses.reduced.get(id(node), set()))
        done[id(node)] = over
        if keys == node.keys or (id(node) in is_root and _is_view(over)):
            continue
        ordered = replace(over, keys=keys)
        if id(node) in is_root:
            axes = [Axis(k.name, k.lo, k.hi) for k in node.schema.keys]
            done[id(node)] = view(Operand(ordered, keys), axes, node.keys)
        else:
            done[id(node)] = ordered
            places[id(node)] = tuple(node.keys.index(k) for k in keys)
    new = tuple(done[id(root)] for root in roots)
    changed = sum(id(r) in is_root and a is not r for a, r in zip(new, roots, strict=True))
    return (new, max(changed, len(places))) if changed else (roots, 0)


def _permuted(labels: tuple[str, ...], places: tuple[int, ...] | None) -> tuple[str, ...]:
    return labels if places is None else tuple(labels[p] for p in places)


def _is_view(node: EinSum) -> bool:
    """True if a node reads one operand under other keys, which costs nothing."""
    plain = all(isinstance(o.args[0], Value) for o in node.outputs)
    return plain and node.is_elementwise and len(node.operands) == 1


@dataclass(frozen=True, slots=True)
class _Uses:
    """The uses of nodes' keys by readers, by id; maps pass on the uses of their readers.

    Attributes:
        wanted: The keys in the order of the result that maps compute from the node.
        reduced: The keys over which a reader reduces.
    """

    wanted: dict[int, tuple[str, ...]]
    reduced: dict[int, set[str]]

    @classmethod
    def of(cls, roots: Roots) -> _Uses:
        uses = cls({id(root): root.keys for root in roots if isinstance(root, EinSum)}, {})
        for node in reversed(walk(*roots)):
            if isinstance(node, EinSum):
                for operand in node.operands:
                    if isinstance(operand.source, EinSum):
                        uses._add(node, operand.source, operand.labels)
        return uses

    def _add(self, reader: EinSum, source: EinSum, labels: tuple[str, ...]) -> None:
        passed = self.reduced.get(id(reader), set()).union(reader.reduced)
        reduced = self.reduced.setdefault(id(source), set())
        reduced |= {key for key, x in zip(source.keys, labels, strict=True) if x in passed}
        place = {label: n for n, label in enumerate(self.wanted.get(id(reader), ()))}
        if reader.is_elementwise and len(set(labels) & place.keys()) == len(labels):
            order = sorted(range(len(labels)), key=lambda k: place[labels[k]])
            self.wanted.setdefault(id(source), tuple(source.keys[k] for k in order))


def _ordered(node: EinSum, wanted: tuple[str, ...], reduced: set[str]) -> tuple[str, ...]:
    """The keys of a node in the order of its memory.

    They follow the operand with most keys. Where no operand has all keys, as in a product, keys
    that all such operands have come first, and keys that readers reduce last. The former come last
    in a product without a sum, if the last label of all operands is the same. A key of another
    operand takes the place of the label that both reduce. If operands have no keys in common, a
    product is as fast in any order: that of the result is taken, if it is known.

    Args:
        node: The node over ordered operands.
        wanted: The keys in the order of the result that they belong to; empty if there is none.
        reduced: The keys over which readers reduce.
    """
    if any(o.source.sparse for o in node.operands):
        return wanted or node.keys
    below = _free_labels(node)
    lies = [tuple(dict.fromkeys(below[x] for x in o.labels)) for o in node.operands if o.labels]
    sources = [o.source for o in node.operands if o.labels]
    needed = {below[k] for k in node.keys}
    if not lies:
        return node.keys

    def weight(n: int) -> tuple[int, bool, bool]:
        source = sources[n]
        computed = isinstance(source, EinSum)
        elementwise = isinstance(source, EinSum) and source.is_elementwise
        return len(needed & set(lies[n])), computed, elementwise

    main = lies[max(range(len(lies)), key=weight)]
    if needed <= set(main):
        return tuple(sorted(node.keys, key=lambda k: main.index(below[k])))
    shared = {x for x in needed if all(x in other for other in lies)}
    if wanted and not shared and all(a.define is None for a in node.axes):
        return wanted

    in_line = node.is_elementwise and len({other[-1] for other in lies}) == 1

    def place(key: str) -> tuple[bool, bool, tuple[int, int, int]]:
        label = below[key]
        return (label in shared) is in_line, key in reduced, _position(label, main, lies)

    return tuple(sorted(node.keys, key=place))


def _position(
    label: str, main: tuple[str, ...], others: Sequence[tuple[str, ...]]
) -> tuple[int, int, int]:
    """The place of a key among the labels of the main operand."""
    if label in main:
        return main.index(label), 0, 0
    for n, other in enumerate(others, 1):
        if label in other:
            joined = [main.index(x) for x in other if x in main]
            return min(joined, default=len(main)), n, other.index(label)
    return len(main), 0, 0


def _free_labels(node: EinSum) -> dict[str, str]:
    """For each label a free one that moves it: itself, or the first one that its value reads.

    Keys precede labels that the node reduces.
    """
    labels = sorted((a.label for a in node.axes), key=lambda x: x not in node.keys)
    free: dict[str, str] = {}
    for axis in node.axes:
        if axis.define is None:
            free[axis.label] = axis.label
        else:
            read = direct_labels(node, axis.define)
            first = next((x for x in labels if x in read), axis.label)
            free[axis.label] = free.get(first, axis.label)
    return free


ORDER_KEYS = Rule(
    "order-keys",
    "f(X)[j, i] = π(f(X)[i, j]): keys in the order of the operand with most of them",
    graph=order_keys,
)
