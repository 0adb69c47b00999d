"""Outcomes of a statement: rows, a count of changed rows, or a listing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass

if TYPE_CHECKING:
    from einsql.storage.duckdb.table_result import TableResult
    from einsql.storage.results import rows_result
    from einsql.storage.results.result import Result
    from einsql.storage.results.rows_result import RowsResult
    from einsql.storage.results.tile_result import TileResult

    Results: TypeAlias = Result | TileResult | TableResult | RowsResult
else:  # imported for listings only
    rows_result = LazyModule("einsql.storage.results.rows_result")

Description = tuple[tuple[Any, ...], ...]
"""PEP 249's description: one 7-tuple for each column."""


@dataclass(slots=True)  # not frozen: a frozen one takes three times as long to create
class Rows:
    """The result of a query."""

    result: Results
    description: Description


@dataclass(frozen=True, slots=True)
class Changed:
    """The outcome of a statement without rows.

    Attributes:
        count: The number of changed rows; -1 if it is unknown.
    """

    count: int = -1


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of plain values, the outcome of SHOW and EXPLAIN.

    Attributes:
        types: SQL types of the columns; without them all are VARCHAR.
        report: The explanation that the rows print, for EXPLAIN.
    """

    names: Sequence[str]
    rows: list[tuple[Any, ...]]
    types: Sequence[str] = ()
    report: object = None

    def result(self) -> RowsResult:
        """Returns the rows as a result."""
        types = tuple(self.types) or ("VARCHAR",) * len(self.names)
        return rows_result.RowsResult(tuple(self.names), types, self.rows)


Outcome: TypeAlias = Rows | Changed | Listing
