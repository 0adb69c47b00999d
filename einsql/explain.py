"""EXPLAIN: the graph of a plan as text, what each rule did, and what each step took."""

from __future__ import annotations

from collections.abc import Sequence

from einsql.engine.executor import Measure
from einsql.planning import Plan
from einsql.printer import format_graph


def explain_rows(plan: Plan, verbose: bool, measures: Sequence[Measure] | None) -> list[tuple[str]]:
    """The lines of EXPLAIN.

    Args:
        plan: A plan.
        verbose: Also show the graph as bound and each rule that changed it.
        measures: What each step took, for EXPLAIN ANALYZE.
    """
    lines: list[str] = []
    if verbose:
        lines += ["-- as bound", *format_graph(plan.relation.node).split("\n")]
        for rewrite in plan.optimized.trace:
            lines.append(f"-- {rewrite.rule.name}: {rewrite.rule.law}")
            lines += rewrite.after.split("\n") if rewrite.fired else ["SAME TEXT AS ABOVE"]
        lines.append("-- optimized")
    lines += format_graph(plan.optimized.root).split("\n")
    steps = plan.program.steps
    if steps:
        lines.append("-- steps")
    for n, step in enumerate(steps):
        text = f"r{n}  {step.kernel}  {step.node.points:,} points"
        if measures is not None:
            took = measures[n]
            text += f"  {took.seconds * 1e3:.3f} ms  {took.nbytes:,} bytes"
        lines.append(text)
    return [(line,) for line in lines]
