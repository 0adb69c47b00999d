"""Scopes: the columns of the items of FROM."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from sqlglot import exp

from einsql.core.quoting import name_of
from einsql.core.records import dataclass
from einsql.core.schema import DType, valid
from einsql.errors import NotSupportedError, ProgrammingError, suggest
from einsql.ir.einsum.graph import TRUE, Expr, Label, Value
from einsql.sql.parser.positions import position
from einsql.sql.scope.relation import Relation
from einsql.sql.typing.typed_expr import Typed


@dataclass(slots=True)
class Source:
    """A FROM item: its alias, and its columns as typed values over the domain."""

    alias: str
    columns: list[tuple[str, Typed]]
    unlisted: list[tuple[str, Typed]] = field(default_factory=list)
    """Columns that expressions can name, but that `*` and NATURAL omit."""
    replaced: str = ""
    """The name of the relation, which the alias replaces; empty without an alias."""

    def get(self, name: str) -> Typed | None:
        """The column of a name, which ignores case."""
        for n, t in (*self.columns, *self.unlisted):
            if n.lower() == name.lower():
                return t
        return None

    def answers_to(self, table: str) -> bool:
        """True if the alias is the name; case is ignored."""
        return self.alias.lower() == table.lower()


def read(relation: Relation, number: int, labels: dict[str, str]) -> list[tuple[str, Typed]]:
    """The columns of a relation as typed values, for the relation as operand `number`."""
    columns: list[tuple[str, Typed]] = []
    for c in relation.columns:
        if c.key is not None:
            columns.append((c.name, Typed(Label(labels[c.key]), DType.BIGINT)))
        elif c.over is not None:
            raise NotSupportedError(
                f"The LIST {c.name} of a subquery is outside the tensor fragment",
                hint="UNNEST it in the subquery.",
            )
        else:
            assert c.field is not None
            known: Expr = TRUE
            if relation.node.schema.has(valid(c.field)):
                known = Value(number, valid(c.field), DType.BOOLEAN)
            columns.append((c.name, Typed(Value(number, c.field, c.dtype), c.dtype, known)))
    return columns


def replaced_hint(table: str, aliases: list[str], column: str = "") -> str:
    """The hint for a table whose name aliases replace in FROM; empty without an alias.

    Args:
        table: The name of the table.
        aliases: Its aliases in FROM.
        column: The column that the statement qualifies by the name; empty for unknown ones.
    """
    if not aliases:
        return ""
    names = [name_of(alias) for alias in aliases]
    after = column if column == "*" else name_of(column) if column else "…"
    written = " or ".join(f"{name}.{after}" for name in names)
    one, replace = ("alias", "replaces") if len(aliases) == 1 else ("aliases", "replace")
    shown = " and ".join(names)
    return f'The {one} {shown} {replace} the name "{table}" in FROM: write {written}.'


@dataclass(frozen=True, slots=True)
class Merged:
    """A column that USING or NATURAL has merged from columns of several sources."""

    name: str
    owners: tuple[Source, ...]

    def holds(self, source: Source, name: str) -> bool:
        """True if the merged column contains a column of a source."""
        return self.name == name.lower() and any(s is source for s in self.owners)


@dataclass
class Scope:
    """The sources that an expression can read, in the order of FROM.

    Attributes:
        merged: The merged columns of these sources, which unqualified names refer to.
        left: The scope of the preceding items in FROM, which is searched last.
    """

    sources: list[Source] = field(default_factory=list)
    merged: list[Merged] = field(default_factory=list)
    left: Scope | None = None

    def add(self, source: Source, node: exp.Expr) -> None:
        """Adds a source.

        Raises:
            ProgrammingError: Another source has the same alias.
        """
        if any(s.answers_to(source.alias) for s in self.sources):
            raise ProgrammingError(
                f'The name "{source.alias}" is used twice in FROM',
                hint="Give one of them an alias: … AS other.",
                position=position(node),
            )
        self.sources.append(source)

    def joined(self, right: Scope, node: exp.Expr) -> Scope:
        """A scope with the sources of both scopes and the `left` of this one.

        Raises:
            ProgrammingError: The scopes have a common alias.
        """
        both = Scope(list(self.sources), [*self.merged, *right.merged], self.left)
        for source in right.sources:
            both.add(source, node)
        return both

    def merge(self, name: str, left: Source, right: Source) -> None:
        """Merges the columns of two sources, and the columns that were merged into them before."""
        owners: list[Source] = []
        for source in (left, right):
            old = next((m for m in self.merged if m.holds(source, name)), None)
            owners += [source] if old is None else old.owners
            self.merged = [m for m in self.merged if m is not old]
        self.merged.append(Merged(name.lower(), tuple(owners)))

    def listed(
        self, table: str | None = None, skip: Callable[[Source, str], bool] = lambda s, n: False
    ) -> list[tuple[Source, str, Typed]]:
        """The columns of `*` or `table.*`.

        A merged column occurs once, in the place of its first owner that is not skipped. `table.*`
        has every column of the table.
        """
        shown: list[tuple[Source, str, Typed]] = []
        seen: list[Merged] = []
        for source in self.sources:
            if table is not None and not source.answers_to(table):
                continue
            for name, typed in source.columns:
                if skip(source, name):
                    continue
                merged = next((m for m in self.merged if m.holds(source, name)), None)
                if table is None and merged is not None:
                    if any(m is merged for m in seen):
                        continue
                    seen.append(merged)
                shown.append((source, name, typed))
        return shown

    def owner(self, name: str) -> Source | None:
        """The source of the column to which an unqualified name refers.

        Raises:
            ProgrammingError: The name is ambiguous.
        """
        merged = [m for m in self.merged if m.name == name.lower()]
        owners = [m.owners[0] for m in merged]
        if not owners:
            owners = [s for s in self.sources if s.get(name) is not None]
        if len(owners) > 1:
            known = " and ".join(f"{s.alias}.{name}" for s in owners)
            raise ProgrammingError(
                f'Column "{name}" is ambiguous',
                hint=f"It could be {known}; write which, or join them with USING.",
            )
        return owners[0] if owners else None

    def find(self, name: str, table: str | None) -> Typed | None:
        """Resolves a column in this SELECT only.

        Raises:
            Error: The name is ambiguous or refers to a row, or the named table has no such
                column.
        """
        column = self.resolve(name, table)
        return None if column is None else column[1]

    def resolve(self, name: str, table: str | None) -> tuple[str, Typed] | None:
        """The name of a column in its table's spelling, and its value; see `find`."""
        if table is not None:
            source = next((s for s in self.sources if s.answers_to(table)), None)
            if source is not None and source.get(name) is None:
                raise ProgrammingError(
                    f'"{source.alias}" has no column "{name}"',
                    hint=suggest(name, [n for n, _ in source.columns], f"columns of {table}"),
                )
        else:
            source = self.owner(name)
            if source is None and self.knows(name):
                raise NotSupportedError(
                    f'"{name}" is a table here: a whole row as a value is outside the '
                    "tensor fragment",
                    hint=f"Name its columns: {name}.column.",
                )
        if source is not None:
            columns = (*source.columns, *source.unlisted)
            return next(c for c in columns if c[0].lower() == name.lower())
        return None if self.left is None else self.left.resolve(name, table)

    def knows(self, table: str) -> bool:
        """True if a source of this scope has the alias."""
        return any(s.answers_to(table) for s in self.sources)

    def reach(self) -> list[Source]:
        """The sources of this scope and of the scopes to the left."""
        return self.sources + (self.left.reach() if self.left is not None else [])

    def unknown(self, name: str, table: str | None) -> ProgrammingError:
        """The error for a column that neither this SELECT nor an enclosing one has."""
        sources = self.reach()
        if table is not None and not any(s.answers_to(table) for s in sources):
            tables = [s.alias for s in sources]
            replacing = [s.alias for s in sources if s.replaced.lower() == table.lower()]
            return ProgrammingError(
                f'There is no table "{table}" in FROM',
                hint=replaced_hint(table, replacing, name) or suggest(table, tables, "tables"),
            )
        # Names that begin with # come from built-in macros.
        names = [n for s in sources for n, _ in s.columns if not n.startswith("#")]
        return ProgrammingError(
            f'There is no column "{name}"', hint=suggest(name, names, "columns")
        )
