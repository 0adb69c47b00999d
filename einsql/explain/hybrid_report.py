"""EXPLAIN of statements split between einsql and DuckDB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from einsql.errors import Error, NotSupportedError, UnknownHere
from einsql.explain.explanation import Explanation, GraphExplanation, TextExplanation
from einsql.explain.tile_explanation import explain_tiles
from einsql.hybrid import duckdb_statements, hybrid_plan
from einsql.hybrid.split.blocks import Structure
from einsql.hybrid.split.sharing import share
from einsql.hybrid.split.split import Fragment
from einsql.planner.plan import Plan
from einsql.planner.queries import query_binder
from einsql.sql.parser import syntax as st
from einsql.sql.parser.syntax import Explain
from einsql.sql.parser.tokens import tokenize

if TYPE_CHECKING:
    from einsql.planner.context import Context


@dataclass(frozen=True, repr=False)
class HybridExplanation(TextExplanation):
    """The text that DuckDB runs, and the plans of the fragments.

    Attributes:
        hybrid: The split statement.
        fragments: The fragments with their plans.
        plan: DuckDB's plan.
        refusal: The reason why einsql alone cannot run the statement.
        once: The names of subqueries that are computed once for several fragments.
    """

    asked: Explain
    hybrid: hybrid_plan.Hybrid
    fragments: list[tuple[Fragment, Explanation]]
    plan: str
    refusal: str
    once: list[str]

    @property
    def reasons(self) -> list[str]:
        """The reasons why parts run in DuckDB, in text order."""
        notes = sorted(self.hybrid.parts.why, key=lambda w: w.at)
        return list(dict.fromkeys([self.refusal, *(w.reason for w in notes)]))

    def lines(self) -> list[str]:
        """The text for DuckDB, the reasons, each fragment's plan, and DuckDB's plan."""
        count = len(self.fragments)
        shown = f"{count} fragment{'s' * (count != 1)}" if count else "no fragment"
        lines = [f"DuckDB runs over {shown}:"]
        lines += [f"  {line}" for line in self.hybrid.text.text.strip().splitlines()]
        if self.hybrid.parts.relations:
            lines.append("  reading " + ", ".join(sorted(self.hybrid.parts.relations.values())))
        if self.once:
            lines.append("Computed once: " + ", ".join(self.once))
        lines += ["Why:", *(f"  {reason}" for reason in self.reasons)]
        for fragment, plan in self.fragments:
            columns = ", ".join(f"c{n} = {name}" for n, name in enumerate(fragment.names))
            lines.append(f"Fragment {fragment.name} ({columns}):")
            lines += [f"  {line}" for line in fragment.text.strip().splitlines()]
            lines += [f"    {line}" for line in plan.lines()]
        return [*lines, "DuckDB's plan:", *(f"  {line}" for line in self.plan.splitlines())]

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "duckdb": {"sql": self.hybrid.text.text, "plan": self.plan},
            "why": self.reasons,
            "fragments": [
                {
                    "name": fragment.name,
                    "columns": list(fragment.names),
                    "sql": fragment.text,
                    "plan": plan.to_dict(),
                }
                for fragment, plan in self.fragments
            ],
            "once": self.once,
            "reads": sorted(self.hybrid.parts.relations.values()),
        }

    def undrawn(self, form: str) -> NotSupportedError:
        """Returns the error that there is no drawing or page."""
        return _undrawn(form)


def explain_hybrid(ctx: Context, asked: Explain, refusal: Error) -> HybridExplanation:
    """Explains a statement that einsql alone cannot run.

    Raises:
        Error: The refusal, if DuckDB may not run it; what DuckDB's binder finds wrong.
    """
    inner = asked.statement
    is_made = isinstance(inner, st.CreateTensor)
    outside = hybrid_plan.is_outside(refusal)
    if ctx.settings.fallback == "off" or not outside or asked.form in ("svg", "html"):
        raise _undrawn(asked.form) if asked.form in ("svg", "html") and outside else refusal
    text = asked.text
    is_statement = isinstance(inner, st.DuckDBStatement | st.Change)
    if is_statement:
        structure = Structure(tokenize(text))
        duckdb_statements.check(ctx, structure, refusal)
        if asked.analyze and duckdb_statements.stores(structure):
            raise NotSupportedError(
                "EXPLAIN ANALYZE of a change of tables would store it",
                hint="EXPLAIN shows its plan, and EXPLAIN ANALYZE of its SELECT what that takes.",
            )
    if is_made:
        text = text[text.upper().index(" AS ") + 4 :]
    hybrid = (
        hybrid_plan.split_duckdb_statement(ctx, text)
        if is_statement
        else hybrid_plan.split(ctx, text)
    )
    plan = hybrid_plan.duckdb_plan(ctx, hybrid, asked.analyze)
    fragments = [(f, _plan(ctx, asked, hybrid, f)) for f in hybrid.parts.fragments]
    once = [o.shown for o in share(hybrid.parts.fragments, query_binder(ctx).catalog.view)[0]]
    return HybridExplanation(asked, hybrid, fragments, plan, _reason(ctx, refusal), once)


def _reason(ctx: Context, refusal: Error) -> str:
    """Returns the reason why einsql alone cannot run the statement."""
    named = refusal.reason.split('"')[1::2]
    if isinstance(refusal, UnknownHere) and named and ctx.duck.has(named[0]):
        return f"{named[0]} is a table"
    return refusal.reason


def _plan(
    ctx: Context, asked: Explain, hybrid: hybrid_plan.Hybrid, fragment: Fragment
) -> Explanation:
    planned, inputs = hybrid.runner.plan(fragment)
    if isinstance(planned.plan, Plan):
        return GraphExplanation(asked, planned.plan, ctx.settings, None)
    return explain_tiles(planned.plan, asked, inputs, ctx.tick, None)


def _undrawn(form: str) -> NotSupportedError:
    return NotSupportedError(
        f"EXPLAIN of a statement that DuckDB runs has no {form}",
        hint="FORMAT text and FORMAT json show its fragments.",
    )
