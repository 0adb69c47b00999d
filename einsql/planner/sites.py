"""Graphs on sites: the choice of their cuts, and their programs.

Only statements over several sites import this module; it imports the optimizer's decomposition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import TYPE_CHECKING, Any

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.settings import Settings
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Arrays, GraphExecutor
from einsql.engine.tiered_sites import TieredSites
from einsql.ir.einsum.graph import EinSum, Roots, walk
from einsql.ir.spmd.program import Program as Placed
from einsql.optimizer.decomposition import Floats, Objective, Seconds, SentBytes, decompose
from einsql.optimizer.graph_optimizer import with_ordered_parts
from einsql.optimizer.placement.ring_order import as_cells
from einsql.optimizer.rewrite.contraction_order import FACTOR_ORDER
from einsql.optimizer.rewrite.order_search import Orders
from einsql.optimizer.rewrite.parts.ordered_parts import ORDERED_PARTS
from einsql.optimizer.rewrite.pipeline import reordered
from einsql.optimizer.rewrite.rules import Optimized
from einsql.optimizer.site_optimizer import SitePlan, plan_sites
from einsql.planner.compile import at_sites, check_domains, compiler, grouping, joining
from einsql.planner.experts import planned_with_experts
from einsql.planner.split_keys import planned
from einsql.storage.fields import PlacedFields

if TYPE_CHECKING:
    from einsql.engine.ranks import program as rank_program
    from einsql.engine.ranks.driver import Cluster
    from einsql.planner import plan_files
else:  # imported for plans on ranks, and for plan files, only
    plan_files = LazyModule("einsql.planner.plan_files")
    rank_program = LazyModule("einsql.engine.ranks.program")


MOST_ORDERS = 64
"""The maximum of combinations of contraction orders whose cuts are estimated."""
MOST_OPERATIONS = 1024
"""The maximum of operations of these together."""
MOST_PLACED = 3
"""The maximum of contraction orders whose graphs are placed."""
NEAR = {"seconds": 1.1, "bytes": 2.0, "floats": 1.0}
"""By `SET cost` the factor by which the estimate of an order to place may exceed the least one.

