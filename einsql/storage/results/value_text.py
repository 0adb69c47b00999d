"""The formatting of values for table cells, CSV fields and JSON documents."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from einsql.core.bfloat16 import rounded
from einsql.core.quoting import literal as text_literal
from einsql.core.records import dataclass

_NUMERIC = {
    "TINYINT",
    "SMALLINT",
    "INTEGER",
    "BIGINT",
    "HUGEINT",
    "UTINYINT",
    "USMALLINT",
    "UINTEGER",
    "UBIGINT",
    "UHUGEINT",
    "HALF",
    "BFLOAT16",
    "FLOAT",
    "DOUBLE",
}
_DISPLAYED = {"INTEGER": "int32", "BIGINT": "int64", "TINYINT": "int8", "SMALLINT": "int16"}
_NARROW: dict[str, type[np.floating[Any]]] = {"HALF": np.float16, "FLOAT": np.float32}
_EXACT_DIGITS = {"HALF": 3, "BFLOAT16": 2, "FLOAT": 6}
"""Digits that a literal of type DECIMAL has at most if its conversion to a float is exact."""
ESCAPES = str.maketrans({"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\x1b", "\0": "\\0"})
"""The escapes of control characters in one-line values."""


@dataclass(frozen=True, slots=True)
class Column:
    """The name and the SQL type of a result's column."""

    name: str
    type: str

    @property
    def is_numeric(self) -> bool:
        """True if cells are right-aligned."""
        return self.type in _NUMERIC or self.type.startswith("DECIMAL")

    @property
    def displayed_type(self) -> str:
        """The type in the header of a table."""
        return _DISPLAYED.get(self.type, self.type.lower())


def columns_of(description: Sequence[Sequence[Any]]) -> tuple[Column, ...]:
    """The columns of a cursor's DB-API description."""
    return tuple(Column(str(d[0]), str(d[1])) for d in description)


def format_value(value: Any, type_name: str, null: str) -> str:
    """The text of a value; floats have the fewest digits that parse to the same float."""
    if value is None:
        return null
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, float):
        return _format_float(value, type_name)
    if isinstance(value, np.ndarray):
        return format_value(value.tolist(), type_name, null)
    if isinstance(value, list | tuple):
        inner = type_name.partition("[")[0]
        return f"[{', '.join(format_value(v, inner, 'NULL') for v in value)}]"
    if isinstance(value, dict):
        pairs = (f"'{k}': {format_value(v, '', 'NULL')}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, bytes | bytearray):
        return "".join(chr(b) if 32 <= b < 127 else f"\\x{b:02X}" for b in value)
    return str(value)


def format_cell(value: Any, type_name: str, null: str) -> str:
    """The text of a value on one line, without control characters; arrays are summarized."""
    if isinstance(value, np.ndarray):
        return summary(value)
    return format_value(value, type_name, null).translate(ESCAPES)


def format_json(value: Any, type_name: str) -> str:
    """The value as JSON; NaN is null and infinity ±1e999, as in DuckDB's shell."""
    if value is None:
        return "null"
    if isinstance(value, float):
        text = _format_float(value, type_name)
        return {"nan": "null", "inf": "1e999", "-inf": "-1e999"}.get(text, text)
    if isinstance(value, bool | int | np.bool_ | np.integer):
        return format_value(value, type_name, "null")
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        inner = type_name.partition("[")[0]
        return f"[{','.join(format_json(v, inner) for v in value)}]"
    if isinstance(value, dict):
        pairs = (f"{json.dumps(str(k))}:{format_json(v, '')}" for k, v in value.items())
        return "{" + ",".join(pairs) + "}"
    if type_name.startswith("DECIMAL"):
        return str(value)
    return json.dumps(format_value(value, type_name, "null"), ensure_ascii=False)


def literal(value: Any, type_name: str) -> str:
    """The value as an SQL literal, which INSERT converts to the type of its column."""
    if value is None or isinstance(value, bool | np.bool_ | int | np.integer):
        return format_value(value, type_name, "NULL")
    if isinstance(value, float):
        return _float_literal(value, type_name)
    if isinstance(value, np.ndarray):
        return literal(value.tolist(), type_name)
    if isinstance(value, list | tuple):
        inner = type_name.partition("[")[0]
        return f"[{', '.join(literal(v, inner) for v in value)}]"
    if isinstance(value, dict):
        pairs = (f"{literal(k, '')}: {literal(v, '')}" for k, v in value.items())
        return ("MAP " if type_name.startswith("MAP") else "") + "{" + ", ".join(pairs) + "}"
    if isinstance(value, bytes | bytearray):
        return f"'{''.join(map(_byte, value))}'::BLOB"
    if isinstance(value, timedelta):
        return f"to_microseconds({value // timedelta(microseconds=1)})"
    if type_name.startswith("DECIMAL"):
        return str(value)
    return text_literal(format_value(value, type_name, "NULL"))


def _float_literal(value: float, type_name: str) -> str:
    text = _format_float(value, type_name)
    if not math.isfinite(value):
        return f"'{text}'::{type_name or 'DOUBLE'}"
    if value == 0 and math.copysign(1, value) < 0:
        return "-0.0e0"  # -0.0 is a DECIMAL, which has no sign of zero
    digits = text.lstrip("-").replace(".", "").strip("0")
    exact = _EXACT_DIGITS.get(type_name, 15)
    return f"{text}e0" if "e" not in text and len(digits) > exact else text


def _byte(byte: int) -> str:
    plain = 32 <= byte < 127 and byte not in b"\\'\""
    return chr(byte) if plain else f"\\x{byte:02X}"


def _format_float(value: float, type_name: str) -> str:
    if type_name == "BFLOAT16" and math.isfinite(value):
        value, type_name = _shortest(value), "FLOAT"
    narrow = _NARROW.get(type_name)
    if narrow is None or not math.isfinite(value):
        return str(float(value))
    number = narrow(value)
    if value == 0 or 1e-4 <= abs(number) < 1e16:  # no exponent, as in DuckDB and Python
        return np.format_float_positional(number, unique=True, trim="0")
    return np.format_float_scientific(number, unique=True, trim="-", exp_digits=2)


def _shortest(value: float) -> float:
    """The number with the fewest digits whose nearest BFLOAT16 is this value."""
    shorter = (float(f"{value:.{digits}g}") for digits in range(1, 5))
    return next((s for s in shorter if rounded(np.asarray(s)) == value), value)


def summary(array: np.ndarray) -> str:
    """The summary of an array: its type, shape, minimum and maximum."""
    head = f"{array.dtype}[{','.join(map(str, array.shape))}]"
    missing = int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
    if missing == array.size:
        return f"{head} {missing} nan" if missing else head
    least, most = (np.fmin, np.fmax) if missing else (np.minimum, np.maximum)
    ends = (short(f.reduce(array, axis=None)) for f in (least, most))
    return f"{head} {' … '.join(ends)}" + (f", {missing} nan" if missing else "")


def short(value: Any) -> str:
    """A number in at most six digits, for narrow output."""
    if isinstance(value, bool | np.bool_ | int | np.integer):
        return format_value(value, "", "")
    number = float(value)
    text = f"{number:.6g}"
    return text if any(c in text for c in ".en") else f"{text}.0"
