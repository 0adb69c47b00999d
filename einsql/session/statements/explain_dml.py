"""EXPLAIN of statements that change tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from einsql.errors import NotSupportedError
from einsql.explain.explanation import Explanation, GraphExplanation, TextExplanation
from einsql.explain.graph_report import names_of
from einsql.session.statements.dml import bind
from einsql.sql.parser import syntax as st
from einsql.sql.parser.syntax import Explain

if TYPE_CHECKING:
    from einsql.core.machine import Topology
    from einsql.planner.context import Context


@dataclass(frozen=True, repr=False)
class ChangeExplanation(TextExplanation):
    """The plan of a statement with several roots, or their plans.

    Attributes:
        asked: The EXPLAIN statement.
        titles: The statement part of each root, such as `INSERT t`.
        plans: One plan for all roots; one for each root on several sites or a GPU.
    """

    asked: Explain
    titles: tuple[str, ...]
    plans: tuple[GraphExplanation, ...]

    @property
    def roots(self) -> dict[str, str]:
        """The name of each root in the plan, by its title."""
        (only,) = self.plans
        optimized = only.plan.optimized
        names = names_of(optimized.roots)
        return {
            title: names[id(root)] for title, root in zip(self.titles, optimized.roots, strict=True)
        }

    def lines(self) -> list[str]:
        """The graph, its steps and the title of each root."""
        if len(self.plans) > 1:
            pairs = zip(self.titles, self.plans, strict=True)
            return [line for title, plan in pairs for line in (f"-- {title}", *plan.lines())]
        shown = (f"{name}  {title}" for title, name in self.roots.items())
        return [*self.plans[0].lines(), "-- roots", *shown]

    def to_dict(self) -> dict[str, Any]:
        """The plans as plain values; a plan with several roots as lines."""
        if len(self.plans) > 1:
            pairs = zip(self.titles, self.plans, strict=True)
            return {"parts": [{"part": title, "plan": plan.to_dict()} for title, plan in pairs]}
        parts = [{"part": title, "root": name} for title, name in self.roots.items()]
        return {"parts": parts, "plan": self.plans[0].lines()}

    def undrawn(self, form: str) -> NotSupportedError:
        """Returns the error that there is no drawing or page."""
        return NotSupportedError(
            f"EXPLAIN of several changes at once has no {form}",
            hint="FORMAT text and FORMAT json show them; EXPLAIN of one change draws it.",
        )


def explain_change(ctx: Context, asked: Explain, cluster: Topology | None) -> Explanation:
    """Explains a statement that changes tensors. ANALYZE computes, but stores nothing.

    Raises:
        NotSupportedError: It computes nothing, or a drawing of several roots is asked for.
        Error: The statement is wrong.
    """
    assert isinstance(asked.statement, st.Change)
    prepared, read = bind(ctx, asked.statement.tree)
    if not prepared.plans:
        raise NotSupportedError("INSERT of VALUES computes nothing that a plan could show")
    if (
        cluster is not None
        and len(prepared.plans) == 1
        and len(prepared.plans[0].optimized.roots) > 1
    ):
        raise NotSupportedError(
            "EXPLAIN SIMULATE of several changes at once has no plan for one site",
            hint="EXPLAIN SIMULATE (SITES 2) plays each by itself.",
        )
    plans = []
    for plan in prepared.plans:
        measure = plan.measure(read, ctx.tick) if asked.analyze else None
        plans.append(GraphExplanation(asked, plan, ctx.settings, measure, cluster))
    titles = [f"{p.VERB} {p.name}" for p in prepared.parts if p.root is not None]
    if prepared.shown is not None:
        titles.insert(0, "SELECT")
    if len(titles) == 1:
        return plans[0]
    explanation = ChangeExplanation(asked, tuple(titles), tuple(plans))
    if asked.form in ("svg", "html"):
        raise explanation.undrawn(asked.form)
    return explanation
