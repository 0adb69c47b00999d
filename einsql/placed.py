"""A tensor-relational plan on sites, for people: its plan, cost, trace and result."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from einsql import implementation as ia
from einsql import relational as ra
from einsql.blocks import KeyTuple
from einsql.engine.blocks import RunKernel, assemble
from einsql.engine.implementation import SiteRun, run_on_sites
from einsql.errors import ProgrammingError
from einsql.optimizer.implementation import (
    Cost,
    ImplementationStep,
    Implemented,
    Stored,
    Weights,
    implement,
)
from einsql.plan_printer import format_implementation
from einsql.settings import MOST_SITES


class Placed:
    """A relation placed on virtual sites; `Relation.place` makes it.

    Attributes:
        table1: The plan as Table 1 of the paper translates it.
        plan: The plan that was chosen, in the language of `einsql.implementation`.
        cost: What that plan costs.
        table1_cost: What the other one costs.
        trace: The steps from one to the other: `step.rule.name`, `step.before`, `step.after`.
    """

    def __init__(
        self,
        relation: ra.Node,
        arrays: Mapping[str, np.ndarray],
        run: RunKernel,
        found: Implemented,
    ) -> None:
        self.table1: ia.Node = found.given
        self.plan: ia.Node = found.root
        self.cost: Cost = found.cost
        self.table1_cost: Cost = found.first
        self.trace: tuple[ImplementationStep, ...] = found.trace
        self._relation = relation
        self._arrays = arrays
        self._run = run

    @property
    def bytes_sent(self) -> int:
        """Bytes that cross sites when the plan runs, exactly."""
        return self.cost.bytes_sent

    def run(self) -> SiteRun:
        """Runs the plan: the result, and what every site sent and received.

        Raises:
            DataError: An element overflows, divides by zero or cannot be cast.
        """
        return run_on_sites(self.plan, self._arrays, self._run)

    def blocks(self) -> dict[KeyTuple, np.ndarray]:
        """Runs the plan: every array of the result by its key."""
        return dict(self.run().blocks)

    def numpy(self) -> np.ndarray:
        """Runs the plan and puts the arrays together, key i along axis i; a new array.

        Raises:
            IntegrityError: Keys are missing.
            ProgrammingError: Key i does not cut axis i.
        """
        return assemble(self._relation, self.blocks())

    def __str__(self) -> str:
        return format_implementation(self.plan)


def placed(
    relation: ra.Node,
    arrays: Mapping[str, np.ndarray],
    run: RunKernel,
    sites: int,
    stored: Stored,
    disabled: frozenset[str],
    weights: Weights,
) -> Placed:
    """Translates a plan by Table 1 and searches for a cheaper one.

    Raises:
        ProgrammingError: The number of sites, a tensor or a key is none that can be.
        InterfaceError: There is no rule of a name in `disabled`.
    """
    if not 1 <= sites <= MOST_SITES:
        raise ProgrammingError(f"sites is a number from 1 to {MOST_SITES:,}, not {sites}")
    found = implement(relation, sites, stored=stored, weights=weights, disabled=disabled)
    return Placed(relation, {**ra.generated(relation), **arrays}, run, found)
