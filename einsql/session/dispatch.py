"""The statements other than queries: their effect on a session, and their results."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql import errors
from einsql.core.lazy_module import LazyModule, lazy_modules
from einsql.core.records import dataclass
from einsql.planner.outcome import Changed, Listing, Outcome, Rows
from einsql.planner.queries import query_binder
from einsql.session import setting_statements, statements
from einsql.session.statements import ddl
from einsql.session.statements.target import changes_tables
from einsql.sql.parser import syntax as st
from einsql.sql.parser.positions import unsupported
from einsql.sql.parser.tokens import tokenize
from einsql.storage import files

if TYPE_CHECKING:
    from einsql.hybrid import duckdb_statements
    from einsql.planner.context import Context
    from einsql.session.statements import backup, calibrate, explain, export_plan, loop
    from einsql.sql.parameters.runtime_inputs import ParameterUse
else:  # imported by the statements that need them
    duckdb_statements = LazyModule("einsql.hybrid.duckdb_statements")
    backup, calibrate, explain, export_plan, loop = lazy_modules(
        "einsql.session.statements", "backup", "calibrate", "explain", "export_plan", "loop"
    )


def _foreign(ctx: Context, text: str, error: errors.Error) -> Outcome:
    """Runs a statement by DuckDB; its queries may read tensors."""
    if ctx.settings.fallback == "off":
        raise error
    ctx.ask_duckdb()
    table = duckdb_statements.run(ctx, text, error)
    return Changed(table) if isinstance(table, int) else Rows(table, table.description)


@dataclass(slots=True)
class Command:
    """A statement other than a query; it implements `planner.prepared.PreparedStatement`.

    Attributes:
        change: The prepared change of tensors, which may run again.
        template: None; changes have no templates.
    """

    statement: st.Statement
    text: str
    change: statements.PreparedDml | None = None
    template: None = None

    @property
    def is_volatile(self) -> bool:
        """True if the prepared statement must not run a second time."""
        return self.change is None or self.change.is_volatile

    @property
    def version(self) -> int:
        """The version of the session's names for which the change was prepared."""
        return -1 if self.change is None else self.change.version

    @property
    def use(self) -> ParameterUse | None:
        """The use of parameters by the change."""
        return None if self.change is None else self.change.use

    def fits(self, ctx: Context) -> bool | None:
        """See `planner.plan_cache.Cacheable`."""
        return None if self.change is None else self.change.fits(ctx)

    def run(self, ctx: Context) -> Outcome | None:
        """Runs the statement. Returns None if a change has to be prepared again."""
        if self.change is not None:
            return self.change.run(ctx)
        statement = self.statement
        alone = isinstance(statement, st.Transaction | st.Vacuum | st.Backup)
        tables = isinstance(statement, st.CreateTensor | st.Copy) or (
            isinstance(statement, st.Change) and not changes_tables(ctx, statement.tree)
        )
        makes = isinstance(statement, st.Import)
        with nullcontext() if alone else ctx.store.statement(tables, makes):
            if tables and isinstance(statement, st.Change):
                outcome, self.change = statements.run(ctx, statement.tree, self.text)
                return outcome
            return run_command(ctx, statement, self.text)


@dataclass(frozen=True, slots=True)
class Loop:
    """FOR … END FOR, as a `planner.prepared.PreparedStatement`; its body's statements are cached.

    Attributes:
        execute: Callback that runs a statement of the body.
    """

    loop: st.For
    execute: Callable[[str], Outcome]
    is_volatile: bool = True
    version: int = -1
    use: None = None
    template: None = None

    def fits(self, ctx: Context) -> None:
        """Unknown; see `planner.plan_cache.Cacheable`."""

    def run(self, ctx: Context) -> Outcome:
        """Runs the loop."""
        return loop.run_loop(ctx, self.loop, self.execute)


def prepare_command(
    ctx: Context, statement: st.Statement, text: str, execute: Callable[[str], Outcome]
) -> Command | Loop:
    """Prepares a statement other than a query.

    Args:
        ctx: The session.
        statement: The statement.
        text: The statement's text.
        execute: Callback that runs a statement of a loop's body.
    """
    return Loop(statement, execute) if isinstance(statement, st.For) else Command(statement, text)


def run_command(ctx: Context, statement: st.Statement, text: str) -> Outcome:
    """Runs a statement other than a query.

    Raises:
        Error: The statement is wrong or fails; the position is in the statement's text.
    """
    match statement:
        case st.Explain():
            report = explain.explain(ctx, statement)
            return Listing(("explain",), report.rows(), report=report)
        case st.DuckDBStatement():
            return _foreign(ctx, statement.text, statement.refusal)
        case st.Change(tree) if ctx.settings.fallback == "on" and changes_tables(ctx, tree):
            return _foreign(ctx, text, unsupported("A change of a table", tree))
        case st.Change(tree):
            return statements.run(ctx, tree, text)[0]
        case st.CreateTensor():
            return Changed(statements.create_tensor(ctx, statement))
        case st.CreateView():
            ddl.create_view(ctx, statement)
        case st.CreateMacro():
            ddl.create_macro(ctx, statement)
        case st.Drop():
            ddl.drop(ctx, statement)
        case st.Copy():
            return _copy(ctx, statement, text)
        case st.Set():
            setting_statements.change_setting(ctx, statement, text)
        case st.Calibrate():
            return Listing(
                ("name", "value", "unit"), _calibrate(ctx), ("VARCHAR", "DOUBLE", "VARCHAR")
            )
        case st.Show():
            return _show(ctx, statement, text)
        case st.IntegrityCheck():
            faults = ctx.store.database.inspect(ctx.tick)
            listed = [(f.name, f.problem, f.remedy) for f in faults]
            return Listing(("integrity_check", "problem", "remedy"), listed or [("ok", None, None)])
        case st.Vacuum():
            ctx.store.vacuum()
        case st.ExportPlan():
            export_plan.export_plan(ctx, statement)
        case st.Backup() | st.Export() | st.Import():
            return _carry(ctx, statement)
        case st.Transaction():
            ctx.progress.refuse_in_step()
            _TRANSACTIONS[statement.action](ctx)
        case _:
            raise errors.InternalError(f"No way to run {type(statement).__name__}")
    return Changed()


