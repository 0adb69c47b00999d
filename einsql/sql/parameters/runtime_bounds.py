"""Bounds of keys from parameters: the range of `key <= ?` is known at run time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.ir.einsum.graph import Call, Const, Expr, Label, call
from einsql.sql.parameters.host_expr import FIELD, computable, parameters_of, source
from einsql.sql.parameters.plan_parameters import PlanParameters

FAR = 2**62
"""Beyond every key."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A comparison of a key with an integer expression of parameters alone.

    Attributes:
        label: The key's label.
        value: The greatest value it may have, or the least one.
        upper: Whether it is the greatest.
        strict: Whether the key must differ from it.
    """

    label: str
    value: Expr
    upper: bool
    strict: bool

    @property
    def numbers(self) -> set[int]:
        """The parameters that it depends on."""
        return parameters_of(self.value)

    @property
    def text(self) -> str:
        """The exclusive upper bound, or the inclusive lower bound."""
        beyond = self.strict != self.upper
        return f"({source(self.value)} + 1)" if beyond else source(self.value)

    def narrowed(
        self, parameters: PlanParameters, lo: int, hi: int
    ) -> tuple[tuple[int, int], Expr]:
        """The bounds of the label in a plan for many values, and the condition that is left.

        A plan is for values that leave the label at least one of its own. Its bounds follow the
        values in few and large steps.

        Args:
            parameters: Those of the statement.
            lo: The least value of the label.
            hi: The value behind its last one.

        Raises:
            NeedsValuesError: The values leave it none.
        """
        numbers = self.numbers
        label, value = Label(self.label), _wide(self.value)
        fn = "lt" if self.strict else "le"
        if self.upper:
            parameters.require(f"{lo} < {self.text}", numbers)
            hi = min(hi, lo + parameters.extent(f"{self.text} - {lo}", hi - lo, numbers))
            # With `greatest`, the least value of the label provably satisfies it.
            least = Const(lo + self.strict, DType.BIGINT)
            return (lo, hi), call(
                fn, DType.BOOLEAN, label, call("greatest", DType.BIGINT, value, least)
            )
        parameters.require(f"{self.text} < {hi}", numbers)
        lo = max(lo, hi - parameters.extent(f"{hi} - {self.text}", hi - lo, numbers))
        most = Const(hi - 1 - self.strict, DType.BIGINT)
        return (lo, hi), call(fn, DType.BOOLEAN, call("least", DType.BIGINT, value, most), label)

    def end(self, parameters: PlanParameters, axis: int) -> Cut:
        """The cut of a result's key at this bound.

        Args:
            parameters: Those of the statement.
            axis: The number of the key.
        """
        text = f"min(max({self.text}, {-FAR}), {FAR})"  # no key lies beyond
        return Cut(axis, self.upper, parameters.scalar_name(text))


@dataclass(frozen=True, slots=True)
class Cut:
    """The bound of a result's key by a parameter.

    Attributes:
        axis: The number of the key.
        upper: Whether no more values follow, or the first ones do.
        name: The scalar that says where.
    """

    axis: int
    upper: bool
    name: str


def within(box: np.ndarray, cuts: Iterable[Cut], inputs: Mapping[str, Any]) -> np.ndarray:
    """The part of a box of keys that cuts leave; int64 (keys, 2)."""
    for c in cuts:
        at = int(inputs[c.name][FIELD])
        low, high = box[c.axis]
        box[c.axis] = (low, max(low, min(high, at))) if c.upper else (min(high, max(low, at)), high)
    return box


def _wide(e: Expr) -> Expr:
    return e if e.dtype is DType.BIGINT else call("cast", DType.BIGINT, e)


def edges_of(term: Expr) -> tuple[Edge, ...]:
    """The edges of a condition: two for an equality, none if it is no bound by parameters."""
    if not isinstance(term, Call) or term.fn not in ("lt", "le", "eq"):
        return ()
    a, b = term.args
    for key, value, upper in ((a, b, True), (b, a, False)):
        known = isinstance(key, Label) and value.dtype.is_integer and parameters_of(value)
        if isinstance(key, Label) and known and computable(value):
            if term.fn == "eq":
                return tuple(Edge(key.name, value, end, False) for end in (True, False))
            return (Edge(key.name, value, upper, term.fn == "lt"),)
    return ()
