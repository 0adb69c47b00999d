"""Statements of an attached DuckDB connection that einsql's session runs: those about tensors."""

from __future__ import annotations

from sqlglot import exp

from einsql.errors import Error
from einsql.session.connection import Connection
from einsql.sql.parser import syntax as st
from einsql.sql.parser.lexical import scan
from einsql.sql.parser.parser import parse


def tensors_in(session: Connection, query: str) -> frozenset[str] | None:
    """The tensors and views of a session that a text names in lower case.

    Returns:
        None for a text without a statement about tensors, which DuckDB runs.
    """
    low, stored = query.lower(), session.store.objects
    if "tensor" not in low and not any(name.removesuffix("()") in low for name in stored):
        return None
    named = set[str]()
    is_about_tensors = False
    try:
        for span in scan(query):
            statement, _ = parse(query[span.start : span.end])
            match statement:
                case st.CreateTensor() | st.Show(what="tensors") | st.Drop(kind="tensor"):
                    is_about_tensors = True
                case st.Query(tree) | st.Change(tree):
                    named |= _tables(tree)
                case st.Copy(name=name) | st.Show(what="describe", name=name):
                    named.add(name.lower())
    except Error:
        return None  # DuckDB reports the error
    tensors = frozenset(named & stored.keys())
    return tensors if tensors or is_about_tensors else None


def _tables(tree: exp.Expr) -> set[str]:
    """The names that a statement reads or changes, without those of its WITH."""
    own = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    return {t.name.lower() for t in tree.find_all(exp.Table) if not t.db} - own
