"""DuckDB statements that would damage einsql's catalog, or export a database without it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlglot import Token, TokenType

from einsql.errors import Error, NotSupportedError, OperationalError, ProgrammingError
from einsql.sql.parser.tokens import word_of

CATALOG = "__einsql"
"""The schema of the catalog."""

_SETTING = ("SET", "RESET", "PRAGMA", "USE", "CALL")
"""Statements in which a string may be a name."""

SHARED_SETTINGS = {
    "memory_limit": "memory_limit",
    "max_memory": "memory_limit",
    "temp_directory": "temp_directory",
    "max_temp_directory_size": "max_temp_directory_size",
    "enable_external_access": "enable_external_access",
}
"""DuckDB settings that are derived from einsql's, and the name of einsql's setting."""
_MEANING = {
    "default_order": ("asc", "ascending"),
    "default_null_order": ("nulls_last", "nulls last", "last"),
    "null_order": ("nulls_last", "nulls last", "last"),
    "integer_division": ("false", "0", "off", "no"),
    "ieee_floating_point_ops": ("true", "1", "on", "yes"),
}
"""DuckDB settings that change results, and the spellings of the value by which fragments
compute."""
_WRITING = ("profiling_output", "profile_output", "enable_logging", "logging_storage")


def refuse(tokens: Sequence[Token], database: str) -> None:
    """Refuses a statement that names the catalog's schema or detaches the session's database.

    Args:
        tokens: The tokens of a statement other than a query.
        database: DuckDB's name of the session's database.

    Raises:
        ProgrammingError: The statement names the schema or detaches the database.
    """
    word = word_of(tokens[0])
    for token in tokens:
        is_text = token.token_type is TokenType.STRING
        low = token.text.lower()
        if (low == CATALOG and not is_text) or (CATALOG in low and is_text and word in _SETTING):
            raise refusal(token.start)
    gives_up = word == "DETACH" or {word, *map(word_of, tokens[1:2])} in (
        {"DROP", "DATABASE"},
        {"ALTER", "DATABASE"},
    )
    replaces = word == "ATTACH" and [word_of(t) for t in tokens[1:3]] == ["OR", "REPLACE"]
    if not gives_up and not replaces:
        return
    for token in tokens[1:]:
        # ATTACH without AS names a database after its file.
        stem = token.text.replace("\\", "/").rsplit("/", 1)[-1].split(".")[0]
        if database.lower() in (token.text.lower(), stem.lower()):
            raise ProgrammingError(
                f'"{database}" stays while it is open: it is the session\'s own database',
                hint="con.close() lets it go.",
                position=token.start,
            )


def refuse_setting(tokens: Sequence[Token], external_access: bool) -> None:
    """Refuses to change a DuckDB setting that is derived from einsql's.

    Args:
        tokens: The tokens of a statement.
        external_access: Whether files may be read and written.

    Raises:
        ProgrammingError: The statement sets such a setting.
        OperationalError: The setting makes DuckDB write files, but external access is disabled;
            every later statement would fail.
    """
    words = [word_of(t) for t in tokens]
    if words[0] not in ("SET", "RESET", "PRAGMA", "CALL"):
        return
    at = 2 if words[1:2] and words[1] in ("GLOBAL", "SESSION", "LOCAL") else 1
    if at >= len(tokens):
        return
    name = tokens[at].text.lower()
    if name in SHARED_SETTINGS:
        raise ProgrammingError(
            f"{name} of DuckDB follows einsql's {SHARED_SETTINGS[name]}",
            hint=f"SET {SHARED_SETTINGS[name]} = … holds for both.",
            position=tokens[at].start,
        )
    computes = _MEANING.get(name, ())
    sets = words[0] != "RESET" and at + 1 < len(tokens)
    if computes and sets and tokens[-1].text.lower() not in computes:
        raise ProgrammingError(
            f"einsql computes with {name} = {computes[0]} alone",
            hint="Write the order, the division or the CAST in the query.",
            position=tokens[at].start,
        )
    if name in _WRITING and tokens[-1].text and not external_access:
        raise OperationalError(
            f"{name} may write files, and enable_external_access is off",
            position=tokens[at].start,
        )


def commented(tokens: Sequence[Token]) -> Token | None:
    """Finds the table, view or macro whose comment COMMENT ON changes.

    Returns:
        Its name. None for a name with a schema and for any other statement.
    """
    words = [word_of(t) for t in tokens]
    if words[:2] != ["COMMENT", "ON"] or "IS" not in words:
        return None
    first = 4 if words[2:4] == ["MACRO", "TABLE"] else 3
    last = words.index("IS")
    parts = last - first - 2 * (words[2] == "COLUMN")
    return tokens[first] if parts == 1 else None


def refuse_comment(token: Token) -> Error:
    """Returns the error for a comment on an object of einsql."""
    return NotSupportedError(
        "Tensors, and views and macros that einsql stores, have no comments",
        hint="Tables, types, sequences and indexes of DuckDB have.",
        position=token.start,
    )


def carried(tokens: Sequence[Token]) -> tuple[str, int] | None:
    """Finds the database that EXPORT or COPY FROM DATABASE reads.

    Returns:
        The name ("" for the current database) and its position in the statement. None for
        any other statement.
    """
    words = [word_of(t) for t in tokens]
    if words[:3] == ["COPY", "FROM", "DATABASE"] and len(tokens) > 3:
        return tokens[3].text, tokens[3].start
    if words[:2] == ["EXPORT", "DATABASE"] and len(tokens) > 2:
        is_path = tokens[2].token_type is TokenType.STRING
        return "" if is_path else tokens[2].text, tokens[2].start
    return None


def refuse_export(position: int) -> Error:
    """Returns the error for an export of a database by DuckDB alone."""
    return NotSupportedError(
        "DuckDB would carry tables and leave the tensors, views and macros behind",
        hint="BACKUP TO 'new.db' and EXPORT DATABASE 'directory' carry all that is in the database "
        "that is connected to.",
        position=position,
    )


def refusal(position: int | None = None) -> Error:
    """Returns the error for a statement that names the catalog's schema."""
    return ProgrammingError(
        f"{CATALOG} is einsql's own schema: nothing but SELECT may name it",
        hint="CREATE, UPDATE and DROP of tensors, views and macros change what it holds.",
        position=position,
    )
