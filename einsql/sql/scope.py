"""Names: the columns that FROM brings into reach, and bound relations that carry them."""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlglot import exp

from einsql.einsum import TRUE, Expr, Label, Node, Value
from einsql.errors import ProgrammingError, suggest
from einsql.schema import DType, valid
from einsql.sql.scalar import position
from einsql.sql.typed import Typed


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
    """A node with the columns SQL sees; keys that are no column are hidden, not lost."""

    node: Node
    columns: tuple[Column, ...]

    @property
    def hidden(self) -> tuple[str, ...]:
        """Keys of the node that no column shows."""
        shown = {c.key for c in self.columns}
        return tuple(k.name for k in self.node.schema.keys if k.name not in shown)


@dataclass(slots=True)
class Source:
    """One FROM item: its alias and its columns as typed values over the domain."""

    alias: str
    columns: list[tuple[str, Typed]]
    merged: set[str] = field(default_factory=set)
    """Columns that USING or NATURAL took from an earlier source; `*` skips them."""

    def get(self, name: str) -> Typed | None:
        """The column of that name, in any letter case."""
        for n, t in self.columns:
            if n.lower() == name.lower():
                return t
        return None


def read(relation: Relation, number: int, labels: dict[str, str]) -> list[tuple[str, Typed]]:
    """A relation's columns as typed values when it is operand `number`."""
    found: list[tuple[str, Typed]] = []
    for c in relation.columns:
        if c.key is not None:
            found.append((c.name, Typed(Label(labels[c.key]), DType.BIGINT)))
        else:
            assert c.field is not None
            known: Expr = TRUE
            if relation.node.schema.has(valid(c.field)):
                known = Value(number, valid(c.field), DType.BOOLEAN)
            found.append((c.name, Typed(Value(number, c.field, c.dtype), c.dtype, known)))
    return found


@dataclass
class Scope:
    """The sources of one SELECT, in FROM order."""

    sources: list[Source] = field(default_factory=list)

    def add(self, source: Source, node: exp.Expr) -> None:
        """Adds a source.

        Raises:
            ProgrammingError: Its alias is taken.
        """
        if any(s.alias.lower() == source.alias.lower() for s in self.sources):
            raise ProgrammingError(
                f'The name "{source.alias}" is used twice in FROM',
                hint="Give one of them an alias: … AS other.",
                position=position(node),
            )
        self.sources.append(source)

    def find(self, name: str, table: str | None) -> Typed | None:
        """Resolves a column within this SELECT only.

        Raises:
            ProgrammingError: The name is ambiguous, or the table is known and lacks it.
        """
        if table is not None:
            return self._qualified(name, table)
        found = [
            (s, t)
            for s in self.sources
            if (t := s.get(name)) is not None and name.lower() not in s.merged
        ]
        if len(found) > 1:
            owners = " and ".join(f"{s.alias}.{name}" for s, _ in found)
            raise ProgrammingError(
                f'Column "{name}" is ambiguous', hint=f"It could be {owners}; write which."
            )
        return found[0][1] if found else None

    def _qualified(self, name: str, table: str) -> Typed | None:
        for s in self.sources:
            if s.alias.lower() == table.lower():
                found = s.get(name)
                if found is None:
                    raise ProgrammingError(
                        f'"{s.alias}" has no column "{name}"',
                        hint=suggest(name, [n for n, _ in s.columns], f"columns of {s.alias}"),
                    )
                return found
        return None

    def unknown(self, name: str, table: str | None) -> ProgrammingError:
        """The error for a column that no SELECT around here knows."""
        if table is not None and not self._knows(table):
            tables = [s.alias for s in self.sources]
            return ProgrammingError(
                f'There is no table "{table}" in FROM', hint=suggest(table, tables, "tables")
            )
        names = [n for s in self.sources for n, _ in s.columns]
        return ProgrammingError(
            f'There is no column "{name}"', hint=suggest(name, names, "columns")
        )

    def _knows(self, table: str) -> bool:
        return any(s.alias.lower() == table.lower() for s in self.sources)
