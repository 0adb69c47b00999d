"""Types: DuckDB's and the keys of tensors as SQLAlchemy's."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import types
from sqlalchemy.sql import sqltypes
from sqlalchemy.sql.type_api import NativeForEmulated


class DIM(types.BigInteger):
    """The type of a tensor's key: whole numbers in `[lo, hi)`.

    `DIM(4)` is 0 to 3, `DIM(2, 5)` is 2 to 4. A table whose columns have it is created as a
    tensor, whose keys begin with 0 then; its other columns are values.
    """

    __visit_name__ = "DIM"

    def __init__(self, low: int, high: int | None = None) -> None:
        self.low, self.high = (0, low) if high is None else (low, high)

    def __repr__(self) -> str:
        return f"DIM({self.low}, {self.high})"


class NAMED(types.TypeEngine[Any]):
    """A type that SQLAlchemy has no class for, as DuckDB writes it: `NAMED("HUGEINT")`."""

    __visit_name__ = "NAMED"

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"NAMED({self.text!r})"


class WHOLE(types.Integer):
    """A whole number of a width that SQLAlchemy has no class for: `WHOLE("UTINYINT")`."""

    __visit_name__ = "NAMED"

    def __init__(self, text: str = "TINYINT") -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"WHOLE({self.text!r})"


class REAL(types.Float[Any]):
    """A floating-point number of a width that SQLAlchemy has no class for: `REAL("HALF")`."""

    __visit_name__ = "NAMED"

    def __init__(self, text: str = "FLOAT") -> None:
        super().__init__()
        self.text = text

    def __repr__(self) -> str:
        return f"REAL({self.text!r})"


class _Path:
    def _text(self, value: Any) -> str:
        raise NotImplementedError

    def bind_processor(self, dialect: Any) -> Callable[[Any], str]:
        """The function that converts a bound path."""
        return self._text

    def literal_processor(self, dialect: Any) -> Callable[[Any], str]:
        """The function that writes a path into a statement."""
        return lambda value: "'" + self._text(value).replace("'", "''") + "'"


def _step(value: Any) -> str:
    return f"[{value}]" if isinstance(value, int) else '."' + str(value).replace('"', '""') + '"'


class JSONIndex(_Path, sqltypes.JSON.JSONIndexType):
    """One step into a JSON value."""

    def _text(self, value: Any) -> str:
        return "$" + _step(value)


class JSONPath(_Path, sqltypes.JSON.JSONPathType):
    """Several steps into a JSON value."""

    def _text(self, value: Any) -> str:
        return "$" + "".join(map(_step, value))


class BLOB(types.LargeBinary):
    """Bytes; literals are spelled in hexadecimal digits."""

    def literal_processor(self, dialect: Any) -> Callable[[Any], str]:
        """The function that writes bytes into a statement."""
        return lambda value: f"from_hex('{bytes(value).hex()}')"


class INTERVAL(NativeForEmulated, sqltypes._AbstractInterval):
    """A span of time."""

    __visit_name__ = "INTERVAL"
    native = True

    @classmethod
    def adapt_emulated_to_native(cls, impl: Any, **kw: Any) -> INTERVAL:
        """This type for SQLAlchemy's own."""
        return cls()

    @property
    def _type_affinity(self) -> type[Any]:
        return types.Interval

    @property
    def python_type(self) -> type[timedelta]:
        """The type of values."""
        return timedelta

    def literal_processor(self, dialect: Any) -> Callable[[Any], str]:
        """The function that writes a span into a statement."""
        return lambda value: f"to_microseconds({value // timedelta(microseconds=1)})"


class DECIMALS(types.Numeric[Any]):
    """Decimal numbers; quotients, which are DOUBLE in DuckDB, become such."""

    def result_processor(self, dialect: Any, coltype: object) -> Callable[[Any], Any] | None:
        """The function that converts values that are read."""
        if not self.asdecimal:
            return lambda value: None if value is None else float(value)
        return lambda value: (
            value if value is None or isinstance(value, Decimal) else Decimal(repr(value))
        )


COLSPECS: dict[Any, Any] = {
    types.Interval: INTERVAL,
    types.Float: types.Float,
    types.Numeric: DECIMALS,
    sqltypes.JSON.JSONIndexType: JSONIndex,
    sqltypes.JSON.JSONPathType: JSONPath,
    types.LargeBinary: BLOB,
}
"""Types of this dialect in place of SQLAlchemy's own."""

_KNOWN: dict[str, Callable[[], types.TypeEngine[Any]]] = {
    "BOOLEAN": types.BOOLEAN,
    "SMALLINT": types.SMALLINT,
    "INTEGER": types.INTEGER,
    "BIGINT": types.BIGINT,
    "DOUBLE": types.DOUBLE,
    "VARCHAR": types.VARCHAR,
    "BLOB": types.LargeBinary,
    "DATE": types.DATE,
    "TIME": types.TIME,
    "TIME WITH TIME ZONE": lambda: types.TIME(timezone=True),
    "TIMESTAMP": types.TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": lambda: types.TIMESTAMP(timezone=True),
    "INTERVAL": INTERVAL,
    "UUID": types.UUID,
    "JSON": types.JSON,
}

_WHOLE = (
    "TINYINT",
    "HUGEINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
    "UHUGEINT",
    "BIGNUM",
)
_REAL = ("FLOAT", "HALF", "BFLOAT16")


def named_type(text: str) -> types.TypeEngine[Any]:
    """SQLAlchemy's type for a type's name.

    Args:
        text: Such as DECIMAL(18,3), VARCHAR, INTEGER[].
    """
    if match := re.fullmatch(r"(.*)\[\d*\]", text):
        inner, dimensions = match[1], 1
        while more := re.fullmatch(r"(.*)\[\d*\]", inner):
            inner, dimensions = more[1], dimensions + 1
        return types.ARRAY(named_type(inner), dimensions=dimensions)
    if match := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", text):
        return types.DECIMAL(int(match[1]), int(match[2]))
    if text.startswith("ENUM("):
        names = re.findall(r"'((?:[^']++|'')*+)'", text)
        return types.Enum(*(n.replace("''", "'") for n in names))
    if text in _WHOLE:
        return WHOLE(text)
    if text in _REAL:
        return REAL(text)
    return _KNOWN[text]() if text in _KNOWN else NAMED(text)
