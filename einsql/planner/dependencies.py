"""Dependencies of a plan: its inputs, and how they are read again."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import field, replace
from typing import TYPE_CHECKING

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.storage.fields import Fields
from einsql.storage.host_arrays import array_relation, file_relation
from einsql.storage.objects import Tensor
from einsql.storage.relation import Relation

if TYPE_CHECKING:
    from einsql.ir.einsum.graph import Input
    from einsql.ir.layout import Tiles
    from einsql.ir.spmd.program import Program
    from einsql.planner.context import Context
    from einsql.sql.scope.relation import Relation as Bound
    from einsql.storage.duckdb.operands import Tables


@dataclass(frozen=True, slots=True)
class Dependency(ABC):
    """An input of a plan; the plan is valid while the schema of the input stays.

    Attributes:
        name: The name of the `Input` in the plan's graph.
        schema: The schema of the input.
    """

    name: str
    schema: Schema

    @property
    @abstractmethod
    def source(self) -> object:
        """The identity of the input object, among all kinds of inputs of a statement."""

    @abstractmethod
    def read(self, ctx: Context) -> Fields | None:
        """Returns the current fields, or None if no input of the schema exists."""

    def fits(self, ctx: Context) -> bool | None:
        """Whether an input of the schema exists; None if this takes reading a file or a table."""
        return self.read(ctx) is not None

    def loaded_by(self, program: Program) -> Dependency:
        """Returns the dependency of a plan whose program over sites is known."""
        return self


@dataclass(frozen=True, slots=True)
class RelationDependency(Dependency):
    """An input whose relation is found again for each run."""

    def read(self, ctx: Context) -> Fields | None:
        """See `Dependency`."""
        relation = self.relation(ctx)
        return None if relation is None or relation.schema != self.schema else relation.fields

    @abstractmethod
    def relation(self, ctx: Context) -> Relation | None:
        """Returns the current relation of the input, or None if it no longer exists."""


@dataclass(frozen=True, slots=True)
class PlannedTiles:
    """The placement over sites for which a plan reads a tensor.

    Attributes:
        sites: The number of sites.
        tiles: The tiles of the tensor at planning. For a tensor that was in the session, the tiles
            in which the program loads it, because the first run places it there.
        constant: `Tensor.is_constant` at planning; None if the plan does not depend on it.
    """

    sites: int
    tiles: tuple[Tiles, ...]
    constant: bool | None

    def fit(self, tensor: Tensor) -> bool:
        """Whether a tensor is placed as planned; True for one that is not on as many sites."""
        present = tensor.relation.fields.tiles_over(self.sites)
        if present is None:
            return True
        if self.constant is not None and self.constant is not tensor.is_constant:
            return False
        return any(known.same_places(present) for known in self.tiles)


@dataclass(frozen=True, slots=True)
class TensorDependency(Dependency):
    """A stored tensor or a registered array.

    Attributes:
        tensor: Its lower-case name.
        planned: Its placement at planning; None if the plan is valid for every placement.
    """

    tensor: str
    planned: PlannedTiles | None = None

    @classmethod
    def of(cls, tensor: Tensor, node: Input, sites: int) -> TensorDependency:
        """Returns the dependency on a tensor that a plan over some sites reads as a node."""
        relation = tensor.relation
        planned = None
        if node.lies is not None and relation.fields.tiles_over(sites) is not None:
            planned = PlannedTiles(sites, (node.lies,), node.constant)
        return cls(node.name, relation.schema, node.name, planned)

    def loaded_by(self, program: Program) -> Dependency:
        """See `Dependency`; sets the placement of a tensor that had none."""
        tiles = program.loaded(self.name) if self.planned is None else ()
        return replace(self, planned=PlannedTiles(program.sites, tiles, None)) if tiles else self

    @property
    def source(self) -> object:
        """See `Dependency`."""
        return TensorDependency, self.tensor

    def present(self, ctx: Context) -> Schema | None:
        """The schema of the present tensor or array, or None."""
        tensor = ctx.store.objects.get(self.tensor)
        return tensor.relation.schema if isinstance(tensor, Tensor) else None

    def read(self, ctx: Context) -> Fields | None:
        """See `Dependency`; overridden because it is the most frequent call."""
        store = ctx.store
        tensor = store.objects.get(self.tensor)
        if not isinstance(tensor, Tensor):
            return None
        schema = tensor.relation.schema
        if schema is not self.schema and schema != self.schema:
            return None
        if self.planned is not None and not self.planned.fit(tensor):
            return None
        return store.lent(tensor)


@dataclass(frozen=True, slots=True)
class PartsDependency(TensorDependency):
    """The parts of a stored tensor whose sum is kept unreduced."""

    @property
    def source(self) -> object:
        """See `Dependency`."""
        return PartsDependency, self.tensor

    def read(self, ctx: Context) -> Fields | None:
        """See `Dependency`."""
        tensor = ctx.store.objects.get(self.tensor)
        parts = tensor.relation.fields.summands if isinstance(tensor, Tensor) else None
        return None if parts is None or parts.schema != self.schema else parts.fields


@dataclass(frozen=True, slots=True)
class ScopeDependency(RelationDependency):
    """An array among the caller's variables.

    Attributes:
        variable: The name of the variable.
    """

    variable: str

    @property
    def source(self) -> object:
        """See `Dependency`."""
        return ScopeDependency, self.variable

    def relation(self, ctx: Context) -> Relation | None:
        """See `Dependency`."""
        array = ctx.array_again(self.variable)
        return None if array is None else array_relation(array)

    def present(self, ctx: Context) -> Schema | None:
        """The schema of the present array, or None."""
        relation = self.relation(ctx)
        return None if relation is None else relation.schema


@dataclass(frozen=True, slots=True)
class FileDependency(RelationDependency):
    """A tensor file, or one of the arrays in it.

    Attributes:
        path: The path of the file.
        member: The name of the array; None if the file has only one.
    """

    path: str
    member: str | None

    @property
    def source(self) -> object:
        """See `Dependency`."""
        return FileDependency, self.path, self.member

    def fits(self, ctx: Context) -> None:
        """See `Dependency`."""

    def relation(self, ctx: Context) -> Relation | None:
        """See `Dependency`."""
        if not os.path.exists(self.path):
            return None
        return file_relation(self.path, self.member, ctx.tick, ctx.store.memory)


@dataclass(frozen=True, slots=True)
class TableDependency(RelationDependency):
    """A table of DuckDB that is an operand.

    Attributes:
        table: The name of the table.
        tables: The reader of tables.
    """

    table: str
    tables: Tables

    @property
    def source(self) -> object:
        """See `Dependency`."""
        return TableDependency, self.table.lower()

    def fits(self, ctx: Context) -> None:
        """See `Dependency`."""

    def relation(self, ctx: Context) -> Relation | None:
        """See `Dependency`."""
        return self.tables.again(self.table, self.schema)


@dataclass(slots=True, eq=False)
class SharedQueries:
    """Subqueries that several plans of a statement read, computed once for all plans.

    Attributes:
        relations: The relations by lower-case name, while the plans are made.
        fields: The fields, while the statement runs.
        has_plan_notice: Whether a notice was made that the plan file has no plan for the statement.
    """

    relations: dict[str, Bound] = field(default_factory=dict)
    fields: dict[str, Fields] = field(default_factory=dict)
    has_plan_notice: bool = False

    def notice_once(self, notices: list[str], notice: str) -> None:
        """Adds the first notice about the plan file that the statement's plans give."""
        if not self.has_plan_notice and notice not in notices:
            notices.append(notice)
        self.has_plan_notice = True


@dataclass(frozen=True, slots=True)
class SharedDependency(Dependency):
    """One subquery of `SharedQueries`.

    Attributes:
        queries: The shared subqueries of the statement.
    """

    queries: SharedQueries

    @property
    def source(self) -> object:
        """See `Dependency`."""
        return SharedDependency, self.name

    def fits(self, ctx: Context) -> None:
        """Unknown before the subquery is computed."""

    def read(self, ctx: Context) -> Fields | None:
        """See `Dependency`; the plan of the subquery has checked the schema."""
        return self.queries.fields[self.name]
