"""Bound relations, of elements and of tiles, with the columns that SQL sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlglot import exp

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
    """A result column: a key of the node, or one of its fields.

    Exactly one of `key` and `field` is set.
    """

    name: str
    dtype: DType
    key: str | None = None
    field: str | None = None


@dataclass(frozen=True, slots=True)
class Relation:
    """A node with the columns SQL sees; the other keys are hidden, but stay in the node."""

    node: Node
    columns: tuple[Column, ...]
    edges: tuple[tuple[str, Edge | Window], ...] = ()
    """Keys of the node with bounds from parameters; no tuple is beyond them."""

    @property
    def hidden(self) -> tuple[str, ...]:
        """Keys of the node that no column shows."""
        shown = {c.key for c in self.columns}
        return tuple(k.name for k in self.node.schema.keys if k.name not in shown)


@dataclass(frozen=True, slots=True)
class TileColumn:
    """A column of a relation of tiles: the number of a key, or None for its arrays."""

    name: str
    key: int | None = None


@dataclass(frozen=True, slots=True)
class TileRelation:
    """A relation of tiles with the columns SQL sees: its keys, and its arrays."""

    node: ra.Node
    columns: tuple[TileColumn, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the keys, in their order."""
        named = {c.key: c.name for c in self.columns}
        return tuple(named[n] for n in range(len(self.node.schema.bounds)))


def known_bounds(relation: Relation) -> Relation:
    """Requires that the bounds of a relation's keys depend on no parameter.

    Raises:
        NeedsValuesError: Parameters give some of them.
    """
    if relation.edges:
        raise NeedsValuesError(set().union(*(e.numbers for _, e in relation.edges)))
    return relation


def as_elements(relation: Relation | TileRelation, what: str, at: exp.Expr) -> Relation:
    """Requires a relation of elements.

    Raises:
        ProgrammingError: It is one of tiles.
    """
    if isinstance(relation, Relation):
        return relation
    raise ProgrammingError(
        f"{what} gives tiles, where elements are needed",
        hint="ELEMENTS(…) reads tiles as one tensor.",
        position=position(at),
    )


def deduplicated(names: Sequence[str]) -> list[str]:
    """The names with `_1`, `_2`, … behind every repetition, in any letter case."""
    taken: set[str] = set()
    distinct: list[str] = []
    for name in names:
        unique, n = name, 1
        while unique.lower() in taken:
            unique, n = f"{name}_{n}", n + 1
        taken.add(unique.lower())
        distinct.append(unique)
    return distinct
