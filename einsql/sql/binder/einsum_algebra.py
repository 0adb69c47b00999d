"""The operations ⊗ and ⊕ of EINSUM, by the names of scalar functions and aggregates."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.errors import DataError, ProgrammingError, suggest
from einsql.ir.functions import REDUCTIONS, SCALARS
from einsql.ir.functions.functions import INTERNAL
from einsql.sql.functions.aggregate_functions import AGGREGATES, CHOOSING, OF_PAIRS
from einsql.sql.functions.scalar_functions import NAMED
from einsql.sql.typing import functions
from einsql.sql.typing.typed_expr import Typed, apply, logical_and, logical_or

_COMBINING = {n: n for n, f in SCALARS.items() if f.arity == 2 and n not in INTERNAL}
_COMBINING |= {"power": "pow"} | {name: fn for name, (fn, arity) in NAMED.items() if arity == 2}
"""Functions of two arguments by their names, which are those of SQL and of the algebra."""
_REDUCING = {str(n): n for n in AGGREGATES.values() if n not in CHOOSING | OF_PAIRS}
_REDUCING |= {"mean": "avg", "stddev": "stddev_samp", "variance": "var_samp"}
"""Aggregates of one argument by their names."""
_NOTHING = {"min": math.inf, "max": -math.inf, "logsumexp": -math.inf}
"""Results of floats over no values, except those of reductions with an identity and NaN."""


@dataclass(frozen=True, slots=True)
class Algebra:
    """⊗ combines the values of operands at a point, ⊕ reduces them over labels.

    Attributes:
        combine: The scalar function ⊗. With more than two operands it is applied from the left.
        reduce: The aggregate ⊕.
    """

    combine: str = "mul"
    reduce: str = "sum"

    @classmethod
    def named(cls, combine: object, reduce: object) -> Algebra:
        """Returns the algebra of two names.

        Raises:
            ProgrammingError: A name is no text, or there is no such function or aggregate.
        """
        return cls(
            _known("combine", combine, _COMBINING, "functions of two arguments"),
            _known("reduce", reduce, _REDUCING, "aggregates"),
        )

    def combined(self, values: list[Typed], float_stays: bool) -> Typed:
        """Returns the values of all operands at a point, combined.

        Raises:
            ProgrammingError: ⊗ does not accept their types.
        """

        def two(a: Typed, b: Typed) -> Typed:
            match self.combine:
                case "and":
                    return logical_and([a, b])
                case "or":
                    return logical_or([a, b])
                case "greatest" | "least":
                    return functions.extreme(self.combine, [a, b])
            return apply(self.combine, [a, b], float_stays)

        return reduce(two, values)

    @property
    def has_state(self) -> bool:
        """Whether the aggregate consists of several reductions, as AVG does."""
        return self.reduce not in REDUCTIONS

    def empty(self, dtype: DType) -> np.ndarray:
        """Returns the result over no values in an array, where SQL has NULL or no row.

        Raises:
            DataError: There is none: MIN or MAX of integers.
        """
        chooses = self.reduce in ("min", "max")
        if not chooses and not self.has_state:
            return np.asarray(REDUCTIONS[self.reduce].identity(dtype), dtype.numpy)
        if dtype.is_float:
            return np.asarray(_NOTHING.get(self.reduce, math.nan), dtype.numpy)
        if chooses:
            raise DataError(
                f"{self.reduce.upper()} of no values has no result in {dtype.value}",
                hint="Pass floats, whose result is infinite.",
            )
        return np.zeros((), dtype.numpy)  # a count


SUM_OF_PRODUCTS = Algebra()


def _known(option: str, name: object, names: dict[str, str], what: str) -> str:
    known = names.get(name.lower()) if isinstance(name, str) else None
    if known is None:
        shown = f"'{name}'" if isinstance(name, str) else repr(name)
        raise ProgrammingError(
            f"EINSUM cannot {option} by {shown}",
            hint=suggest(str(name).lower(), names, what),
        )
    return known