_JSON = (".json", ".jsonl", ".ndjson")
_TABLE_FILES = (".csv", ".tsv", ".txt", ".parquet", *_JSON)
"""The suffixes of files that DuckDB writes."""


def _copy(ctx: Context, statement: st.Copy, text: str) -> Outcome:
    options = dict(statement.options)
    form = options.get("FORMAT", "").lower()
    suffix = f".{form}" if form else files.suffix_of(statement.path)
    known = statement.query is not None or ctx.store.get(statement.name) is not None
    if not known and ctx.settings.fallback == "on" and ctx.has_table(statement.name):
        if suffix in files.READABLE and suffix not in _TABLE_FILES:
            raise errors.NotSupportedError(
                f"{statement.name} is a table, and {suffix} files hold tensors",
                hint="CREATE TENSOR … AS SELECT … makes a tensor of a table.",
            )
        refusal = errors.NotSupportedError(f"{statement.name} is a table of DuckDB")
        return _foreign(ctx, text, refusal)
    if known and not statement.reads and suffix in _TABLE_FILES and "TENSOR" not in options:
        named = exp.Table(this=exp.to_identifier(statement.name, quoted=True))
        query = statement.query or exp.select("*").from_(named)
        try:
            query_binder(ctx).bind_any(query)
            if suffix in _JSON:
                raise errors.NotSupportedError(f"{suffix} files are outside the tensor fragment")
        except (errors.NotSupportedError, errors.UnknownHere) as error:
            return _foreign(ctx, _of_query(text, statement), error)
    try:
        return Changed(statements.copy(ctx, statement))
    except errors.UnknownHere as error:
        error.suggest_also(table for table, _ in ctx.duck.tables())
        raise


def _of_query(text: str, statement: st.Copy) -> str:
    """Replaces the name in a COPY by a query, because DuckDB would look the name up."""
    if statement.query is not None:
        return text
    name = tokenize(text)[1]
    return f"{text[: name.start]}(FROM {text[name.start : name.end + 1]}){text[name.end + 1 :]}"


def _show(ctx: Context, statement: st.Show, text: str) -> Outcome:
    if statement.refusal is not None:
        return _show_name(ctx, statement.name, text, statement.refusal)
    try:
        return Listing(*ddl.show(ctx, statement))
    except errors.Error as error:
        if not isinstance(error, errors.NotSupportedError | errors.UnknownHere):
            raise
        try:
            return _foreign(ctx, text, error)
        except errors.ProgrammingError:
            if isinstance(error, errors.UnknownHere):
                error.suggest_also(table for table, _ in ctx.duck.tables())
            raise error from None  # DuckDB has no such table either


def _show_name(ctx: Context, name: str, text: str, refusal: errors.Error) -> Outcome:
    """Describes a tensor, a view or a table; else shows the setting of the name, as DuckDB does."""
    if ctx.store.get(name) is not None:
        return Listing(*ddl.show(ctx, st.Show("describe", name)))
    known = name.lower()
    if known in setting_statements.SHOWN_SETTINGS and (
        ctx.settings.fallback == "off" or not ctx.duck.has(name)
    ):
        return Listing((known,), [(setting_statements.setting(ctx, known),)])
    try:
        return _foreign(ctx, text, refusal)
    except errors.UnknownHere:
        names = (
            *ctx.store.objects,
            *(table for table, _ in ctx.duck.tables()),
            *setting_statements.SHOWN_SETTINGS,
        )
        meant = errors.nearest(name, names)
        lists = "SHOW TABLES lists tensors and tables, and SHOW SETTINGS lists settings."
        raise errors.UnknownHere(
            f'There is no tensor, table or setting "{name}"',
            hint=lists if meant is None else f"Did you mean {meant}? {lists}",
            position=refusal.position,
        ) from None


def _carry(ctx: Context, statement: st.Backup | st.Export | st.Import) -> Outcome:
    """Runs a statement that writes or reads a whole database."""
    match statement:
        case st.Backup():
            backup.backup(ctx, statement)
        case st.Import():
            backup.import_database(ctx, statement)
        case st.Export() if not backup.export(ctx, statement):
            refusal = errors.NotSupportedError(f"{statement.database} is an attached database")
            return _foreign(ctx, statement.text, refusal)
    return Changed()


_TRANSACTIONS: dict[str, Callable[[Context], None]] = {
    "BEGIN": lambda ctx: ctx.store.begin(),
    "COMMIT": lambda ctx: ctx.store.commit(),
    "ROLLBACK": lambda ctx: ctx.store.rollback(),
}


def _calibrate(ctx: Context) -> list[tuple[str, float, str]]:
    machine = calibrate.calibrated(ctx.settings, ctx.tick, ctx.cluster)
    ctx.change_settings(replace(ctx.settings, machine=machine))
    return calibrate.calibration_rows(machine)
