"""Levels of plans and their derivations as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from einsql.core.units import duration, plural
from einsql.explain.cost_text import count
from einsql.explain.levels import (
    ChoiceReport,
    CutRuleReport,
    CutsReport,
    LevelReport,
    LevelsReport,
    RuleReport,
    RulesReport,
    StepsReport,
    VectorReport,
)

MOST_NAMED = 4
"""The most operations with equal choices that are named; the others are counted."""

MOST_STRATEGIES = 12
"""The most strategies whose totals are shown."""


def level_lines(report: LevelsReport) -> list[str]:
    """Returns the asked level; with a derivation, the level above and the derivation before it."""
    shown = report.levels[report.asked]
    derived = shown.derivation
    if derived is None:
        return list(shown.text)
    above = report.levels.get(derived.source)
    return [
        *([f"-- {derived.source}", *above.text] if above is not None else []),
        f"-- from {derived.source} to {report.asked}",
        *_derivation_lines(derived, shown),
        f"-- {report.asked}",
        *shown.text,
    ]


def _derivation_lines(
    derived: CutsReport | RulesReport | StepsReport, shown: LevelReport
) -> list[str]:
    if isinstance(derived, CutsReport):
        return list(_cut_lines(derived))
    if isinstance(derived, RulesReport):
        return list(_rule_lines(derived))
    ops = {node.id: f"{node.id} {node.op}" for node in shown.nodes}
    return [
        f"{node} -> {', '.join(ops[step] for step in steps) or 'no step of its own'}"
        for node, steps in derived.steps.items()
    ]


def _cut_lines(report: CutsReport) -> Iterator[str]:
    """Yields each choice with its runners-up, then the totals of the graph."""
    rows = [row for choice in report.choices for row in _choice_rows(choice, report.unit)]
    names, cuts, costs = (max((len(row[n]) for row in rows), default=0) for n in range(3))
    for name, cut, cost, rest in rows:
        yield f"{name:{names}}  {cut:{cuts}}  {cost:>{costs}}  {rest}".rstrip()
    for rule in report.rules:
        changed = f"{_parts(rule.old)} becomes {_parts(rule.new)}"
        yield f"{rule.rule}: {rule.law}"
        yield f"  {_named(rule.nodes)}: {changed}; {_bytes(rule)}"
    totals = {report.strategy: report.cost} | dict(report.strategies)
    shown = [(_cost(c, report.unit), name) for name, c in totals.items()][:MOST_STRATEGIES]
    width = max(len(cost) for cost, _ in shown)
    for cost, strategy in shown:
        yield f"total  {cost:>{width}}  by {strategy}"


def _choice_rows(choice: ChoiceReport, unit: str) -> Iterator[tuple[str, str, str, str]]:
    """Yields the operations, the cut, the cost and a remark of each vector."""
    more = choice.others - len(choice.runners_up)
    taken = ", ".join([f"taken of {choice.viable:,}", *choice.rules])
    yield _named(choice.nodes), _cut(choice.taken), _cost(choice.taken.cost, unit), taken
    for n, other in enumerate(choice.runners_up):
        last = more > 0 and n == len(choice.runners_up) - 1
        yield "", _cut(other), _cost(other.cost, unit), f"and {more:,} more" if last else ""


def _named(nodes: Sequence[str]) -> str:
    shown = ", ".join(nodes[:MOST_NAMED])
    return f"{shown} and {len(nodes) - MOST_NAMED:,} more" if len(nodes) > MOST_NAMED else shown


def _cut(vector: VectorReport) -> str:
    copies = f" copies:{vector.copies}" if vector.copies > 1 else ""
    return _parts(vector.partition) + copies


def _parts(partition: Mapping[str, int]) -> str:
    return " ".join(f"{label}:{n}" for label, n in partition.items() if n > 1) or "whole"


def _bytes(rule: RuleReport | CutRuleReport) -> str:
    return f"{rule.bytes_before:,} -> {rule.bytes_after:,} bytes sent"


def _cost(cost: float, unit: str) -> str:
    return duration(cost) if unit == "seconds" else f"{count(cost)} {unit}"


def _rule_lines(report: RulesReport) -> Iterator[str]:
    """Yields the first plan's cost, each rule with its bytes, and the cost of the chosen plan."""
    yield f"Table 1: {report.table1}"
    printed: set[str] = set()
    for rule in report.rules:
        times = f", {rule.fired:,} times" if rule.fired > 1 else ""
        yield f"{rule.rule}: {'as above' if rule.rule in printed else rule.law}"
        yield f"  {_bytes(rule)}{times}"
        printed.add(rule.rule)
    if report.considered == 1:
        yield "no rule gives another plan"
    else:
        yield f"the cheapest of {plural(report.considered, 'plan')}: {report.chosen}"
