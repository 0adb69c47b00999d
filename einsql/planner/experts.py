"""The choice to send rows to the sites of the blocks that they choose by a value."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from einsql.core.settings import Settings
from einsql.errors import OperationalError, ProgrammingError
from einsql.ir.einsum.graph import EinSum, Roots, operands_of, walk
from einsql.ir.einsum.routing import Routing, choice_of, routed, routings
from einsql.ir.spmd.program import Exchange, Local
from einsql.optimizer import Optimized
from einsql.optimizer.decomposition import Objective
from einsql.optimizer.graph_optimizer import with_routed_rows
from einsql.optimizer.rewrite.parts.route_rows import ROUTE_ROWS
from einsql.optimizer.site_optimizer import SitePlan
from einsql.planner.split_keys import SEARCHES

Plan = Callable[[Optimized], tuple[Optimized, SitePlan]]
"""Plans a graph, which it may change."""


def planned_with_experts(
    optimized: Optimized, settings: Settings, objective: Objective, first: Plan, again: Plan
) -> tuple[Optimized, SitePlan]:
    """Returns a graph and its plan, with rows sent to blocks where that is better.

    A hint decides for an operation. Otherwise a search plans the graph without blocks. If this
    plan moves operands that rows choose from, or if it fits no site, the graph is planned again
    with these operands in as many blocks as there are sites. The better one of both plans is
    returned.

    Args:
        optimized: The graph.
        settings: The settings of the plan.
        objective: The measure of the better plan.
        first: Plans the graph.
        again: Plans the graph with blocks, in the given contraction order.

    Raises:
        Error: A hint cannot be met, or an error of `first`.
    """
    if settings.sites > 1:
        _check_hints(optimized.roots)
    if not _may_route(settings):
        return first(optimized)
    try:
        graph, plan = first(optimized)
    except OperationalError as refusal:
        hints = _hints(optimized.roots, settings, lambda node, routing: True)
        if settings.site_memory is None or not hints:
            raise
        try:
            return again(with_routed_rows(optimized, hints))
        except OperationalError:
            raise refusal from None
    moving = _moving(plan) if plan.cut.strategy in SEARCHES and not plan.cut.plan_file else set()
    hints = _hints(graph.roots, settings, lambda node, _: id(node) in moving) if moving else {}
    if not hints:
        return graph, plan
    try:
        other, new = again(with_routed_rows(graph, hints))
    except OperationalError:  # an operation exceeds the memory of a site
        return graph, plan
    better = new.measure(objective) < plan.measure(objective)
    return (other, new) if better else (graph, plan)


def _may_route(settings: Settings) -> bool:
    """Returns whether the strategy searches for cuts and may send rows to blocks."""
    allowed = ROUTE_ROWS.name not in settings.disabled_rules
    return allowed and settings.strategy in SEARCHES and settings.sites > 1


def _check_hints(roots: Roots) -> None:
    """Rejects hints for labels that are read from data, if their rows cannot be sent.

    Raises:
        ProgrammingError: There is such a hint, or one beside it for a key that rows lack.
    """
    for node in walk(*roots):
        if not isinstance(node, EinSum):
            continue
        routing = routed(node)
        beside = [x for x, parts in node.hint if parts > 1 and routing and x not in routing[0].rows]
        if routing is not None and beside != [routing[0].label]:
            (other, *_) = (x for x in beside if x != routing[0].label)
            raise ProgrammingError(
                f'The hint cuts "{other}" beside "{routing[0].label}", which values choose',
                hint=f'Leave out "{other}": of an operation whose rows are sent to blocks, only '
                f"keys of the rows can be cut, such as {routing[0].rows[0]}.",
            )
        for label, parts in node.hint:
            define = node.axis(label).define
            is_chosen = (
                define is not None
                and operands_of(define)  # others have one value
                and any(label in o.labels for o in node.operands)
            )
            if is_chosen and parts > 1 and (routing is None or routing[0].label != label):
                raise ProgrammingError(
                    f'The hint PARTITION({label}={parts}) cannot be met: "{label}" is chosen by '
                    "values, and this operation cannot send its rows to the chosen blocks",
                    hint="The rows must be keys of the result or be reduced by SUM, MIN or MAX, "
                    "no expression may read their keys, and the chosen key is no key of the "
                    "result. Leave the hint out otherwise.",
                )


def _moving(plan: SitePlan) -> set[int]:
    """Returns the operations whose choice is from an operand that the plan moves."""
    steps = plan.program.steps
    moving = set()
    for step in steps:
        if not isinstance(step, Local) or step.blocks is not None:
            continue
        for routing in routings(step.node):
            brought = (steps[step.operands[n]] for n in routing.experts)
            if any(isinstance(b, Exchange) and b.nbytes for b in brought):
                moving.add(id(step.node))
    return moving


def _hints(
    roots: Roots, settings: Settings, is_wanted: Callable[[EinSum, Routing], bool]
) -> dict[int, tuple[str, int]]:
    """Returns a hint for each wanted operation, and for others with the same choice."""
    candidates = [(n, r, choice_of(n, r)) for n, r in _candidates(roots)]
    wanted = {choice for node, routing, choice in candidates if is_wanted(node, routing)}
    hints: dict[int, tuple[str, int]] = {}
    for node, routing, choice in candidates:
        parts = min(settings.sites, routing.hi - routing.lo)
        if choice in wanted and parts > 1:
            hints.setdefault(id(node), (routing.label, parts))
    return hints


def _candidates(roots: Roots) -> Iterator[tuple[EinSum, Routing]]:
    for node in walk(*roots):
        if isinstance(node, EinSum) and routed(node) is None:
            for routing in routings(node):
                yield node, routing
