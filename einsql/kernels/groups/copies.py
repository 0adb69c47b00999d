"""Copies of element-wise nodes that several nodes of a group read, each by its own keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from einsql.ir.einsum.graph import EinSum, Node, exprs
from einsql.kernels.loops.loop_nest import expensive

Computed = tuple[EinSum, EinSum | None]
"""A node that a group computes, and the node of the graph in whose place it is; None for a copy."""


def with_copies(nodes: Sequence[EinSum]) -> list[Computed]:
    """Returns nodes of which each reader of an element-wise node but the first reads a copy of it.

    In (x - q)ᵀ M (x - q) for many x, the product sums over the key of x - q, and the next sum
    reads x - q by the key of the product's result. A node with both keys is a row for the product,
    and a value for each column of it for the sum. Computing it twice is cheaper than storing it.

    Args:
        nodes: The nodes, producers first.
    """
    computed: list[Computed] = []
    of: dict[int, EinSum] = {}
    read: set[int] = set()
    cheap = {id(n) for n in nodes if n.is_elementwise and not any(map(expensive, exprs(n)))}
    for node in nodes:
        own: dict[int, Node] = {}
        for o in node.operands:
            source = of.get(id(o.source))
            if source is None or id(o.source) in own:
                continue
            if id(o.source) in cheap & read:
                source = replace(source)
                computed.append((source, None))
            own[id(o.source)] = source
            read.add(id(o.source))
        operands = tuple(replace(o, source=own.get(id(o.source), o.source)) for o in node.operands)
        changed = any(
            a.source is not b.source for a, b in zip(operands, node.operands, strict=True)
        )
        of[id(node)] = replace(node, operands=operands) if changed else node
        computed.append((of[id(node)], node))
    return computed
