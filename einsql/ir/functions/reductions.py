"""The base reductions: one entry each with laws, identity and derivative."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import Any

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.functions.derivatives import PointDerivative, of_extreme, of_product, of_sum
from einsql.ir.functions.holistic import (
    count_distinct,
    high_sum_distinct,
    low_sum_distinct,
    mode,
    nth_max,
    nth_min,
    quantile_cont,
    quantile_disc,
    sum_distinct,
)


@dataclass(frozen=True, slots=True)
class Reduction:
    """An associative reduction with an identity, commutative unless its state is ordered.

    ARG_MIN and ARG_MAX contribute (argument, value) pairs and keep the argument of the
    extreme value, among equal values the least argument. Only they have `better`.

    A holistic reduction is a function of all values of a group, and has no states that merge.

    Attributes:
        identity: The initial running value for an output type, which is the value of empty groups.
        monoid: The scalar function that combines two running values; None for pairs, states and
            holistic reductions.
        better: For pairs, the comparison `better(new, old)` that replaces the running pair.
        idempotent: Whether a value merged with itself is the same value.
        holistic: For holistic reductions, the function of the sorted values of a group, and of
            the constants.
        constants: The number of constants that follow the value, as the fraction of a quantile.
        places: Whether a holistic reduction orders pairs (argument, value) by their values, and
            chooses the argument at a place, its third expression. The place may differ by group.
        over: The scalar functions that distribute over this reduction, as `mul` does
            over SUM: x·(a + b) = x·a + x·b.
        fields: The fields of a state of several fields (see `einsql.ir.einsum.states`), whose
            values a point contributes.
        place: The position of the field to which the output is reduced.
        derivative: The adjoint of a point's contribution, or the reason why there is none.
    """

    name: str
    identity: Callable[[DType], Any]
    monoid: str | None = None
    better: str | None = None
    idempotent: bool = False
    over: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ()
    place: int = 0
    holistic: Callable[..., Any] | None = None
    constants: int = 0
    places: bool = False
    derivative: PointDerivative | str = field(kw_only=True)

    @property
    def reads_several(self) -> bool:
        """Whether the result depends on more expressions of a point than the first one."""
        return self.better is not None or self.places or bool(self.fields)

    @property
    def arity(self) -> int:
        """The number of expressions that a point contributes."""
        if self.fields or self.places:
            return len(self.fields) or 3
        return (1 if self.better is None else 2) + self.constants


def _extremes(dtype: DType) -> tuple[Any, Any]:
    """The least and the greatest value of a type; NaN is greater than infinity."""
    if dtype is DType.BOOLEAN:
        return False, True
    return (-math.inf, math.nan) if dtype.is_float else dtype.range


_LOGIC = "a truth value has none"
_BITS = "bits have none"
_CHOICE = "which argument is chosen jumps from one to another"
_ORDER = "which values it reads jumps from some to others"
_DISTINCT = "which values are distinct jumps"
_EXTREMES = frozenset({"add", "greatest", "least"})
REDUCTIONS: dict[str, Reduction] = {
    r.name: r
    for r in (
        Reduction("sum", lambda t: 0, "add", over=frozenset({"mul"}), derivative=of_sum),
        Reduction("product", lambda t: 1, "mul", derivative=of_product),
        Reduction(
            "min",
            lambda t: _extremes(t)[1],
            "least",
            idempotent=True,
            over=_EXTREMES,
            derivative=of_extreme,
        ),
        Reduction(
            "max",
            lambda t: _extremes(t)[0],
            "greatest",
            idempotent=True,
            over=_EXTREMES,
            derivative=of_extreme,
        ),
        Reduction(
            "bool_or",
            lambda t: False,
            "or",
            idempotent=True,
            over=frozenset({"and"}),
            derivative=_LOGIC,
        ),
        Reduction(
            "bool_and",
            lambda t: True,
            "and",
            idempotent=True,
            over=frozenset({"or"}),
            derivative=_LOGIC,
        ),
        Reduction(
            "bit_and",
            lambda t: -1,
            "bitand",
            idempotent=True,
            over=frozenset({"bitor"}),
            derivative=_BITS,
        ),
        Reduction(
            "bit_or",
            lambda t: 0,
            "bitor",
            idempotent=True,
            over=frozenset({"bitand"}),
            derivative=_BITS,
        ),
        Reduction("bit_xor", lambda t: 0, "xor", derivative=_BITS),
        Reduction(
            "arg_min", lambda t: 0, better="less({0}, {1})", idempotent=True, derivative=_CHOICE
        ),
        Reduction(
            "arg_max", lambda t: 0, better="less({1}, {0})", idempotent=True, derivative=_CHOICE
        ),
        Reduction(
            "quantile_cont", lambda t: 0, holistic=quantile_cont, constants=1, derivative=_ORDER
        ),
        Reduction(
            "quantile_disc", lambda t: 0, holistic=quantile_disc, constants=1, derivative=_ORDER
        ),
        Reduction("nth_min", lambda t: 0, holistic=nth_min, places=True, derivative=_CHOICE),
        Reduction("nth_max", lambda t: 0, holistic=nth_max, places=True, derivative=_CHOICE),
        Reduction("mode", lambda t: 0, holistic=mode, derivative=_ORDER),
        Reduction("count_distinct", lambda t: 0, holistic=count_distinct, derivative=_DISTINCT),
        Reduction("sum_distinct", lambda t: 0, holistic=sum_distinct, derivative=_DISTINCT),
        Reduction(
            "high_sum_distinct", lambda t: 0, holistic=high_sum_distinct, derivative=_DISTINCT
        ),
        Reduction("low_sum_distinct", lambda t: 0, holistic=low_sum_distinct, derivative=_DISTINCT),
    )
}
"""Base reductions, to which the binder reduces AVG, VARIANCE, COUNT and LOGSUMEXP.

`einsql.ir.einsum.states.define` adds those of the user's aggregates.
"""
