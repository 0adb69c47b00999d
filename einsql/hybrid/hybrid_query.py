"""Queries that are not tensor work as a whole, as prepared statements."""

from __future__ import annotations

from dataclasses import dataclass

from einsql.core.big_stack import NeedsRoom
from einsql.errors import Error, RanksLost, UnknownHere
from einsql.hybrid import hybrid_plan
from einsql.planner.context import Context
from einsql.planner.outcome import Rows


@dataclass(slots=True)
class HybridQuery:
    """A query that is not tensor work as a whole, as `planner.prepared.PreparedStatement`.

    It is split when it runs for the first time, so that the split and the answer see one state
    of the database.

    Attributes:
        text: The query.
        refusal: Why it is no tensor work.
        split: Its parts, after the first run.
    """

    text: str
    refusal: Error
    split: hybrid_plan.Hybrid | None = None
    version: int = -1
    use: None = None

    @property
    def is_volatile(self) -> bool:
        """True if what has been planned is for one run."""
        return self.split is None or self.split.is_volatile

    def run(self, ctx: Context) -> Rows | None:
        """Runs it; None if it has to be split anew.

        Raises:
            Error: The refusal, if DuckDB does not know what it names; a fragment or DuckDB fails.
        """
        ctx.duck.asked = True
        if self.split is not None:
            try:
                with ctx.store.snapshot():
                    return hybrid_plan.answer_again(ctx, self.split)
            except (UnknownHere, RanksLost, NeedsRoom):
                return None
            except BaseException:
                self.split = None  # it may have stopped halfway
                raise
        try:
            with ctx.store.snapshot():
                parts = hybrid_plan.split(ctx, self.text, self.refusal)
                rows = hybrid_plan.answer(ctx, parts)
        except UnknownHere as unknown:
            if hybrid_plan.names_ours(unknown):
                raise self.refusal from None
            raise
        self.split = parts
        return rows


def prepare_hybrid(ctx: Context, text: str, refusal: Error) -> HybridQuery:
    """Prepares a query that is no tensor work as a whole.

    Raises:
        Error: The refusal, if DuckDB may not run the query.
    """
    if ctx.settings.fallback == "off" or not hybrid_plan.is_outside(refusal):
        raise refusal
    return HybridQuery(text, refusal)
