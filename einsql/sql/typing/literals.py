"""Literals: numbers, text in casts, and names of types."""

from __future__ import annotations

import decimal
import re
from typing import TYPE_CHECKING

import numpy as np
from sqlglot import exp

from einsql.core.lazy_module import LazyModule
from einsql.core.schema import DType
from einsql.errors import DataError, NotSupportedError, ProgrammingError
from einsql.ir.einsum.graph import FALSE, TRUE, Const, bigint
from einsql.sql.parser.sql_text import as_sql
from einsql.sql.typing.casts import WIDEST, Decimal, SqlType, fits, held
from einsql.sql.typing.typed_expr import Typed, convert, integer

if TYPE_CHECKING:
    import fractions
else:  # loaded for decimal literals
    fractions = LazyModule("fractions")

_TYPES = {
    "BOOLEAN": DType.BOOLEAN,
    "TINYINT": DType.TINYINT,
    "INT": DType.INTEGER,
    "BIGINT": DType.BIGINT,
    "FLOAT": DType.FLOAT,
    "DOUBLE": DType.DOUBLE,
}
_TRUTHS = {"true": TRUE, "t": TRUE, "yes": TRUE, "y": TRUE, "1": TRUE}
_FALSEHOODS = {"false": FALSE, "f": FALSE, "no": FALSE, "n": FALSE, "0": FALSE}
_DIGITS = r"\d+(?:_\d+)*"
_NUMBER = re.compile(rf"[+-]?(?:{_DIGITS}\.?(?:{_DIGITS})?|\.{_DIGITS})(?:e[+-]?\d+)?", re.ASCII)
_LONGEST = 1000
"""Most digits of an integer literal, with leading zeros."""
_SPECIAL = re.compile(r"[+-]?(?:nan|inf|infinity)")


def number(text: str) -> Typed:
    """Binds a numeric literal with DuckDB's type: INTEGER, BIGINT, DECIMAL or DOUBLE.

    Raises:
        NotSupportedError: An integer literal exceeds BIGINT.
        ProgrammingError: The text is not a number.
    """
    if not _NUMBER.fullmatch(text.lower()):
        raise ProgrammingError(f"{text} is no number")
    text = text.replace("_", "")
    if "e" in text.lower():
        return Typed(Const(float(text), DType.DOUBLE), DType.DOUBLE)
    if "." not in text:
        return whole_number(text)
    before, _, after = text.partition(".")
    width = len(before) + len(after)
    if width > WIDEST:
        return Typed(Const(float(text), DType.DOUBLE), DType.DOUBLE)
    return Typed(bigint(int(before + after)), Decimal(width, len(after)), literal=True)


def whole_number(digits: str, sign: int = 1) -> Typed:
    """Binds an integer literal.

    Raises:
        NotSupportedError: The number exceeds BIGINT.
    """
    if len(digits) > _LONGEST:  # Python limits the digits of `int`
        raise NotSupportedError(
            f"An integer of {len(digits)} digits does not fit BIGINT",
            hint="Tensors contain numbers from -2^63 to 2^63 - 1.",
        )
    return _literal(sign * int(digits))


def _literal(n: int) -> Typed:
    """An integer literal, whose type is that of its digits: -2147483648 is a BIGINT."""
    if n == -(2**31):
        return Typed(Const(n, DType.BIGINT), DType.BIGINT, literal=True)
    return integer(n, literal=True)


def negated(t: Typed) -> Typed:
    """Negates a numeric literal to one literal, so that the least BIGINT has a notation."""
    assert isinstance(t.value, Const)
    if isinstance(t.type, DType) and t.type.is_integer:
        return _literal(-int(t.value.value))
    return Typed(Const(-t.value.value, t.value.dtype), t.type, literal=True)


def parse_type(node: exp.Expr) -> SqlType:
    """The value type of an SQL type name.

    Raises:
        NotSupportedError: Tensors do not support the type.
        ProgrammingError: The width or scale of a DECIMAL is invalid.
    """
    text = as_sql(node).upper()
    kind = node.this.name if isinstance(node, exp.DataType) and hasattr(node.this, "name") else text
    if kind in _TYPES and not node.expressions:
        return _TYPES[kind]
    if text in ("HALF", "FLOAT16"):
        return DType.HALF
    if text == "BFLOAT16":
        return DType.BFLOAT16
    if kind == "DECIMAL":
        return _decimal(text, [p.name for p in node.expressions])
    names = ", ".join(t.value for t in DType)
    raise NotSupportedError(f"Tensors have no type {text}", hint=f"Types are {names}.")


def _decimal(text: str, sizes: list[str]) -> Decimal:
    if all(s.isdecimal() for s in sizes) and len(sizes) <= 2:
        declared = Decimal(*[int(s) for s in [*sizes, "0"][:2]]) if sizes else Decimal(18, 3)
        if 1 <= declared.width <= WIDEST and declared.scale <= declared.width:
            return declared
    raise ProgrammingError(
        f"There is no type {text}", hint=f"DECIMAL(p, s) has 1 ≤ p ≤ {WIDEST} digits and s ≤ p."
    )


def read_text(text: str, target: SqlType) -> Typed:
    """Binds the cast of a text, as in 'inf'::FLOAT.

    Raises:
        ProgrammingError: The text is not a value of the type.
        DataError: The value is out of the type's range.
    """
    typed: Typed | None = None
    if target is DType.BOOLEAN:
        truth = {**_TRUTHS, **_FALSEHOODS}.get(text.lower())
        typed = None if truth is None else Typed(truth, target)
    elif isinstance(target, DType) and target.is_float:
        typed = _read_float(text.strip(" \t\n\v\f\r").lower(), target)
    elif target is not None:
        typed = _read_exact(text.strip(" \t\n\v\f\r").lower(), target)
    if typed is not None:
        return typed
    kind = "NULL" if target is None else target.value
    raise ProgrammingError(f"'{text}' is no {kind}")


def _read_float(word: str, target: DType) -> Typed | None:
    if not (_NUMBER.fullmatch(word) or _SPECIAL.fullmatch(word)):
        return None
    value = float(word)
    if target is DType.FLOAT:
        with np.errstate(over="ignore"):  # text beyond FLOAT's range is infinite
            return Typed(Const(np.float32(value).item(), target), target)
    return convert(Typed(Const(value, DType.DOUBLE), DType.DOUBLE), target)


def _read_exact(word: str, target: DType | Decimal) -> Typed | None:
    """An integer or DECIMAL from text, rounded half away from zero."""
    if re.fullmatch(r"0x[0-9a-f]+|0b[01]+", word) and isinstance(target, DType):
        if not fits(int(word, 0), DType.BIGINT):
            raise DataError(f"'{word}' does not fit {target.value}")
        return convert(integer(int(word, 0)), target)
    if not _NUMBER.fullmatch(word):
        return None
    try:
        exact = decimal.Decimal(word)
    except decimal.InvalidOperation:  # the exponent has 19 digits
        return None
    scale, width = (target.scale, target.width) if isinstance(target, Decimal) else (0, 19)
    digits = exact.adjusted() + 1 + scale if exact else 0
    n = 0
    if 0 <= digits <= 19:
        twice = 2 * abs(fractions.Fraction(exact)) * 10**scale
        n = int(twice + 1) // 2 * (-1 if exact < 0 else 1)
    if digits > 19 or abs(n) >= 10**width or not fits(n, held(target)):
        raise DataError(f"'{word}' does not fit {target.value}")
    return Typed(Const(n, held(target)), target)
