"""The methods that return a result: rows as arrays, tables, frames, tensors, and as text."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.errors import Error, InterfaceError
from einsql.planner.outcome import Description
from einsql.session.tracebacks import guarded_methods
from einsql.storage.error_boundary import boundary
from einsql.storage.results import stored_elements
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    import pyarrow as pa

    from einsql.planner.outcome import Results
    from einsql.storage.results import box, frames, tile_batches, value_text
else:  # loaded for results as columns, as tiles and as text
    frames = LazyModule("einsql.storage.results.frames")
    tile_batches = LazyModule("einsql.storage.results.tile_batches")
    box = LazyModule("einsql.storage.results.box")
    value_text = LazyModule("einsql.storage.results.value_text")

_FORMATS = ("csr", "csc", "coo", "bsr", "dia", "dok", "lil")
"""SciPy's formats of sparse matrices."""
SHOWN = 20
"""The rows that a printed result shows."""
_WIDTH = 120
"""The characters of a printed line."""


@guarded_methods("result")
class Fetched(ABC):
    """The results of a cursor or a relation; a subclass says which result they return.

    Attributes:
        description: One 7-tuple (name, type, None, …) per column; None without a result.
    """

    __einsql_rows__ = True
    """Marks results among variables, which FROM reads as tables."""

    @property
    @abstractmethod
    def description(self) -> Description | None:
        """One 7-tuple (name, type, None, …) per column; None without a result."""

    @abstractmethod
    def _tensor(self) -> Results:
        """The result.

        Raises:
            InterfaceError: There is no result.
        """

    def result(self) -> Results:
        """The result, for a print of it."""
        return self._tensor()

    @abstractmethod
    def _fetching(self) -> AbstractContextManager[None]:
        """Context of a fetch, in which `interrupt` cancels reads from ranks."""

    # ---- tensors and tables

    @property
    def origin(self) -> tuple[int, ...]:
        """The lower bound of each key column, in SELECT order."""
        return self._tensor().origin

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The extents of the key columns in SELECT order; None without a tensor result."""
        return None if self.description is None else self._tensor().shape

    @property
    def key_names(self) -> tuple[str, ...] | None:
        """The names of the key columns in SELECT order; None without a tensor result."""
        if self.description is None:
            return None
        tensor = self._tensor()
        return None if tensor.shape is None else tensor.key_names

    def fetch_numpy(self, *, fill: Any = None) -> Any:
        """Returns the result as an array, or as a dict of arrays for several value columns.

        Args:
            fill: The value of absent keys and NULLs; without it they are an error.

        Returns:
            The axes are the key columns in SELECT order over their static `[lo, hi)`; `origin`
            is lo. A result of one tile is not copied. The array is read-only if it shares a
            tensor's storage.

        Raises:
            InterfaceError: Keys are absent or not selected, or there is no result.
        """
        with boundary:
            tensor = self._tensor()
            with self._fetching():
                return tensor.numpy(fill)

    def fetch_scipy(self, form: str = "csr") -> Any:
        """Returns the result as a SciPy sparse array, or a dict of arrays by value column.

        Args:
            form: The format: "csr", "csc", "coo" or another one of SciPy's.

        Returns:
            An array over the static bounds of one or two keys in SELECT order; `origin` has the
            lower bounds. The present rows are its stored elements, zeros included.

        Raises:
            InterfaceError: The result has no key or more than two, a value is NULL, or SciPy lacks
                the format.
        """
        if form not in _FORMATS:
            raise InterfaceError(
                f"fetch_scipy has no format {form!r}", hint=f"Formats are {', '.join(_FORMATS)}."
            )
        with boundary:
            tensor = self._elements()
            with self._fetching():
                return stored_elements.scipy_matrices(tensor, form)

    def fetch_tiles(self) -> pa.RecordBatchReader:
        """Returns the result as Arrow record batches of tiles, a batch for each tile.

        Returns:
            A tile has the first value and the exclusive end of each key (`i` and `.end.i`), and
            the elements of each value column in C order: a fixed-shape tensor, or a list if tiles
            differ in shape. `.present` has the flags of keys if some are absent. Contiguous
            arrays, as those of stored tensors, are not copied.

        Raises:
            InterfaceError: The result has rows of DuckDB or of tiles, keys that are not selected,
                LIST columns or NULLs.
        """
        with boundary:
            tensor = self._elements()
            with self._fetching():
                return tile_batches.tile_reader(tensor)

    def _elements(self) -> Result:
        """The result, which has keys of elements.

        Raises:
            InterfaceError: It has rows of DuckDB or of tiles, or there is none.
        """
        tensor = self._tensor()
        if not isinstance(tensor, Result):
            raise InterfaceError(
                "The result has no keys of elements", hint="fetch_arrow_table returns its rows."
            )
        return tensor

    def numpy(self, *, fill: Any = None) -> Any:
        """The same as `fetch_numpy`."""
        return self.fetch_numpy(fill=fill)

    def fetchnumpy(self) -> dict[str, np.ndarray]:
        """Returns the columns as arrays by name, masked where a value is NULL, as in DuckDB."""
        with boundary:
            tensor = self._tensor()
            with self._fetching():
                if isinstance(tensor, Result):
                    return frames.arrays_of(tensor)
                return tensor.column_arrays()

    def torch(self) -> dict[str, Any]:
        """Returns the columns as PyTorch tensors of rank 1 by name, as in DuckDB.

        `torch.from_numpy(np.require(cur.numpy(), requirements="W"))` has an axis for each key
        instead. It copies a read-only array, into which a PyTorch tensor would write.

        Raises:
            InterfaceError: PyTorch is not installed, a column has NULLs, or no tensor has its type.
        """
        torch = _imported("torch", "torch")
        tensors = {}
        for name, values in self.fetchnumpy().items():
            lacking = int(np.ma.getmaskarray(values).sum())
            if lacking:
                raise InterfaceError(
                    f"{lacking} values of {name} are NULL, which a PyTorch tensor cannot hold",
                    hint="COALESCE(…, 0) gives them a value; WHERE … IS NOT NULL leaves them out.",
                )
            try:
                tensors[name] = torch.from_numpy(np.require(values, requirements=("C", "W")))
            except TypeError:
                kinds = {d[0]: d[1] for d in self.description or ()}
                raise InterfaceError(
                    f"PyTorch has no type {kinds.get(name, values.dtype)}, which {name} has",
                    hint="Select numbers, or use fetchnumpy().",
                ) from None
        return tensors

    def fetch_arrow_table(self) -> pa.Table:
        """Returns the rows as an Arrow table, with one column for each SELECT item."""
        with boundary:
            tensor = self._tensor()
            with self._fetching():
                return tensor.arrow()

    to_arrow_table = fetch_arrow_table

    def arrow(self) -> pa.RecordBatchReader:
        """Returns the rows as a reader of Arrow record batches, as in DuckDB."""
        return self.fetch_arrow_table().to_reader()

    fetch_record_batch = to_arrow_reader = arrow

    def fetch_df(self) -> Any:
        """Returns the rows as a pandas DataFrame; `df`, `to_df` and `fetchdf` are DuckDB's names.

        Raises:
            InterfaceError: pandas is not installed, or there is no result.
        """
        _imported("pandas", "fetch_df")  # pyarrow's own message is less clear
        with boundary:
            tensor = self._tensor()
            with self._fetching():
                if isinstance(tensor, Result):
                    return frames.frame_of(tensor)
                return tensor.frame()

    df = fetchdf = to_df = fetch_df

    def pl(self) -> Any:
        """Returns the rows as a polars DataFrame.

        Raises:
            InterfaceError: polars is not installed, or there is no result.
        """
        polars = _imported("polars", "pl")
        with boundary:
            return polars.from_arrow(self.fetch_arrow_table())

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns the rows as an Arrow C stream, for polars, DuckDB and others."""
        with boundary:
            return self.fetch_arrow_table().__arrow_c_stream__(requested_schema)

    # ---- columns and text

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return [str(d[0]) for d in self.description or ()]

    @property
    def types(self) -> list[str]:
        """DuckDB's names of the columns' types; `dtypes` is the same."""
        return [str(d[1]) for d in self.description or ()]

    @property
    def dtypes(self) -> list[str]:
        """DuckDB's names of the columns' types."""
        return self.types

    def show(self, *, max_rows: int = SHOWN, max_width: int = _WIDTH) -> None:
        """Prints the first rows as a table; the rows remain to be fetched.

        Args:
            max_rows: The largest number of rows.
            max_width: The largest width of a line in characters.
        """
        with boundary:
            print("\n".join(self._lines(max_rows, max_width)))

    def __repr__(self) -> str:
        try:
            if self.description is not None:
                with boundary:
                    return "\n".join(self._lines(SHOWN, _WIDTH))
        except Error as error:
            return f"<einsql.{type(self).__name__}: {error.reason}>"
        return f"<einsql.{type(self).__name__} without rows>"

    def _repr_html_(self) -> str | None:
        """The first rows as a table of HTML, for notebooks; None without a result."""
        if self.description is None:
            return None
        columns = value_text.columns_of(self.description)
        with boundary:
            rows, total = self._first(SHOWN)
        names = "".join(f"<th>{html.escape(c.name)}</th>" for c in columns)
        body = "".join(
            "<tr>"
            + "".join(
                f'<td style="text-align: {"right" if c.is_numeric else "left"}">'
                f"{html.escape(value_text.format_cell(v, c.type, 'NULL'))}</td>"
                for v, c in zip(row, columns, strict=True)
            )
            + "</tr>"
            for row in rows
        )
        more = f"<p>{total} rows ({len(rows)} shown)</p>" if total > len(rows) else ""
        return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>{more}"

    def _lines(self, most: int, width: int) -> Iterator[str]:
        """The lines of the table of the first rows; a plan is printed unchanged."""
        columns = value_text.columns_of(self.description or ())
        rows, total = self._first(most)
        if [c.name for c in columns] == ["explain"]:
            return (str(row[0]) for row in self.result().rows())
        shown = box.Excerpt(list(rows), [], total)
        return box.draw_box(columns, shown, null="NULL", width=width)

    def _first(self, most: int) -> tuple[list[tuple[Any, ...]], int]:
        """The first rows of the result, and the number of all."""
        tensor = self.result()
        with self._fetching():
            return tensor.head(most), len(tensor)


def _imported(package: str, method: str) -> Any:
    """Imports an optional package for a method.

    Raises:
        InterfaceError: The package is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise InterfaceError(
            f"{method} needs {package}",
            hint=f"pip install {package}, or use fetch_arrow_table().",
        ) from error
