"""The levels of a plan: the graph, its tensor-relational plan, its implementation, the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from einsql.core.records import dataclass
from einsql.engine.step import Measure, Tick
from einsql.errors import NotSupportedError
from einsql.explain.cost_report import Operation, operations_of
from einsql.explain.derivation_report import cuts_report, rules_report, total
from einsql.explain.levels import LevelNode, LevelReport, LevelsReport, StepsReport
from einsql.explain.report import StepReport
from einsql.explain.straight_line import straight_line
from einsql.ir.einsum.graph import Input, children, walk
from einsql.ir.einsum.printer import format_graph, node_names
from einsql.ir.ia import plan as ia
from einsql.ir.ia.printer import format_implementation
from einsql.ir.spmd.printer import format_groups, format_steps
from einsql.ir.spmd.program import Complete, Exchange, Load, Program, reads
from einsql.ir.tra import plan as tra
from einsql.ir.tra.printer import format_plan
from einsql.planner.levels import block_plan, levels_of
from einsql.planner.plan import Plan
from einsql.sql.parser.syntax import LEVELS

if TYPE_CHECKING:
    from einsql.core.settings import Settings
    from einsql.optimizer.lowering.program import BlockPlan
    from einsql.planner.tile_plan import TilePlan
    from einsql.sql.parser.syntax import Explain

N = TypeVar("N", tra.Node, ia.Node)
"""The nodes of a language."""


def levels_report(
    asked: Explain,
    plan: Plan | TilePlan,
    settings: Settings,
    tick: Tick,
    measure: Measure | None = None,
    steps: Sequence[StepReport] = (),
) -> LevelsReport | None:
    """Returns the asked level of a plan, with VERBOSE every level; None without LEVEL.

    Args:
        asked: The EXPLAIN statement; VERBOSE adds the derivations.
        plan: The plan.
        settings: The settings of the plan.
        tick: Callback with the completed fraction of a search; raises to cancel.
        measure: The measure of a run on several sites, for EXPLAIN ANALYZE.
        steps: The reports of the steps on one site.

    Raises:
        NotSupportedError: The plan does not have the asked level.
    """
    if asked.level is None:
        return None
    plans = _Levels(plan, settings, tick, measure, steps, asked.verbose)
    levels: dict[str, LevelReport] = {}
    for level in LEVELS if asked.verbose else (asked.level,):
        try:
            levels[level] = plans.level(level)
        except NotSupportedError:
            if level == asked.level:
                raise
    return LevelsReport(asked=asked.level, levels=levels)


@dataclass(frozen=True, slots=True)
class _Levels:
    """Builds the levels of one plan."""

    plan: Plan | TilePlan
    settings: Settings
    tick: Tick
    measure: Measure | None
    steps: Sequence[StepReport]
    verbose: bool

    def level(self, name: str) -> LevelReport:
        """Returns a level by its name."""
        match name:
            case "einsum":
                return self._einsum()
            case "tra":
                return self._tra()
            case "ia":
                return self._ia()
        return self._program()

    def _einsum(self) -> LevelReport:
        if not isinstance(self.plan, Plan):
            raise NotSupportedError(
                "A query over tiles has no level einsum",
                hint="LEVEL tra is the first level of its plan.",
            )
        roots = self.plan.optimized.roots
        names, nodes = node_names(roots), walk(*roots)
        text = format_graph(*roots).split("\n")
        return LevelReport(
            text=text,
            nodes=[
                LevelNode(
                    id=names[id(node)],
                    op="input" if isinstance(node, Input) else "einsum",
                    reads=[names[id(c)] for c in children(node)],
                    relation=header,
                )
                for node, header in zip(nodes, _headers(text), strict=True)
            ],
        )

    def _tra(self) -> LevelReport:
        relations = levels_of(self.plan, self.settings).tra
        texts = {title: format_plan(root).split("\n") for title, root in relations.items()}
        nodes = [
            node
            for title, root in relations.items()
            for node in _nodes(title, tra.walk(root), tra.children, texts[title])
        ]
        derived = None
        if self.verbose and isinstance(self.plan, Plan) and self.plan.site_plan is not None:
            derived = cuts_report(self.plan.optimized.roots, self.plan.site_plan, self.settings)
        return LevelReport(text=_titled(texts), nodes=nodes, derivation=derived)

    def _ia(self) -> LevelReport:
        implemented = levels_of(self.plan, self.settings).ia(self.tick)
        texts = {t: format_implementation(i.root).split("\n") for t, i in implemented.items()}
        nodes: list[LevelNode] = []
        for title, one in implemented.items():
            every = ia.walk(one.root)
            shown = _nodes(title, every, ia.children, texts[title])
            nodes += (replace(s, bytes_sent=ia.sends(n)) for s, n in zip(shown, every, strict=True))
        text, cost = _titled(texts), total(i.cost for i in implemented.values())
        if cost.sites > 1:
            text.append(f"-- {cost.sites} sites: {cost}")
        derived = rules_report(list(implemented.values())) if self.verbose else None
        return LevelReport(text=text, nodes=nodes, derivation=derived)

    def _program(self) -> LevelReport:
        plan = self.plan
        if not isinstance(plan, Plan):
            block = block_plan(plan)
            derived = self._lowering(block) if self.verbose else None
            return self._steps(block.program, derived)
        if plan.placed is None:
            return straight_line(plan, self.settings, self.steps, self.verbose)
        derived = None
        if self.verbose and plan.cut is not None:
            operations = operations_of(plan.cut, plan.placed, node_names(plan.optimized.roots))
            derived = StepsReport(source="einsum", steps=_steps_of(operations, plan.placed))
        return self._steps(plan.placed, derived)

    def _lowering(self, block: BlockPlan) -> StepsReport | None:
        """Returns the steps of each node of the implementation algebra.

        None if the level `ia` shows another plan: rules join local operations on one site, and the
        program computes them one after another.
        """
        (implemented,) = levels_of(self.plan, self.settings).ia(self.tick).values()
        if implemented.trace and implemented.cost.sites == 1:
            return None
        return StepsReport(
            source="ia",
            steps={f"r{n}": [f"s{step}" for step in own] for n, own in enumerate(block.steps)},
        )

    def _steps(self, placed: Program, derived: StepsReport | None) -> LevelReport:
        """Returns the level of a program for several sites."""
        blocks = format_steps(placed)
        headers = [block[0] for block in blocks]
        if self.measure is not None:
            for block, step in zip(blocks, self.measure.steps, strict=True):
                block[0] += f"  {step.seconds * 1e3:.3f} ms  {step.sent:,} bytes sent"
        text = [*(line for block in blocks for line in block), *format_groups(placed)]
        if placed.sites > 1:
            text.append(f"-- {placed.sites:,} sites: {placed.bytes_sent:,} bytes sent")
        return LevelReport(text=text, nodes=_step_nodes(placed, headers), derivation=derived)


def _nodes(
    title: str,
    nodes: Sequence[N],
    sources: Callable[[N], Iterable[N]],
    text: Sequence[str],
) -> list[LevelNode]:
    """Returns the nodes of a plan, named as in its text; a title precedes the names."""
    names = {id(n): f"{title}.r{k}" if title else f"r{k}" for k, n in enumerate(nodes)}
    return [
        LevelNode(
            id=names[id(node)],
            op=_words(type(node).__name__),
            reads=[names[id(c)] for c in sources(node)],
            relation=header,
        )
        for node, header in zip(nodes, _headers(text), strict=True)
    ]


def _steps_of(operations: Sequence[Operation], placed: Program) -> dict[str, list[str]]:
    """Returns the steps of each operation; a load belongs to the first operation that needs it."""
    steps: dict[str, list[str]] = {}
    loaded: set[int] = set()
    for operation in operations:
        numbers = {*operation.steps, *(s for n in operation.steps for s in reads(placed.steps[n]))}
        loads = {n for n in numbers if isinstance(placed.steps[n], Load)} - loaded
        loaded |= loads
        shown = sorted({*loads, *operation.steps})
        steps[operation.cut.name] = [f"s{n}" for n in shown]
    return steps


def _step_nodes(placed: Program, headers: Sequence[str]) -> list[LevelNode]:
    return [
        LevelNode(
            id=f"s{n}",
            op=_words(type(step).__name__),
            reads=[f"s{source}" for source in reads(step)],
            relation=header.split(" ", 1)[1],
            bytes_sent=step.nbytes if isinstance(step, Exchange | Complete) else 0,
        )
        for n, (step, header) in enumerate(zip(placed.steps, headers, strict=True))
    ]


def _headers(text: Sequence[str]) -> list[str]:
    """Returns the first line of each node; the others are indented."""
    return [line for line in text if not line.startswith(" ")]


def _words(name: str) -> str:
    """Returns the name of a class as words: `LocalJoin` becomes `local join`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _titled(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the lines of several plans under their titles."""
    lines: list[str] = []
    for title, text in texts.items():
        lines += [f"-- {title}"] if title else []
        lines += text
    return lines
