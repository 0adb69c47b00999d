"""Results of DuckDB: rows in DuckDB's order, of any of DuckDB's types."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core import forks
from einsql.core.records import dataclass
from einsql.errors import Error, InterfaceError
from einsql.storage.arrow_arrays import null_mask, numpy_array
from einsql.storage.duckdb.failures import translated
from einsql.storage.results.row_result_base import Keyless, distinct_names

if TYPE_CHECKING:
    import pyarrow as pa


_PLAIN = re.compile("BOOLEAN|U?(TINY|SMALL|BIG)INT|U?INTEGER|FLOAT|DOUBLE|VARCHAR")
"""DuckDB's types whose values Arrow converts to the same Python values."""

_TEXTS = 2048
"""Rows of a batch with texts, which have at most 2 GiB together; more rows are 2 times as fast."""

_ROWS = 1 << 16
"""Rows that are converted to Python values at once, since other threads wait meanwhile."""


def run_once(duck: Any, relation: Any) -> Any:
    """Runs a relation and holds its rows for any number of reads.

    DuckDB copies, binds and counts the rows that it holds itself by further statements of about
    0.7 ms each (`python -m benchmarks.recommender`, titles), so plain columns are held in Arrow.
    Arrow is not imported for this, as that takes longer.

    Args:
        duck: DuckDB's connection.
        relation: DuckDB's relation, which has not run.

    Returns:
        The rows as `TableResult.relation`.
    """
    types = [str(t) for t in relation.types]
    if "pyarrow" not in sys.modules or not all(map(_PLAIN.fullmatch, types)):
        return relation.materialize()
    if "VARCHAR" not in types:
        return ArrowRows(duck, relation.to_arrow_table())
    return ArrowRows(duck, relation.to_arrow_table(_TEXTS).combine_chunks())


@dataclass(slots=True)
class ArrowRows:
    """Rows in Arrow, with the methods of DuckDB's relations that `TableResult` calls.

    Attributes:
        duck: The connection, for conversions by DuckDB.
        table: The rows; their columns have types of `_PLAIN`.
    """

    duck: Any
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def limit(self, most: int) -> ArrowRows:
        """The first rows, as many as `most`."""
        return ArrowRows(self.duck, self.table.slice(0, most))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows as Python values."""
        rows: list[tuple[Any, ...]] = []
        try:
            for batch in self.table.to_batches(_ROWS):
                rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        except UnicodeDecodeError:  # DuckDB's error explains it
            return list(self.duck.from_arrow(self.table).fetchall())
        return rows

    def to_arrow_table(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.table

    def fetchnumpy(self) -> dict[str, np.ndarray]:
        """DuckDB's arrays of the columns."""
        return dict(self.duck.from_arrow(self.table).fetchnumpy())

    def df(self) -> Any:
        """DuckDB's pandas DataFrame."""
        return self.duck.from_arrow(self.table).df()


