"""Every statement that is no query: what it does to a session, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql import errors
from einsql.core.big_stack import NeedsRoom
from einsql.core.settings import SETTINGS, changed_settings
from einsql.explain.explanation import Explanation, GraphExplanation, explain_tiles, explained
from einsql.explain.options import assumed
from einsql.planner.plan import Plan
from einsql.session import statements
from einsql.session.statements import ddl
from einsql.sql.parser import syntax as st
from einsql.sql.parser.positions import unsupported
from einsql.sql.parser.sqlglot_trees import changing
from einsql.sql.parser.tokens import tokenize
from einsql.storage import files

if TYPE_CHECKING:
    from einsql.explain.explanation import Measures
    from einsql.hybrid.hybrid_plan import Hybrid
    from einsql.session.connection import Connection
    from einsql.session.cursor import Cursor


def run_instead(con: Connection, text: str, error: errors.Error, cursor: Cursor) -> Hybrid:
    """Runs a query that is not tensor work as a whole, over the parts that are.

    Args:
        con: The session.
        text: The query.
        error: Why it is none.
        cursor: Shows the result.

    Returns:
        What may be run again.

    Raises:
        Error: The same, if DuckDB may not or cannot run it.
    """
    from einsql.hybrid import hybrid_plan  # few statements need it

    if con.settings.fallback == "off" or not hybrid_plan.is_outside(error):
        raise error
    con.duck.asked = True
    try:
        with con.store.snapshot():
            made = hybrid_plan.split(con, text, error)
            found = hybrid_plan.answer(con, made)
    except errors.UnknownHere as unknown:
        if hybrid_plan.names_ours(unknown):
            raise error from None
        raise
    cursor._show(*found)
    return made


def run_again(con: Connection, made: Hybrid, cursor: Cursor) -> bool:
    """Runs a statement once more, if it means what it did; its parts and its plans hold then.

    Raises:
        Error: A change or a fragment fails, or DuckDB does.
    """
    from einsql.hybrid import hybrid_plan  # as above

    con.duck.asked = True
    try:
        with con.store.snapshot():
            found = hybrid_plan.answer_again(con, made)
    except (errors.UnknownHere, errors.RanksLost, NeedsRoom):
        return False
    if found is not None:
        cursor._show(*found)
    return found is not None


def _foreign(con: Connection, text: str, error: errors.Error, cursor: Cursor) -> None:
    """Runs a statement of DuckDB's, the queries in it as any other."""
    from einsql.hybrid import duckdb_statements  # as above

    if con.settings.fallback == "off":
        raise error
    con.duck.asked = True
    found = duckdb_statements.run(con, text, error)
    if isinstance(found, int):
        cursor._changed(found)
    else:
        cursor._show(found, found.description)


def changes_tables(con: Connection, tree: exp.Expr) -> bool:
    """True if a statement changes nothing but DuckDB's tables."""
    parts = [cte.this for cte in changing(tree)]
    if not isinstance(tree, exp.Query):
        parts.append(tree)
    return all(_is_table(con, part) for part in parts)


def _is_table(con: Connection, tree: exp.Expr) -> bool:
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    if not isinstance(target, exp.Table):
        return False
    if target.args.get("db") is not None:
        return True
    return con.store.get(target.name) is None and con.duck.has(target.name)


def run_statement(
    con: Connection, statement: st.Statement, text: str, cursor: Cursor
) -> Explanation | statements.Changing | None:
    """Runs a statement that is no query and fills the cursor with what it gives.

    Returns:
        The plan, if the statement is EXPLAIN; what may run again, if it changes tensors.

    Raises:
        Error: With a position in the statement's text.
    """
    match statement:
        case st.Explain():
            explanation = _explain(con, statement)
            cursor._list(("explain",), explanation.rows())
            return explanation
        case st.Foreign():
            _foreign(con, statement.text, statement.refusal, cursor)
        case st.Change(tree) if con.settings.fallback == "on" and changes_tables(con, tree):
            _foreign(con, text, unsupported("A change of a table", tree), cursor)
        case st.CreateTensor():
            cursor._changed(statements.create_tensor(con, statement))
        case st.CreateView():
            ddl.create_view(con, statement)
        case st.CreateMacro():
            ddl.create_macro(con, statement)
        case st.Drop():
            ddl.drop(con, statement)
        case st.Change(tree):
            return statements.run(con, tree, text, cursor)
        case st.Copy():
            _copy(con, statement, text, cursor)
        case st.Set():
            _set(con, statement, text)
        case st.Calibrate():
            types = ("VARCHAR", "DOUBLE", "VARCHAR")
            cursor._list(("name", "value", "unit"), _calibrate(con), types)
        case st.Show():
            _show(con, statement, text, cursor)
        case st.IntegrityCheck():
            cursor._list(*_checked(con))
        case st.Vacuum():
            con.store.vacuum()
        case st.Backup() | st.Export() | st.Import():
            _carry(con, statement, cursor)
        case st.Transaction():
            _TRANSACTIONS[statement.action](con)
        case _:
            raise errors.InternalError(f"No way to run {type(statement).__name__}")
    return None


_JSON = (".json", ".jsonl", ".ndjson")
_TABLE_FILES = (".csv", ".tsv", ".txt", ".parquet", *_JSON)
"""Files that DuckDB writes."""


