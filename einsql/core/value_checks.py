"""Declared bounds of the values of integer columns."""

from __future__ import annotations

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.core.schema import DType


@dataclass(frozen=True, slots=True)
class Check:
    """A CHECK on an integer column of a tensor; every stored value is within the bounds.

    Attributes:
        column: The column's name as declared.
        least: The least value; None for that of the column's type.
        most: The greatest value; None for that of the column's type.
    """

    column: str
    least: int | None
    most: int | None

    def within(self, dtype: DType) -> tuple[int, int]:
        """The inclusive bounds of the values of a column with a type."""
        least, most = dtype.range
        return (
            least if self.least is None else self.least,
            most if self.most is None else self.most,
        )

    def __str__(self) -> str:
        name = self.column if self.column.isidentifier() else in_quotes(self.column)
        if self.least == self.most:
            return f"CHECK ({name} = {self.least})"
        if self.least is None:
            return f"CHECK ({name} <= {self.most})"
        if self.most is None:
            return f"CHECK ({name} >= {self.least})"
        return f"CHECK ({name} BETWEEN {self.least} AND {self.most})"
