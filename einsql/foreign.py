"""DuckDB's own statements: CREATE TABLE, INSERT into tables, PRAGMA and all the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql import hybrid
from einsql.engine.duck.table_result import TableResult
from einsql.engine.store import Tensor
from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.sql.hybrid.blocks import Structure
from einsql.sql.parser import is_qualified
from einsql.sql.tokens import tokenize

if TYPE_CHECKING:
    from sqlglot import Token

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
    _refuse_catalog(structure)
    _check_names(con, structure, refusal)
    made = hybrid.split_foreign(con, sql)
    if _defines_view(structure) and (made.parts.fragments or made.parts.relations):
        raise refusal  # DuckDB would not find the tensors again
    word = structure.word(0)
    try:
        found = hybrid.run(con, made)
    finally:
        if word not in ("INSERT", "UPDATE", "DELETE", "MERGE", "SELECT"):
            con.forget_plans()  # a table comes before an array of the caller
            con.store.database.tables = object()
    if word == "WITH":
        word = structure.word(structure.query(0, len(structure.tokens)).body.first)
    if word in _COUNTING and found.names == ("Count",):
        rows = list(found.rows())
        return int(rows[0][0]) if rows else -1
    return found if found.names != ("Count",) and found.names != ("Success",) else -1


def _refuse_catalog(structure: Structure) -> None:
    """Refuses to touch the tables in which a database file says what tensors it has.

    Raises:
        ProgrammingError: The statement names their schema.
    """
    token = next((t for t in structure.tokens if t.text.lower() == "__einsql"), None)
    if token is not None:
        raise ProgrammingError(
            "The schema __einsql is einsql's own",
            hint="SHOW TENSORS lists what is stored; CREATE, INSERT, UPDATE, DELETE and DROP "
            "change it.",
            position=token.start,
        )


def _refuse_renaming(con: Connection, structure: Structure) -> None:
    """Refuses to give a table a name that is taken; ALTER names what it makes last.

    Raises:
        ProgrammingError: A tensor or a view has it.
    """
    words = [structure.word(n) for n in range(len(structure.tokens))]
    for n, token in enumerate(structure.tokens[2:], 2):
        if words[0] == "ALTER" and words[n - 2 : n] == ["RENAME", "TO"]:
            _refuse_taken(con, token)


def _refuse_taken(con: Connection, token: Token) -> None:
    found = con.store.get(token.text)
    if found is not None:
        kind = "tensor" if isinstance(found, Tensor) else found.kind
        raise ProgrammingError(
            f'There is a {kind} "{found.name}" already',
            hint="Tables and tensors have names of their own.",
            position=token.start,
        )


def _defines_view(structure: Structure) -> bool:
    return structure.word(0) == "CREATE" and "VIEW" in map(structure.word, range(1, 6))


def _check_names(con: Connection, structure: Structure, refusal: Error) -> None:
    """Refuses what would make or change something under a name of einsql's.

    Raises:
        ProgrammingError: A new table would have the name of a tensor or a view.
        Error: The refusal, if a tensor would be changed.
    """
    word, at = structure.word(0), 1
    _refuse_renaming(con, structure)
    if _defines_view(structure):
        words = [structure.word(n) for n in range(min(9, len(structure.tokens)))]
        if not is_qualified(words, words.index("VIEW") + 1):
            raise refusal
        return
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
    if word == "CREATE":
        _refuse_taken(con, token)
    kind = "tensor" if isinstance(found, Tensor) else found.kind
    if word in ("ALTER", "MERGE", "MERGE INTO", "DROP", "TRUNCATE"):
        raise NotSupportedError(
            f"{word} is for tables, and {found.name} is a {kind}", position=token.start
        )
    raise refusal
