"""The choice between stored elements and a dense copy, of an operation over sparse operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.kernels.kernel import Arrays, Runner, Tick
from einsql.kernels.tiers import Tiered


@dataclass(frozen=True, slots=True)
class Predicted:
    """The predicted times of both methods, on one thread.

    Attributes:
        share: The fraction of the sparse operand's elements that are stored, 0 to 1; of two
            operands the greater one.
        by_elements: Seconds of the kernel that visits stored elements.
        by_copy: Seconds of the kernel over a dense copy, and of the copy.
    """

    share: float
    by_elements: float
    by_copy: float

    @property
    def is_dense(self) -> bool:
        """Whether the dense copy is predicted to be faster."""
        return self.by_copy < self.by_elements

    @property
    def text(self) -> str:
        """The choice and its reason as a phrase."""
        way = "dense copy" if self.is_dense else "stored elements"
        return f"{way}: {100 * self.share:.3g} % stored"


@dataclass(slots=True, eq=False)
class StorageChoice:
    """The choice of one operation, which each run makes for the elements that it finds.

    Attributes:
        estimate: Predicts the times, given the expected number of stored elements of each
            operand by its number; None if it depends on more.
        ran: The prediction of the last run, from the elements that it found; None before a run.
    """

    estimate: Callable[[Mapping[int, float]], Predicted | None]
    ran: Predicted | None = None

    def takes_copy(self, predicted: Predicted) -> bool:
        """Whether a run makes a dense copy; the prediction is recorded."""
        self.ran = predicted
        return predicted.is_dense


@dataclass(frozen=True, slots=True, eq=False)
class Choosing:
    """A runner that chooses between stored elements and a dense copy.

    Attributes:
        bare: The runner.
        choice: The choice.
    """

    bare: Runner
    choice: StorageChoice

    def __call__(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """Runs it."""
        return self.bare(operands, tick)


def choice_of(run: object) -> StorageChoice | None:
    """The choice of a runner; None for a runner without one."""
    while isinstance(run, Tiered):
        run = run.compiled
    return run.choice if isinstance(run, Choosing) else None
