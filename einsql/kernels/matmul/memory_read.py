"""An operand of a product as a stack of matrices, cut as the result is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from einsql.kernels.matmul.copying import contiguous
from einsql.kernels.matmul.layout import Side


@dataclass(frozen=True, slots=True)
class Read:
    """An operand as a stack of matrices, from a piece of the result.

    Attributes:
        turn: The order its axes are put into.
        shape: The extents of the merged axes, before cutting.
        cuts: For each axis then, which axis of the cut grid it follows.
        batch: For each axis of the stack, whether the operand has it.
        rows: How many of the axes are merged to rows; the rest of them are the columns.
        side: How it is read.
    """

    turn: tuple[int, ...]
    shape: tuple[int, ...]
    cuts: tuple[int, ...]
    batch: tuple[bool, ...]
    rows: int
    side: Side

    def view(self, array: np.ndarray) -> np.ndarray:
        """The whole array with its axes turned and merged."""
        return array.transpose(self.turn).reshape(self.shape)

    def whole(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The order of the axes and the shape in which `matrices` gives all of an operand.

        The operand is read in place.
        """
        batch_axes = sum(self.batch)
        sizes, rest = iter(self.shape[:batch_axes]), self.shape[batch_axes:]
        stack = [next(sizes) if has else 1 for has in self.batch]
        return self.turn, (*stack, prod(rest[: self.rows]), prod(rest[self.rows :]))

    def matrices(self, array: np.ndarray, piece: Sequence[slice], work: np.dtype) -> np.ndarray:
        """The stack of matrices that a piece needs."""
        part = array[tuple(piece[n] for n in self.cuts)]
        if self.side.copied:
            part = contiguous(part, work)
        batch_axes = sum(self.batch)
        sizes = iter(part.shape[:batch_axes])
        stack = [next(sizes) if has else 1 for has in self.batch]
        rest = part.shape[batch_axes:]
        part = part.reshape(*stack, prod(rest[: self.rows]), prod(rest[self.rows :]))
        return part.swapaxes(-1, -2) if self.side.flipped else part
