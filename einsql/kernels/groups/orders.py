"""The order of the keys of each node in a group, which is chosen for the memory that is read.

The keys of a result are a set for the nodes that read it, so a group is free to order them. The
order decides which neighbours in memory a loop visits, and whether a product has tiles. Results
that leave the group are views of arrays in the chosen order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

from einsql.ir.einsum.graph import EinSum, Operand
from einsql.kernels.groups.classes import Classes

Order = Mapping[int, int]
"""The rank of each class; keys of a greater rank are faster, and equal ranks keep their order."""
ROW, INNER, FASTEST = range(3)


def nearest(nodes: Sequence[EinSum], classes: Classes) -> tuple[int, ...]:
    """The classes of the largest operand from outside the group, the fastest in memory first.

    Args:
        nodes: The nodes in order.
        classes: The classes of their labels.

    Returns:
        Classes with more than one value; none if no such operand has any.
    """
    inside = {id(n) for n in nodes}
    largest: int = 0
    near: tuple[int, ...] = ()
    for node, own in zip(nodes, classes.of, strict=True):
        for o in node.operands:
            if id(o.source) in inside:
                continue
            wide = [x for x in o.labels if node.axis(x).extent > 1]
            size = prod(node.axis(x).extent for x in wide)
            if wide and size > largest:
                largest, near = size, tuple(own[x] for x in reversed(wide))
    return near


def orders(classes: Classes, near: int | None) -> Iterator[Order]:
    """The orders of keys to try for a group, the most promising first.

    Args:
        classes: The classes, with the block last among the rows.
        near: The fastest class in memory; see `nearest`.
    """
    ranks = {c: ROW if c in classes.rows else INNER for c in classes.bounds}
    if near is not None and (near == classes.rows[-1] or ranks[near] == INNER):
        yield {**ranks, near: FASTEST}
    yield ranks


def arranged(
    nodes: Sequence[EinSum], resolved: Iterable[EinSum], own: Sequence[Mapping[str, int]], by: Order
) -> list[EinSum]:
    """The nodes with their keys in an order, and their operands' labels in that of the producers.

    Args:
        nodes: The nodes of the graph, which the operands reference.
        resolved: The same nodes without guards.
        own: The class of each label, per node.
        by: The order.
    """
    turns = {id(n): turn(n, o, by) for n, o in zip(nodes, own, strict=True)}

    def read(o: Operand) -> Operand:
        turned = turns.get(id(o.source))
        return o if turned is None else replace(o, labels=tuple(o.labels[n] for n in turned))

    return [
        replace(
            r, keys=tuple(n.keys[k] for k in turns[id(n)]), operands=tuple(map(read, r.operands))
        )
        for n, r in zip(nodes, resolved, strict=True)
    ]


def turn(node: EinSum, own: Mapping[str, int], by: Order) -> tuple[int, ...]:
    """The positions of a node's keys in an order."""
    return tuple(sorted(range(len(node.keys)), key=lambda n: by[own[node.keys[n]]]))
