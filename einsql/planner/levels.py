"""The plans of a statement in the tensor-relational and the implementation algebra, for EXPLAIN.

Planning does not build them for a statement over elements.
"""

from __future__ import annotations

from collections.abc import Mapping

from einsql.core.records import dataclass
from einsql.core.settings import Settings
from einsql.engine.step import Tick
from einsql.ir.einsum.graph import EinSum, walk
from einsql.ir.remembered import remembering
from einsql.ir.tra import plan as ra
from einsql.optimizer.decomposition import Decomposition
from einsql.optimizer.lowering.program import BlockPlan, lowered
from einsql.optimizer.tra import RULES, Costs, Implemented, search, translate
from einsql.optimizer.tra.lower import lower
from einsql.planner.plan import Plan
from einsql.planner.tile_plan import TilePlan

MOST_LOCAL_PLANS = 256
"""The maximum of plans of a search on one site, where rules only join local operations.

A search of a hundred operations takes a second.
"""


@dataclass(frozen=True, slots=True)
class Levels:
    """The plans of a statement between its graph and its program.

    Attributes:
        tra: The tensor-relational plan of each root, by title. The title of a single root is
            empty.
        settings: The settings of the plan.
        sited: The plan over tiles on several sites; None for others.
        plan: The plan over elements on several sites; None for others.
    """

    tra: Mapping[str, ra.Node]
    settings: Settings
    sited: Implemented | None = None
    plan: Plan | None = None

    def ia(self, tick: Tick) -> dict[str, Implemented]:
        """Returns the plans of the implementation algebra by the titles of `tra`.

        Args:
            tick: Callback with the completed fraction of a search; raises to cancel.
        """
        if self.sited is not None:
            return {"": self.sited}
        sites = self.settings.sites
        if self.plan is not None and self.plan.cut is not None:
            return self._placed(self.plan, self.plan.cut)
        disabled = self.settings.disabled_rules & {rule.name for rule in RULES}
        with remembering():
            return {
                title: search(
                    translate(relation, sites),
                    disabled=disabled,
                    most_plans=MOST_LOCAL_PLANS if sites == 1 else None,
                    tick=tick,
                )
                for title, relation in self.tra.items()
            }

    def _placed(self, plan: Plan, cut: Decomposition) -> dict[str, Implemented]:
        """The plans that the program of the sites runs; Table 1 gives the first ones."""
        assert plan.site_plan is not None
        plans = plan.site_plan.plan.roots
        implemented: dict[str, Implemented] = {}
        with remembering():
            for (title, relation), node in zip(self.tra.items(), plans, strict=True):
                first = Costs().plan(translate(relation, cut.sites))
                implemented[title] = Implemented(node, Costs().plan(node), (), first, 2)
        return implemented


def block_plan(plan: TilePlan) -> BlockPlan:
    """Returns the program of a query over tiles, with the steps of each node of its plan."""
    sited = plan.program.sited
    return lowered(translate(plan.node, 1) if sited is None else sited.root)


def levels_of(plan: Plan | TilePlan, settings: Settings) -> Levels:
    """Returns the levels of a plan; on one site every relation over elements is one tile.

    Args:
        plan: The plan.
        settings: The settings of the plan.
    """
    if isinstance(plan, TilePlan):
        return Levels({"": plan.node}, settings, sited=plan.program.sited)
    roots = plan.optimized.roots
    nodes = [n for n in walk(*roots) if isinstance(n, EinSum)]
    cuts = () if plan.cut is None else plan.cut.cuts
    parts = dict(zip(nodes, (cut.parts for cut in cuts), strict=False))
    relations = lower(roots, parts)
    if len(relations) == 1:
        return Levels({"": relations[0]}, settings, plan=plan)
    return Levels({f"root {n}": root for n, root in enumerate(relations)}, settings, plan=plan)
