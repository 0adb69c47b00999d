"""DuckDB's tables as tensors, with the row number as key and the columns as values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.quoting import in_quotes
from einsql.core.records import dataclass
from einsql.core.schema import DType, Field, Key, Schema, is_flag, valid
from einsql.errors import OF_A_TABLE, NotSupportedError
from einsql.storage.fields import LocalFields
from einsql.storage.relation import Relation

if TYPE_CHECKING:
    from einsql.storage.duckdb.connection import Duck

ROW = ".row"
"""The name of the key, which no column shows and no column of DuckDB has."""

MOST = 2**28
"""The greatest number of rows of a table read as a tensor; DuckDB streams longer tables."""

_TYPES = {d.value: d for d in DType if not d.is_short}


@dataclass(frozen=True, slots=True)
class Named:
    """The names that a query uses.

    Attributes:
        all: All names, in lower case.
        bare: The names of columns without a qualifier, in lower case.
        starred: Whether the query may read columns that it does not name.
    """

    all: frozenset[str]
    bare: frozenset[str]
    starred: bool


@dataclass
class Tables:
    """Reads tables for one statement.

    Attributes:
        duck: The session's connection, in one snapshot for the whole statement.
        has: Returns whether there is a table of a name.
        tick: Callback with the completed fraction of reading a table, 0 to 1; raises to cancel.
        named: The names in the query that is being bound.
        outside: Columns with types that tensors lack and names that queries may use.
        keeps: Whether the relations of `again` are cached until `forget`, for several plans.
    """

    duck: Duck
    has: Callable[[str], bool]
    tick: Callable[[float], None]
    named: Named = Named(frozenset(), frozenset(), True)
    outside: set[str] = field(default_factory=set)
    keeps: bool = True
    _read: dict[tuple[str, tuple[tuple[str, DType], ...]], Relation] = field(default_factory=dict)

    def relation(self, name: str) -> Relation | None:
        """A table as a relation; None if it does not exist or no tensor can replace it."""
        if not self.has(name):
            return None
        columns = self.duck.columns(name)
        unsupported = {c.lower() for c, kind in columns if kind not in _TYPES}
        reported = self.named.all & unsupported or (unsupported if self.named.starred else set())
        self.outside |= {f"{name}.{c}" for c in reported}
        if unsupported and (self.named.starred or unsupported & self.named.bare):
            return None
        wanted = {
            c: _TYPES[kind]
            for c, kind in columns
            if kind in _TYPES and (self.named.starred or c.lower() in self.named.all)
        }
        if not wanted or self.duck.rows(name) > MOST:
            return None
        return self._columns(name, wanted)

    def again(self, name: str, schema: Schema) -> Relation:
        """The columns of a table that a plan with some schema reads."""
        wanted = {f.name: f.dtype for f in schema.fields if not is_flag(f.name)}
        relation = self._columns(name, wanted)
        if not self.keeps:
            self.forget()
        return relation

    def _columns(self, name: str, wanted: dict[str, DType]) -> Relation:
        known = name.lower(), tuple(wanted.items())
        if known not in self._read:
            self._read[known] = read(self.duck, name, wanted, self.tick)
        return self._read[known]

    def mismatch(self, at: int | None) -> NotSupportedError:
        """The error for columns of types that tensors lack."""
        shown = ", ".join(sorted(self.outside))
        return NotSupportedError(f"no tensor has the type of {shown}", hint=OF_A_TABLE, position=at)

    def forget(self) -> None:
        """Releases the cached relations."""
        self._read.clear()


def read(
    duck: Duck, name: str, wanted: dict[str, DType], tick: Callable[[float], None]
) -> Relation:
    """Reads columns of a table; a column with NULLs gets a flag.

    Args:
        duck: The connection.
        name: The table's name.
        wanted: The types of the columns by their names.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.
    """
    columns = ", ".join(in_quotes(c) for c in wanted)
    sql = f"SELECT {columns} FROM {in_quotes(name)}"
    arrays = duck.run(lambda: duck.arrays(sql), tick)
    fields: dict[str, np.ndarray] = {}
    described: list[Field] = []
    rows = 0
    for (column, dtype), array in zip(wanted.items(), arrays, strict=True):
        rows = len(array)
        described.append(Field(column, dtype))
        values = array
        if isinstance(array, np.ma.MaskedArray):
            values = array.filled(0)
            mask = np.ma.getmaskarray(array)
            if mask.any():
                described.append(Field(valid(column), DType.BOOLEAN))
                fields[valid(column)] = ~mask
        fields[column] = np.ascontiguousarray(values, dtype.numpy)
    return Relation(Schema((Key(ROW, 0, rows),), tuple(described)), LocalFields(fields))
