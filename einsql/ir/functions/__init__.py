"""Scalar functions and reductions: laws, types, derivatives and spellings, one entry each.

`functions` and `reductions` have the entries, `numeric` what NumPy makes of arguments, when
it raises and what becomes of intervals, `derivatives` those derivatives that need a line.

Floats are ordered as DuckDB orders them: NaN equals NaN and lies above infinity.
"""

from einsql.ir.functions.functions import INTERNAL, SCALARS, Function
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
    "less",
]
