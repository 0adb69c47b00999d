"""Expressions as SQL text."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from decimal import Decimal

import numpy as np
from sqlglot.dialects.duckdb import DuckDB

from einsql.core.quoting import in_quotes
from einsql.core.schema import DType
from einsql.frontends.trace.nodes import Affine, Apply, Expr, Literal, Read

_BINARY = {
    "or": ("OR", 1), "and": ("AND", 2), "eq": ("=", 4), "ne": ("<>", 4), "lt": ("<", 4),
    "le": ("<=", 4), "bitand": ("&", 5), "bitor": ("|", 5), "add": ("+", 6), "sub": ("-", 6),
    "mul": ("*", 7), "div": ("/", 7), "idiv": ("//", 7), "mod": ("%", 7),
}  # fmt: skip
_FLIPPED = {"lt": ">", "le": ">=", "eq": "=", "ne": "<>"}
_NAMED = {"ln": "LN", "mod": "%", "greatest": "GREATEST", "least": "LEAST"}
_ATOM, _NEGATED, _NOT, _MEMBER = 10, 8, 3, 9
"""Binding strengths of expressions, on the scale of `_BINARY`; an atom needs no parentheses."""
_ADAPTING = {*_BINARY, "greatest", "least", "pow", "atan2"}
"""Functions in whose calls a bare number takes the type of the other argument."""


def name_text(name: str) -> str:
    """A name, in quotes where SQL needs them."""
    plain = name.isascii() and name.isidentifier()
    return name if plain and name.upper() not in _WORDS else in_quotes(name)


_WORDS = {word for keyword in DuckDB.Tokenizer.KEYWORDS for word in keyword.split()}


class Printer:
    """Writes expressions of one SELECT.

    Args:
        labels: The name of each label.
        values: Writes a read of another array.
        special: Texts of further parts.
    """

    def __init__(
        self,
        labels: Mapping[int, str],
        values: Callable[[Read], str],
        special: Mapping[Expr, str] | None = None,
    ) -> None:
        self.labels = labels
        self.values = values
        self.special = dict(special or {})

    def text(self, e: Expr, bare: bool = False) -> str:
        """The expression.

        Args:
            e: The expression.
            bare: Whether a number may be written without its type.
        """
        return self._written(e, bare)[0]

    def _within(self, e: Expr, level: int, bare: bool = False) -> str:
        text, own = self._written(e, bare)
        return text if own >= level else f"({text})"

    def _written(self, e: Expr, bare: bool) -> tuple[str, int]:
        """The text, and how tightly it binds."""
        if e in self.special:
            return self.special[e], _ATOM
        if isinstance(e, Literal):
            return number_text(e, bare)
        if isinstance(e, Affine):
            return self._key(e)
        if isinstance(e, Read):
            return self.values(e), _ATOM
        return self._call(e)

    def _key(self, e: Affine) -> tuple[str, int]:
        terms = sorted(e.terms, key=lambda t: (t[1] < 0, -abs(t[1])))
        text, level = "", _ATOM
        if (e.constant > 0 and terms and terms[0][1] < 0) or not terms:
            text = str(e.constant)
            level = _ATOM if e.constant >= 0 else _NEGATED
        for n, c in terms:
            name = name_text(self.labels[n])
            term = name if abs(c) == 1 else f"{abs(c)} * {name}"
            if not text:
                text, level = (term, _ATOM if c == 1 else 7) if c > 0 else (f"-{term}", _NEGATED)
            else:
                text, level = f"{text} {'-' if c < 0 else '+'} {term}", 6
        if terms and e.constant and not (e.constant > 0 and terms[0][1] < 0):
            text, level = f"{text} {'-' if e.constant < 0 else '+'} {abs(e.constant)}", 6
        return text, level

    def _call(self, e: Apply) -> tuple[str, int]:
        fn, args = e.fn, e.args
        if fn == "cast":
            inner, level = self._written(args[0], False)
            if level == _ATOM:
                return f"{inner}::{e.dtype.value}", _MEMBER
            return f"CAST({inner} AS {e.dtype.value})", _ATOM
        if fn == "neg":
            return f"-{self._within(args[0], _MEMBER)}", _NEGATED
        if fn == "not":
            return f"NOT {self._within(args[0], _NOT + 1)}", _NOT
        bare = [False] * len(args)
        if fn in _ADAPTING and any(not isinstance(a, Literal) for a in args):
            bare = [True] * len(args)
        if fn == "if":
            known = not isinstance(args[1], Literal) or not isinstance(args[2], Literal)
            then, otherwise = self.text(args[1], known), self.text(args[2], True)
            return f"CASE WHEN {self.text(args[0])} THEN {then} ELSE {otherwise} END", _ATOM
        if fn in _BINARY:
            return self._infix(fn, args[0], args[1], bare[0])
        texts = ", ".join(self.text(a, b) for a, b in zip(args, bare, strict=True))
        return f"{fn.upper()}({texts})", _ATOM

    def _infix(self, fn: str, a: Expr, b: Expr, bare: bool) -> tuple[str, int]:
        sign, level = _BINARY[fn]
        if fn in _FLIPPED and _is_number(a) and not _is_number(b):
            sign, a, b = _FLIPPED[fn], b, a
        if fn in ("add", "sub") and isinstance(b, Literal) and _has_opposite(b):
            sign, b = "-" if fn == "add" else "+", Literal(-b.value, b.dtype)
        compares = level in (4, 5)
        left = self._within(a, level + compares, bare)
        right = self._within(b, level + (0 if fn in ("or", "and") else 1), bare)
        return f"{left} {sign} {right}", level


def _has_opposite(e: Literal) -> bool:
    """Whether a number is negative, and its type has its opposite."""
    return e.value < 0 and (not e.dtype.is_integer or -e.value <= e.dtype.range[1])


def _is_number(e: Expr) -> bool:
    return isinstance(e, Literal) or (isinstance(e, Affine) and not e.terms)


def unused(name: str, taken: Container[str]) -> str:
    """A name that is not taken: the name, or the name with a number.

    Args:
        name: The wanted name.
        taken: The lower-case names in use.
    """
    candidate, n = name, 1
    while candidate.lower() in taken:
        n += 1
        candidate = f"{name}_{n}"
    return candidate


def number_text(e: Literal, bare: bool) -> tuple[str, int]:
    """A number, and how tightly its text binds."""
    if e.dtype is DType.BOOLEAN:
        return ("TRUE" if e.value else "FALSE"), _ATOM
    if e.dtype is DType.INTEGER and e.value == -(2**31):  # as text it is a BIGINT
        return "CAST(-2147483648 AS INTEGER)", _ATOM
    value = float(e.value)
    if not e.dtype.is_float:
        text = str(int(e.value))
    elif not math.isfinite(value):
        text = "nan" if value != value else "inf" if value > 0 else "-inf"
        return f"'{text}'::{e.dtype.value}", _MEMBER
    else:
        text = _float_text(value, e.dtype)
    exact = "e" not in text and (value != 0 or math.copysign(1, value) > 0)
    level = _NEGATED if text.startswith("-") else _ATOM
    if bare and exact:
        return text, level
    if not e.dtype.is_float and e.dtype is DType.INTEGER:
        return text, level
    if level == _ATOM:
        return f"{text}::{e.dtype.value}", _MEMBER
    return f"CAST({text} AS {e.dtype.value})", _ATOM


def _float_text(value: float, dtype: DType) -> str:
    """The shortest decimal number that means a float, with an exponent if it is long."""
    if value == int(value) and abs(value) < 1e15:
        return "-0e0" if value == 0 and math.copysign(1, value) < 0 else str(int(value))
    shown = repr(value)
    if dtype is DType.FLOAT and np.float32(value) == value:
        spelled = np.format_float_scientific if abs(value) >= 1e15 else np.format_float_positional
        short = str(spelled(np.float32(value), unique=True, trim="-"))
        shown = short if np.float32(float(short)) == value else shown
    if abs(value) >= 1e15:
        return shown.replace("e+", "e")
    digits = Decimal(shown).as_tuple()
    exponent = int(digits.exponent)
    if exponent >= -17 and len(digits.digits) <= 17 and len(digits.digits) + exponent <= 17:
        return format(Decimal(shown), "f")
    return shown if "e" in shown or "." not in shown else f"{shown}e0"
