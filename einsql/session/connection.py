"""Connections: PEP 249's connection, and what einsql adds to it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from einsql.core import forks
from einsql.core.lazy_module import LazyModule
from einsql.core.quoting import in_quotes
from einsql.core.settings import Settings
from einsql.engine.cancellation import watched
from einsql.explain.options import options_text
from einsql.kernels.runtime.blas import Statement
from einsql.planner.context import CallerScope, Context
from einsql.planner.outcome import Listing
from einsql.session.cursor import Cursor, Parameters
from einsql.session.lifetime import Lifetime
from einsql.session.script import run_script
from einsql.sql.parser.lexical import is_complete, scan
from einsql.storage.error_boundary import boundary
from einsql.storage.host_arrays import array_relation, check_names, is_table, shown_columns
from einsql.storage.memory import Memory
from einsql.storage.objects import Tensor
from einsql.storage.session_store import Store

if TYPE_CHECKING:
    from einsql.engine.ranks import windows
    from einsql.engine.ranks.driver import Cluster
    from einsql.explain.explanation import Explanation
    from einsql.hybrid import duckdb_statements
    from einsql.session import einsum_call
    from einsql.storage.database.memory import Database
    from einsql.storage.duckdb.connection import Duck
else:  # loaded for tables of Python, `einsum`, and sessions on ranks
    windows = LazyModule("einsql.engine.ranks.windows")
    duckdb_statements = LazyModule("einsql.hybrid.duckdb_statements")
    einsum_call = LazyModule("einsql.session.einsum_call")

_NOTHING = nullcontext()


class Connection(Lifetime):
    """A database session.

    Attributes:
        context: The services that its statements use.
        store: The names of the session.
        memory: The budget of the session and its spill files.
        notices: Messages of statements that did not fail; the console prints and clears them.
    """

    def __init__(
        self,
        cluster: Cluster | None = None,
        settings: Settings | None = None,
        database: Database | None = None,
        scope: CallerScope | None = None,
    ) -> None:
        self.context = _context(cluster, settings or Settings(), database)
        if scope is not None:
            self.context.scope = scope
        super().__init__()  # registers it for forks, which read the context
        self.store, self.memory = self.context.store, self.context.memory
        self.notices = self.context.notices

    # ---- the public face

    def execute(self, sql: str, parameters: Parameters = None) -> Cursor:
        """Runs every statement of a text and returns a cursor on the last one's result.

        Args:
            sql: One or more statements.
            parameters: Values for `?` and `$1`; only with a single statement.

        Raises:
            Error: With the position in the text.
        """
        return self.cursor().execute(sql, parameters)

    def sql(self, query: str, *, params: Parameters = None) -> Cursor:
        """As `execute`, at once, under the name and with the arguments that DuckDB has for it."""
        return self.execute(query, params)

    def executemany(self, sql: str, many: Iterable[Parameters]) -> Cursor:
        """Runs a text once for each set of parameters, on a new cursor."""
        return self.cursor().executemany(sql, many)

    def cursor(self) -> Cursor:
        """A new cursor."""
        self.check_open()
        return Cursor(self)

    def register(
        self, name: str, array: object, dims: Sequence[str] | None = None,
        *, fill: int | None = None,
    ) -> None:  # fmt: skip
        """Gives an array a name in SQL, without a copy when it is dense, CSR or CSC.

        The array stays its owner's, so it is no part of a transaction: ROLLBACK neither
        forgets it nor brings one back.

        Args:
            name: The tensor's name; another registered array of this name is replaced.
            array: NumPy, DLPack, SciPy sparse, Arrow; a DataFrame without dims becomes a table.
            dims: Key names, one for each axis; `d0`, `d1`, … without. The value is `val`.
            fill: 0 if elements that a sparse array does not store are zeros, else they are absent.

        Raises:
            InterfaceError: It is no tensor, dims do not fit, or it stores an element twice.
            ProgrammingError: A stored tensor, a view or a table has the name.
        """
        self.check_open()
        check_names(name, dims)
        if dims is None and is_table(array):
            with self.context.lock, boundary:
                duckdb_statements.register_table(self.context, name, array)
        else:
            self.duck.refuse(name)
            relation = array_relation(array, None if dims is None else tuple(dims), fill)
            self.store.register(Tensor(name, relation, shown_columns(relation), borrowed=True))

    def unregister(self, name: str) -> None:
        """Forgets a registered array, in a transaction as outside of it, or a registered table.

        Raises:
            ProgrammingError: Nothing is registered under the name.
        """
        self.check_open()
        if self.duck.is_registered(str(name)):
            self.execute(f"DROP TABLE temp.{in_quotes(str(name))}")
        else:
            self.store.unregister(str(name))

    def explain(
        self, sql: str, *, analyze: bool = False, verbose: bool = False, simulate: bool = False,
        sites: int | None = None, **options: int | str,
    ) -> Explanation:  # fmt: skip
        """The plan of a SELECT: `print` it, or ask it for JSON, SVG or HTML.

        Args:
            sql: The SELECT.
            analyze: Whether to run it and measure.
            verbose: Whether to show what each rewrite rule changed.
            simulate: Whether to play it on a cluster.
            sites: Plan for so many sites instead of the setting.
            options: EXPLAIN's other options with values, as in network="100Gbps".

        Raises:
            InterfaceError: A format is asked for.
            Error: With the position in the text.
        """
        flags = {"analyze": analyze, "verbose": verbose, "simulate": simulate, "sites": sites}
        text = f"EXPLAIN {options_text({**flags, **options})}{sql}"
        with self.running(sys._getframe(1), ()):
            outcome = run_script(self.context, text)
        assert isinstance(outcome, Listing), "EXPLAIN gives a listing"
        return cast("Explanation", outcome.report)

    def split(self, sql: str) -> list[tuple[int, str]]:
        """Splits a script into (offset, text) of its statements."""
        return [(span.start, sql[span.start : span.end]) for span in scan(sql)]

    def is_complete(self, text: str) -> bool:
        """True if the text ends with a semicolon outside quotes and comments."""
        return is_complete(text)

    def interrupt(self) -> None:
        """Cancels, from another thread, the running statement and what is being fetched."""
        self.context.progress.interrupts.send()

    def commit(self) -> None:
        """Commits the running transaction; nothing without one."""
        with self.context.lock, boundary:
            self.check_open()
            if self.store.in_transaction:
                self.store.commit()

    def rollback(self) -> None:
        """Undoes the running transaction; nothing without one."""
        with self.context.lock, boundary:
            self.check_open()
            if self.store.in_transaction:
                self.store.rollback()

    def close(self) -> None:
        """Closes the connection and frees what it holds.

        A statement of another thread is interrupted, and waited for. A child of a fork leaves
        what the connection holds to the process that opened it.

        Raises:
            InterfaceError: It is closed already, as PEP 249 has it; leaving a `with` block
                closes what is open.
        """
        if not self._end():
            return
        self.interrupt()
        with self.context.lock, boundary:
            self.context.plans.clear()
            self.memory.close()
            self.store.close()
            if self.cluster is not None:
                self.cluster.part()
                self.context.cluster = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.closed:
            self.close()

    def forked(self, refusal: forks.Refusal) -> None:
        """As `Lifetime.forked`; a statement that was running in the thread that forked stops."""
        super().forked(refusal)
        self.context.progress.stop(refusal.refuse)
        self.context.lock = threading.RLock()

    @property
    def duck(self) -> Duck:
        """The session's connection to DuckDB."""
        return self.store.duck

    @property
    def settings(self) -> Settings:
        """The session's settings."""
        return self.context.settings

    @property
    def cluster(self) -> Cluster | None:
        """The MPI ranks that compute, or None."""
        return self.context.cluster

    @property
    def planner_calls(self) -> int:
        """The number of planned queries; a cached plan is not planned again."""
        return self.context.plans.planned

    @property
    def progress(self) -> Callable[[float], None] | None:
        """Called with the fraction done from the thread that runs the statement, or None."""
        return self.context.progress.report

    @progress.setter
    def progress(self, report: Callable[[float], None] | None) -> None:
        self.context.progress.report = report

    @property
    def stepped(self) -> Callable[[Sequence[Sequence[Any]], tuple[Any, ...]], None] | None:
        """Called with the description and the row of each complete step of a FOR, or None."""
        return self.context.progress.report_step

    @stepped.setter
    def stepped(
        self, report: Callable[[Sequence[Sequence[Any]], tuple[Any, ...]], None] | None
    ) -> None:
        self.context.progress.report_step = report

    def einsum(self, spec: str, arrays: Sequence[object]) -> np.ndarray:
        """NumPy's einsum through this connection's engine; empty sums are zeros."""
        return einsum_call.run_einsum(self.context, spec, arrays)

    @contextmanager
    def running(self, frame: FrameType, parameters: Sequence[object]) -> Iterator[None]:
        """Holds the connection for a statement, which `interrupt` cancels from now on.

        Args:
            frame: The caller's frame; FROM may name its variables.
            parameters: Values of the statement's parameters.
        """
        ctx = self.context
        with ctx.lock, boundary, Statement():
            check, values = ctx.progress.begin(), ctx.parameters
            scope, caller = ctx.scope, ctx.scope.enter(frame)
            try:
                with _NOTHING if ctx.cluster is None else watched(check):
                    self.check_open()  # another thread may have closed it meanwhile
                    ctx.parameters = parameters
                    yield
            finally:
                ctx.parameters = values
                scope.leave(caller)

    def fetching(self) -> AbstractContextManager[None]:
        """A fetch begins: meanwhile `interrupt` cancels what this thread fetches from ranks."""
        if self.context.cluster is None:
            return _NOTHING
        return watched(self.context.progress.interrupts.begin())


def _context(cluster: Cluster | None, settings: Settings, database: Database | None) -> Context:
    context: Context | None = None  # opening a file asks for settings before there is one
    store = Store(database, lambda: settings if context is None else context.settings)
    memory = Memory(settings, store.states, store.database.path)
    store.memory, store.settle = memory, memory.settled
    context = Context(settings, store, memory)
    if cluster is not None:
        context.cluster = cluster.join(context.regrouped)
        store.lent = windows.lent
    return context
