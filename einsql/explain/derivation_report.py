"""The derivations between the levels of a plan: cuts with their costs, and rules with bytes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import reduce
from itertools import groupby
from operator import add
from typing import TYPE_CHECKING

from einsql.explain.levels import (
    ChoiceReport,
    CutRuleReport,
    CutsReport,
    RuleReport,
    RulesReport,
    VectorReport,
)
from einsql.ir.einsum.graph import Roots
from einsql.optimizer.decomposition.derivation import Alternative, Choice, derivation
from einsql.optimizer.decomposition.problem import problem_of
from einsql.optimizer.tra import RULES, Cost, Costs, Implemented
from einsql.planner.sites import objective_of

if TYPE_CHECKING:
    from einsql.core.settings import Settings
    from einsql.optimizer.site_optimizer import SitePlan


_LAWS = {rule.name: rule.law for rule in RULES}


def cuts_report(roots: Roots, plan: SitePlan, settings: Settings) -> CutsReport:
    """Returns the derivation of a tensor-relational plan: the choice of each operation's cut.

    Args:
        roots: The roots of the graph.
        plan: Its plan for several sites.
        settings: The settings of the search.
    """
    chosen = plan.cut
    problem = problem_of(*roots, sites=chosen.sites, disabled=settings.disabled_rules)
    derived = derivation(problem, chosen, objective_of(settings))
    return CutsReport(
        source="einsum",
        strategy=chosen.strategy,
        unit=settings.cost,
        cost=chosen.cost,
        strategies=derived.strategies,
        choices=_choices(derived.choices),
        rules=[
            CutRuleReport(
                rule=step.rule.value,
                law=_LAWS[step.rule.value],
                nodes=step.operations,
                old=step.old,
                new=step.new,
                bytes_before=step.before,
                bytes_after=step.after,
            )
            for step in plan.trace
        ],
    )


def _choices(choices: Sequence[Choice]) -> list[ChoiceReport]:
    """Returns the choices, equal ones once."""
    equal: dict[str, list[Choice]] = {}
    for choice in choices:
        equal.setdefault(repr(replace(choice, name="")), []).append(choice)
    return [
        ChoiceReport(
            nodes=[choice.name for choice in same],
            viable=same[0].viable,
            taken=_vector(same[0].taken),
            runners_up=[_vector(other) for other in same[0].runners_up],
            others=same[0].others,
            rules=same[0].rules,
        )
        for same in equal.values()
    ]


def _vector(alternative: Alternative) -> VectorReport:
    return VectorReport(
        partition=alternative.parts, copies=alternative.copies, cost=alternative.cost
    )


def rules_report(implemented: Sequence[Implemented]) -> RulesReport:
    """Returns the derivation of plans of the implementation algebra: the rules that fired.

    Args:
        implemented: The searches, one for each relation of the result.
    """
    costs = Costs()
    rules: list[RuleReport] = []
    for one in implemented:
        for rule, steps in groupby(one.trace, lambda step: step.rule):
            fired = list(steps)
            rules.append(
                RuleReport(
                    rule=rule.name,
                    law=rule.law,
                    fired=len(fired),
                    bytes_before=costs.plan(fired[0].old).bytes_sent,
                    bytes_after=costs.plan(fired[-1].new).bytes_sent,
                )
            )
    return RulesReport(
        source="tra",
        considered=sum(one.plans for one in implemented),
        table1=_summary(total(one.first for one in implemented)),
        chosen=_summary(total(one.cost for one in implemented)),
        rules=rules,
    )


def _summary(cost: Cost) -> str:
    """Formats a cost; one site moves nothing."""
    return str(cost) if cost.sites > 1 else f"{cost.flops:,} flops"


def total(costs: Iterable[Cost]) -> Cost:
    """Returns the sum of the costs of several plans."""
    return reduce(add, costs)
