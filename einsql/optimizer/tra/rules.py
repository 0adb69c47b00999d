"""The rules of the implementation algebra: a name, a law and a function of alternatives."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from einsql.core.records import dataclass
from einsql.errors import DataError, IntegrityError, ProgrammingError
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.ia.plan import Bcast, Node, Shuffle
from einsql.ir.tra.block_schema import BlockSchema

Build = Callable[[], Node]
"""Builds an alternative; raises if its local operations would be wrong."""


@dataclass(frozen=True, slots=True)
class ImplementationRule:
    """A named law of the implementation algebra.

    Attributes:
        name: The paper's number; the name in `disabled_rules`.
        law: One line of algebra, with its conditions.
        builds: Yields builders of a node's alternatives by this law.
    """

    name: str
    law: str
    builds: Callable[[Node], Iterable[Build]]

    def alternatives(self, node: Node) -> list[Node]:
        """Nodes with the same relation, possibly with another placement.

        Only alternatives that type-check are returned: building a node raises if an array
        is missing at the site that reads it.
        """
        nodes: list[Node] = []
        for build in self.builds(node):
            try:
                new = build()
            except (DataError, IntegrityError, ProgrammingError):
                continue
            if stands_for(new.schema, node.schema):
                nodes.append(new)
        return nodes


def stands_for(new: PhysicalSchema, old: PhysicalSchema) -> bool:
    """True if one type can replace another: the same arrays, and no new partial results."""
    return new.merge in (None, old.merge) and same_blocks(new.blocks, old.blocks)


def same_blocks(a: BlockSchema, b: BlockSchema) -> bool:
    """True if two relations have the same keys, and arrays of the same shapes under them."""
    if a == b:
        return True
    alike = a.bounds == b.bounds and a.fields == b.fields and len(a.dims) == len(b.dims)
    if not alike or a.existing != b.existing:
        return False
    keys = a.key_array()
    pairs = zip(a.dims, b.dims, strict=True)
    return all(x == y or np.array_equal(x.over(keys), y.over(keys)) for x, y in pairs)


def bare(node: Node) -> Node:
    """The node below broadcasts and shuffles."""
    while isinstance(node, Bcast | Shuffle):
        node = node.source
    return node
