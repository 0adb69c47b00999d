"""Prepared statements of queries that einsql and DuckDB run together."""

from __future__ import annotations

from einsql.core.big_stack import NeedsRoom
from einsql.core.records import dataclass
from einsql.errors import Error, RanksLost, UnknownHere
from einsql.hybrid import effects, failures, hybrid_plan
from einsql.planner.context import Context
from einsql.planner.outcome import Description, Rows

NOTED = 100_000
"""Rows of elements that DuckDB reads, from which a notice gives the reason."""


@dataclass(slots=True)
class HybridQuery:
    """A query split between einsql and DuckDB; implements `PreparedStatement`.

    The query is split by its first run, so that the split and the result see one snapshot of
    the database.

    Attributes:
        text: The query.
        refusal: The binder's error: the reason why einsql alone cannot run the query.
        split: The split query, after the first run.
        description: The description of its columns, after the first run.
    """

    text: str
    refusal: Error
    split: hybrid_plan.Hybrid | None = None
    description: Description | None = None
    version: int = -1
    use: None = None
    template: None = None

    @property
    def is_volatile(self) -> bool:
        """Returns True if the plans may run only once."""
        return self.split is None or self.split.is_volatile

    def fits(self, ctx: Context) -> None:
        """Unknown, as DuckDB's tables are; see `planner.plan_cache.Cacheable`."""

    def described(self, ctx: Context) -> Description | None:
        """Returns the description of the columns.

        Returns:
            None if the split does not fit the names any more, or the query has to run once.
        """
        split = self.split
        if split is None or not hybrid_plan.is_current(ctx, split) or effects.runs_once(ctx, split):
            return None
        return self.description

    def run(self, ctx: Context) -> Rows | None:
        """Runs the query. Returns None if it has to be split again.

        Raises:
            Error: A fragment or DuckDB fails; the refusal, if only einsql has a named function.
        """
        ctx.ask_duckdb()
        if self.split is not None:
            try:
                with ctx.store.snapshot():
                    return hybrid_plan.answer_again(ctx, self.split)
            except (UnknownHere, RanksLost, NeedsRoom):
                return None
            except BaseException:
                self.split = None  # the runner may be in an intermediate state
                raise
        try:
            with ctx.store.snapshot():
                parts = hybrid_plan.split(ctx, self.text, self.refusal)
                rows = hybrid_plan.answer(ctx, parts)
        except UnknownHere as unknown:
            if failures.names_ours(unknown):
                raise self.refusal from None
            raise
        self.split, self.description = parts, rows.description
        count = 0 if parts.is_whole else parts.runner.element_rows
        if count > NOTED:
            reason = _reason(self.refusal, parts)
            ctx.notices.append(f"DuckDB reads {count:,} rows of elements: {reason}")
        return rows


def described(ctx: Context, text: str, query: object) -> Description | None:
    """Binds a query of `prepare_hybrid` without running it.

    Returns:
        The description of the query's columns; None for one that has to run once.

    Raises:
        Error: The query is wrong; the refusal, if only einsql has a named function.
    """
    assert isinstance(query, HybridQuery)
    ctx.ask_duckdb()
    try:
        with ctx.store.snapshot():
            split = hybrid_plan.split(ctx, text, query.refusal)
            return None if effects.runs_once(ctx, split) else hybrid_plan.described(ctx, split)
    except UnknownHere as unknown:
        if failures.names_ours(unknown):
            raise query.refusal from None
        raise


def _reason(refusal: Error, parts: hybrid_plan.Hybrid) -> str:
    """The reason for rows of elements: a clause that follows a SELECT reads results alone."""
    first = refusal.outside if isinstance(refusal, UnknownHere) else refusal.reason
    if not first.startswith(("ORDER BY", "LIMIT", "OFFSET")):
        return first
    clauses = ("ORDER BY", "LIMIT", "OFFSET", "DISTINCT")
    others = (why.reason for why in parts.parts.why if not why.reason.startswith(clauses))
    return next(others, first)


def prepare_hybrid(ctx: Context, text: str, refusal: Error) -> HybridQuery:
    """Prepares a query that einsql alone cannot run.

    Raises:
        Error: The refusal, if DuckDB may not run the query.
    """
    if ctx.settings.fallback == "off" or not hybrid_plan.is_outside(refusal):
        raise refusal
    refusal.__context__ = refusal.__cause__ = None
    # Without its traceback: frames of callers would keep their local variables.
    return HybridQuery(text, refusal.with_traceback(None))
