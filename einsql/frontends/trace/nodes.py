"""Nodes of a traced program: steps, and the expressions that give their elements.

Labels are numbers. An array's axes come first, then the labels that a reduction sums over.
A step holds an expression and an expression reads steps, so both are defined here.
"""

from __future__ import annotations

from dataclasses import field
from math import prod

from einsql.core.records import dataclass
from einsql.core.schema import DType

Terms = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Literal:
    """A number or a truth value."""

    value: bool | int | float = field(compare=False)
    dtype: DType
    spelled: str = field(init=False)
    """The text that is compared: it distinguishes 0.0 from -0.0, and NaN equals itself."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spelled", repr(self.value))


@dataclass(frozen=True, slots=True)
class Affine:
    """Σ coefficient · label + constant, a BIGINT.

    Attributes:
        terms: Label and coefficient, which is not 0, in the order of labels.
    """

    terms: Terms
    constant: int

    @property
    def dtype(self) -> DType:
        """BIGINT, as keys are."""
        return DType.BIGINT

    @property
    def label(self) -> int | None:
        """The label that it is, or None where it is no bare label."""
        bare = self.constant == 0 and len(self.terms) == 1 and self.terms[0][1] == 1
        return self.terms[0][0] if bare else None


@dataclass(frozen=True, slots=True)
class Read:
    """An element of another array; one index for each of its axes."""

    step: Step
    index: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        """The array's."""
        return self.step.dtype


@dataclass(frozen=True, slots=True)
class Apply:
    """A scalar function of `algebra.SCALARS`, or "cast" to its type."""

    fn: str
    args: tuple[Expr, ...]
    dtype: DType


Expr = Literal | Affine | Read | Apply


@dataclass(eq=False, slots=True)
class Step:
    """An array: a tensor, or the values of an expression at each point of its axes.

    Attributes:
        number: Steps are numbered as they are made, so sources come first.
        extents: The extents of the labels: the axes' labels, then the reduced labels.
        expr: The expression of an element; None for a tensor.
        how: The reduction over the labels behind the axes', as SQL's aggregate; None of a map.
        name: The name of the user's variable.
        dims: Names of the axes of a tensor, as far as the user has given them.
        drops: Whether the reduction leaves out points outside of the operands, as padding.
    """

    number: int
    shape: tuple[int, ...]
    dtype: DType
    extents: tuple[int, ...]
    expr: Expr | None = None
    how: str | None = None
    name: str | None = None
    dims: tuple[str, ...] | None = None
    drops: bool = False

    @property
    def points(self) -> int:
        """The number of evaluations of the expression."""
        return prod(self.extents)
