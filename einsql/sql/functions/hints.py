"""Hints for functions that DuckDB does not have; DuckDB's own hints omit einsql's functions."""

from __future__ import annotations

import re

from einsql.errors import nearest
from einsql.sql.functions.descriptions import FUNCTION_NAMES
from einsql.sql.functions.scalar_functions import SCALAR_MACROS
from einsql.sql.functions.table_functions import TABLE_FUNCTIONS, TABLE_MACROS

_UNKNOWN = re.compile(r"^(Scalar|Table) Function with name (\S+) does not exist")
_GUESS = re.compile(r'^Did you mean "([^"]+)"')
_PRODUCT = "A product is a join: SELECT a.i, b.k, SUM(a.val * b.val) … USING (j) GROUP BY ALL."
_LIMITS = "LEAST(GREATEST(x, low), high) limits values."
_OF_ARRAYS = {
    "dot": _PRODUCT,
    "matmul": _PRODUCT,
    "mm": _PRODUCT,
    "clip": _LIMITS,
    "clamp": _LIMITS,
    "cumsum": "SUM(x) OVER (ORDER BY key) is the running sum.",
    "cumprod": "PRODUCT(x) OVER (ORDER BY key) is the running product.",
    "norm": "SQRT(SUM(x * x)) is the norm.",
    "topk": "MAX(x, n) returns the n greatest values.",
    "transpose": "SELECT j AS i, i AS j, val exchanges keys.",
    "argsort": "ROW_NUMBER() OVER (ORDER BY x) numbers values in their order.",
    "maximum": "GREATEST(x, y) is the greater of two values.",
    "minimum": "LEAST(x, y) is the smaller of two values.",
    "prod": "PRODUCT(x) is the product of values.",
    "std": "STDDEV_POP(x) divides by the number of values, STDDEV_SAMP(x) by one less.",
    "var": "VAR_POP(x) divides by the number of values, VAR_SAMP(x) by one less.",
}
"""The SQL forms of functions of NumPy and PyTorch."""


def function_hint(reason: str, hint: str) -> str:
    """The hint for an error of DuckDB: the most similar name of its guess and einsql's functions.

    Args:
        reason: DuckDB's message. Errors about other objects than functions keep their hint.
        hint: DuckDB's hint; the guess in it may be dissimilar to the written name.
    """
    unknown, guess = _UNKNOWN.match(reason), _GUESS.match(hint)
    if unknown is None:
        return hint
    kind, name = unknown.groups()
    if name.lower() in _OF_ARRAYS:
        return _OF_ARRAYS[name.lower()]
    if kind == "Table" and name.lower() in FUNCTION_NAMES:
        return f"{name} is a scalar function; call it in SELECT, as in SELECT {name}(val) …."
    tables = [*TABLE_FUNCTIONS, *TABLE_MACROS, *SCALAR_MACROS, "sigmoid"]
    ours = FUNCTION_NAMES if kind == "Scalar" else tables
    guesses = [guess[1]] if guess and "#" not in guess[1] else []  # Python functions have a #
    meant = nearest(name, [*guesses, *ours])
    if meant is None and kind == "Scalar":
        return (
            "CREATE FUNCTION defines one of SQL, create_function() of a connection one of Python."
        )
    return f'Did you mean "{meant}"?' if meant is not None else ""
