"""Results of functions as a column of tiles for DuckDB."""

from __future__ import annotations

from math import prod

import numpy as np
import pyarrow as pa

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.frontends.duckdb.tiles import Shape

EXACT = {DType.DOUBLE: 2**53, DType.FLOAT: 2**24}
"""The largest bound up to which an element type represents all integers exactly."""


@dataclass
class Tiles:
    """The results of a chunk as a column of tiles; the results arrive in any order.

    Attributes:
        element: The element type of the tiles in DuckDB, FLOAT or DOUBLE.
    """

    rows: int
    element: DType

    def __post_init__(self) -> None:
        self._shapes: list[Shape] = [()] * self.rows
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._there = np.zeros(self.rows, np.bool_)

    def put(self, rows: np.ndarray, arrays: np.ndarray, dtype: DType) -> None:
        """Stores the results of some rows.

        Args:
            rows: The row numbers.
            arrays: The results, an array of shape (rows, …).
            dtype: The type of the results.

        Raises:
            DataError: An integer is not exact in the element type.
        """
        exact = EXACT[self.element]
        integral = dtype.is_integer and bool(arrays.size)
        if integral and not -exact <= int(arrays.min()) <= int(arrays.max()) <= exact:
            raise DataError(
                f"A whole number is beyond ±{exact}, up to which {self.element.value} is exact",
                hint="CAST the tiles to lists of DOUBLE if rounding is all right.",
            )
        shape = tuple(int(n) for n in arrays.shape[1:])
        for n in rows.tolist():
            self._shapes[n] = shape
        self._there[rows] = True
        self._parts.append((rows, arrays.astype(self.element.numpy).reshape(len(rows), -1)))

    def column(self) -> pa.Array:
        """The column of all rows; rows without a result are NULL."""
        sizes = np.array([prod(s) for s in self._shapes], np.int64) * self._there
        ends = np.cumsum(sizes)
        offsets = np.concatenate([[0], ends])
        if len(self._parts) == 1 and self._there.all():
            flat = self._parts[0][1].reshape(-1)
        else:
            flat = np.empty(int(offsets[-1]), self.element.numpy)
            for rows, arrays in self._parts:
                for n, array in zip(rows.tolist(), arrays, strict=True):
                    flat[offsets[n] : offsets[n + 1]] = array
        extents = [e for s in self._shapes for e in s]
        ranks = np.concatenate([[0], np.cumsum([len(s) for s in self._shapes])])
        shape = pa.ListArray.from_arrays(pa.array(ranks, pa.int32()), pa.array(extents, pa.int32()))
        data = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), pa.array(flat))
        missing = None if self._there.all() else pa.array(~self._there)
        return pa.StructArray.from_arrays([shape, data], names=["shape", "data"], mask=missing)
