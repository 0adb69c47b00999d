"""The public form of a tensor-relational plan on sites: plan, cost, trace and result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.settings import MOST_SITES
from einsql.engine.block_program import SiteRun
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
    """A relation placed on sites, created by `Relation.place`.

    Attributes:
        table1: The plan as Table 1 of the paper translates it.
        plan: The plan of least cost, in the language of `einsql.ir.ia.plan`.
        cost: The cost of `plan`.
        table1_cost: The cost of `table1`.
        trace: The steps from `table1` to `plan`: `step.rule.name`, `step.before`, `step.after`.
    """

    def __init__(
        self,
        relation: ra.Node,
        arrays: Mapping[str, np.ndarray],
        implemented: Implemented,
        cluster: Cluster | None,
    ) -> None:
        self.table1: ia.Node = implemented.given
        self.plan: ia.Node = implemented.root
        self.cost: Cost = implemented.cost
        self.table1_cost: Cost = implemented.first
        self.trace: tuple[ImplementationStep, ...] = implemented.trace
        self._relation = relation
        self._inputs = {name: {VALUE: a} for name, a in arrays.items()}
        self._executor = block_executor(relation, implemented, cluster=cluster)

    @property
    def bytes_sent(self) -> int:
        """The exact number of bytes that cross sites when the plan runs."""
        return self.cost.bytes_sent

    def run(self) -> SiteRun:
        """Runs the plan; returns the result, and the bytes and operations of every site.

        Raises:
            DataError: An element overflows, divides by zero or cannot be cast.
        """
        return SiteRun(*self._executor.measured(self._inputs, no_progress))

    def blocks(self) -> dict[KeyTuple, np.ndarray]:
        """Runs the plan; returns every array of the result by its key. BFLOAT16 becomes float32."""
        dtype = self._relation.schema.dtype
        return {key: loaded(array, dtype) for key, array in self.run().blocks.items()}

    def numpy(self) -> np.ndarray:
        """Runs the plan and assembles the arrays, key i along axis i, to a new array.

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
        ProgrammingError: The number of sites, a tensor or a key is invalid.
        InterfaceError: A name in `disabled` is no rule.
    """
    if not 1 <= sites <= MOST_SITES:
        raise ProgrammingError(f"sites is a number from 1 to {MOST_SITES:,}, not {sites}")
    implemented = implement(relation, sites, stored=stored, weights=weights, disabled=disabled)
    return Placed(relation, arrays, implemented, cluster)
