"""The expected number of stored elements of sparse relations, for costs."""

from __future__ import annotations

from math import expm1, prod

from einsql.ir.einsum.graph import EinSum, Input, Node, stored_operands


def density(relation: Node) -> float:
    """The expected fraction of a relation's keys that are stored: 1 for dense relations.

    Elements of different tensors are taken as independent, and evenly distributed.
    """
    return _density(relation, {})


def occupancy(node: EinSum) -> float:
    """The expected fraction of a node's points that exist, as sparse operands have elements."""
    return _occupancy(node, {})


def _occupancy(node: EinSum, known: dict[int, float]) -> float:
    return prod(_density(node.operands[n].source, known) for n in stored_operands(node))


def _density(relation: Node, known: dict[int, float]) -> float:
    if not relation.sparse:
        return 1.0
    if isinstance(relation, Input):
        return 1.0 if relation.pattern is None else relation.pattern.density
    if id(relation) not in known:
        fraction = _occupancy(relation, known)
        if not relation.is_elementwise:
            keys = prod(relation.axis(k).extent for k in relation.keys)
            # A point meets a key of the result that no earlier point has met by chance.
            fraction = -expm1(-relation.points * fraction / keys) if keys else 0.0
        known[id(relation)] = fraction
    return known[id(relation)]
