"""Scalar functions and reductions: one entry each with laws, types, derivative and code.

`functions` and `reductions` have the entries. `numeric` has their NumPy implementations,
failures and interval rules; `derivatives` has the longer derivatives.

Floats are ordered as DuckDB orders them: NaN equals NaN and is greater than infinity.
"""

from einsql.ir.functions.functions import INTERNAL, SCALARS, Function, is_rounded
from einsql.ir.functions.numeric import Array, Failure, Interval, equal, is_float_array, less
from einsql.ir.functions.reductions import REDUCTIONS, Reduction

__all__ = [
    "INTERNAL",
    "REDUCTIONS",
    "SCALARS",
    "Array",
    "Failure",
    "Function",
    "Interval",
    "Reduction",
    "equal",
    "is_float_array",
    "is_rounded",
    "less",
]
