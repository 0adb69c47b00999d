"""Protocols between binders: the environment of an expression, a SELECT, the statement."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol, TypeVar

from sqlglot import exp

from einsql.core.schema import Schema
from einsql.ir.einsum.graph import EinSum, PartInput
from einsql.sql.binder.best_rows import RowLimits
from einsql.sql.binder.domain import Domain
from einsql.sql.macros.expansion import MacroExpander
from einsql.sql.macros.macros import CheckMacro, Macro
from einsql.sql.macros.sharing import SharedArgument
from einsql.sql.parameters.bound_parameters import BoundParameters
from einsql.sql.parameters.windows import Windows
from einsql.sql.parser.positions import unsupported
from einsql.sql.scope.relation import Relation, TileRelation
from einsql.sql.scope.scope import Scope
from einsql.sql.typing.typed_expr import Typed
from einsql.sql.typing.value_ranges import Ranges

T = TypeVar("T")


class Environment(Protocol):
    """The environment of an expression: columns, aggregates, windows and subqueries."""

    float_stays: bool
    parameters: BoundParameters

    def match(self, node: exp.Expr) -> Typed | None:
        """The value of an expression that is already bound, such as a GROUP BY item."""

    def column(self, node: exp.Column) -> Typed:
        """Resolves a column reference."""

    def aggregate(self, node: exp.Expr, where: exp.Expr | None) -> Typed:
        """Binds an aggregate call with its FILTER."""

    def window(self, node: exp.Window) -> Typed:
        """Binds an aggregate over a window."""

    def subquery(self, node: exp.Expr) -> Typed:
        """Binds a scalar subquery."""

    def macro(self, name: str, args: list[exp.Expr]) -> exp.Expr | None:
        """The expansion of a scalar macro, or None."""

    def shared(self, node: exp.Expr, argument: SharedArgument) -> Typed:
        """Binds an argument that several places of expanded macros read."""


class ColumnsOnly:
    """An environment whose expressions read columns, and nothing else.

    Attributes:
        place: The text after a refused name in the error.
    """

    place = ""

    def match(self, node: exp.Expr) -> Typed | None:
        """No expression is bound already."""
        return None

    def aggregate(self, node: exp.Expr, where: exp.Expr | None) -> Typed:
        """Refuses an aggregate."""
        raise unsupported(f"An aggregate{self.place}", node)

    def window(self, node: exp.Window) -> Typed:
        """Refuses a window."""
        raise unsupported(f"A window{self.place}", node)

    def subquery(self, node: exp.Expr) -> Typed:
        """Refuses a subquery."""
        raise unsupported(f"A subquery{self.place}", node)

    def macro(self, name: str, args: list[exp.Expr]) -> exp.Expr | None:
        """There is no macro to expand."""
        return None

    def shared(self, node: exp.Expr, argument: SharedArgument) -> Typed:
        """Refuses an argument in several places, which would be bound in each of them."""
        raise unsupported(f"An argument of a large macro{self.place}", node)


class Joining(Environment, Protocol):
    """A SELECT during the binding of its FROM, with the scope and domain of its conditions."""

    scope: Scope
    clause: str

    @property
    def domain(self) -> Domain:
        """The domain of FROM."""

    def knows(self, name: str, table: str | None) -> bool:
        """True if this SELECT or an enclosing one has the column."""


class Catalog(Protocol):
    """The relations, views and macros outside of a statement, by name.

    Attributes:
        ranges: The ranges of the values of these relations.
    """

    ranges: Ranges

    @property
    def float_stays(self) -> bool:
        """True if FLOAT arithmetic stays FLOAT."""

    @property
    def sites(self) -> int:
        """The number of sites that run the statement."""

    @property
    def mesh(self) -> tuple[tuple[str, int], ...]:
        """The axes of the mesh of these sites with their sizes; empty without one."""

    def relation(self, name: str) -> Relation | None:
        """The stored tensor or the array in scope of a name, or None."""

    def view(self, name: str) -> exp.Query | None:
        """The query of a view, or None."""

    def macro(self, name: str) -> Macro | None:
        """The macro of a name, or None."""

    @property
    def check_macro(self) -> CheckMacro:
        """A function that raises an error if a macro may not be called."""

    @property
    def has_table(self) -> Callable[[str], bool]:
        """A function that returns whether DuckDB has a table of a name."""

    def is_table_file(self, path: str) -> bool:
        """True if a path names a table file, which DuckDB reads."""

    def file(self, path: str, member: str | None = None) -> Relation:
        """A tensor file named in FROM, or one of the arrays in it."""

    def probe(self, node: EinSum) -> tuple[int, int]:
        """Runs a node with outputs lo, hi and some; returns `[lo, hi)`, (0, 0) if it is empty."""

    def names(self) -> list[str]:
        """The names of tensors, views and arrays, for hints."""

    def require_numbers(self) -> None:
        """Raises an exception if the extents of relations are unknowns."""

    def part(self, made: Relation | TileRelation, schema: Schema) -> PartInput:
        """Adds an input whose producer is a part of the statement in the other algebra."""


class Binder(Protocol):
    """The binder of a statement, as a protocol for the binders of its parts."""

    parameters: BoundParameters
    windows: Windows
    notices: list[str]
    joining: list[Joining]
    """The SELECTs whose FROM is being bound, outermost first."""
    row_limits: RowLimits
    """The rows of SELECTs that their reader selects."""
    keeps_sums: bool
    """True if an EINSUM of the statement leaves its sum unreduced."""

    def around(self, select: Joining) -> AbstractContextManager[None]:
        """Binds what may read the columns of a SELECT, which DuckDB runs if it does."""

    @property
    def origins(self) -> tuple[str, ...]:
        """The part of the statement that is being bound, as in `EinSum.origins`."""

    @property
    def arguments(self) -> Mapping[int, object]:
        """The SELECTs that are arguments of table macros, by id."""

    @property
    def catalog(self) -> Catalog:
        """The catalog outside of the statement."""

    @property
    def macros(self) -> MacroExpander:
        """The expansion of macro calls."""

    def bind(self, query: exp.Expr) -> Relation:
        """Binds a query to a relation of elements."""

    def bind_any(self, query: exp.Expr) -> Relation | TileRelation:
        """Binds a query over elements or over tiles."""

    def find(self, name: str) -> Relation | TileRelation | None:
        """Resolves a relation by name: WITH, then view, then tensor or array."""

    def named(self, name: str, at: exp.Expr) -> Relation | TileRelation:
        """Resolves a relation by name, and raises an error at a syntax node if there is none."""

    def table_function(self, call: exp.Func) -> Relation | TileRelation:
        """Binds a call of a table function or a table macro."""

    def with_ctes(self, query: exp.Expr, run: Callable[[], T]) -> T:
        """Binds the WITH clause of a query, then calls `run` with its names in scope."""
