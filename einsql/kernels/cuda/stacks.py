"""Stacks of matrices as cuBLAS takes them: columns first, with a step from column to column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

WIDEST = 2**31 - 1
"""cuBLAS counts rows, columns, terms and matrices in 32 bits."""


@dataclass(frozen=True, slots=True)
class Stack:
    """How memory that holds a matrix X row by row, or column by column, is read as Xᵀ.

    Attributes:
        turned: Whether the matrix is stored column by column, so that it has to be transposed.
        step: Elements from one column to the next.
        next: Elements from one matrix to the next, 0 where it is the same for all.
    """

    turned: bool
    step: int
    next: int


def stack_of(shape: tuple[int, ...], steps: tuple[int, ...]) -> Stack | None:
    """How an array (batch, rows, columns) is read, or None where it has to be copied.

    Args:
        shape: Its extents, none of which is 0.
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
    """Cuts a product into those that cuBLAS counts.

    Args:
        extents: Of its labels.
        widest: How far each may be counted.

    Returns:
        A slice of each label for every part; together they are all of it.
    """
    return product(*([slice(at, at + widest) for at in range(0, n, widest)] for n in extents))
