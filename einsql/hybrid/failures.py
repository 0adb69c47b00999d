"""Errors of DuckDB in the terms of the user's statement and of einsql's names."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlglot import TokenType

from einsql.errors import Error, UnknownHere
from einsql.hybrid.split.edits import Edited
from einsql.hybrid.split.parts import PREFIX, Parts
from einsql.planner.queries import query_binder
from einsql.sql.functions.hints import function_hint
from einsql.sql.functions.table_functions import TABLE_FUNCTIONS
from einsql.sql.functions.tile_functions import FUNCTIONS as TILE_FUNCTIONS
from einsql.sql.parser.tokens import tokenize
from einsql.sql.scope.scope import replaced_hint

if TYPE_CHECKING:
    from einsql.planner.context import Context

_NAMES = (TokenType.VAR, TokenType.IDENTIFIER)
_NOT_IN_FROM = re.compile(r'Referenced table "(.+?)" not found')
_NO_COLUMN = re.compile(r'Referenced column ".+?"|"(?P<table>[^"]+)" does not have a column named')
_NO_TABLE = re.compile(r"Table with name (\S+) does not exist")


def explained(ctx: Context, parts: Parts, text: Edited, error: Error) -> Error:
    """The error of a text for DuckDB, with a position in the statement and hints of einsql.

    Args:
        ctx: The session.
        parts: The parts of the statement.
        text: The text.
        error: DuckDB's error.
    """
    shown = _named(parts, text, error)
    _suggest_names(ctx, shown)
    _name_columns(ctx, shown)
    return shown


def _name_columns(ctx: Context, error: Error) -> None:
    """Lists the present columns of the caller's tables in the error of an absent column."""
    absent = _NO_COLUMN.search(error.reason)
    if absent is None:
        return
    tables = [n for n in ctx.shown if absent["table"] in (None, n)]
    if len(tables) != 1:  # the name of an alias, or a column of any of them
        return
    with suppress(Error):  # a failed transaction
        (name,) = tables
        columns = [column for column, _ in ctx.duck.columns(name)]
        listing = ", ".join(columns[:12]) + ", …" * (len(columns) > 12)
        table = "Its table" if name.startswith(PREFIX) else f"The variable {name}"
        error.hint = f"{table} has the columns {listing}."


def names_ours(error: Error) -> bool:
    """Returns True if DuckDB's error is about a function that only einsql has."""
    words = [w.lower() for w in error.reason.split()]
    return any(w in TILE_FUNCTIONS or w in TABLE_FUNCTIONS for w in words)


def _suggest_names(ctx: Context, error: Error) -> None:
    """Names tensors and tables in the error of an unknown table; DuckDB's hint has its own only."""
    if not isinstance(error, UnknownHere):
        return
    unknown = _NO_TABLE.match(error.reason)
    if unknown is not None:
        error.relation, error.known = unknown[1], tuple(query_binder(ctx).catalog.names())
    with suppress(Error):  # a failed transaction
        error.suggest_also(name for name, _ in ctx.duck.tables())


def _explain_alias(error: Error, text: str) -> bool:
    """Says that an alias replaces the name of a table; returns False if none does."""
    unknown = _NOT_IN_FROM.match(error.reason)
    if unknown is None:
        return False
    name, tokens = unknown[1].rpartition(".")[2], tokenize(text)
    aliases = []
    for at in range(1, len(tokens) - 1):
        is_read = tokens[at - 1].text.upper() in ("FROM", "JOIN", ",", ".")
        if is_read and tokens[at].text.lower() == name.lower():
            behind = [t for t in tokens[at + 1 : at + 3] if t.token_type is not TokenType.ALIAS]
            aliases += [t.text for t in behind[:1] if t.token_type in _NAMES]
    if aliases:
        error.hint = replaced_hint(name, aliases)
    return bool(aliases)


def _named(parts: Parts, text: Edited, error: Error) -> Error:
    """Returns DuckDB's error with its position in the statement.

    Returns the binder's error instead if it is about the same names, or if DuckDB lacks a
    function that only einsql has.
    """
    if isinstance(error, UnknownHere) and names_ours(error) and parts.wrong:
        known = [e for e in parts.wrong if not isinstance(e, UnknownHere)]
        return (known or parts.wrong)[0]
    is_replaced = _explain_alias(error, text.text)
    for ours in () if is_replaced else parts.wrong:
        if isinstance(ours, UnknownHere) and ours.relation and not _NO_TABLE.match(error.reason):
            continue  # DuckDB knows the table
        name = ours.reason.split('"')[1::2]
        if name and all(f'"{n}"' in error.reason or f" {n} " in error.reason for n in name):
            return ours
    if isinstance(error, UnknownHere):
        error.hint = function_hint(error.reason, error.hint)
    if error.position is not None:
        error.position = text.origin(error.position)
    return error
