"""The beam search for a cheaper plan: it applies rules to the cheapest plans of each round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from einsql.core.records import dataclass
from einsql.errors import IntegrityError, InterfaceError, ProgrammingError, suggest
from einsql.ir.ia.plan import LocalJoin, Node, children, operation, walk, with_children
from einsql.ir.ia.printer import format_implementation
from einsql.ir.remembered import remembering
from einsql.ir.tra import plan as tra
from einsql.optimizer.lowering.translate import Stored, translate
from einsql.optimizer.tra.composition import COMPOSITION
from einsql.optimizer.tra.cost import Cost, Costs, Weights
from einsql.optimizer.tra.products import PRODUCTS
from einsql.optimizer.tra.repartition import REPARTITION
from einsql.optimizer.tra.rules import ImplementationRule, same_blocks, stands_for

RULES: tuple[ImplementationRule, ...] = (*PRODUCTS, *COMPOSITION, *REPARTITION)
"""Every rule; if two create the same plan, the trace names the more specific one."""

WIDTH = 8
"""The number of cheapest plans to which rules are applied in each round."""
PATIENCE = 4
"""Rounds without a cheaper plan after which the search ends."""
MOST_PLANS = 1500
"""The maximum of plans of one search; they take a few seconds."""
MOST_ARRAYS = 1 << 24
"""The maximum of arrays of these plans together: costs count arrays, in a few seconds."""

Tick = Callable[[float], None]
"""Callback with the completed fraction, 0 to 1; raises to cancel."""


def _unwatched(fraction: float) -> None:
    """A callback that never cancels."""


@dataclass(frozen=True, slots=True)
class ImplementationStep:
    """One application of a rule in the derivation of the chosen plan.

    Attributes:
        rule: The rule.
        old: The plan before the application.
        new: The plan after the application.
    """

    rule: ImplementationRule
    old: Node
    new: Node

    @property
    def before(self) -> str:
        """The printed plan before the application."""
        return format_implementation(self.old)

    @property
    def after(self) -> str:
        """The printed plan after the application."""
        return format_implementation(self.new)


@dataclass(frozen=True, slots=True)
class Implemented:
    """The outcome of a search.

    Attributes:
        root: The cheapest plan.
        cost: The cost of the cheapest plan.
        trace: The steps from the first plan to the cheapest one.
        first: The cost of the first plan.
        plans: The number of plans considered.
    """

    root: Node
    cost: Cost
    trace: tuple[ImplementationStep, ...]
    first: Cost
    plans: int

    @property
    def given(self) -> Node:
        """The first plan of the search."""
        return self.trace[0].old if self.trace else self.root


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A candidate plan; `rank` orders plans by cost, then by size."""

    root: Node
    rank: tuple[float, int]
    trace: tuple[ImplementationStep, ...]


def implement(
    relation: tra.Node,
    sites: int,
    *,
    stored: Stored | None = None,
    weights: Weights | None = None,
    disabled: frozenset[str] = frozenset(),
    tick: Tick = _unwatched,
) -> Implemented:
    """Translates a plan over blocks by Table 1 and searches for a cheaper one.

    For a plan of very many blocks there is no search, and the plan of Table 1 is returned.

    Args:
        relation: The plan.
        sites: The number of sites.
        stored: The placements of stored tensors, as in `translate`.
        weights: α and β.
        disabled: Names of rules to leave out.
        tick: As in `search`.

    Raises:
        ProgrammingError: A name or a key in `stored` does not occur in the plan.
        InterfaceError: A name in `disabled` is not a rule's.
    """
    with remembering():
        first = translate(relation, sites, stored)
        return search(first, weights=weights, disabled=disabled, tick=tick)


