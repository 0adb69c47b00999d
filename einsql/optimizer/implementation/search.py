"""The search for a cheaper plan: rules tried everywhere, the cheapest plans tried further."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from einsql.errors import IntegrityError, InterfaceError, ProgrammingError, suggest
from einsql.implementation import Node, children, walk, with_children
from einsql.optimizer.implementation.composition import COMPOSITION
from einsql.optimizer.implementation.cost import Cost, Costs, Weights
from einsql.optimizer.implementation.products import PRODUCTS
from einsql.optimizer.implementation.repartition import REPARTITION
from einsql.optimizer.implementation.rules import ImplementationRule, same_blocks, stands_for
from einsql.plan_printer import format_implementation

RULES: tuple[ImplementationRule, ...] = (*PRODUCTS, *COMPOSITION, *REPARTITION)
"""Every rule; where two make the same plan, the trace names the more specific one."""

WIDTH = 8
"""Plans that are tried further in each round."""
PATIENCE = 4
"""Rounds without a cheaper plan after which the search ends."""
MOST_PLANS = 1500
"""Plans looked at in one search, about two seconds' worth."""


@dataclass(frozen=True, slots=True)
class ImplementationStep:
    """One rule that was applied on the way to the chosen plan.

    Attributes:
        rule: The rule.
        old: The plan before.
        new: The plan after.
    """

    rule: ImplementationRule
    old: Node
    new: Node

    @property
    def before(self) -> str:
        """The printed plan the rule was given."""
        return format_implementation(self.old)

    @property
    def after(self) -> str:
        """The printed plan the rule made."""
        return format_implementation(self.new)


@dataclass(frozen=True, slots=True)
class Implemented:
    """A plan that was searched for.

    Attributes:
        root: The cheapest plan found.
        cost: What it costs.
        trace: The steps from the first plan to it.
        first: What the first plan cost.
        plans: How many plans were looked at.
    """

    root: Node
    cost: Cost
    trace: tuple[ImplementationStep, ...]
    first: Cost
    plans: int


@dataclass(frozen=True, slots=True)
class _Found:
    """A plan on the way; `rank` orders plans by cost, then by size, then by text."""

    root: Node
    rank: tuple[float, int, str]
    trace: tuple[ImplementationStep, ...]


def search(
    root: Node,
    *,
    weights: Weights | None = None,
    disabled: frozenset[str] = frozenset(),
    most_plans: int = MOST_PLANS,
) -> Implemented:
    """Rewrites a plan into the cheapest equal one that a bounded beam search finds.

    Every round applies every rule to every node of the cheapest few plans of the round
    before. The result costs no more than the plan it is given; the same plan gives the
    same result.

    Args:
        root: The plan.
        weights: α and β.
        disabled: Names of rules to leave out.
        most_plans: Plans to look at.

    Raises:
        InterfaceError: There is no rule of that name.
    """
    rules = [r for r in RULES if r.name not in known(disabled)]
    value, costs = weights or Weights(), Costs()

    def found(plan: Node, trace: tuple[ImplementationStep, ...]) -> _Found:
        cost = costs.plan(plan).total(value)
        return _Found(plan, (cost, len(walk(plan)), format_implementation(plan)), trace)

    best = found(root, ())
    beam, seen, idle = [best], {best.rank[2]}, 0
    while beam and idle < PATIENCE and len(seen) < most_plans:
        made: list[_Found] = []
        for plan in beam:
            for rule, new in neighbours(plan.root, rules):
                next_plan = found(new, (*plan.trace, ImplementationStep(rule, plan.root, new)))
                if next_plan.rank[2] not in seen:
                    seen.add(next_plan.rank[2])
                    made.append(next_plan)
                if len(seen) >= most_plans:
                    break
        beam = sorted(made, key=lambda f: f.rank)[:WIDTH]
        idle += 1
        if beam and beam[0].rank < best.rank:
            idle = 0 if beam[0].rank[0] < best.rank[0] else idle
            best = beam[0]
    return Implemented(best.root, costs.plan(best.root), best.trace, costs.plan(root), len(seen))


def known(names: frozenset[str]) -> frozenset[str]:
    """The same names.

    Raises:
        InterfaceError: One of them is no rule's.
    """
    every = [r.name for r in RULES]
    for name in sorted(names):
        if name not in every:
            raise InterfaceError(f'There is no rule "{name}"', hint=suggest(name, every, "rules"))
    return names


def neighbours(
    root: Node, rules: Sequence[ImplementationRule]
) -> Iterator[tuple[ImplementationRule, Node]]:
    """The plans that one rule applied to one node makes of a plan."""
    for rule in rules:
        for node in walk(root):
            for new in rule.alternatives(node):
                plan = replaced(root, node, new)
                if plan is not None:
                    yield rule, plan


def replaced(root: Node, old: Node, new: Node) -> Node | None:
    """The plan with a node in another's place, or None where its readers cannot stand it.

    The new node's arrays may lie elsewhere, so every reader is made and checked again: a
    join may miss matches now, an aggregation leave parts to one that must see the whole.
    """
    done: dict[int, Node] = {id(old): new}
    for node in walk(root):
        if id(node) in done:
            continue
        try:
            over = with_children(node, [done[id(c)] for c in children(node)])
        except (IntegrityError, ProgrammingError):
            return None
        if over is not node and not same_blocks(over.schema.blocks, node.schema.blocks):
            return None
        done[id(node)] = over
    return done[id(root)] if stands_for(done[id(root)].schema, root.schema) else None
