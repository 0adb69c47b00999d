"""FOR … DO … END FOR: runs the steps and collects their rows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any

from einsql.core.schema import DType
from einsql.errors import (
    DataError,
    Error,
    InterfaceError,
    InterruptedError,
    OperationalError,
    ProgrammingError,
    RanksLost,
)
from einsql.planner.outcome import Changed, Listing, Outcome, Rows
from einsql.planner.queries import evaluate, query_binder
from einsql.sql.parser import syntax as st
from einsql.sql.parser.positions import locate
from einsql.sql.scope.relation import deduplicated
from einsql.storage.results.rows_result import RowsResult

if TYPE_CHECKING:
    from sqlglot import exp

    from einsql.planner.context import Context

Execute = Callable[[str], Outcome]
"""Callback that runs a statement and caches its plan."""


def run_loop(ctx: Context, loop: st.For, execute: Execute) -> Outcome:
    """Runs a loop and returns a row for each step.

    Outside of a transaction the loop begins its own, which is committed at the end of the loop,
    at each COMMIT of the body, and after each step that used DuckDB. A failed or cancelled step
    is undone, and earlier steps are kept. A failure in DuckDB or of a commit undoes the whole
    transaction: the steps since the last commit.

    Args:
        ctx: The session, with the parameters of the call.
        loop: The loop.
        execute: Callback that runs the statements of the body.

    Raises:
        Error: A step fails or is cancelled. The hint names the kept steps, and
            `ctx.progress.partial` has their rows.
    """
    own = not ctx.store.in_transaction
    if loop.commits and not own:
        raise OperationalError(
            "A loop with COMMIT cannot run in a transaction", hint="COMMIT or ROLLBACK it first."
        )
    run = _Run(ctx, execute, tuple(ctx.parameters), own)
    try:
        if own:
            run.begin()
        run.steps(loop, (), 0.0, 1.0)
        if own and ctx.store.in_transaction:
            ctx.store.commit()
        return run.outcome(loop)
    except BaseException as error:
        run.stop(error)
        if run.rows:
            ctx.progress.partial = run.outcome(loop)
        if isinstance(error, Error):
            loop.text.relocate(error)
        if isinstance(error, RanksLost):  # the statement must not be run again from its start
            lost = OperationalError(error.reason, hint=error.hint, position=error.position)
            raise lost from None
        raise
    finally:
        ctx.progress.stage = (0.0, 1.0)
        ctx.parameters = run.given


class _Run:
    """A running loop.

    Attributes:
        given: The parameters of the call.
        own: Whether the loop is its own transaction.
    """

    def __init__(
        self, ctx: Context, execute: Execute, given: tuple[object, ...], own: bool
    ) -> None:
        self.ctx = ctx
        self.execute = execute
        self.given = given
        self.own = own
        self.rows: list[tuple[Any, ...]] = []
        self.columns: RowsResult | None = None
        self.changes = 0
        self._last = self._committed = ""
        self._kept = ctx.store.savepoint()
        self._rows_kept = 0

    def begin(self) -> None:
        """Begins the transaction, or the next one."""
        self.ctx.store.begin()
        self.ctx.duck.asked = False
        self._committed = self._last
        self._kept = self.ctx.store.savepoint()

    def steps(
        self, loop: st.For, around: tuple[tuple[str, int], ...], lo: float, width: float
    ) -> None:
        """Runs the steps of a loop.

        Args:
            loop: The loop.
            around: The variables of the enclosing loops and their values.
            lo: The completed fraction of the statement before the loop, 0 to 1.
            width: The loop's fraction of the statement.
        """
        ctx = self.ctx
        ctx.parameters = self._parameters(around)
        values = self._values(loop)
        share = width / max(1, len(values))
        for n, value in enumerate(values):
            at = (*around, (loop.variable, value))
            start = lo + n * share
            for m, part in enumerate(loop.body):
                begin, piece = start + share * m / len(loop.body), share / len(loop.body)
                ctx.progress.stage = (begin, piece)
                ctx.tick(0.0)
                match part.statement:
                    case st.For() as inner:
                        kept = len(self.rows)
                        self.steps(inner, at, begin, piece)
                        if m != loop.speaker:
                            del self.rows[kept:]
                    case st.Transaction():
                        ctx.store.commit()
                        self.begin()
                    case _:
                        self._statement(part, at, m == loop.speaker)
            self._complete(at)

    def _values(self, loop: st.For) -> range:
        numbers = [self._whole(tree, loop.at) for tree in loop.bounds]
        if len(numbers) == 3 and numbers[2] == 0:
            raise DataError("range() cannot go on by 0", position=loop.at)
        return range(*numbers)

    def _whole(self, tree: exp.Expr, at: int) -> int:
        try:
            bound = query_binder(self.ctx).scalar(tree)
            is_integer = isinstance(bound.type, DType) and bound.type.is_integer
            value = evaluate(self.ctx, bound.value) if is_integer else None
        except Error as error:
            error.position = at if error.position is None else error.position
            raise
        if value is None:
            raise locate(ProgrammingError("range() takes whole numbers", position=at), tree)
        return int(value)

    def _parameters(self, at: tuple[tuple[str, int], ...]) -> tuple[object, ...]:
        """Returns the body's parameters: those of the call, and the values of the variables."""
        return (*self.given, *(value for _, value in at))

    def _statement(self, part: st.Part, at: tuple[tuple[str, int], ...], speaks: bool) -> None:
        numbered = enumerate(
            self._parameters(at), 1
        )  # the plan of a part depends on the parameters it reads
        self.ctx.parameters = tuple(v if n in part.numbers else None for n, v in numbered)
        try:
            outcome = self.execute(part.text.text)
            if speaks:
                self._speak(outcome, at)
        except Error as error:
            part.text.relocate(error)
            if not isinstance(error, InterruptedError):
                error.position = part.start if error.position is None else error.position
            raise
        self.changes += max(0, outcome.count) if isinstance(outcome, Changed) else 0

    def _speak(self, outcome: Outcome, at: tuple[tuple[str, int], ...]) -> None:
        """Adds the row of a step, if the step has one."""
        if isinstance(outcome, Changed):
            raise InterfaceError("There are no results to fetch", hint="Execute a SELECT first.")
        if isinstance(outcome, Listing):
            listing = outcome.result()
            outcome = Rows(listing, listing.description)
        description = outcome.description
        rows = list(islice(outcome.result.rows(), 2))
        if len(rows) > 1:
            raise ProgrammingError(
                "The last SELECT of a loop gives one row a step, and this one gave several",
                hint="Aggregate them, or INSERT them into a table.",
            )
        if self.columns is None:
            names = [name for name, _ in at] + [str(d[0]) for d in description]
            types = [DType.BIGINT.value] * len(at) + [str(d[1]) for d in description]
            self.columns = RowsResult(tuple(deduplicated(names)), tuple(types), self.rows)
        for row in rows:
            self.rows.append((*(value for _, value in at), *row))

    def _complete(self, at: tuple[tuple[str, int], ...]) -> None:
        """Keeps the changes and reports the rows of a completed step."""
        self._last = ", ".join(f"{name} = {value}" for name, value in at)
        if self.own and self.ctx.duck.asked:
            self.ctx.store.commit()
            self.begin()
        self._kept = self.ctx.store.savepoint()
        reported, self._rows_kept = self._rows_kept, len(self.rows)
        report = self.ctx.progress.report_step
        if report is not None and self.columns is not None:
            for row in self.rows[reported:]:
                report(self.columns.description, row)

    def stop(self, error: BaseException) -> None:
        """Undoes the failed step, keeps earlier ones, and extends the error's hint."""
        store = self.ctx.store
        del self.rows[self._rows_kept :]
        if not store.in_transaction:  # a failed commit has undone its steps
            self._last = self._committed
        elif self.ctx.duck.aborted and self.own:
            store.rollback()
            self._last = self._committed
        else:
            self._kept()
            if self.own:
                store.commit()
        if isinstance(error, Error):
            said = (
                f"The steps up to {self._last} are kept."
                if self._last
                else "No step is complete, so nothing is kept."
            )
            error.hint = f"{error.hint} {said}".strip()
            if isinstance(error, InterruptedError):
                self.ctx.notices.append(f"The loop was cancelled. {said}")

    def outcome(self, loop: st.For) -> Outcome:
        """Returns the rows, or the number of changed rows if no statement returns rows."""
        if loop.speaker is None:
            return Changed(self.changes)
        columns = self.columns
        if columns is None:
            columns = RowsResult((loop.variable,), (DType.BIGINT.value,), self.rows)
        return Rows(columns, columns.description)