def search(
    root: Node,
    *,
    weights: Weights | None = None,
    disabled: frozenset[str] = frozenset(),
    most_plans: int | None = None,
    tick: Tick = _unwatched,
) -> Implemented:
    """Rewrites a plan into the cheapest equal one that a bounded beam search finds.

    Every round applies every rule to every node of the cheapest few plans of the round
    before. The result never costs more than `root`, and the search is deterministic.

    Args:
        root: The plan.
        weights: α and β.
        disabled: Names of rules to leave out.
        most_plans: Plans to consider; by default MOST_PLANS and MOST_ARRAYS limit them.
        tick: Callback with the completed fraction, 0 to 1, at every plan; raises to cancel.

    Raises:
        InterfaceError: A name in `disabled` is not a rule's.
    """
    every = [r.name for r in RULES]
    unknown = sorted(disabled - set(every))
    if unknown:
        hint = suggest(unknown[0], every, "rules")
        raise InterfaceError(f'There is no rule "{unknown[0]}"', hint=hint)
    if most_plans is None:
        arrays = sum(n.schema.blocks.count for n in walk(root))
        most_plans = min(MOST_PLANS, MOST_ARRAYS // max(1, arrays))
    if any(isinstance(n, LocalJoin) and n.domain is not None for n in walk(root)):
        most_plans = 1  # the rules rewrite templates
    rules = [r for r in RULES if r.name not in disabled]
    with remembering():
        return _searched(root, weights or Weights(), rules, most_plans, tick)


def _searched(
    root: Node,
    weights: Weights,
    rules: Sequence[ImplementationRule],
    most_plans: int,
    tick: Tick,
) -> Implemented:
    costs, ways = Costs(), Neighbours(rules)

    def ranked(plan: Node, trace: tuple[ImplementationStep, ...]) -> _Ranked:
        return _Ranked(plan, (costs.plan(plan).total(weights), len(walk(plan))), trace)

    best = ranked(root, ())
    beam, seen, idle = [best], {id(ways.shared(root))}, 0
    while beam and idle < PATIENCE and len(seen) < most_plans:
        candidates: list[_Ranked] = []
        for plan in beam:
            for rule, new in ways.of(plan.root):
                if len(seen) >= most_plans:
                    break  # the lazy generator builds no further plan
                tick(len(seen) / most_plans)
                if id(new) not in seen:  # equal plans are one object
                    seen.add(id(new))
                    step = ImplementationStep(rule, plan.root, new)
                    candidates.append(ranked(new, (*plan.trace, step)))
        beam = sorted(candidates, key=lambda f: f.rank)[:WIDTH]
        idle += 1
        if beam and beam[0].rank < best.rank:
            idle = 0 if beam[0].rank[0] < best.rank[0] else idle
            best = beam[0]
    first = costs.plan(root)
    return Implemented(best.root, costs.plan(best.root), best.trace, first, len(seen))


class Neighbours:
    """The plans after one rule application; equal subgraphs are one object, rewritten once.

    Args:
        rules: The rules to try; they determine the order of the plans.
    """

    def __init__(self, rules: Sequence[ImplementationRule]) -> None:
        self._rules = rules
        self._known: dict[tuple[int, int], list[Node]] = {}
        self._nodes: dict[tuple[object, ...], Node] = {}
        self._shared: dict[int, tuple[Node, Node]] = {}

    def of(self, root: Node) -> Iterator[tuple[ImplementationRule, Node]]:
        """Yields lazily the plans after one rule application at one node."""
        order = walk(self.shared(root))
        for n, rule in enumerate(self._rules):
            for node in order:
                for new in self._alternatives(n, node):
                    plan = _replaced(order, node, new)
                    if plan is not None:
                        yield rule, self.shared(plan)

    def shared(self, root: Node) -> Node:
        """The plan over nodes of earlier plans: equal operations on equal nodes are one node."""
        for node in walk(root):
            if id(node) not in self._shared:
                sources = [self._shared[id(c)][1] for c in children(node)]
                own = (operation(node), *map(id, sources))
                if own not in self._nodes:
                    self._nodes[own] = with_children(node, sources)
                # The reference to the node keeps its id valid.
                self._shared[id(node)] = node, self._nodes[own]
        return self._shared[id(root)][1]

    def _alternatives(self, n: int, node: Node) -> list[Node]:
        key = n, id(node)
        if key not in self._known:
            alternatives = map(self.shared, self._rules[n].alternatives(node))
            self._known[key] = [new for new in alternatives if new is not node]
        return self._known[key]


def _replaced(order: Sequence[Node], old: Node, new: Node) -> Node | None:
    """The plan with one node replaced, or None if a reader no longer type-checks.

    The new node's arrays may have other sites, so every reader is rebuilt and checked. A
    join may now miss matches, and an aggregation may now give partial results to an operation
    that needs complete ones.
    """
    done: dict[int, Node] = {id(old): new}
    for node in order:
        sources = children(node)
        if id(node) in done or not any(id(c) in done for c in sources):
            continue
        try:
            over = with_children(node, [done.get(id(c), c) for c in sources])
        except (IntegrityError, ProgrammingError):
            return None
        if not same_blocks(over.schema.blocks, node.schema.blocks):
            return None
        done[id(node)] = over
    root = order[-1]
    return done[id(root)] if stands_for(done[id(root)].schema, root.schema) else None