def _copy(con: Connection, statement: st.Copy, text: str, cursor: Cursor) -> None:
    options = dict(statement.options)
    form = options.get("FORMAT", "").lower()
    suffix = f".{form}" if form else files.suffix_of(statement.path)
    known = statement.query is not None or con.store.get(statement.name) is not None
    if not known and con.settings.fallback == "on" and con.duck.has(statement.name):
        if suffix in files.READABLE and suffix not in _TABLE_FILES:
            raise errors.NotSupportedError(
                f"{statement.name} is a table, and {suffix} files hold tensors",
                hint="CREATE TENSOR … AS SELECT … makes a tensor of a table.",
            )
        refusal = errors.NotSupportedError(f"{statement.name} is a table of DuckDB")
        _foreign(con, text, refusal, cursor)
        return
    if known and not statement.reads and suffix in _TABLE_FILES and "TENSOR" not in options:
        named = exp.Table(this=exp.to_identifier(statement.name, quoted=True))
        query = statement.query or exp.select("*").from_(named)
        try:
            con.query_binder().bind_any(query)
            if suffix in _JSON:
                raise errors.NotSupportedError(f"{suffix} files are outside the tensor fragment")
        except (errors.NotSupportedError, errors.UnknownHere) as error:
            _foreign(con, _of_query(text, statement), error, cursor)
            return
    cursor._changed(statements.copy(con, statement))


def _of_query(text: str, statement: st.Copy) -> str:
    """COPY with a query where a name is written, which DuckDB would look for."""
    if statement.query is not None:
        return text
    name = tokenize(text)[1]
    return f"{text[: name.start]}(FROM {text[name.start : name.end + 1]}){text[name.end + 1 :]}"


def _show(con: Connection, statement: st.Show, text: str, cursor: Cursor) -> None:
    try:
        cursor._list(*ddl.show(con, statement))
    except errors.Error as error:
        from einsql.hybrid import hybrid_plan  # as above

        if not hybrid_plan.is_outside(error):
            raise
        try:
            _foreign(con, text, error, cursor)
        except errors.ProgrammingError:
            raise error from None  # nor has DuckDB such a table


def _carry(con: Connection, statement: st.Backup | st.Export | st.Import, cursor: Cursor) -> None:
    """Runs a statement that writes or reads a whole database."""
    from einsql.session.statements import backup  # few sessions need it

    match statement:
        case st.Backup():
            backup.backup(con, statement)
        case st.Import():
            backup.import_database(con, statement)
        case st.Export() if not backup.export(con, statement):
            refusal = errors.NotSupportedError(f"{statement.database} is an attached database")
            _foreign(con, statement.text, refusal, cursor)


_TRANSACTIONS: dict[str, Callable[[Connection], None]] = {
    "BEGIN": lambda con: con.store.begin(),
    "COMMIT": lambda con: con.store.commit(),
    "ROLLBACK": lambda con: con.store.rollback(),
}


def _explain(con: Connection, statement: st.Explain) -> Explanation:
    inner, before = statement.statement, con.settings
    if isinstance(inner, st.Foreign):
        return _explain_hybrid(con, statement, inner.refusal)
    if isinstance(inner, st.Change) and changes_tables(con, inner.tree):
        return _explain_hybrid(con, statement, unsupported("A change of a table", inner.tree))
    query = None if isinstance(inner, st.Change) else explained(statement)
    con.settings, cluster = assumed(before, statement)
    try:
        if query is None:
            from einsql.session.statements.explain_dml import (
                explain_change,  # few statements need it
            )

            return explain_change(con, statement, cluster)
        try:
            plan = con.plan_any(query)
        except errors.Error as error:
            return _explain_hybrid(con, statement, error)
        if not isinstance(plan, Plan):
            return explain_tiles(plan, statement, con._inputs, con._tick, cluster)
        measured = _measure(con, plan, statement)
        return GraphExplanation(statement, plan, con.settings, measured, cluster)
    finally:
        con.settings = before


def _explain_hybrid(con: Connection, statement: st.Explain, error: errors.Error) -> Explanation:
    from einsql.explain.hybrid_report import explain_hybrid  # few statements need it

    return explain_hybrid(con, statement, error)


def _measure(con: Connection, plan: Plan, statement: st.Explain) -> Measures:
    if not statement.analyze:
        return None
    inputs = plan.complete(con._inputs, con._tick)
    return plan.program.measured(inputs, con._tick)[1]


def _calibrate(con: Connection) -> list[tuple[str, float, str]]:
    from einsql.session.statements.calibrate import (  # few sessions need it
        calibrated,
        calibration_rows,
    )

    machine = calibrated(con.settings, con._tick, con.cluster)
    con.set_settings(replace(con.settings, machine=machine))
    return calibration_rows(machine)


def _checked(con: Connection) -> ddl.Table:
    """What PRAGMA integrity_check finds, or a row that says ok."""
    found = con.store.database.inspect(con._tick)
    listed: list[tuple[str | None, ...]] = [(f.name, f.problem, f.remedy) for f in found]
    return ("integrity_check", "problem", "remedy"), listed or [("ok", None, None)]


def _set(con: Connection, statement: st.Set, text: str) -> None:
    try:
        changed = changed_settings(con.settings, statement.name, statement.value)
        if statement.name == "strategy":
            from einsql.optimizer.decomposition import strategy_of  # for several sites only

            strategy_of(changed.strategy)  # a wrong one is refused now
        if statement.name == "device" and changed.device != "cpu":
            from einsql.kernels.cuda import device  # GPUs are for who asks for them

            device()  # a missing one is told of now
    except errors.Error as error:
        if statement.name in SETTINGS:
            error.position = statement.at
        elif con.settings.fallback == "on" and con.duck.has_setting(statement.name):
            from einsql.hybrid import duckdb_statements  # as in `_foreign`

            duckdb_statements.change_setting(con, text, error)
            return
        raise
    con.set_settings(changed)
