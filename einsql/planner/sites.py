"""Graphs on sites: the choice of their cuts, and their programs.

Only statements over several sites import this module; it imports the optimizer's decomposition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.settings import Settings
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Arrays, GraphExecutor
from einsql.engine.tiered_sites import TieredSites
from einsql.errors import OperationalError
from einsql.ir.einsum.graph import EinSum, Roots, walk
from einsql.ir.spmd.program import Program as Placed
from einsql.optimizer.decomposition import Floats, Objective, Seconds
from einsql.optimizer.graph_optimizer import with_split_keys
from einsql.optimizer.placement.fuse_steps import joined
from einsql.optimizer.rewrite.rules import Optimized
from einsql.optimizer.rewrite.softmax import Softmax, softmaxes
from einsql.optimizer.rewrite.split_keys import SPLIT_KEYS
from einsql.optimizer.simulation.prediction import predict
from einsql.optimizer.site_optimizer import SitePlan, plan_sites
from einsql.planner.compile import at_sites, check_domains, compiler, grouping, joining
from einsql.storage.fields import PlacedFields

if TYPE_CHECKING:
    from einsql.engine.ranks import program as rank_program
    from einsql.engine.ranks.driver import Cluster
    from einsql.planner import plan_files
else:  # imported for plans on ranks, and for plan files, only
    plan_files = LazyModule("einsql.planner.plan_files")
    rank_program = LazyModule("einsql.engine.ranks.program")


MOST_SITES = 256
"""The maximum of sites for which a graph with cut keys is planned again with these in parts.

LLaMA-7B takes twice as long to plan at 64 sites, and several times as long at 1024."""


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


def _split(optimized: Optimized, plan: SitePlan, settings: Settings) -> tuple[Optimized, SitePlan]:
    """Returns a graph and its plan, with the keys of each softmax in the parts of their cut.

    A cut of the keys leaves the operations of a softmax in separate steps, because the maximum of
    all keys comes first. In parts they are one step. The faster one of both plans is returned, or
    the one that the plan file of the settings is for.
    """
    parts = _parts_cut(optimized.roots, plan, settings)
    if not parts:
        return optimized, plan
    other = with_split_keys(optimized, parts)
    try:
        new = sited(other.roots, settings)
    except OperationalError:  # an operation exceeds the memory of a site
        return optimized, plan
    seconds = (sum(predict(p.program, settings.machine).seconds) for p in (new, plan))
    if new.cut.plan_file or next(seconds) < next(seconds):
        return other, new
    return optimized, plan


def _parts_cut(roots: Roots, plan: SitePlan, settings: Settings) -> dict[int, int]:
    """Returns the parts of the keys of each softmax whose keys a search has cut."""
    searched = plan.cut.strategy in ("eindecomp", "exact") and not plan.cut.plan_file
    fuses = grouping(settings) is not None and SPLIT_KEYS.name not in settings.disabled_rules
    if not (searched and fuses and 1 < settings.sites <= MOST_SITES):
        return {}
    nodes = (n for n in walk(*roots) if isinstance(n, EinSum))
    cuts = {id(n): c for n, c in zip(nodes, plan.cut.cuts, strict=True)}
    parts = {
        id(s.top): max(cuts[id(x.origin)].parts[x.along] for x in s.sums)
        for s in softmaxes(roots)
        if not _merges_parts(s)
    }
    return {top: number for top, number in parts.items() if number > 1}


def _merges_parts(softmax: Softmax) -> bool:
    """Returns whether the keys of a softmax are parts, which a hint already cuts."""
    reads = ((o.source, o.labels) for o in softmax.top.operands)
    return any(
        softmax.axis.label == label and key in dict(source.hint)
        for source, labels in reads
        if isinstance(source, EinSum)
        for key, label in zip(source.keys, labels, strict=True)
    )


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
    optimized, plan = _split(optimized, sited(optimized.roots, settings), settings)
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
