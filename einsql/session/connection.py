"""Connections: PEP 249's interface and einsql's extensions."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from einsql.core import forks
from einsql.core.lazy_module import LazyModule
from einsql.core.quoting import in_quotes
from einsql.core.settings import Settings
from einsql.engine.cancellation import watched
from einsql.kernels.runtime import compile_cache
from einsql.kernels.runtime.blas import Statement
from einsql.planner.context import CallerScope, Context
from einsql.planner.outcome import Listing
from einsql.session.cursor import Cursor, Parameters
from einsql.session.lifetime import Lifetime
from einsql.session.script import run_script
from einsql.session.shortcuts import Shortcuts
from einsql.session.tracebacks import guarded_methods
from einsql.sql.parser.lexical import is_complete, scan
from einsql.storage.error_boundary import boundary
from einsql.storage.host_arrays import check_names, is_table, registered_relation, shown_columns
from einsql.storage.memory import Memory
from einsql.storage.objects import Tensor
from einsql.storage.session_store import Store

if TYPE_CHECKING:
    from einsql.engine.ranks import windows
    from einsql.engine.ranks.driver import Cluster
    from einsql.explain import options as _options
    from einsql.explain.explanation import Explanation
    from einsql.hybrid import duckdb_statements
    from einsql.planner import plan_files
    from einsql.session import create_aggregate, create_function, einsum_call
    from einsql.storage.database.memory import Database
    from einsql.storage.duckdb.connection import Duck
else:  # imported for variables in FROM, `einsum`, plan files, and sessions on ranks
    windows = LazyModule("einsql.engine.ranks.windows")
    duckdb_statements = LazyModule("einsql.hybrid.duckdb_statements")
    plan_files = LazyModule("einsql.planner.plan_files")
    create_aggregate = LazyModule("einsql.session.create_aggregate")
    create_function = LazyModule("einsql.session.create_function")
    einsum_call = LazyModule("einsql.session.einsum_call")
    _options = LazyModule("einsql.explain.options")

_NOTHING = nullcontext()


@guarded_methods("running", "fetching", "forked", "check_open")
class Connection(Lifetime, Shortcuts):
    """A database session.

    Attributes:
        context: The services that its statements use.
        store: The names of the session.
        memory: The budget of the session and its spill files.
        notices: Messages of successful statements; the console prints and clears them.
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

    # ---- the public interface

    def execute(self, sql: str, parameters: Parameters = None) -> Cursor:
        """Runs every statement of a text and returns a cursor on the last one's result.

        Args:
            sql: One or more statements.
            parameters: Values for `?` and `$1`; only with a single statement.

        Raises:
            Error: A statement is wrong or fails; the error has the position in the text.
        """
        self._forget()
        return self._keep(self.cursor().execute(sql, parameters))

    def executemany(self, sql: str, many: Iterable[Parameters]) -> Cursor:
        """Runs a text once for each set of parameters, on a new cursor."""
        self._forget()
        return self._keep(self.cursor().executemany(sql, many))

    def cursor(self) -> Cursor:
        """Returns a new cursor."""
        self.check_open()
        return Cursor(self)

    def register(
        self, name: str, array: object, dims: Sequence[str] | None = None,
        *, fill: int | None = None,
    ) -> None:  # fmt: skip
        """Registers an array under a name in SQL, without a copy if it is dense, CSR or CSC.

        The caller keeps the array, so registrations are outside of transactions: ROLLBACK
        neither removes nor restores one.

        Args:
            name: The tensor's name; it replaces a registered array of the same name.
            array: A NumPy, DLPack, SciPy sparse or Arrow array. A DataFrame without dims becomes a
                table.
            dims: The key names, one for each axis; by default `d0`, `d1`, …. The value is `val`.
            fill: 0 to read the unstored elements of a SciPy sparse array as zeros; None to read
                them as absent keys.

        Raises:
            InterfaceError: The array is no tensor or stores an element twice, or dims do not fit.
            ProgrammingError: A stored tensor, a view or a table has the same name.
        """
        self.check_open()
        check_names(name, dims)
        if dims is None and is_table(array):
            with self.context.lock, boundary:
                duckdb_statements.register_table(self.context, name, array)
        else:
            self.duck.refuse(name)
            relation = registered_relation(array, None if dims is None else tuple(dims), fill)
            self.store.register(Tensor(name, relation, shown_columns(relation), borrowed=True))

    def unregister(self, name: str) -> None:
        """Removes a registered array or table; ROLLBACK does not restore it.

        Raises:
            ProgrammingError: No array or table is registered under the name.
        """
        self.check_open()
        if self.duck.is_registered(str(name)):
            self.execute(f"DROP TABLE temp.{in_quotes(str(name))}")
        else:
            self.store.unregister(str(name))

    def create_function(
        self, name: str, function: Callable[..., Any], parameters: Any = None,
        return_type: Any = None, *, type: Any = "native", null_handling: Any = "default",
        exception_handling: Any = "default", side_effects: bool = False, trace: bool = True,
        derivative: Any = None, commutative: bool = False, associative: bool = False,
        identity: float | bool | None = None, annihilator: float | bool | None = None,
        monotone: str = "",
    ) -> None:  # fmt: skip
        """Creates a scalar function from a Python function, as DuckDB's method of this name.

        The first eight arguments are DuckDB's. A function of numbers is called with recording
        objects; if its operations can be recorded, it is the same expression as its SQL spelling.
        Any other function runs over arrays of the present and selected elements. The function is
        never called for NULL, and never written to a database file.

        Args:
            name: The name in SQL.
            function: The Python function.
            parameters: The types of its parameters, such as `["DOUBLE", "INTEGER"]`; by default
                its annotations.
            return_type: The type of its result; by default its annotation.
            type: "native" for a function of numbers, "arrow" for one of arrays of PyArrow, "numpy"
                for one of NumPy arrays.
            null_handling: "default", or "special" for a function that DuckDB calls for NULL, too.
            exception_handling: "default", or "return_null" for a function whose exceptions are NULL
                in DuckDB.
            side_effects: Whether equal calls may differ; such a function runs in DuckDB.
            trace: Whether its operations may be recorded.
            derivative: Its partial derivatives: a Python function that returns them, or an
                expression of SQL over the parameters for each. A function with `derivative` is not
                recorded.
            commutative: Whether f(x, y) = f(y, x). Laws are tested on samples.
            associative: Whether f(f(x, y), z) = f(x, f(y, z)).
            identity: The value e with f(x, e) = x.
            annihilator: The value z with f(x, z) = z for every finite x.
            monotone: "increasing" or "decreasing", for a function of one argument.

        Raises:
            InterfaceError: A type or an option is wrong.
            ProgrammingError: The name is taken, or a law has a counterexample.
        """
        self.check_open()
        options = create_function.Options(
            type, null_handling, exception_handling, side_effects, trace, derivative,
            commutative, associative, identity, annihilator, monotone,
        )  # fmt: skip
        types = parameters, return_type
        create_function.create_function(self.context, self.execute, name, function, types, options)

    def remove_function(self, name: str) -> None:
        """Removes a function that `create_function` has created.

        Raises:
            ProgrammingError: There is no such function.
        """
        self.check_open()
        create_function.remove_function(self.context, self.execute, name)

    def create_aggregate(
        self, name: str, *, state: Mapping[str, Any], lift: Any, merge: Any, finish: Any,
        rescale: Any = None, parameters: Any = None, ordered_by: str | Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Creates an aggregate of this connection, as CREATE TEMP AGGREGATE.

        A clause is the text of its expressions, a sequence with one text for each field, a
        dictionary of texts by field, or a Python function. A function of MERGE or RESCALE has to be
        one that can be recorded, as by `create_function`; one of LIFT or FINISH may be any.

        Args:
            name: The name in SQL.
            state: For each field its type and its value without rows, as in
                `{"m": ("DOUBLE", "-inf"), "n": ("BIGINT", 0), "v": ("FLOAT[4]", 0)}`.
            lift: The fields of a row. A function gets the arguments of the aggregate, and returns
                a tuple of the fields or a dictionary.
            merge: The fields merged of two states. A function gets both as named tuples.
            finish: The result. A function gets the state; a dictionary has several results.
            rescale: A dictionary of fields that depend on other fields, with a text or a function
                of the field's value, the old and the new state.
            parameters: The types of the parameters by name, or a list of types for a function in
                `lift`; by default its annotations, and DOUBLE without.
            ordered_by: The keys in whose order rows are merged if `merge` is not commutative.

        Raises:
            InterfaceError: An argument has the wrong form.
            ProgrammingError: The name is taken, or a law of the aggregate does not hold.
        """
        self.check_open()
        clauses = create_aggregate.Clauses(
            state, lift, merge, finish, rescale, parameters, ordered_by
        )
        create_aggregate.create_aggregate(self.context, self.execute, name, clauses)

    def remove_aggregate(self, name: str) -> None:
        """Removes an aggregate that `create_aggregate` has created.

        Raises:
            ProgrammingError: There is no such aggregate.
        """
        self.check_open()
        create_aggregate.remove_aggregate(self.context, self.execute, name)

    def explain(
        self, sql: str, *, analyze: bool = False, verbose: bool = False, simulate: bool = False,
        level: str | None = None, sites: int | None = None, **options: int | str,
    ) -> Explanation:  # fmt: skip
        """Returns the plan of a SELECT, which can be printed or formatted as JSON, SVG or HTML.

        Args:
            sql: The SELECT.
            analyze: Whether to run the SELECT and measure.
            verbose: Whether to show the changes of each rewrite rule; with a level, how each level
                follows from the one above it.
            simulate: Whether to simulate the plan on a cluster.
            level: The level to show: "einsum", "tra", "ia" or "program"; None for the overview.
            sites: The number of sites to plan for, instead of the setting.
            options: EXPLAIN's other options and their values, as in network="100Gbps".

        Raises:
            InterfaceError: The options contain a format.
            Error: A statement is wrong or fails; the error has the position in the text.
        """
        flags = {"analyze": analyze, "verbose": verbose, "simulate": simulate}
        written = _options.options_text({**flags, "level": level, "sites": sites, **options})
        text = f"EXPLAIN {written}{sql}"
        with self.running(sys._getframe(1), ()):
            outcome = run_script(self.context, text)
        assert isinstance(outcome, Listing), "EXPLAIN gives a listing"
        return cast("Explanation", outcome.report)

    def split(self, sql: str) -> list[tuple[int, str]]:
        """Splits a script into pairs (offset, text), one for each statement."""
        return [(span.start, sql[span.start : span.end]) for span in scan(sql)]

    def is_complete(self, text: str) -> bool:
        """True if the text ends with a semicolon outside quotes and comments."""
        return is_complete(text)

    def interrupt(self) -> None:
        """Cancels the running statement or fetch; called from another thread."""
        self.context.progress.interrupts.send()

    def commit(self) -> None:
        """Commits the running transaction; does nothing without one."""
        with self.context.lock, boundary:
            self.check_open()
            self.context.progress.refuse_in_step()
            if self.store.in_transaction:
                self.store.commit()

    def rollback(self) -> None:
        """Rolls back the running transaction; does nothing without one."""
        with self.context.lock, boundary:
            self.check_open()
            self.context.progress.refuse_in_step()
            if self.store.in_transaction:
                self.store.rollback()

    def close(self) -> None:
        """Closes the connection and releases its resources.

        A statement that runs in another thread is interrupted; `close` waits for its end. A
        forked child leaves the resources to the process that opened the connection.

        Raises:
            InterfaceError: The connection is closed already, as in PEP 249. The end of a `with`
                block closes open connections only.
        """
        if not self._end():
            return
        self.interrupt()
        self._forget()
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
        """See `Lifetime.forked`. A statement that runs in the forking thread is cancelled."""
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
        """The session's MPI ranks, or None."""
        return self.context.cluster

    @property
    def planner_calls(self) -> int:
        """The number of planned queries, without uses of cached plans."""
        return self.context.plans.planned

    @property
    def plan_variants(self) -> int:
        """The number of plans that were kept beside others of the same statement.

        A statement has variants for inputs whose keys have other bounds.
        """
        return self.context.plans.variants

    @property
    def compilations(self) -> int:
        """The number of kernels that this process has compiled, for all of its connections."""
        return compile_cache.compilations()

    @property
    def progress(self) -> Callable[[float], None] | None:
        """Callback with the completed fraction, 0 to 1, in the statement's thread; or None."""
        return self.context.progress.report

    @progress.setter
    def progress(self, report: Callable[[float], None] | None) -> None:
        self.context.progress.report = report

    @property
    def stepped(self) -> Callable[[Sequence[Sequence[Any]], tuple[Any, ...]], None] | None:
        """Callback with the description and the row of each completed step of a FOR; or None."""
        return self.context.progress.report_step

    @stepped.setter
    def stepped(
        self, report: Callable[[Sequence[Sequence[Any]], tuple[Any, ...]], None] | None
    ) -> None:
        self.context.progress.report_step = report

    def einsum(
        self, spec: str, arrays: Sequence[object], *, combine: str = "mul", reduce: str = "sum"
    ) -> np.ndarray:
        """Evaluates an einsum expression on this connection's engine; see `einsql.einsum`.

        `combine` may name a function that CREATE FUNCTION has defined on this connection.
        """
        with self.context.lock:
            return einsum_call.run_einsum(self.context, spec, arrays, combine, reduce)

    @contextmanager
    def running(self, frame: FrameType | None, parameters: Sequence[object]) -> Iterator[None]:
        """Locks the connection for a statement, which `interrupt` can cancel.

        Args:
            frame: The caller's frame, whose variables FROM may name; None for none.
            parameters: The values of the statement's parameters.
        """
        ctx = self.context
        with ctx.lock, boundary, Statement():
            check, values = ctx.progress.begin(), ctx.parameters
            scope, caller = ctx.scope, ctx.scope.enter(frame)
            captured, scope.captured = scope.captured, None
            enclosing = ctx.change_shown({}) if ctx.shown else {}
            try:
                with _NOTHING if ctx.cluster is None else watched(check):
                    self.check_open()  # another thread may have closed the connection
                    ctx.parameters = parameters
                    yield
            finally:
                ctx.parameters = values
                scope.leave(caller)
                scope.captured = captured
                if ctx.shown or enclosing:
                    ctx.change_shown(enclosing)

    def fetching(self) -> AbstractContextManager[None]:
        """Context of a fetch, in which `interrupt` cancels reads from ranks by this thread."""
        if self.context.cluster is None:
            return _NOTHING
        return watched(self.context.progress.interrupts.begin())


def _context(cluster: Cluster | None, settings: Settings, database: Database | None) -> Context:
    if settings.plan is not None:
        settings = plan_files.opened(settings)
    context: Context | None = None  # opening a file reads settings before the context exists
    store = Store(database, lambda: settings if context is None else context.settings)
    memory = Memory(settings, store.states, store.database.path)
    store.memory, store.settle = memory, memory.settled
    context = Context(settings, store, memory)
    if cluster is not None:
        context.cluster = cluster.join(context.regrouped)
        store.lent = windows.lent
    return context
