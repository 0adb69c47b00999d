"""Graphs on sites: the choice of their cuts, and their programs.

Only statements over several sites import this module; it imports the optimizer's decomposition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.settings import Settings
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Arrays, GraphExecutor
from einsql.engine.tiered_sites import TieredSites
from einsql.ir.einsum.graph import Roots
from einsql.ir.spmd.program import Program as Placed
from einsql.optimizer import Optimized
from einsql.optimizer.decomposition import Floats, Objective, Seconds
from einsql.optimizer.placement.fuse_steps import joined
from einsql.optimizer.site_optimizer import SitePlan, plan_sites
from einsql.planner.compile import at_sites, check_domains, compiler, grouping, joining
from einsql.planner.split_keys import planned
from einsql.storage.fields import PlacedFields

if TYPE_CHECKING:
    from einsql.engine.ranks import program as rank_program
    from einsql.engine.ranks.driver import Cluster
    from einsql.planner import plan_files
else:  # imported for plans on ranks, and for plan files, only
    plan_files = LazyModule("einsql.planner.plan_files")
    rank_program = LazyModule("einsql.engine.ranks.program")


def sited(roots: Roots, settings: Settings) -> SitePlan:
    """Returns the plan of a graph over the sites of the settings.

    Raises:
        Error: See `check_domains`, or the plan file of the settings does not fit the graph.
    """
    check_domains(*roots)
    plan = _planned(roots, settings)
    find = grouping(settings)
    if find is None:
        return plan
    return replace(plan, program=joined(plan.program, (g.nodes for g in find(roots).groups)))


def _planned(roots: Roots, settings: Settings) -> SitePlan:
    """Returns the plan of a graph by the strategy of the settings, or by their plan file."""
    sites, strategy = settings.sites, settings.strategy
    objective, disabled = objective_of(settings), settings.disabled_rules
    if settings.plan is None or sites == 1:
        return plan_sites(roots, sites, strategy, objective, disabled)
    use = plan_files.use_of(settings.plan, roots, objective.memory, sites)
    plan = plan_sites(roots, sites, strategy, objective, disabled, use.pins)
    cut = replace(plan.cut, plan_file=use.summary, plan_notice=use.notice)
    return replace(plan, cut=cut)


def objective_of(settings: Settings) -> Objective:
    """Returns the objective of the cuts: SET cost, the machine, and SET site_memory.

    A single site stores all data; its memory is not limited.
    """
    memory = settings.site_memory if settings.sites > 1 else None
    if settings.cost == "seconds":
        return Seconds(settings.machine, settings.sites, memory)
    return Floats(memory)


@dataclass(frozen=True, slots=True)
class OnSites:
    """A graph over several sites.

    Attributes:
        optimized: The graph, whose softmaxes may be computed in parts.
        plan: The cuts, the program and the applied rules.
        program: The executor: MPI ranks, or virtual sites in this process.
    """

    optimized: Optimized
    plan: SitePlan
    program: GraphExecutor


def on_sites(
    optimized: Optimized,
    settings: Settings,
    cluster: Cluster | None,
    note: Callable[[str, Arrays, PlacedFields], None],
) -> OnSites:
    """Cuts a graph over sites.

    Args:
        optimized: The graph.
        settings: The session's settings.
        cluster: The MPI ranks, or None for virtual sites.
        note: Callback for tensors that ranks cache; `Store.placed`.

    Raises:
        Error: See `check_domains`.
    """
    again = partial(sited, settings=settings)
    optimized, plan = planned(optimized, settings, lambda o: (o, again(o.roots)), again)
    return OnSites(optimized, plan, _program(plan.program, settings, cluster, note))


def _program(
    placed: Placed,
    settings: Settings,
    cluster: Cluster | None,
    note: Callable[[str, Arrays, PlacedFields], None],
) -> GraphExecutor:
    if cluster is None:
        waiting = replace(settings, jit=at_sites(settings))
        program = SiteProgram(placed, compiler(waiting), joining(waiting))
        if settings.jit != "auto":
            return program
        never = compiler(replace(settings, jit="never"))
        return TieredSites(program, lambda: SiteProgram(placed, never))
    return rank_program.RankProgram(cluster, placed, settings.jit, note)
