"""The optimizer of EinSum graphs, and the check of the names of disabled rules."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

from einsql.errors import InterfaceError, suggest
from einsql.ir.einsum.graph import EinSum, Node, Roots, walk
from einsql.ir.einsum.states import has_order
from einsql.ir.hints import Ring
from einsql.optimizer.rewrite.parts.ordered_parts import ORDERED_PARTS, hinted_orders
from einsql.optimizer.rewrite.parts.ring_keys import RING_KEYS
from einsql.optimizer.rewrite.parts.route_rows import ROUTE_ROWS
from einsql.optimizer.rewrite.parts.route_rows import hinted as hinted_routes
from einsql.optimizer.rewrite.parts.split_keys import SPLIT_KEYS, hinted
from einsql.optimizer.rewrite.pipeline import GROUP_NODES, RULES, run_stages
from einsql.optimizer.rewrite.rules import Optimized, Rule, Step
from einsql.optimizer.rewrite.verify import verify


def optimize(
    *roots: Node,
    disabled: frozenset[str] = frozenset(),
    until: str | None = None,
    sited: bool = False,
    alone: bool = False,
) -> Optimized:
    """Rewrites a graph into an equal one that is cheaper to run.

    Args:
        roots: The roots, as `apart` returns them. Each root keeps its schema, except flags
            proven TRUE, which are dropped.
        disabled: Names of rules to leave out.
        until: Name of a rule; the optimizer stops after the rule's first run.
        sited: Whether the graph will be cut over several sites.
        alone: Whether the graph will run on the CPU of one site.

    Raises:
        InterfaceError: A name is not a rule's.
        InternalError: A rule left a malformed graph behind.
    """
    check_rules(disabled, until)
    return run_stages(roots, disabled=disabled, until=until, sited=sited, alone=alone)


def with_split_keys(optimized: Optimized, parts: Mapping[int, int]) -> Optimized:
    """Splits the keys of softmaxes of an optimized graph into parts, or passes them around rings.

    Args:
        optimized: The graph and its trace.
        parts: The numbers of parts, by the ids of the nodes that compute the maxima; a `Ring` for
            parts that pass around a ring of sites.

    Raises:
        InternalError: A rule left a malformed graph behind.
    """
    rule = RING_KEYS if any(isinstance(n, Ring) for n in parts.values()) else SPLIT_KEYS
    return _with_rule(optimized, rule, hinted(optimized.roots, parts))


def with_ordered_parts(optimized: Optimized, sites: int) -> Optimized:
    """Reduces states that are merged in order in as many parts as there are sites.

    Args:
        optimized: The graph and its trace.
        sites: The number of sites; states of as many groups are reduced group by group.

    Raises:
        InternalError: The rule left a malformed graph behind.
    """
    if not any(isinstance(n, EinSum) and has_order(n) for n in walk(*optimized.roots)):
        return optimized
    return _with_rule(optimized, ORDERED_PARTS, hinted_orders(optimized.roots, sites))


def with_routed_rows(optimized: Optimized, hints: Mapping[int, tuple[str, int]]) -> Optimized:
    """Routes rows of an optimized graph to the sites of the blocks that they choose.

    Args:
        optimized: The graph and its trace.
        hints: By the id of a node the label that its rows choose, and the number of blocks.

    Raises:
        InternalError: The rule left a malformed graph behind.
    """
    return _with_rule(optimized, ROUTE_ROWS, hinted_routes(optimized.roots, hints))


def _with_rule(optimized: Optimized, rule: Rule, old: Roots) -> Optimized:
    """Applies a rule to a graph with hints, and adds the step to the trace."""
    start = perf_counter()
    new, fired = rule.apply(old, {})
    verified: dict[int, EinSum] = {}
    for rewritten, root in zip(new, old, strict=True):
        verify(rewritten, root.schema, verified, drops_flags=False)
    step = Step(rule, fired, perf_counter() - start, old, new)
    return Optimized(new, (*optimized.trace, step) if fired else optimized.trace)


def check_rules(disabled: frozenset[str], until: str | None = None) -> None:
    """Rejects names that are not rules, of EinSum graphs or of plans over sites.

    Raises:
        InterfaceError: A name is not a rule's.
    """
    names = [r.name for r in RULES]
    disabled -= {GROUP_NODES.name}
    for name in (*disabled, *([until] if until is not None else [])):
        if name not in names and not (name in disabled and name in _placed_rules()):
            raise InterfaceError(
                f'There is no rewrite rule "{name}"',
                hint=suggest(name, [*names, GROUP_NODES.name, *_placed_rules()], "rules"),
            )


def _placed_rules() -> list[str]:
    """Names of the rules for plans over sites, which settings may also disable."""
    from einsql.optimizer import tra  # imported only for names that are not EinSum rules

    return [r.name for r in tra.RULES]
