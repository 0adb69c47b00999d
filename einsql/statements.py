"""Every statement that is no query: what it does to a session, and what it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlglot import exp

from einsql import catalog, changes, errors
from einsql.explain import Explanation, GraphExplanation, explain_tiles, explained
from einsql.planning import Plan
from einsql.settings import SETTINGS, changed_settings
from einsql.sql import syntax as st
from einsql.what_if import assumed

if TYPE_CHECKING:
    from einsql.cursor import Cursor
    from einsql.explain import Measures
    from einsql.session import Connection


def run_statement(con: Connection, statement: st.Statement, cursor: Cursor) -> Explanation | None:
    """Runs a statement that is no query and fills the cursor with what it gives.

    Returns:
        The plan, if the statement is EXPLAIN.

    Raises:
        Error: With a position in the statement's text.
    """
    match statement:
        case st.Explain():
            explanation = _explain(con, statement)
            cursor._list(("explain",), explanation.rows())
            return explanation
        case st.CreateTensor():
            cursor._changed(changes.create_tensor(con, statement))
        case st.CreateView():
            catalog.create_view(con, statement)
        case st.CreateMacro():
            catalog.create_macro(con, statement)
        case st.Drop():
            catalog.drop(con, statement)
        case st.Change(tree=exp.Insert() as tree):
            cursor._changed(changes.insert(con, tree))
        case st.Change(tree=exp.Update() as tree):
            cursor._changed(changes.update(con, tree))
        case st.Change(tree=exp.Delete() as tree):
            cursor._changed(changes.delete(con, tree))
        case st.Copy():
            cursor._changed(changes.copy(con, statement))
        case st.Set():
            _set(con, statement)
        case st.Calibrate():
            cursor._list(("name", "value", "unit"), _calibrate(con))
        case st.Show():
            cursor._list(*catalog.show(con, statement))
        case st.Transaction():
            _TRANSACTIONS[statement.action](con)
        case _:
            raise errors.InternalError(f"No way to run {type(statement).__name__}")
    return None


_TRANSACTIONS: dict[str, Callable[[Connection], None]] = {
    "BEGIN": lambda con: con.store.begin(),
    "COMMIT": lambda con: con.store.commit(),
    "ROLLBACK": lambda con: con.store.rollback(),
}


def _explain(con: Connection, statement: st.Explain) -> Explanation:
    query, before = explained(statement), con.settings
    con.settings, cluster = assumed(before, statement)
    try:
        plan = con.plan_any(query)
        if not isinstance(plan, Plan):
            return explain_tiles(plan, statement, con._inputs, con._tick, cluster)
        measured = _measure(con, plan, statement)
        return GraphExplanation(statement, plan, con.settings, measured, cluster)
    finally:
        con.settings = before


def _measure(con: Connection, plan: Plan, statement: st.Explain) -> Measures:
    if not statement.analyze:
        return None
    inputs = plan.complete(con._inputs, con._tick)
    return plan.program.measured(inputs, con._tick)[1]


def _calibrate(con: Connection) -> list[tuple[str, float, str]]:
    from einsql.calibration import calibrated, calibration_rows  # few sessions need it

    machine = calibrated(con.settings, con._tick, con.cluster)
    con.set_settings(replace(con.settings, machine=machine))
    return calibration_rows(machine)


def _set(con: Connection, statement: st.Set) -> None:
    try:
        changed = changed_settings(con.settings, statement.name, statement.value)
        if statement.name == "strategy":
            from einsql.optimizer.decomposition import strategy_of  # for several sites only

            strategy_of(changed.strategy)  # a wrong one is refused now
        if statement.name == "device" and changed.device != "cpu":
            from einsql.kernels.cuda import device  # GPUs are for who asks for them

            device()  # a missing one is told of now
    except errors.Error as error:
        if statement.name in SETTINGS:  # else the name is wrong
            error.position = statement.at
        raise
    con.set_settings(changed)
