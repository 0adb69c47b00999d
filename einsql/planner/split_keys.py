"""The choice of parts for the keys of a softmax that a search cuts over sites."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from einsql.core.settings import Settings
from einsql.errors import OperationalError
from einsql.ir.einsum.graph import EinSum, Roots, walk
from einsql.ir.einsum.rings import is_turn
from einsql.ir.hints import Ring
from einsql.optimizer import Optimized
from einsql.optimizer.decomposition import Cut, Objective
from einsql.optimizer.graph_optimizer import with_split_keys
from einsql.optimizer.rewrite.parts.ring_keys import RING_KEYS
from einsql.optimizer.rewrite.parts.ring_rounds import members
from einsql.optimizer.rewrite.parts.softmax import Softmax, softmaxes
from einsql.optimizer.rewrite.parts.split_keys import SPLIT_KEYS
from einsql.optimizer.site_optimizer import SitePlan
from einsql.planner.compile import grouping

SEARCHES = ("eindecomp", "exact")
"""The strategies that search for cuts."""
MOST_SITES = 256
"""The maximum of sites for which a graph with cut keys is planned again with these in parts.

LLaMA-7B takes twice as long to plan at 64 sites, and several times as long at 1024."""


MOST_ROUNDS = 8
"""The maximum of rounds of all rings together for which a graph is planned again with rings.

EXPLAIN of attention took 2.4 s of processor more with four causal rounds, and 0.7 s with eight
rounds without a mask."""
MOST_ROUNDS_NEEDED = 256
"""The same where no other plan fits the memory of a site."""


def planned(
    optimized: Optimized,
    settings: Settings,
    objective: Objective,
    first: Callable[[Optimized], tuple[Optimized, SitePlan]],
    again: Callable[[Roots], SitePlan],
) -> tuple[Optimized, SitePlan]:
    """Returns a graph and its plan, with the keys of softmaxes in parts where that is better.

    A cut of the keys leaves the operations of a softmax in separate steps, because the maximum of
    all keys comes first. In parts they are one step. A cut of the queries brings all keys to every
    site; around a ring a site has two parts of them. The best one of these plans is returned, or
    the one that the plan file of the settings is for. If no plan fits the memory of a site, the
    keys have as many parts as there are sites.

    Args:
        optimized: The graph.
        settings: The settings of the plan.
        objective: The measure of the best plan.
        first: Plans the graph, which it may change.
        again: Plans the graph in parts.

    Raises:
        Error: No plan fits the memory of a site, or another error of `first`.
    """
    plans: list[tuple[Optimized, SitePlan]] = []
    refusal: OperationalError | None = None
    try:
        plans.append(first(optimized))
        optimized, plan = plans[0]
        wanted = _parts_cut(optimized.roots, plan, settings)
    except OperationalError as error:
        if settings.site_memory is None or not _may_split(settings):
            raise
        refusal, every = error, settings.sites
        free = _free(optimized.roots)
        tops = dict.fromkeys((id(s.top) for s in free), every)
        wanted = [tops, _rings(free, tops, settings, MOST_ROUNDS_NEEDED)]
    for parts in wanted:
        if parts:
            split = with_split_keys(optimized, parts)
            with suppress(OperationalError):  # an operation exceeds the memory of a site
                plans.append((split, again(split.roots)))
    if not plans:
        assert refusal is not None
        raise refusal
    filed = [pair for pair in plans[1:] if pair[1].cut.plan_file]
    return min(filed or plans, key=lambda pair: pair[1].measure(objective))


def _may_split(settings: Settings) -> bool:
    """Returns whether the strategy searches for cuts and parts can be groups."""
    fuses = grouping(settings) is not None and SPLIT_KEYS.name not in settings.disabled_rules
    return fuses and settings.strategy in SEARCHES and 1 < settings.sites <= MOST_SITES


def _parts_cut(roots: Roots, plan: SitePlan, settings: Settings) -> list[dict[int, int]]:
    """Returns the parts of softmaxes whose keys, or queries, a search has cut, in both ways."""
    searched = plan.cut.strategy in SEARCHES and not plan.cut.plan_file
    if not searched or not _may_split(settings):
        return []
    nodes = (n for n in walk(*roots) if isinstance(n, EinSum))
    cuts = {id(n): c for n, c in zip(nodes, plan.cut.cuts, strict=True)}
    free = _free(roots)
    keys = {id(s.top): max(cuts[id(n)].parts[s.along[id(n)]] for n in s.members) for s in free}
    sites = {id(s.top): max(keys[id(s.top)], _queries_cut(s, cuts)) for s in free}
    tops = {top: number for top, number in keys.items() if number > 1}
    return [tops, _rings(free, sites, settings, MOST_ROUNDS)]


def _queries_cut(softmax: Softmax, cuts: Mapping[int, Cut]) -> int:
    """Returns the parts into which a search has cut the queries of a softmax."""
    nodes = members(softmax, 1) or ()
    return max((cuts[id(m.origin)].parts[m.query] for m in nodes if m.origin is m.node), default=1)


def _rings(
    free: Sequence[Softmax], sites: Mapping[int, int], settings: Settings, most: int
) -> dict[int, int]:
    """Returns the sites of the rings of softmaxes, by the ids of the nodes of their maxima.

    Args:
        free: The softmaxes.
        sites: The sites over which their keys or queries are cut, by the same ids.
        settings: The settings of the plan.
        most: The maximum of rounds of all rings; with more there is none.
    """
    if RING_KEYS.name in settings.disabled_rules:
        return {}
    rings: dict[int, int] = {}
    for softmax in free:
        number = sites[id(softmax.top)]
        nodes = members(softmax, number) if number > 1 else None
        if nodes and not any(m.query in dict(m.origin.hint) for m in nodes):  # cut as it says
            rings[id(softmax.top)] = Ring(number)
    return rings if sum(rings.values()) <= most else {}


def _free(roots: Roots) -> list[Softmax]:
    """Returns the softmaxes of a graph whose keys are no parts themselves."""
    if any(isinstance(n, EinSum) and is_turn(n) for n in walk(*roots)):
        return []
    return [s for s in softmaxes(roots) if not _merges_parts(s)]


def _merges_parts(softmax: Softmax) -> bool:
    """Returns whether the keys of a softmax are parts, which a hint already cuts."""
    reads = ((o.source, o.labels) for o in softmax.top.operands)
    return any(
        softmax.axis.label == label and key in dict(source.hint)
        for source, labels in reads
        if isinstance(source, EinSum)
        for key, label in zip(source.keys, labels, strict=True)
    )