Floats are counted by cuts alone, and placement changes bytes more than seconds."""


def sited(roots: Roots, settings: Settings) -> SitePlan:
    """Returns the plan of a graph over the sites of the settings.

    Raises:
        Error: See `check_domains`, or the plan file of the settings does not fit the graph.
    """
    check_domains(*roots, by_elements=False)
    sites, strategy = settings.sites, settings.strategy
    objective, disabled = objective_of(settings), settings.disabled_rules
    groups = groups_in(roots, settings)
    if settings.plan is None or sites == 1:
        return plan_sites(roots, sites, strategy, objective, disabled, groups=groups)
    use = plan_files.use_of(settings.plan, roots, objective.memory, sites)
    plan = plan_sites(roots, sites, strategy, objective, disabled, use.pins, groups)
    cut = replace(plan.cut, plan_file=use.summary, plan_notice=use.notice)
    return replace(plan, cut=cut)


def ordered(optimized: Optimized, settings: Settings) -> tuple[Optimized, SitePlan]:
    """Returns a graph with the contraction orders that cost least together with their cuts.

    The best cuts of every order are estimated, one join after another. The closest ones are
    placed, because a placement decides by its measure.

    Args:
        optimized: A graph, and the trace of its optimisation.
        settings: The settings.

    Returns:
        The graph, which is the given one if no other order is better, and its plan.

    Raises:
        Error: See `sited`.
    """
    splits = any(step.rule is FACTOR_ORDER for step in optimized.trace)
    if not splits or settings.sites == 1 or settings.strategy not in ("eindecomp", "exact"):
        return optimized, sited(optimized.roots, settings)
    check_domains(*optimized.roots, by_elements=False)
    search = _OrderSearch(optimized, settings)
    if settings.plan is not None:
        for ranks in search.all_ranks():
            graph = search.graph(ranks)
            if plan_files.has_plan(settings.plan, graph.roots):
                return graph, sited(graph.roots, settings)
    best = [(graph, sited(graph.roots, settings)) for graph in search.closest()]
    if len(best) == 1:
        return best[0]
    return min(best, key=lambda pair: pair[1].measure(search.objective))


class _OrderSearch:
    """The graphs with other contraction orders, and their estimated costs."""

    def __init__(self, optimized: Optimized, settings: Settings) -> None:
        self._optimized, self._settings = optimized, settings
        self.objective = objective_of(settings)
        self._graphs: dict[tuple[int, ...], Optimized] = {}
        first = Orders()
        self._graphs[()] = reordered(optimized, first, **self._options())
        self.counts = tuple(first.counts)

    def _options(self) -> dict[str, Any]:
        return {"disabled": self._settings.disabled_rules, "sited": True}

    def graph(self, ranks: tuple[int, ...]) -> Optimized:
        """Returns the graph with some orders; the given graph if all of them are the shortest."""
        if not any(ranks):
            return self._optimized
        if ranks not in self._graphs:
            self._graphs[ranks] = reordered(self._optimized, Orders(ranks), **self._options())
        return self._graphs[ranks]

    def all_ranks(self) -> Iterator[tuple[int, ...]]:
        """Yields the combinations of orders, at most MOST_ORDERS."""
        return islice(product(*map(range, self.counts)), MOST_ORDERS)

    def closest(self) -> list[Optimized]:
        """Returns the graphs to place, the cheapest by estimate first."""
        ranks = (0,) * len(self.counts)
        costs = {ranks: self._cost(ranks)}
        operations = sum(isinstance(n, EinSum) for n in walk(*self._optimized.roots))
        most = max(1, min(MOST_ORDERS, MOST_OPERATIONS // operations))
        for n, count in enumerate(self.counts):
            others = [(*ranks[:n], rank, *ranks[n + 1 :]) for rank in range(count)]
            for other in others:
                if other not in costs and len(costs) < most:
                    costs[other] = self._cost(other)
            ranks = min((x for x in others if x in costs), key=costs.__getitem__)
        least = costs[ranks]
        near = NEAR[self._settings.cost]
        chosen = sorted((x for x in costs if costs[x] <= least * near), key=costs.__getitem__)
        return [self.graph(x) for x in chosen[:MOST_PLACED]]

    def _cost(self, ranks: tuple[int, ...]) -> float:
        settings, roots = self._settings, self.graph(ranks).roots
        cut = decompose(
            *roots,
            sites=settings.sites,
            strategy=settings.strategy,
            objective=self.objective,
            disabled=settings.disabled_rules,
            groups=groups_in(roots, settings),
        )
        return cut.cost


def groups_in(roots: Roots, settings: Settings) -> list[Sequence[EinSum]]:
    """Returns the nodes of a graph that a site can run together, group by group."""
    find = grouping(settings)
    if find is None:
        return []
    cells, originals = as_cells(roots)
    place = {id(n): at for at, n in enumerate(walk(*roots))}
    groups = ([originals[id(n)] for n in g.nodes] for g in find(cells).groups)
    return [sorted(nodes, key=lambda n: place[id(n)]) for nodes in groups]


def objective_of(settings: Settings) -> Objective:
    """Returns the objective of the cuts: SET cost, the machine, and SET site_memory.

    A single site stores all data; its memory is not limited.
    """
    memory = settings.site_memory if settings.sites > 1 else None
    if settings.cost == "seconds":
        return Seconds(settings.machine, settings.sites, memory)
    return SentBytes(memory) if settings.cost == "bytes" else Floats(memory)


@dataclass(frozen=True, slots=True)
class OnSites:
    """A graph over several sites.

    Attributes:
        optimized: The graph, with the contraction orders that suit the cuts, and with softmaxes in
            the parts of their keys.
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
        optimized: The graph, and the trace of its optimisation.
        settings: The session's settings.
        cluster: The MPI ranks, or None for virtual sites.
        note: Callback for tensors that ranks cache; `Store.placed`.

    Raises:
        Error: See `check_domains`.
    """
    objective, again = objective_of(settings), partial(sited, settings=settings)
    if ORDERED_PARTS.name not in settings.disabled_rules:
        optimized = with_ordered_parts(optimized, settings.sites)

    def planned_by(
        first: Callable[[Optimized], tuple[Optimized, SitePlan]], optimized: Optimized
    ) -> tuple[Optimized, SitePlan]:
        return planned(optimized, settings, objective, first, again)

    in_order = partial(planned_by, partial(ordered, settings=settings))
    as_given = partial(planned_by, lambda graph: (graph, again(graph.roots)))
    graph, plan = planned_with_experts(optimized, settings, objective, in_order, as_given)
    return OnSites(graph, plan, _program(plan.program, settings, cluster, note))


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
