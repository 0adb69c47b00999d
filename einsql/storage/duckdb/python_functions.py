"""Python functions that a session registers in DuckDB."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.storage.arrow_arrays import arrow_array, null_mask, numpy_array

Registering = Callable[[bool], Any]
"""Returns the connection of DuckDB that registers a function.

The argument is whether the function outlives the running transaction. Then the root connection
registers it, and a transaction that has read DuckDB's catalog does not see it. Otherwise the
session's own connection registers it, and ROLLBACK removes it.
"""


class PythonFunctions:
    """The functions that a session has registered, each under a name that no other one has.

    DuckDB keeps a function until the registering connection is closed. Functions of the user are
    registered when they are created, in the running transaction.

    Args:
        registering: See `Registering`.
    """

    def __init__(self, registering: Registering) -> None:
        self._registering = registering
        self._names: set[str] = set()
        self._raised: list[Exception] = []  # DuckDB's functions refer to it, not to the connection

    def register(
        self,
        name: str,
        function: Callable[..., np.ndarray],
        types: Sequence[DType] = (DType.DOUBLE,),
        result: DType = DType.DOUBLE,
        *,
        lasts: bool = False,
    ) -> None:
        """Registers a function of arrays, once.

        Args:
            name: The name in DuckDB.
            function: The function; it gets the rows in which no argument is NULL.
            types: The types of its arguments.
            result: The type of its result.
            lasts: Whether it outlives the running transaction.
        """
        import duckdb.func  # imported when used

        shown = ["FLOAT" if t.is_short else t.value for t in (*types, result)]
        self.register_native(
            name,
            _over_arrow(function, types, result),
            parameters=shown[:-1],
            return_type=shown[-1],
            type=duckdb.func.ARROW,
            lasts=lasts,
        )

    def register_native(
        self, name: str, function: Callable[..., Any], *, lasts: bool = False, **options: Any
    ) -> None:
        """Registers a function with the arguments of DuckDB's `create_function`, once."""
        if name in self._names:
            return
        import duckdb  # imported when used

        raised = self._raised

        def noticed(*args: Any) -> Any:
            try:
                return function(*args)
            except Exception as error:
                raised.append(error)
                raise

        # DuckDB counts the parameters.
        names = [f"x{n}" for n in range(len(options["parameters"]))]
        kind = inspect.Parameter.POSITIONAL_ONLY
        counted = [inspect.Parameter(name, kind) for name in names]
        noticed.__signature__ = inspect.Signature(counted)  # type: ignore[attr-defined]  # inspect reads it
        with suppress(
            duckdb.CatalogException, duckdb.NotImplementedException
        ):  # another session of the database has registered it
            self._registering(lasts).create_function(name, noticed, **options)
        self._names.add(name)

    def raised(self) -> Exception | None:
        """The exception of a function since the last call of this method, or None."""
        error = self._raised[-1] if self._raised else None
        self._raised.clear()
        return error


def _over_arrow(
    function: Callable[..., np.ndarray], types: Sequence[DType], result: DType
) -> Callable[..., Any]:
    """A function of arrays of NumPy without NULL as one of arrays of Arrow."""

    def over_arrow(*columns: Any) -> Any:
        import pyarrow as pa  # imported when used

        arrays = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns]
        known = ~np.logical_or.reduce([null_mask(a) for a in arrays])
        rows = arrays if known.all() else [a.filter(pa.array(known)) for a in arrays]
        args = [_carried(numpy_array(a), t) for a, t in zip(rows, types, strict=True)]
        values = np.zeros(len(known), result.carrier)
        values[known] = function(*args)
        return arrow_array(values, result, known)

    return over_arrow


def _carried(values: np.ndarray, dtype: DType) -> np.ndarray:
    return values.astype(dtype.carrier, copy=False)
