"""The order of keys: a result is stored in the order in which its greatest operand lies.

The keys of a query's result are in the order of GROUP BY or of SELECT, which says nothing about
memory. A kernel that writes across the order in which it reads takes many times as long, and
groups of nodes need keys in one order. A result with keys in another order becomes a view, which
costs nothing.
"""

from __future__ import annotations

from dataclasses import replace

from einsql.ir.einsum.graph import (
    Axis,
    EinSum,
    Input,
    Node,
    Operand,
    Roots,
    Value,
    view,
    walk,
)
from einsql.optimizer.rewrite.node_properties import direct_labels, readers
from einsql.optimizer.rewrite.rules import Rule


def order_keys(roots: Roots) -> tuple[Roots, int]:
    """Orders the keys of every node, and reads those of roots through views."""
    readers_of = readers(*roots)
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
        keys = _ordered(over, _reduced_by_readers(node, readers_of.get(id(node), [])))
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


def _reduced_by_readers(node: EinSum, reading: list[tuple[EinSum, int]]) -> set[str]:
    """The keys over which some reader of a node reduces."""
    return {
        key
        for reader, n in reading
        for key, label in zip(node.keys, reader.operands[n].labels, strict=True)
        if label in reader.reduced
    }


def _ordered(node: EinSum, reduced: set[str]) -> tuple[str, ...]:
    """The keys of a node in the order of its memory.

    They follow the operand with most keys. Where no operand has all keys, as in a product, keys
    that all such operands have come first, and keys that readers reduce last.
    """
    if any(isinstance(o.source, Input) and o.source.sparse for o in node.operands):
        return node.keys
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
    if not shared:
        return node.keys

    def place(key: str) -> tuple[bool, bool, int]:
        label = below[key]
        position = main.index(label) if label in main else len(main)
        return label not in shared, key in reduced, position

    return tuple(sorted(node.keys, key=place))


def _free_labels(node: EinSum) -> dict[str, str]:
    """For each label a free one that moves it: itself, or the first one that its value reads."""
    free: dict[str, str] = {}
    for axis in node.axes:
        if axis.define is None:
            free[axis.label] = axis.label
        else:
            read = direct_labels(node, axis.define)
            first = next((a.label for a in node.axes if a.label in read), axis.label)
            free[axis.label] = free.get(first, axis.label)
    return free


ORDER_KEYS = Rule(
    "order-keys",
    "f(X)[j, i] = π(f(X)[i, j]): keys in the order of the operand with most of them",
    graph=order_keys,
)
