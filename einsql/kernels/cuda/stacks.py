"""Stacks of matrices in cuBLAS's layout: column-major, with a stride between columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from einsql.core.records import dataclass

WIDEST = 2**31 - 1
"""Greatest number of rows, columns, terms and matrices: cuBLAS counts in 32 bits."""


@dataclass(frozen=True, slots=True)
class Stack:
    """The layout in which cuBLAS reads the memory of a matrix X as Xᵀ.

    Attributes:
        turned: Whether the matrix is stored column by column, so that it has to be transposed.
        step: Elements from one column to the next.
        next: Elements from one matrix to the next, 0 for a shared matrix.
    """

    turned: bool
    step: int
    next: int


def stack_of(shape: tuple[int, ...], steps: tuple[int, ...]) -> Stack | None:
    """The layout of an array (batch, rows, columns); None if it has to be copied.

    Args:
        shape: The nonzero extents of the array.
        steps: Elements from one index to the next along each axis.
    """
    batch, rows, columns = shape
    to, down, across = steps
    if batch == 1:
        to = 0
    if rows == 1:
        down = columns if across == 1 or columns == 1 else 1
    if columns == 1:
        across = 1 if rows == 1 or down >= 1 else rows
    if to < 0 or max(shape) > WIDEST:
        return None
    if across == 1 and columns <= down <= WIDEST:
        return Stack(False, down, to)
    if down == 1 and rows <= across <= WIDEST:
        return Stack(True, across, to)
    return None


def parts(extents: Sequence[int], widest: int = WIDEST) -> Iterator[tuple[slice, ...]]:
    """Cuts a product into parts within cuBLAS's limits.

    Args:
        extents: The extents of its labels.
        widest: The greatest extent of a part.

    Returns:
        The slice of each label for every part.
    """
    return product(*([slice(at, at + widest) for at in range(0, n, widest)] for n in extents))
