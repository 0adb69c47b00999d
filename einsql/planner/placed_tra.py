"""A tensor-relational plan on sites, for people: its plan, cost, trace and result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.settings import MOST_SITES
from einsql.engine.tra.site_executor import SiteRun
from einsql.errors import ProgrammingError
from einsql.ir.ia import plan as ia
from einsql.ir.ia.printer import format_implementation
from einsql.ir.tra import plan as ra
from einsql.ir.tra.block_schema import KeyTuple
from einsql.ir.tra.kernels import VALUE
from einsql.kernels.kernel import no_progress
from einsql.optimizer.tra import Cost, ImplementationStep, Implemented, Stored, Weights, implement
from einsql.planner.tile_plan import block_executor
from einsql.storage.block_relation import assemble

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster


class Placed:
    """A relation placed on sites; `Relation.place` makes it.

    Attributes:
        table1: The plan as Table 1 of the paper translates it.
        plan: The plan that was chosen, in the language of `einsql.ir.ia.plan`.
        cost: What that plan costs.
        table1_cost: What the other one costs.
        trace: The steps from one to the other: `step.rule.name`, `step.before`, `step.after`.
    """

    def __init__(
        self,
        relation: ra.Node,
        arrays: Mapping[str, np.ndarray],
        found: Implemented,
        cluster: Cluster | None,
    ) -> None:
        self.table1: ia.Node = found.given
        self.plan: ia.Node = found.root
        self.cost: Cost = found.cost
        self.table1_cost: Cost = found.first
        self.trace: tuple[ImplementationStep, ...] = found.trace
        self._relation = relation
        self._inputs = {name: {VALUE: a} for name, a in arrays.items()}
        self._executor = block_executor(relation, found, "auto", cluster, lambda *_: None)

    @property
    def bytes_sent(self) -> int:
        """Bytes that cross sites when the plan runs, exactly."""
        return self.cost.bytes_sent

    def run(self) -> SiteRun:
        """Runs the plan: the result, and what every site sent, received and computed.

        Raises:
            DataError: An element overflows, divides by zero or cannot be cast.
        """
        return SiteRun(*self._executor.measured(self._inputs, no_progress))

    def blocks(self) -> dict[KeyTuple, np.ndarray]:
        """Runs the plan: every array of the result by its key; BFLOAT16 is float32 here."""
        dtype = self._relation.schema.dtype
        return {key: loaded(array, dtype) for key, array in self.run().blocks.items()}

    def numpy(self) -> np.ndarray:
        """Runs the plan and puts the arrays together, key i along axis i; a new array.

        Raises:
            IntegrityError: Keys are missing.
            ProgrammingError: Key i does not cut axis i.
        """
        array = assemble(self._relation, self.run().blocks)
        return loaded(array, self._relation.schema.dtype)

    def __str__(self) -> str:
        return format_implementation(self.plan)


def placed(
    relation: ra.Node,
    arrays: Mapping[str, np.ndarray],
    sites: int,
    stored: Stored,
    disabled: frozenset[str],
    weights: Weights,
    cluster: Cluster | None = None,
) -> Placed:
    """Translates a plan by Table 1 and searches for a cheaper one.

    Raises:
        ProgrammingError: The number of sites, a tensor or a key is none that can be.
        InterfaceError: There is no rule of a name in `disabled`.
    """
    if not 1 <= sites <= MOST_SITES:
        raise ProgrammingError(f"sites is a number from 1 to {MOST_SITES:,}, not {sites}")
    implemented = implement(relation, sites, stored=stored, weights=weights, disabled=disabled)
    return Placed(relation, arrays, implemented, cluster)
