"""The choice of parts for the keys of a softmax that a search cuts over sites."""

from __future__ import annotations

from collections.abc import Callable

from einsql.core.settings import Settings
from einsql.errors import OperationalError
from einsql.ir.einsum.graph import EinSum, Roots, walk
from einsql.optimizer import Optimized
from einsql.optimizer.decomposition import Objective
from einsql.optimizer.graph_optimizer import with_split_keys
from einsql.optimizer.rewrite.softmax import Softmax, softmaxes
from einsql.optimizer.rewrite.split_keys import SPLIT_KEYS
from einsql.optimizer.site_optimizer import SitePlan
from einsql.planner.compile import grouping

SEARCHES = ("eindecomp", "exact")
"""The strategies that search for cuts."""
MOST_SITES = 256
"""The maximum of sites for which a graph with cut keys is planned again with these in parts.

LLaMA-7B takes twice as long to plan at 64 sites, and several times as long at 1024."""


def planned(
    optimized: Optimized,
    settings: Settings,
    objective: Objective,
    first: Callable[[Optimized], tuple[Optimized, SitePlan]],
    again: Callable[[Roots], SitePlan],
) -> tuple[Optimized, SitePlan]:
    """Returns a graph and its plan, with the keys of softmaxes in parts where that is better.

    A cut of the keys leaves the operations of a softmax in separate steps, because the maximum of
    all keys comes first. In parts they are one step. The better one of both plans is returned, or
    the one that the plan file of the settings is for. If no plan fits the memory of a site, the
    keys have as many parts as there are sites.

    Args:
        optimized: The graph.
        settings: The settings of the plan.
        objective: The measure of the better plan.
        first: Plans the graph, which it may change.
        again: Plans the graph in parts.

    Raises:
        Error: No plan fits the memory of a site, or another error of `first`.
    """
    try:
        optimized, plan = first(optimized)
    except OperationalError as refusal:
        tops = [id(s.top) for s in _free(optimized.roots)] if _may_split(settings) else []
        if settings.site_memory is None or not tops:
            raise
        parts = with_split_keys(optimized, dict.fromkeys(tops, settings.sites))
        try:
            return parts, again(parts.roots)
        except OperationalError:
            raise refusal from None
    numbers = _parts_cut(optimized.roots, plan, settings)
    if not numbers:
        return optimized, plan
    parts = with_split_keys(optimized, numbers)
    try:
        new = again(parts.roots)
    except OperationalError:  # an operation exceeds the memory of a site
        return optimized, plan
    if new.cut.plan_file or new.measure(objective) < plan.measure(objective):
        return parts, new
    return optimized, plan


def _may_split(settings: Settings) -> bool:
    """Returns whether the strategy searches for cuts and parts can be groups."""
    fuses = grouping(settings) is not None and SPLIT_KEYS.name not in settings.disabled_rules
    return fuses and settings.strategy in SEARCHES and 1 < settings.sites <= MOST_SITES


def _parts_cut(roots: Roots, plan: SitePlan, settings: Settings) -> dict[int, int]:
    """Returns the parts of the keys of each softmax whose keys a search has cut."""
    searched = plan.cut.strategy in SEARCHES and not plan.cut.plan_file
    if not searched or not _may_split(settings):
        return {}
    nodes = (n for n in walk(*roots) if isinstance(n, EinSum))
    cuts = {id(n): c for n, c in zip(nodes, plan.cut.cuts, strict=True)}
    parts = {
        id(s.top): max(cuts[id(n)].parts[s.along[id(n)]] for n in s.members) for s in _free(roots)
    }
    return {top: number for top, number in parts.items() if number > 1}


def _free(roots: Roots) -> list[Softmax]:
    """Returns the softmaxes of a graph whose keys are no parts themselves."""
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
