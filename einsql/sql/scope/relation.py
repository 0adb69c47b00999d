"""Bound relations of elements and of tiles, with their SQL columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import ProgrammingError
from einsql.ir.einsum.graph import Node
from einsql.sql.parameters.host_expr import NeedsValuesError
from einsql.sql.parser.positions import position

if TYPE_CHECKING:
    from einsql.ir.tra import plan as ra
    from einsql.sql.parameters.windows import Edge, Window


@dataclass(frozen=True, slots=True)
class Column:
    """A result column: a key or a field of the node.

    Exactly one of `key` and `field` is set.

    Attributes:
        over: For a LIST, the last key of the node. The list has its values that are not NULL.
    """

    name: str
    dtype: DType
    key: str | None = None
    field: str | None = None
    over: str | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """A node with its SQL columns; hidden keys of the node have no column."""

    node: Node
    columns: tuple[Column, ...]
    edges: tuple[tuple[str, Edge | Window], ...] = ()
    """Bounds of the node's keys from parameters; every tuple is within them."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """The keys of the node without a column."""
        shown = {c.key for c in self.columns}
        return tuple(k.name for k in self.node.schema.keys if k.name not in shown)


@dataclass(frozen=True, slots=True)
class TileColumn:
    """A column of a relation of tiles: the number of a key, or None for the arrays."""

    name: str
    key: int | None = None


@dataclass(frozen=True, slots=True)
class TileRelation:
    """A relation of tiles with its SQL columns: the keys and the arrays."""

    node: ra.Node
    columns: tuple[TileColumn, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """The names of the keys, in order."""
        named = {c.key: c.name for c in self.columns}
        return tuple(named[n] for n in range(len(self.node.schema.bounds)))


def known_bounds(relation: Relation) -> Relation:
    """Requires that the bounds of a relation's keys do not depend on parameters.

    Raises:
        NeedsValuesError: A bound depends on a parameter.
    """
    if relation.edges:
        raise NeedsValuesError(set().union(*(e.numbers for _, e in relation.edges)))
    return relation


def as_elements(relation: Relation | TileRelation, what: str, at: exp.Expr) -> Relation:
    """Requires a relation of elements.

    Raises:
        ProgrammingError: The relation is a relation of tiles.
    """
    if isinstance(relation, Relation):
        return relation
    raise ProgrammingError(
        f"{what} gives tiles, where elements are needed",
        hint="ELEMENTS(…) reads tiles as one tensor.",
        position=position(at),
    )


def deduplicated(names: Sequence[str]) -> list[str]:
    """The names with suffixes `_1`, `_2`, … for repetitions, which ignore case."""
    taken: set[str] = set()
    distinct: list[str] = []
    for name in names:
        unique, n = name, 1
        while unique.lower() in taken:
            unique, n = f"{name}_{n}", n + 1
        taken.add(unique.lower())
        distinct.append(unique)
    return distinct
