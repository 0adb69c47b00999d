"""DuckDB's own statements: CREATE TABLE, INSERT into tables, PRAGMA and all the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import TokenType

from einsql import hybrid
from einsql.engine.duck.table_result import TableResult
from einsql.engine.store import Tensor
from einsql.errors import Error, NotSupportedError, ProgrammingError
from einsql.sql.hybrid.blocks import Structure
from einsql.sql.hybrid.split import quoted
from einsql.sql.tokens import tokenize

if TYPE_CHECKING:
    from einsql.session import Connection

_COUNTING = ("INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "COPY", "MERGE INTO")
_NAMING = (
    "CREATE", "INSERT", "UPDATE", "DELETE", "MERGE", "MERGE INTO", "ALTER", "COPY", "DROP",
    "TRUNCATE",
)  # fmt: skip
"""Statements that make, change or remove what they name first."""
_INSTEAD = {
    ("TRUNCATE", "tensor"): "DELETE FROM {} takes all its rows away.",
    ("DROP", "tensor"): "DROP TENSOR {} drops it.",
    ("DROP", "view"): "DROP VIEW {} drops it.",
}


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
    _check_names(con, structure, refusal)
    _check_described(con, structure)
    made = hybrid.split_foreign(con, sql)
    word = structure.word(0)
    if word not in ("INSERT", "UPDATE", "DELETE", "MERGE", "SELECT"):
        con.forget_plans()  # a table comes before an array of the caller
    found = hybrid.run(con, made)
    if word == "WITH":
        word = structure.word(structure.query(0, len(structure.tokens)).body.first)
    if word in _COUNTING and found.names == ("Count",):
        rows = list(found.rows())
        return int(rows[0][0]) if rows else -1
    return found if found.names != ("Count",) and found.names != ("Success",) else -1


def _check_described(con: Connection, structure: Structure) -> None:
    """Refuses to have DuckDB describe a file that it cannot read.

    Raises:
        NotSupportedError: It holds a tensor.
    """
    word = structure.word(0)
    if word not in ("DESCRIBE", "DESC", "SHOW", "SUMMARIZE") or len(structure.tokens) < 2:
        return
    named = structure.tokens[1]
    if named.token_type is TokenType.STRING and hybrid.is_tensor_file(con, named.text):
        raise NotSupportedError(
            f"{word} takes a table, and '{named.text}' is a tensor",
            hint=f"{word} SELECT * FROM '{named.text}' works.",
            position=named.start,
        )


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
    is_kind = word in ("CREATE", "DROP", "ALTER")
    is_kind = is_kind and "TABLE" not in map(structure.word, range(1, at))
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
            f"{word} is for tables, and {found.name} is a {kind}",
            hint=_INSTEAD.get((word, kind), "").format(quoted(found.name)),
            position=token.start,
        )
    raise refusal
