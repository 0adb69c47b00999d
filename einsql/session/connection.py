"""Connections: the one place where SQL, optimizer, engine and kernels are joined."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from sqlglot import exp

from einsql import errors
from einsql.core import forks
from einsql.core.bfloat16 import loaded
from einsql.core.quoting import in_quotes
from einsql.core.settings import Settings
from einsql.engine.cancellation import Interrupts, watched
from einsql.errors import Error
from einsql.ir.einsum.graph import TRUE, EinSum, Expr, Output
from einsql.kernels.runtime.blas import Statement
from einsql.planner.compile import compiled
from einsql.planner.plan import Plan, owners
from einsql.planner.plan_variants import Variants, bind_late, kept_with, kinds, spelled
from einsql.planner.planner import BinderCatalog, make_plan, make_tile_plan
from einsql.planner.rebind import current_inputs
from einsql.session.cursor import Cursor, Parameters, given_values
from einsql.session.einsum_call import run_einsum
from einsql.session.lifetime import Lifetime
from einsql.session.script import run_text
from einsql.sql.binder.query import QueryBinder
from einsql.sql.binder.scope import Relation, TileRelation
from einsql.sql.parameters.parameter_use import Given
from einsql.sql.parser.lexical import is_complete, scan
from einsql.storage.error_boundary import boundary
from einsql.storage.host_arrays import (
    array_in_scope,
    array_relation,
    check_names,
    is_table,
    shown_columns,
)
from einsql.storage.memory import Memory
from einsql.storage.objects import Tensor
from einsql.storage.relation import Fields
from einsql.storage.results.result import Result
from einsql.storage.session_store import Store

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster
    from einsql.explain.explanation import Explanation
    from einsql.hybrid.hybrid_plan import Hybrid
    from einsql.planner.tile_plan import TilePlan
    from einsql.session.multi_query import Several
    from einsql.session.statements import Changing
    from einsql.storage.database.memory import Database
    from einsql.storage.duckdb.connection import Duck
    from einsql.storage.results.tile_result import TileResult

    Planned: TypeAlias = Plan | TilePlan | Changing

T = TypeVar("T")

CACHED_PLANS = 512
_NOTHING = nullcontext()


class Connection(Lifetime):
    """A database session.

    Attributes:
        cluster: The MPI ranks that do the work, if there are any.
        notices: What statements wanted to say without failing; drained by the console.
        progress: Called with the fraction done from the executing thread, or None.
        stepped: Called from the executing thread with the columns' description and the row of
            each step of a FOR that is complete, or None.
        stage: Where the running statement begins in what progress tells, and its share.
        planner_calls: How many queries were planned so far; a repeated one is not.
    """

    def __init__(
        self, cluster: Cluster | None = None, settings: Settings | None = None,
        database: Database | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.settings = settings or Settings()
        self.store: Store = Store(database, lambda: self.settings)
        self.cluster = None if cluster is None else cluster.join(self.regrouped)
        if self.cluster is not None:
            from einsql.engine.ranks.windows import lent  # for ranks only

            self.store.lent = lent
        self.memory = Memory(self.settings, self.store.states, self.store.database.path)
        self.store.memory, self.store.settle = self.memory, self.memory.settled
        self.notices: list[str] = []
        self.progress: Callable[[float], None] | None = None
        self.stepped: Callable[[Sequence[Sequence[Any]], tuple[Any, ...]], None] | None = None
        self.stage = (0.0, 1.0)
        self.planner_calls = 0
        self._plans: dict[object, Planned | Variants[Planned]] = {}
        self._several: dict[object, Several] = {}
        self._hybrids: dict[object, Hybrid] = {}
        self._interrupts = Interrupts()
        self._check = self._interrupts.begin()
        self._parameters: Sequence[object] = ()
        self._inputs: dict[str, Fields] = {}
        self._busy = threading.RLock()
        self._caller: FrameType | None = None
        self._explanation: Explanation | None = None

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
        self._open()
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
        self._open()
        check_names(name, dims)
        if dims is None and is_table(array):
            from einsql.hybrid.duckdb_statements import register_table  # few sessions need it

            register_table(self, name, array)
        else:
            self.duck.refuse(name)
            held = array_relation(array, None if dims is None else tuple(dims), fill)
            self.store.register(Tensor(name, held, shown_columns(held), borrowed=True))

    def unregister(self, name: str) -> None:
        """Forgets a registered array, in a transaction as outside of it, or a registered table.

        Raises:
            ProgrammingError: Nothing is registered under the name.
        """
        self._open()
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
        from einsql.explain.options import options_text  # few programs explain

        flags = {"analyze": analyze, "verbose": verbose, "simulate": simulate, "sites": sites}
        self.execute(f"EXPLAIN {options_text({**flags, **options})}{sql}")
        found, self._explanation = self._explanation, None
        assert found is not None
        return found

    def split(self, sql: str) -> list[tuple[int, str]]:
        """Splits a script into (offset, text) of its statements."""
        return [(span.start, sql[span.start : span.end]) for span in scan(sql)]

    def is_complete(self, text: str) -> bool:
        """True if the text ends with a semicolon outside quotes and comments."""
        return is_complete(text)

    def interrupt(self) -> None:
        """Cancels, from another thread, the running statement and what is being fetched."""
        self._interrupts.send()

    def commit(self) -> None:
        """Commits the running transaction; nothing without one."""
        with self._busy, boundary:
            self._open()
            if self.store.in_transaction:
                self.store.commit()

    def rollback(self) -> None:
        """Undoes the running transaction; nothing without one."""
        with self._busy, boundary:
            self._open()
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
        with self._busy, boundary:
            self.forget_plans()
            self.memory.close()
            self._inputs = {}
            self.store.close()
            if self.cluster is not None:
                self.cluster.part()
                self.cluster = None

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        if not self.closed:
            self.close()

    def forked(self, refusal: forks.Refusal) -> None:
        """As `Lifetime.forked`; a statement that was running in the thread that forked stops."""
        super().forked(refusal)
        self._check = refusal.refuse
        self._busy = threading.RLock()

    @property
    def duck(self) -> Duck:
        """The session's connection to DuckDB."""
        return self.store.duck

    def _run(self, sql: str, parameters: Parameters, cursor: Cursor) -> None:
        given = given_values(sql, parameters)
        caller = self._called_from(sys._getframe(1))
        with self._busy, boundary, Statement(), caller, self._begun():
            self._open()  # another thread may have closed it meanwhile
            self._parameters = given
            try:
                if self._again(sql, cursor):
                    return
            except Error as error:
                errors.place(error, scan(sql)[0].start, sql)
                raise
            run_text(self, sql, given, cursor)

    def remember_hybrid(self, sql: str, made: Hybrid) -> None:
        """Keeps what runs a text that stands alone for the same values of its parameters."""
        self._remember(self._hybrids, spelled(sql, self._parameters), made)

    def remember_plan(self, sql: str, plan: Planned) -> None:
        """Keeps the plan of a text that stands alone, for the parameters of the moment."""
        key = kinds(sql, self._parameters) if self._parameters else sql
        known = self._plans.get(key)
        kept = kept_with(known, plan, self._parameters) if self._parameters else plan
        if kept is not known:
            self._remember(self._plans, key, kept)

    def _again(self, sql: str, cursor: Cursor) -> bool:
        """Runs what is kept of a text, if it holds still and for the parameters of the moment."""
        given = self._parameters
        if self.store.duck.aborted:
            return False
        plan = self._plans.get(kinds(sql, given) if given else sql)
        if isinstance(plan, Variants):
            plan = plan.find(given)
        if plan is None:
            return bool(self._hybrids) and self._hybrid_again(spelled(sql, given), cursor)
        try:
            if not isinstance(plan, Plan):
                from einsql.session.statements import Changing  # it is there if this may be one

                if isinstance(plan, Changing):
                    return plan.again(self, cursor)
            if self.store.seen is not self.store.database.state:
                self.store.refresh()
            inputs = current_inputs(plan, self.store, self.in_scope, self._tick, given=given)
            if inputs is None:
                return False
            cursor._show(plan.result(inputs, self._tick), plan.description)
        except errors.RanksLost:
            return False  # it is planned again, for those that are left
        return True

    def _hybrid_again(self, key: object, cursor: Cursor) -> bool:
        from einsql.session.dispatch import run_again  # it is there if one is kept

        made = self._hybrids.pop(key, None)
        if made is None or not run_again(self, made, cursor):
            return False
        self._hybrids[key] = made
        return True

    def _begun(self) -> AbstractContextManager[None]:
        """A statement begins: from now on `interrupt` stops it and what it brings here."""
        self._check = self._interrupts.begin()
        return _NOTHING if self.cluster is None else watched(self._check)

    def _fetching(self) -> AbstractContextManager[None]:
        """A fetch begins: meanwhile `interrupt` stops what this thread brings here."""
        return _NOTHING if self.cluster is None else watched(self._interrupts.begin())

    @contextmanager
    def _called_from(self, frame: FrameType) -> Iterator[None]:
        """Remembers whose variables may be named in FROM while a statement runs."""
        before, self._caller = self._caller, frame
        try:
            yield
        finally:
            self._caller = before  # a loop may go on, which has been told of a step here

    def in_scope(self, name: str) -> object | None:
        """An array among the caller's variables, unless external access is off."""
        return array_in_scope(self._caller if self.settings.enable_external_access else None, name)

    def array_named(self, name: str) -> object | None:
        """An array among the caller's variables, unless a table has the name."""
        found = self.in_scope(name)
        return None if found is not None and self.duck.has(name) else found

    def forget_plans(self) -> None:
        """Plans anew what has been planned: names may mean something else now."""
        self._plans.clear()
        self._several.clear()
        self._hybrids.clear()

    def regrouped(self, lost: errors.RanksLost) -> None:
        """Plans for the ranks that are left from now on."""
        self.forget_plans()
        if self.settings.sites == lost.before:
            self.settings = replace(self.settings, sites=lost.left)
        self.notices.append(f"{lost.reason}; {lost.left} ranks go on")

    def query_binder(
        self, late: bool = False, fixed: AbstractSet[int] = frozenset(),
        foreign: frozenset[str] = frozenset(), **more: Any,
    ) -> QueryBinder:  # fmt: skip
        """A binder over this connection's catalog and the statement's parameters.

        Args:
            late: Whether what is bound is run with values of parameters given at run time.
            fixed: Numbers of parameters whose values the plan is for in any case.
            foreign: Names, in small letters, that are no tensors in what is bound.
            more: Further attributes of the catalog.
        """
        self._inputs = {}
        given = Given(self._parameters, late, set(fixed), self._inputs)
        found = BinderCatalog(
            self.store, self.settings, self.array_named, self._tick, given, self.cluster,
            self.memory, self.duck.has, fields=self._inputs, **more,
        )  # fmt: skip
        return QueryBinder(found, given, self.notices, foreign=foreign)

    def plan(self, tree: exp.Query) -> Plan:
        """Binds, optimises and compiles a query over elements."""
        binder = self.query_binder()
        return self._plan(binder.bind(tree), binder)

    def plan_any(self, tree: exp.Expr, foreign: frozenset[str] = frozenset()) -> Plan | TilePlan:
        """Binds and compiles a query over elements or over tiles.

        Args:
            tree: The query.
            foreign: Names, in small letters, that are no tensors in it.
        """
        make = partial(self.query_binder, foreign=foreign)
        return self.planned(*bind_late(make, tree, self.notices))

    def planned(
        self, relation: Relation | TileRelation, binder: QueryBinder
    ) -> Plan | TilePlan:  # fmt: skip
        """Compiles a relation of elements or of tiles bound by the given binder."""
        if isinstance(relation, Relation):
            return self._plan(relation, binder)
        assert isinstance(binder.catalog, BinderCatalog)
        self.planner_calls += 1
        return make_tile_plan(relation, binder.catalog, self.notices)

    def _plan(self, relation: Relation, binder: QueryBinder) -> Plan:
        assert isinstance(binder.catalog, BinderCatalog)
        self.planner_calls += 1
        return make_plan(relation, binder.catalog, self.notices)

    def select(self, tree: exp.Query) -> Result:
        """Runs a query inside another statement; tiles are put together to a tensor."""
        made = self.plan_any(tree).result(self._inputs, self._tick)
        return made if isinstance(made, Result) else made.tensor()

    def run_bound(self, relation: Relation, binder: QueryBinder) -> Result:
        """Runs a relation bound by the given binder."""
        return self._plan(relation, binder).result(self._inputs, self._tick)

    def run_any(
        self, relation: Relation | TileRelation, binder: QueryBinder
    ) -> Result | TileResult:
        """Runs a relation of elements or of tiles bound by the given binder."""
        return self.planned(relation, binder).result(self._inputs, self._tick)

    def run_node(self, node: EinSum, binder: QueryBinder) -> Fields:
        """Runs a bare node bound by the given binder; its own fields, flags included."""
        plan = self._plan(Relation(node, ()), binder)
        return plan.program.run(plan.complete(self._inputs, self._tick), self._tick)

    def evaluate(self, expr: Expr) -> Any:
        """The value of an expression without columns."""
        node = EinSum((), (), TRUE, (), (Output("c", (expr,), expr.dtype),))
        found = compiled(node, self.settings).run({}, self._tick)["c"]
        return loaded(found, expr.dtype).item()

    def borrowed(self) -> set[int]:
        """Ids of the memory owners of the running statement's inputs."""
        return owners(self._inputs.values())

    def writable(self, name: str) -> Tensor:
        """The tensor of a name, for changing.

        Raises:
            ProgrammingError: There is none, or it is a registered array or a view.
        """
        return self.store.writable(name)

    def einsum(self, spec: str, arrays: Sequence[object]) -> np.ndarray:
        """NumPy's einsum through this connection's engine; empty sums are zeros."""
        return run_einsum(self, spec, arrays)

    def _tick(self, fraction: float) -> None:
        self._check(fraction)
        if self.progress is not None:
            self.progress(self.stage[0] + self.stage[1] * fraction)

    def _remember(self, known: dict[object, T], key: object, plan: T) -> None:
        if len(known) >= CACHED_PLANS:
            known.pop(next(iter(known)))
        known[key] = plan

    # ---- settings

    def set_settings(self, settings: Settings) -> None:
        """Goes on under other settings; what was planned is planned again.

        Raises:
            Error: DuckDB cannot follow; they stay as they were.
        """
        before, self.settings = self.settings, settings
        try:
            self.duck.apply()
        except Error:
            self.settings = before
            raise
        self.memory.change(settings)
        self.forget_plans()
