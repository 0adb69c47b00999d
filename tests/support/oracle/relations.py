"""What the generator knows of an expression, a column and a relation.

Every expression carries a bound of its magnitude and the number of binary places of its
values, so it is known which results are exact, and for the others an SQL expression that
bounds the difference between two ways of computing it (a running error analysis).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

PLACES = {"FLOAT": 24, "DOUBLE": 53}
"""Bits of a float's significand."""

RANGES = {"TINYINT": 2.0**7, "INTEGER": 2.0**31, "BIGINT": 2.0**63}
"""Values of an integer type lie in `[-r, r)`."""

_RANK = {"TINYINT": 1, "INTEGER": 2, "BIGINT": 3, "FLOAT": 4, "DOUBLE": 5}


class UnsoundError(Exception):
    """The wanted expression could not be compared soundly; something simpler is used."""


@dataclass(frozen=True)
class E:
    """A scalar expression.

    Attributes:
        sql: Its text in the query.
        oracle: Its text for the oracle, where ties are settled as einsql settles them.
        error: SQL that bounds the absolute difference between two sound evaluations;
            empty where every evaluation gives the same value.
        dtype: Its type under the session's float_math; DuckDB's may be wider.
        magnitude: Bound of the finite values.
        bits: Every finite value is a multiple of 2^-bits; None if nothing is known.
        special: The value may be NaN or infinite.
        nullable: The value may be NULL.
        signed_zero: A zero's sign is the same in every evaluation.
        literal: The SQL is a bare number, whose type gives way to the other operand's.
        raises: Evaluating it may raise.
        key: `[lo, hi)` of an expression over keys alone.
    """

    sql: str
    dtype: str
    magnitude: float
    bits: int | None
    oracle: str = ""
    error: str = ""
    special: bool = False
    nullable: bool = False
    signed_zero: bool = False
    literal: bool = False
    raises: bool = False
    key: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not self.oracle:
            object.__setattr__(self, "oracle", self.sql)

    @property
    def exact(self) -> bool:
        """True if every evaluation gives the same value."""
        return not self.error

    @property
    def is_float(self) -> bool:
        """True for FLOAT and DOUBLE."""
        return self.dtype in PLACES

    @property
    def is_integer(self) -> bool:
        """True for the integer types."""
        return self.dtype in RANGES

    @property
    def bound(self) -> str:
        """SQL of the error bound, 0 where the value is exact."""
        return self.error or "0"

    @property
    def size(self) -> str:
        """SQL of the absolute value as a DOUBLE."""
        return f"abs(({self.oracle})::DOUBLE)"


@dataclass(frozen=True)
class Column:
    """A column of a relation; `error` names the column that bounds its error."""

    name: str
    dtype: str
    magnitude: float
    bits: int | None
    special: bool = False
    nullable: bool = False
    leaf: bool = False
    bounds: tuple[int, int] | None = None
    error: str = ""

    def renamed(self, name: str) -> Column:
        """The same column by another name."""
        return replace(self, name=name)

    def of(self, alias: str) -> E:
        """A reference to the column; an empty alias leaves it unqualified."""
        dot = f"{alias}." if alias else ""
        return E(
            sql=dot + self.name,
            dtype=self.dtype,
            magnitude=self.magnitude,
            bits=self.bits,
            error=dot + self.error if self.error else "",
            special=self.special,
            nullable=self.nullable,
            signed_zero=self.leaf,
            key=self.bounds,
        )

    @classmethod
    def holding(cls, name: str, e: E, error: str) -> Column:
        """The column a SELECT item becomes; `error` names its companion."""
        return cls(
            name, e.dtype, e.magnitude, e.bits, e.special, e.nullable, e.signed_zero, e.key,
            error if e.error else "",
        )  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """A table, CTE or parenthesised SELECT.

    Attributes:
        rows: Bound of the number of rows.
        unique: No two rows agree on all key columns.
    """

    sql: str
    oracle: str
    columns: list[Column]
    rows: int
    unique: bool

    @property
    def keys(self) -> list[Column]:
        """Columns that are keys."""
        return [c for c in self.columns if c.bounds is not None]


def meet(*operands: E) -> str:
    """The type at which numeric operands meet; bare numbers give way to the others."""
    firm = [e.dtype for e in operands if not e.literal] or [e.dtype for e in operands]
    # A number with a point beside an integer would be DECIMAL; `1e-1` is DOUBLE for both.
    if any(e.literal and e.dtype == "DECIMAL" for e in operands) and not (set(firm) & set(PLACES)):
        raise UnsoundError
    if not all(t in _RANK for t in firm):
        raise UnsoundError
    return max(firm, key=_RANK.__getitem__)


def fits(magnitude: float, bits: int | None, dtype: str) -> bool:
    """True if every multiple of 2^-bits up to the magnitude is a value of the type."""
    if bits is None:
        return False
    return math.log2(max(magnitude, 2.0**-bits)) + bits <= PLACES[dtype]
