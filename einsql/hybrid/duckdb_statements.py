"""Statements that DuckDB runs: CREATE TABLE, INSERT into tables, PRAGMA and others."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from sqlglot import Token, TokenType

from einsql.core.quoting import in_quotes, literal
from einsql.errors import Error, InterfaceError, NotSupportedError, ProgrammingError
from einsql.hybrid import hybrid_plan, lookups, system_tables
from einsql.hybrid.split import guard
from einsql.hybrid.split.blocks import Structure
from einsql.sql.parser.lexical import scan
from einsql.sql.parser.parser import is_qualified
from einsql.sql.parser.tokens import tokenize, word_of
from einsql.storage.database.export_manifest import manifest_of
from einsql.storage.duckdb.failures import translated
from einsql.storage.duckdb.table_result import TableResult
from einsql.storage.objects import Tensor, is_local, kind_of, macro_key

if TYPE_CHECKING:
    from sqlglot import Token

    from einsql.planner.context import Context

_COUNTING = ("INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "COPY", "MERGE INTO", "TRUNCATE")
_SHOWING = ("SELECT", "FROM", "VALUES", "PIVOT", "UNPIVOT", "EXECUTE")
"""Statements whose result columns may have any name, including "Success"."""
_DESCRIBING = ("DESCRIBE", "DESC", "SHOW")
_NAMING = (
    "CREATE",
    "INSERT",
    "UPDATE",
    "DELETE",
    "MERGE",
    "MERGE INTO",
    "ALTER",
    "COPY",
    "DROP",
    "TRUNCATE",
)
"""Statements that create, change or drop the object of their first name."""
_BEFORE_NAME = {"OR", "REPLACE", "IGNORE", "TEMP", "TEMPORARY", "INTO", "FROM"}
_BEFORE_NAME |= {"IF", "NOT", "EXISTS", "TABLE", "UNIQUE", "PERSISTENT"}
"""Words between the verb of a definition and the name."""
_INSTEAD = {
    ("TRUNCATE", "tensor"): "DELETE FROM {} takes all its rows away.",
    ("DROP", "tensor"): "DROP TENSOR {} drops it.",
    ("DROP", "view"): "DROP VIEW {} drops it.",
    ("ALTER", "tensor"): "CREATE TENSOR … AS SELECT … FROM {} has other names or types.",
    ("MERGE", "tensor"): "INSERT OR REPLACE INTO {} sets the values of keys.",
    ("MERGE INTO", "tensor"): "INSERT OR REPLACE INTO {} sets the values of keys.",
}
_MAKING = ("CREATE", "ALTER")
"""Statements that may create tables, besides COPY FROM DATABASE and PRAGMA import_database."""
_TRANSACTION = ("BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT")
"""Statements that begin or end a transaction."""
_READING = ("INSERT", "UPDATE", "DELETE", "MERGE", "MERGE INTO", "WITH", "COPY")
"""Other statements that may read tables and tensors; both reads need the same commit."""


def run(ctx: Context, sql: str, refusal: Error) -> TableResult | int:
    """Runs a statement.

    Args:
        ctx: The session.
        sql: The statement.
        refusal: The error of einsql's own parser.

    Returns:
        The rows, or the number of changed rows; -1 if the number is unknown.

    Raises:
        Error: The statement would change a tensor, or DuckDB refuses the statement.
    """
    structure = Structure(tokenize(sql))
    check(ctx, structure, refusal)
    _check_described(ctx, structure)
    word = structure.word(0)
    if word == "PREPARE":
        _check_prepared(ctx, structure, sql)
    makes = word in _MAKING or guard.carried(structure.tokens) is not None
    try:
        with ctx.store.snapshot(makes) if makes or word in _READING else nullcontext():
            listing = system_tables.statement(ctx, structure)
            if listing is None:
                hybrid = hybrid_plan.split_duckdb_statement(ctx, sql)
            else:
                hybrid = hybrid_plan.whole_of_duckdb(ctx, listing)
            reads_ours = hybrid.parts.fragments or hybrid.parts.relations or ctx.shown
            if _defines_view(structure) and reads_ours:
                raise refusal  # DuckDB could not resolve the names when it reads the view
            table = hybrid_plan.run(ctx, hybrid)
    finally:
        if word not in ("INSERT", "UPDATE", "DELETE", "MERGE", "SELECT"):
            ctx.plans.clear()  # a table takes precedence over an array of the caller
            ctx.store.database.tables = object()
    if word in ("ATTACH", "DETACH"):
        ctx.store.database.attached(ctx.duck.attached())
    if word in ("USE", "SET", "PRAGMA"):
        ctx.duck.leave_catalog()
    word = _verb(structure)
    returns = "RETURNING" in map(structure.word, range(len(structure.tokens)))
    if word in _COUNTING and table.names == ("Count",) and not returns:
        rows = list(table.rows())
        return int(rows[0][0]) if rows else -1
    return -1 if table.names == ("Success",) and word not in _SHOWING else table


def register_table(ctx: Context, name: str, rows: object) -> None:
    """Creates a temporary table from a DataFrame or an Arrow table.

    Raises:
        ProgrammingError: A stored tensor, a view or another table has the name.
        InterfaceError: DuckDB cannot read the rows.
    """
    duck, stored = ctx.duck, ctx.store.get(name)
    if isinstance(stored, Tensor) and stored.borrowed:
        ctx.store.unregister(name)
    elif stored is not None:
        raise ProgrammingError(f'"{name}" exists', hint="Take another name, or drop it.")
    if not duck.is_registered(name):
        duck.refuse(name)
    try:
        with translated(""), duck.showing({_ROWS: rows}):
            duck.execute(f"CREATE OR REPLACE TEMP TABLE {in_quotes(name)} AS FROM {_ROWS}")
    except Error as error:
        kind = type(rows).__name__
        raise InterfaceError(f"The {kind} is no table: {error.reason}") from None
    duck.registered.add(name.lower())
    ctx.plans.clear()
    ctx.store.database.tables = object()


_ROWS = "__einsql_rows"


def _verb(structure: Structure) -> str:
    """Returns the verb of a statement: its first word, or the first word after its WITH."""
    word = structure.word(0)
    if word == "WITH":
        word = structure.word(structure.query(0, len(structure.tokens)).body.first)
    return word


def stores(structure: Structure) -> bool:
    """Returns True if a statement changes stored data when it runs."""
    words = (structure.word(n) for n in range(len(structure.tokens)))
    changes = structure.word(0) == "WITH" and not {"INSERT", "UPDATE", "DELETE"}.isdisjoint(words)
    return changes or _verb(structure) in _NAMING


def is_query(structure: Structure) -> bool:
    """Returns True if a statement computes rows."""
    return _verb(structure) in (*_SHOWING, "TABLE", "(", "SUMMARIZE", *_DESCRIBING, "CALL")


def _defines_view(structure: Structure) -> bool:
    return structure.word(0) == "CREATE" and "VIEW" in map(structure.word, range(1, 6))


def change_setting(ctx: Context, text: str, refusal: Error) -> None:
    """Changes a setting that only DuckDB has.

    Raises:
        Error: DuckDB refuses the change, or einsql relies on the setting.
    """
    check(ctx, Structure(tokenize(text)), refusal)
    with ctx.duck.profiling.of(ctx.duck.con, True):
        ctx.duck.execute(text)
    ctx.duck.leave_catalog()


def check(ctx: Context, structure: Structure, refusal: Error) -> None:
    """Refuses statements that DuckDB may not run.

    Raises:
        Error: The statement would change a tensor, the catalog or a setting of einsql.
    """
    tokens = structure.tokens
    guard.refuse(tokens, ctx.duck.database)
    guard.refuse_setting(tokens, ctx.settings.enable_external_access)
    named = guard.commented(tokens)
    if named is not None and any(map(ctx.store.get, (named.text, macro_key(named.text)))):
        raise guard.refuse_comment(named)
    carried = guard.carried(tokens)
    if carried is not None and _holds_ours(ctx, carried[0]):
        raise guard.refuse_export(carried[1])
    if structure.word(0) == "PRAGMA" and len(tokens) > 1 and ctx.settings.enable_external_access:
        _check_import(ctx, tokens)
    _check_names(ctx, structure, refusal)


def _check_prepared(ctx: Context, structure: Structure, sql: str) -> None:
    """Refuses PREPARE of a statement that reads einsql objects; DuckDB would cache their state."""
    words = map(structure.word, range(len(structure.tokens)))
    first = next((n + 1 for n, word in enumerate(words) if word == "AS"), None)
    if first is None or first >= len(structure.tokens):
        return
    hybrid = hybrid_plan.split_duckdb_statement(ctx, sql[structure.tokens[first].start :])
    if ctx.shown:
        raise NotSupportedError(
            f'PREPARE would keep a statement on "{next(iter(ctx.shown))}", a variable of Python',
            hint="Run the statement itself: execute(sql, parameters) keeps its plan.",
            position=0,
        )
    if hybrid.parts.fragments or hybrid.parts.relations or hybrid.defined:
        raise NotSupportedError(
            "PREPARE would keep tensors, views and macros of einsql's as they are now",
            hint="Give parameters to execute(sql, parameters): plans are kept there, too.",
            position=0,
        )


def _holds_ours(ctx: Context, database: str) -> bool:
    """Returns True if a database contains einsql objects; "" means the current database."""
    name = database or str(ctx.duck.execute("SELECT current_database()")[0][0])
    if name.lower() == ctx.duck.database.lower():
        return any(not is_local(item) for item in ctx.store.objects.values())
    return ctx.duck.holds_catalog(name)


def _check_import(ctx: Context, tokens: Sequence[Token]) -> None:
    """Refuses PRAGMA import_database of a directory that DuckDB alone cannot import."""
    if tokens[1].text.lower() != "import_database":
        return
    folder, position = tokens[-1].text, tokens[-1].start
    for token in tokens[2:]:
        if token.token_type is TokenType.STRING:
            folder, position = token.text, token.start
    if os.path.exists(manifest_of(folder)):
        raise NotSupportedError(
            "DuckDB would import tables and leave the tensors, views and macros behind",
            hint=f"IMPORT DATABASE {literal(folder)} imports all of it.",
            position=position,
        )
    try:
        check_scripts(ctx, folder)
    except Error as error:
        error.position = position
        raise


def check_scripts(ctx: Context, folder: str) -> None:
    """Refuses import scripts that name the catalog or end the transaction of the import.

    Raises:
        Error: A script of the directory names the catalog or ends the transaction.
    """
    for name in ("schema.sql", "load.sql"):
        path = os.path.join(folder, name)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                script = file.read()
        except OSError:
            continue  # DuckDB reports the missing file
        for span in scan(script):
            tokens = tokenize(script[span.start : span.end])
            names = {t.text.lower() for t in tokens if t.token_type is not TokenType.STRING}
            if guard.CATALOG in names:
                raise NotSupportedError(
                    f"{path} names {guard.CATALOG}, einsql's own schema",
                    hint="Remove these lines: einsql reads its own part of an export elsewhere.",
                )
            if word_of(tokens[0]) in _TRANSACTION:
                raise NotSupportedError(
                    f"{path} holds {tokens[0].text}, and is imported as one transaction",
                    hint="Remove these lines.",
                )
            guard.refuse(tokens, ctx.duck.database)
            guard.refuse_setting(tokens, ctx.settings.enable_external_access)


def _check_described(ctx: Context, structure: Structure) -> None:
    """Refuses DESCRIBE and similar statements for a file that DuckDB cannot read.

    Raises:
        NotSupportedError: The file contains a tensor.
    """
    word = structure.word(0)
    if word not in (*_DESCRIBING, "SUMMARIZE") or len(structure.tokens) < 2:
        return
    named = structure.tokens[1]
    if named.token_type is TokenType.STRING and lookups.is_tensor_file(ctx, named.text):
        raise NotSupportedError(
            f"{word} takes a table, and '{named.text}' is a tensor",
            hint=f"{word} SELECT * FROM '{named.text}' works.",
            position=named.start,
        )


def _check_names(ctx: Context, structure: Structure, refusal: Error) -> None:
    """Refuses statements that would create or change an object with the name of an einsql object.

    Raises:
        ProgrammingError: A new table would have the name of a tensor or a view.
        Error: The refusal, if the statement would change a tensor.
    """
    word, at = structure.word(0), 1
    if word == "ALTER":  # tables and views
        words = list(map(structure.word, range(len(structure.tokens))))
        for n in range(3, len(words)):
            if words[n - 2 : n] == ["RENAME", "TO"]:
                ctx.duck.dropped.add(structure.tokens[n - 3].text.lower())
                _check_new(ctx, structure.tokens[n])
    if _defines_view(structure):
        words = [structure.word(n) for n in range(min(9, len(structure.tokens)))]
        if not is_qualified(words, words.index("VIEW") + 1):
            raise refusal
        return
    if word not in _NAMING:
        return
    while structure.word(at) in _BEFORE_NAME:
        at += 1
    before = list(map(structure.word, range(1, at)))
    is_kind = word in ("CREATE", "DROP", "ALTER") and "TABLE" not in before
    if is_kind or at >= len(structure.tokens) or (word == "COPY" and structure.word(at) == "("):
        return
    first = at
    while structure.word(at + 1) == "." and at + 2 < len(structure.tokens):
        at += 2
    prefix = [t.text for t in structure.tokens[first:at:2]]
    if word == "DROP":
        ctx.duck.dropped.add(structure.tokens[at].text.lower())
    token = structure.tokens[at]
    if word == "CREATE":
        own = ctx.duck.database.lower()
        low = [p.lower() for p in prefix]
        if low in ([], ["main"], ["temp"], ["temp", "main"], [own], [own, "main"]):
            _check_new(ctx, token)
        return
    existing = ctx.store.get(token.text)
    if existing is None or (prefix and not lookups.is_ours(ctx, prefix, token.text)):
        return
    kind = kind_of(existing)
    if prefix:
        if token.text.lower() in ctx.duck.names():  # DuckDB also has a table of this name
            return
        raise NotSupportedError(
            f"{existing.name} is a {kind}, which {word} names without a schema",
            position=token.start,
        )
    if word in ("ALTER", "MERGE", "MERGE INTO", "DROP", "TRUNCATE"):
        raise NotSupportedError(
            f"{word} is for tables, and {existing.name} is a {kind}",
            hint=_INSTEAD.get((word, kind), "").format(in_quotes(existing.name)),
            position=token.start,
        )
    raise refusal


def _check_new(ctx: Context, token: Token) -> None:
    """Refuses a new table with the name of an einsql object."""
    existing = ctx.store.get(token.text)
    if existing is not None:
        kind = kind_of(existing)
        raise ProgrammingError(
            f'There is a {kind} "{existing.name}" already',
            hint="Tables and tensors have names of their own.",
            position=token.start,
        )
