"""A result that is a list of rows with named and typed columns, such as that of a loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.storage.arrow_arrays import arrow_type
from einsql.storage.results.row_result_base import Keyless

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class RowsResult(Keyless):
    """A list of rows.

    Attributes:
        names: The columns.
        types: The SQL types of the columns.
        content: The rows.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    content: list[tuple[Any, ...]]

    _no_keys = ("A list of rows has no keys", "fetch_numpy returns its columns.")

    def __len__(self) -> int:
        return len(self.content)

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows."""
        return iter(self.content)

    def head(self, most: int) -> list[tuple[Any, ...]]:
        """The first rows, as many as `most`."""
        return self.content[:most]

    def column_arrays(self) -> dict[str, np.ndarray]:
        """The same as `numpy`."""
        return self.numpy()

    def frame(self) -> Any:
        """The rows as a pandas DataFrame."""
        return self.arrow().to_pandas()

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        import pyarrow as pa  # takes 60 ms, and few callers need it

        columns = list(zip(*self.content, strict=True)) or [()] * len(self.names)
        arrays = [_arrow(values, t) for values, t in zip(columns, self.types, strict=True)]
        return pa.Table.from_arrays(arrays, names=list(self.names))

    def numpy(self, fill: Any = None) -> dict[str, np.ndarray]:
        """One array of rank 1 for each column; masked if there are NULLs and no `fill`.

        Raises:
            InterfaceError: Two columns have the same name.
        """
        self._check_names()
        arrays = {}
        for n, name in enumerate(self.names):
            values = [row[n] for row in self.content]
            missing = np.array([v is None for v in values], np.bool_)
            if missing.any():
                filler = 0 if fill is None else fill
                array = np.array([filler if v is None else v for v in values])
                arrays[name] = array if fill is not None else np.ma.masked_array(array, missing)
            else:
                arrays[name] = np.array(values)
        return arrays


def _arrow(values: Sequence[Any], sql_type: str) -> pa.Array:
    """A column in the Arrow type of its SQL type, or in the one of its values."""
    import pyarrow as pa

    if sql_type not in {t.value for t in DType}:
        return pa.array(list(values))
    dtype = DType(sql_type)
    if dtype.is_integer and any(isinstance(v, float) for v in values):
        return pa.array(list(values))  # Arrow would truncate them
    if dtype is DType.HALF:  # Arrow takes no float for it
        values = [None if v is None else np.float16(v) for v in values]
    return pa.array(list(values), arrow_type(dtype))
