"""DuckDB's own statements: CREATE TABLE, INSERT into tables, PRAGMA and all the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql import hybrid
from einsql.engine.duck.table_result import TableResult
from einsql.engine.store import Tensor
from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.sql.hybrid import guard
from einsql.sql.hybrid.blocks import Structure
from einsql.sql.tokens import tokenize

if TYPE_CHECKING:
    from einsql.session import Connection

_COUNTING = ("INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "COPY", "MERGE INTO")
_NAMING = (
    "CREATE", "INSERT", "UPDATE", "DELETE", "MERGE", "MERGE INTO", "ALTER", "COPY", "DROP",
    "TRUNCATE",
)  # fmt: skip
"""Statements that make, change or remove what they name first."""


def run(con: Connection, sql: str, refusal: Error) -> TableResult | int:
    """Runs a statement.

    Args:
        con: The session.
        sql: The statement.
        refusal: Why einsql's own grammar has it not.

    Returns:
        Its rows, or how many it changed; -1 where nothing says.

    Raises:
        Error: It would change a tensor, or DuckDB refuses it.
    """
    structure = Structure(tokenize(sql))
    check(con, structure, refusal)
    made = hybrid.split_foreign(con, sql)
    word = structure.word(0)
    if word not in ("INSERT", "UPDATE", "DELETE", "MERGE", "SELECT"):
        con.forget_plans()  # a table comes before an array of the caller
    found = hybrid.run(con, made)
    if word in ("USE", "SET", "PRAGMA"):
        con.duck.leave_catalog()
    if word == "WITH":
        word = structure.word(structure.query(0, len(structure.tokens)).body.first)
    if word in _COUNTING and found.names == ("Count",):
        rows = list(found.rows())
        return int(rows[0][0]) if rows else -1
    return found if found.names != ("Count",) and found.names != ("Success",) else -1


def change_setting(con: Connection, text: str, refusal: Error) -> None:
    """SET of a setting that only DuckDB has.

    Raises:
        Error: DuckDB refuses it, or einsql relies on it.
    """
    check(con, Structure(tokenize(text)), refusal)
    con.duck.execute(text)
    con.duck.leave_catalog()


def check(con: Connection, structure: Structure, refusal: Error) -> None:
    """Refuses what einsql does not let DuckDB do.

    Raises:
        Error: It would change a tensor, the catalog, or what einsql relies on.
    """
    guard.refuse(structure.tokens, con.duck.database)
    _check_names(con, structure, refusal)


def _check_names(con: Connection, structure: Structure, refusal: Error) -> None:
    """Refuses what would make or change something under a name of einsql's.

    Raises:
        ProgrammingError: A new table would have the name of a tensor or a view.
        Error: The refusal, if a tensor would be changed.
    """
    word, at = structure.word(0), 1
    if word == "CREATE" and "VIEW" in map(structure.word, range(1, 6)):
        raise refusal
    if word not in _NAMING:
        return
    while structure.word(at) in (
        "OR", "REPLACE", "IGNORE", "TEMP", "TEMPORARY", "INTO", "FROM", "IF", "NOT", "EXISTS",
        "TABLE", "UNIQUE", "PERSISTENT",
    ):  # fmt: skip
        at += 1
    is_kind = word in ("CREATE", "DROP", "ALTER") and structure.word(at - 1) != "TABLE"
    if word == "COPY" and structure.word(at) == "(":
        return
    if is_kind or at >= len(structure.tokens) or structure.word(at + 1) == ".":
        return
    token = structure.tokens[at]
    found = con.store.get(token.text)
    if found is None:
        return
    kind = "tensor" if isinstance(found, Tensor) else found.kind
    if word == "CREATE":
        raise ProgrammingError(
            f'There is a {kind} "{found.name}" already',
            hint="Tables and tensors have names of their own.",
            position=token.start,
        )
    if word in ("ALTER", "MERGE", "MERGE INTO", "DROP", "TRUNCATE"):
        raise NotSupportedError(
            f"{word} is for tables, and {found.name} is a {kind}", position=token.start
        )
    raise refusal
