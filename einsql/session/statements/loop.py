"""FOR … DO … END FOR: runs the steps and collects their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from itertools import islice
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.engine.cancellation import reason_of
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
from einsql.sql.parser.positions import locate, unsupported
from einsql.sql.scope.relation import deduplicated
from einsql.storage.fields import PlacedFields
from einsql.storage.results.result import Result
from einsql.storage.results.rows_result import RowsResult

if TYPE_CHECKING:
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
        run.steps(loop, (), (0.0, 1.0), speaks=True)
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
        if run.leads and ctx.cluster is not None:
            ctx.cluster.follow()
        ctx.progress.stage = (0.0, 1.0)
        ctx.parameters = run.given


@dataclass(slots=True)
class _Step:
    """A step whose runs the ranks may not have completed.

    Attributes:
        number: The number of the step in its loop.
        at: The variables of this loop and of the enclosing ones, and their values.
        runs: The number of runs up to its end.
        changes: The number of changed rows up to its end.
        keep: Restores its changes.
        rows: Its rows.
        pending: The result with its only row, if the answers of the ranks contain it.
    """

    number: int
    at: tuple[tuple[str, int], ...]
    runs: int = 0
    changes: int = 0
    keep: Callable[[], None] = lambda: None
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    pending: Rows | None = None


def _text(at: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in at)


class _Run:
    """A running loop.

    Attributes:
        given: The parameters of the call.
        own: Whether the loop is its own transaction.
        leads: Whether the loop may start runs on ranks ahead; a loop in a callback of it may not.
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
        self._rows_kept = self._changes_kept = 0
        self.leads = ctx.cluster is not None and ctx.cluster.lead()
        self._begun: deque[_Step] = deque()
        ctx.duck.asked = False

    def begin(self) -> None:
        """Begins the transaction, or the next one."""
        self.ctx.store.begin()
        self.ctx.duck.asked = False
        self._committed = self._last
        self._kept = self.ctx.store.savepoint()

    def steps(
        self,
        loop: st.For,
        around: tuple[tuple[str, int], ...],
        part: tuple[float, float],
        speaks: bool,
    ) -> None:
        """Runs the steps of a loop.

        Args:
            loop: The loop.
            around: The variables of the enclosing loops and their values.
            part: The completed fraction of the statement before the loop, 0 to 1, and the loop's
                fraction of the statement.
            speaks: Whether rows of the loop are rows of the statement.
        """
        lo, width = part
        ctx = self.ctx
        ctx.parameters = self._parameters(around)
        values = self._values(loop)
        share = width / max(1, len(values))
        simple = not any(isinstance(p.statement, st.For | st.Transaction) for p in loop.body)
        n = alone = 0
        while n < len(values):
            # A first step shows what its statements do; a failed one is repeated for its error.
            ahead = simple and n > alone and self._runs_ahead()
            begun = _Step(n, (*around, (loop.variable, values[n])))
            try:
                if not ahead:
                    self._hear(all_steps=True)
                self._step(loop, begun, (lo + n * share, share), speaks, ahead)
                self._hear(all_steps=n + 1 == len(values))
            except BaseException as error:
                failed = self._recover(error, n)
                if failed is None:
                    reason = reason_of(error)
                    if reason is error:
                        raise
                    raise reason from None
                n = alone = failed
            else:
                n += 1

    def _step(
        self, loop: st.For, step: _Step, fraction: tuple[float, float], speaks: bool, ahead: bool
    ) -> None:
        """Runs one step.

        Args:
            loop: The loop.
            step: The step.
            fraction: The completed fraction of the statement before the step, 0 to 1, and the
                step's fraction of the statement.
            speaks: Whether rows of the loop are rows of the statement.
            ahead: Whether ranks get its runs before they have answered earlier ones.
        """
        ctx, at, (start, share) = self.ctx, step.at, fraction
        for m, part in enumerate(loop.body):
            begin, piece = start + share * m / len(loop.body), share / len(loop.body)
            ctx.progress.stage = (begin, piece)
            ctx.tick(0.0)
            match part.statement:
                case st.For() as inner:
                    self.steps(inner, at, (begin, piece), speaks and m == loop.speaker)
                case st.Transaction():
                    ctx.store.commit()
                    self.begin()
                case _:
                    outcome = self._statement(part, at, ahead)
                    if speaks and m == loop.speaker:
                        self._speak(part, step, outcome, ahead)
        if ahead and ctx.cluster is not None and not ctx.duck.asked:
            step.runs, step.changes = ctx.cluster.ahead.begun, self.changes
            step.keep = ctx.store.savepoint()
            self._begun.append(step)
            return
        self._hear(all_steps=True)
        self.rows += self._rows_with_pending(step)
        self._complete(at)

    # ---- steps on ranks

    def _runs_ahead(self) -> bool:
        """Whether steps may begin before ranks have completed the previous ones.

        A callback for rows may read the state after its step, and changes by DuckDB cannot be
        undone step by step.
        """
        ctx = self.ctx
        progress = ctx.progress
        reads = progress.report_step is not None and progress.report_reads
        return self.leads and not reads and not ctx.duck.asked

    def _hear(self, *, all_steps: bool) -> None:
        """Ends steps that the ranks have completed.

        Args:
            all_steps: Whether to wait for all begun steps.

        Raises:
            AheadError: A run has failed.
        """
        cluster = self.ctx.cluster
        if cluster is None or not self._begun:
            return
        cluster.hear(all_runs=all_steps, at_once=not all_steps)
        self._end_completed(cluster.ahead.done)

    def _end_completed(self, done: int) -> None:
        """Ends begun steps of which ranks have completed all runs.

        Args:
            done: The number of completed runs.
        """
        while self._begun and self._begun[0].runs <= done:
            step = self._begun.popleft()
            self.rows += self._rows_with_pending(step)
            self._changes_kept = step.changes
            self._keep(step.at, step.keep)

    def _recover(self, error: BaseException, n: int) -> int | None:
        """Waits for all runs after an error, and undoes the steps that ranks have not completed.

        Args:
            error: The error of a statement, or `AheadError`.
            n: The number of the running step.

        Returns:
            The number of the first failed step if it must be repeated alone, which raises its
            error; None if no run failed, or after a cancellation or the end of all ranks.
        """
        cluster = self.ctx.cluster
        if cluster is None or not self.leads:
            return None
        ahead, reason = cluster.ahead, reason_of(error)
        cancelled = isinstance(reason, InterruptedError) or not isinstance(reason, Error)
        cluster.finish(reason if cancelled else None)
        self._end_completed(ahead.done)
        failed, lost = ahead.begun > ahead.done, ahead.lost
        first = self._begun[0].number if self._begun else n
        self._begun.clear()
        ahead.reset()
        if cancelled or not failed or (lost and not isinstance(reason, RanksLost)):
            return None
        self._kept()
        del self.rows[self._rows_kept :]
        self.changes = self._changes_kept
        return first

    def _values(self, loop: st.For) -> range:
        numbers = [self._whole(tree, loop.at) for tree in loop.bounds]
        if len(numbers) == 3 and numbers[2] == 0:
            raise DataError("range() cannot go on by 0", position=loop.at)
        return range(*numbers)

    def _whole(self, tree: exp.Expr, at: int) -> int:
        try:
            nested = tree.find(exp.Query)
            if nested is not None:
                raise unsupported(
                    "A subquery in range()", nested, "SELECT it first, and give it as a parameter."
                )
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

    def _statement(self, part: st.Part, at: tuple[tuple[str, int], ...], ahead: bool) -> Outcome:
        """Runs a statement of the body."""
        numbered = enumerate(
            self._parameters(at), 1
        )  # the plan of a part depends on the parameters it reads
        self.ctx.parameters = tuple(v if n in part.numbers else None for n, v in numbered)
        with self._located(part), self._starting(ahead and not self.ctx.duck.asked):
            outcome = self.execute(part.text.text)
        self.changes += max(0, outcome.count) if isinstance(outcome, Changed) else 0
        return outcome

    @contextmanager
    def _starting(self, ahead: bool) -> Iterator[None]:
        """Lets the runs of a statement start ahead."""
        cluster = self.ctx.cluster
        if cluster is None or not ahead:
            yield
            return
        cluster.ahead.allowed = True
        try:
            yield
        finally:
            cluster.ahead.allowed = False

    @contextmanager
    def _located(self, part: st.Part) -> Iterator[None]:
        """Completes the positions of errors."""
        try:
            yield
        except Error as error:
            part.text.relocate(error)
            if not isinstance(error, InterruptedError):
                error.position = part.start if error.position is None else error.position
            raise

    def _speak(self, part: st.Part, step: _Step, outcome: Outcome, ahead: bool) -> None:
        """Records the rows of a step, or the result with its only row if that is not known yet."""
        if ahead and isinstance(outcome, Rows) and isinstance(result := outcome.result, Result):
            fields = result.fields
            if isinstance(fields, PlacedFields) and fields.pending and result.schema.size == 1:
                step.pending = outcome
                return
        with self._located(part):
            step.rows += self._rows_of(outcome, step.at)

    def _rows_with_pending(self, step: _Step) -> list[tuple[Any, ...]]:
        """Returns the rows of a step whose runs are answered, in the order of its statements."""
        pending = [] if step.pending is None else self._rows_of(step.pending, step.at)
        return [*step.rows, *pending]

    def _rows_of(self, outcome: Outcome, at: tuple[tuple[str, int], ...]) -> list[tuple[Any, ...]]:
        """Returns the row of a step, if the step has one."""
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
        names = tuple(deduplicated([*(name for name, _ in at), *(str(d[0]) for d in description)]))
        types = tuple([DType.BIGINT.value] * len(at) + [str(d[1]) for d in description])
        if self.columns is None:
            self.columns = RowsResult(names, types, self.rows)
        if names != self.columns.names:
            raise ProgrammingError(
                f"The last SELECT of a loop has the columns {', '.join(names)} in this step, and "
                f"had {', '.join(self.columns.names)} before",
                hint="Name its columns in place of *.",
            )
        if types != self.columns.types:
            common = tuple(map(_common, names, self.columns.types, types))
            self.columns = RowsResult(names, common, self.rows)
        return [(*(value for _, value in at), *row) for row in rows]

    def _complete(self, at: tuple[tuple[str, int], ...]) -> None:
        """Keeps a completed step, and commits it if DuckDB has worked for it."""
        if self.own and self.ctx.duck.asked:
            self._last = _text(at)
            self.ctx.store.commit()
            self.begin()
        self._changes_kept = self.changes
        self._keep(at, self.ctx.store.savepoint())

    def _keep(self, at: tuple[tuple[str, int], ...], keep: Callable[[], None]) -> None:
        """Makes a step the last one that is kept, and reports its rows; `keep` restores it."""
        reported, self._rows_kept = self._rows_kept, len(self.rows)
        self._last, self._kept = _text(at), keep
        progress = self.ctx.progress
        if progress.report_step is None or self.columns is None:
            return
        for row in self.rows[reported:]:
            progress.call_step(self.columns.description, row)
        if not progress.report_reads:
            return
        # No later step has begun, and the callback may have written.
        if self.own and self.ctx.duck.asked:
            self.ctx.store.commit()
            self.begin()
        self._kept = self.ctx.store.savepoint()

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
                if self.ctx.duck.asked:
                    self._undo_tables()
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

    def _undo_tables(self) -> None:
        """Undoes DuckDB's changes since the last commit, which are those of incomplete steps."""
        duck, database = self.ctx.duck, self.ctx.store.database
        with database.lock:
            duck.rollback()
            duck.begin()
            database.touch(duck)
        database.tables = object()

    def outcome(self, loop: st.For) -> Outcome:
        """Returns the rows, or the number of changed rows if no statement returns rows."""
        if loop.speaker is None:
            return Changed(self.changes)
        columns = self.columns
        if columns is None:
            columns = RowsResult((loop.variable,), (DType.BIGINT.value,), self.rows)
        return Rows(columns, columns.description)


def _common(name: str, before: str, now: str) -> str:
    """The type of a loop's column whose type has changed between steps.

    Raises:
        ProgrammingError: The types have none in common.
    """
    if before == now:
        return now
    known = {t.value: t for t in DType if t is not DType.BOOLEAN}
    if before not in known or now not in known:
        raise ProgrammingError(
            f"{name} of the last SELECT of a loop is {now} in this step, and was {before} before",
            hint="CAST it to one type.",
        )
    integers = known[before].is_integer and known[now].is_integer
    return DType.BIGINT.value if integers else DType.DOUBLE.value
