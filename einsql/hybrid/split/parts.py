"""The shared state of one statement's splitters: fragments, reasons, and look-ups of names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from sqlglot import exp

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.errors import Error
from einsql.hybrid.split.blocks import Block, Range
from einsql.hybrid.split.edits import Edited
from einsql.hybrid.split.scopes import Scope
from einsql.sql.scope.relation import Column

PREFIX = "__einsql_"
"""The prefix of the names of fragments and their columns in DuckDB."""

Expansion = tuple[Edited, frozenset[str]]
"""The text of a table macro's query for DuckDB, and its words in lower case."""
Bind = Callable[[exp.Expr, frozenset[str]], list[str] | Error]
"""Binds a query as tensor work. Returns its column names, or the error."""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A part of a statement that einsql runs.

    Attributes:
        name: The name in DuckDB.
        tree: The query.
        foreign: Names of WITH that do not refer to tensors in the query.
        names: The column names in SQL; DuckDB sees those of `column_of`.
        text: The original text, for EXPLAIN.
    """

    name: str
    tree: exp.Expr
    foreign: frozenset[str]
    names: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Why:
    """The reason for running a part of the statement in DuckDB."""

    at: int
    reason: str


@dataclass
class Parts:
    """State that the splitters of one statement share: lookups, fragments and relations."""

    bind: Bind
    columns: Callable[[exp.Expr], Sequence[Column] | None]
    """Returns the columns of a query of tensors, None if it is not tensor work."""
    never_raises: Callable[[exp.Expr], bool]
    """Returns whether no expression of a query of tensors raises for any element."""
    names: Callable[[exp.Table], Sequence[str] | None]
    """Returns the columns of a table or tensor, None if they are not known."""
    kind: Callable[[str], str | None]
    """Returns `tensor` or `view` for the name of an einsql object, otherwise None."""
    is_macro: Callable[[str], bool]
    """Returns whether a name is a table function of einsql."""
    is_file: Callable[[str], bool]
    """Returns whether FROM reads a file as a tensor."""
    is_ours: Callable[[Sequence[str], str], bool]
    """Returns whether a name qualified by database or schema is a tensor or a view."""
    aggregates: Callable[[], frozenset[str]]
    """Returns the names of DuckDB's aggregates, in lower case."""
    is_aggregate: Callable[[str], bool]
    """Returns whether a name is an aggregate of CREATE AGGREGATE."""
    split_block: Callable[[Any, Block, dict[str, Range], Scope, exp.Select], bool]
    """Splits a SELECT for a `split.Splitter`, which imports this module; see `core.split_block`."""
    expand: Callable[[exp.Func], exp.Expr | None]
    """Returns the query of a call of a macro or a scalar function in FROM, else None."""
    system_table: Callable[[str, str], str | None]
    """Returns the query of a system table of DuckDB; see `system_tables.system_table`."""
    fragments: list[Fragment] = field(default_factory=list)
    relations: dict[str, str] = field(default_factory=dict)
    """Tensors and views that DuckDB reads: the original spelling, by the lower-case name."""
    why: list[Why] = field(default_factory=list)
    wrong: list[Error] = field(default_factory=list)
    refused: dict[str, Error] = field(default_factory=dict)
    """The binder's errors for names of WITH, by the lower-case name."""
    aggregating: list[Error] = field(default_factory=list)
    """The binder's errors for queries with aggregates of CREATE AGGREGATE."""
    expansions: dict[tuple[object, ...], tuple[Scope, Expansion]] = field(default_factory=dict)
    """The expansions of table macros, by their text and the names of WITH around them."""

    @property
    def next_name(self) -> str:
        """Returns the name of the next fragment."""
        return f"{PREFIX}{len(self.fragments) + 1}"

    def add(self, tree: exp.Expr, foreign: frozenset[str], names: Sequence[str], text: str) -> str:
        """Adds a fragment and returns its name."""
        name = self.next_name
        self.fragments.append(Fragment(name, tree, foreign, tuple(names), text))
        return name


def column_of(n: int) -> str:
    """The name of a fragment's n-th column in DuckDB, which no name of the user hides."""
    return f"{PREFIX}c{n}"


def shown(name: str, columns: Sequence[str]) -> str:
    """Returns the query that reads a fragment with the column names in SQL."""
    items = ", ".join(f"{column_of(n)} AS {in_quotes(c)}" for n, c in enumerate(columns))
    return f"SELECT {items} FROM {name}"