@dataclass
class TableResult(Keyless):
    """The rows of a DuckDB relation.

    Attributes:
        relation: DuckDB's relation that holds its rows, or `ArrowRows`.
        names: The column names.
        types: DuckDB's names of the column types.
        lock: The lock of DuckDB's connection, which one thread may use at a time.
        text: The text that DuckDB ran, for the names of files in errors.
    """

    relation: Any
    names: tuple[str, ...]
    types: tuple[str, ...]
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext, repr=False)
    text: str = field(default="", repr=False)
    _count: int = field(init=False, repr=False)
    _rows: list[tuple[Any, ...]] | None = field(default=None, repr=False)

    _no_keys = ("A table has no keys", "CREATE TENSOR … AS makes it a tensor.")

    def __post_init__(self) -> None:
        self._count = len(self.relation)  # a cursor reports it after its connection is closed, too
        forks.register(self)

    def forked(self, refusal: forks.Refusal) -> None:
        """After a fork, in the child: keeps the fetched rows and drops DuckDB's relation."""
        forks.never_destroy(self.relation)
        self.relation = _Inherited(refusal)
        self.lock = nullcontext()

    def __len__(self) -> int:
        return self._count

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Translates errors of DuckDB, without their positions: they are not the user's."""
        try:
            with translated(self.text):
                yield
        except Error as error:
            error.position = None
            raise

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows in DuckDB's order, as its Python values.

        Raises:
            OperationalError: The transaction is aborted; DuckDB returns no rows until ROLLBACK.
        """
        with self.lock, self._translated():
            if self._rows is None:
                self._rows = self._fetched(self.relation)
        return iter(self._rows)

    def head(self, most: int) -> list[tuple[Any, ...]]:
        """The first rows, as many as `most`.

        Raises:
            OperationalError: As `rows`.
        """
        if self._rows is not None:
            return self._rows[:most]
        with self.lock, self._translated():
            return self._fetched(self.relation.limit(most))

    def _fetched(self, relation: Any) -> list[tuple[Any, ...]]:
        """All rows of a relation with this one's columns.

        DuckDB needs the package pytz for values of TIMESTAMPTZ; Arrow's have zones of `zoneinfo`.
        """
        zoned = [n for n, kind in enumerate(self.types) if kind == "TIMESTAMP WITH TIME ZONE"]
        if not zoned or find_spec("pytz") is not None:
            return list(relation.fetchall())
        with suppress(OverflowError, ValueError):  # infinity, and years that Python lacks
            others = [n for n in range(len(self.types)) if n not in zoned]
            columns: list[Any] = [()] * len(self.types)
            arrow = relation.project(_places(zoned)).to_arrow_table()
            for n, column in zip(zoned, arrow.columns, strict=True):
                columns[n] = column.to_pylist()
            if others:
                rest = relation.project(_places(others)).fetchall()
                for n, values in zip(others, zip(*rest, strict=True), strict=bool(rest)):
                    columns[n] = values
            return list(zip(*columns, strict=True))
        return list(relation.fetchall())

    def column_arrays(self) -> dict[str, np.ndarray]:
        """The columns as DuckDB's arrays of rank 1, masked where a value is NULL.

        Raises:
            OperationalError: As `rows`.
        """
        with self.lock, self._translated():
            return dict(self.relation.fetchnumpy())

    def frame(self) -> Any:
        """The rows as DuckDB's pandas DataFrame.

        Raises:
            OperationalError: As `rows`.
        """
        with self.lock, self._translated():
            frame = self.relation.df()
        frame.columns = distinct_names(self.names)
        return frame

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table; columns keep their names.

        Raises:
            OperationalError: As `rows`.
        """
        with self.lock, self._translated():
            return self.relation.to_arrow_table().rename_columns(list(self.names))

    def numpy(self, fill: Any = None) -> dict[str, np.ndarray]:
        """One array of rank 1 per column; masked if there are NULLs and no `fill`.

        Raises:
            InterfaceError: Two columns have the same name, or a column cannot hold the fill.
            OperationalError: As `rows`.
        """
        import pyarrow as pa  # only boundaries need it

        self._check_names()
        arrays = {}
        for name, kind, column in zip(self.names, self.types, self.arrow().columns, strict=True):
            values = column.combine_chunks()
            if values.null_count and fill is not None:
                try:
                    values = values.fill_null(fill)
                except (pa.ArrowException, OverflowError):
                    raise InterfaceError(f"{name} is {kind}, which cannot hold {fill!r}") from None
            mask = null_mask(values)
            is_number = pa.types.is_integer(values.type) or pa.types.is_floating(values.type)
            if mask.any() and is_number:
                array = numpy_array(values.fill_null(0))
            else:
                array = numpy_array(values)
            arrays[name] = np.ma.masked_array(array, mask) if mask.any() else array
        return arrays


def _places(numbers: list[int]) -> str:
    """The items of SELECT for columns by their places, from 0; names may occur twice."""
    return ", ".join(f"#{n + 1}" for n in numbers)


@dataclass(frozen=True)
class _Inherited:
    refusal: forks.Refusal

    def __getattr__(self, name: str) -> Any:
        raise self.refusal()
