"""Translates errors of DuckDB and Arrow into einsql's."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from einsql import errors
from einsql.core.settings import SETTINGS

_LINE = re.compile(r"\n*LINE (\d+): (.*)\n( *)\^.*", re.DOTALL)
_HEAD = re.compile(r"^(?:[A-Z][\w ]*?)(?: Error)?: ")
_READING = re.compile(r"\n*^ *file = ([^\n]*)\n.*", re.DOTALL | re.MULTILINE)
"""The part of DuckDB's message on an unreadable CSV file with its name and all options."""
_ADVICE = re.compile(r"\n(?:Possible (?:fixes|solutions)|The search space used was):.*", re.DOTALL)
_LITERAL = re.compile(r"'((?:[^']++|'')*+)'")
_FILE = re.compile(r"(?i)\.(csv|tsv|txt|parquet|json|jsonl|ndjson|xlsx|db|duckdb)(\.(gz|zst))?$")
_OF_FILES = re.compile(r"CSV|JSON|Parquet|parquet|file|File|magic bytes|UTF-?8")
_STACK = re.compile(r"\n+(?:Stack Trace:|This error signals an assertion failure).*", re.DOTALL)
_PARAMETER = re.compile(
    r'^(?:unrecognized configuration parameter "|Pragma Function with name )(\w+)'
)
"""DuckDB's message on an unknown setting, with its name."""
_INVALID = "database has been invalidated"
"""DuckDB's reply to every statement after a fatal internal error."""
_IN_CALLBACK = re.compile(r"(?:failed: |^)KeyboardInterrupt:?\s*$", re.MULTILINE)
"""The end of DuckDB's message on Ctrl-C in a Python function."""
_SHOWN = 300
"""Greatest number of characters in a line of a message: DuckDB quotes the content of files."""


@contextmanager
def translated(sql: str) -> Iterator[None]:
    """Translates errors of DuckDB inside, with their position in DuckDB's text."""
    try:
        yield
    except Exception as error:
        ours = translation(error, sql)
        if ours is None and type(error) is RuntimeError:  # DuckDB has no class for some errors
            ours = translate(error, sql)
        if ours is None:
            raise
        raise ours from None


def translation(error: BaseException, sql: str = "") -> BaseException | None:
    """The translation of an exception of DuckDB or Arrow; None for any other exception.

    Args:
        error: The exception.
        sql: The text that DuckDB ran.
    """
    duckdb, arrow = sys.modules.get("duckdb"), sys.modules.get("pyarrow")
    if (
        duckdb is not None
        and isinstance(error, duckdb.Error | RuntimeError)
        and is_cancelled(error)
    ):
        return _stopped()
    if duckdb is not None and isinstance(error, duckdb.Error | UnicodeDecodeError):
        return translate(error, sql)  # a quoted file's content may not be UTF-8
    if arrow is None or not isinstance(error, arrow.ArrowException):
        return None
    if isinstance(error, arrow.ArrowCancelled):
        return _stopped()
    kinds = (
        (arrow.ArrowNotImplementedError, errors.NotSupportedError),
        (arrow.ArrowInvalid, errors.DataError),
    )
    error_class = next((ours for theirs, ours in kinds if isinstance(error, theirs)), None)
    lines = str(error).splitlines() or [type(error).__name__]
    return (error_class or errors.OperationalError)(_shortened(lines[0]))


def is_cancelled(error: BaseException) -> bool:
    """True for DuckDB's exception in place of one that a signal handler has raised."""
    text = str(error)
    if type(error) is RuntimeError:
        return text == "Query interrupted"
    return "KeyboardInterrupt" in text and _IN_CALLBACK.search(text) is not None


def _stopped() -> BaseException:
    """The default SIGINT handler's exception, or a general one if the user has set a handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return KeyboardInterrupt()
    return errors.InterruptedError("The statement was cancelled")


def translate(error: Any, sql: str) -> errors.Error:
    """Translates an error of DuckDB.

    An error about a file names the file. Without a position from DuckDB, it has the position of
    the file's name in the text.
    """
    import duckdb  # already loaded, as it has raised

    kinds = (
        (duckdb.InterruptException, errors.InterruptedError),
        (duckdb.CatalogException, errors.UnknownHere),
        (duckdb.PermissionException, errors.OperationalError),
        (duckdb.ConstraintException, errors.IntegrityError),
        (duckdb.NotImplementedException, errors.NotSupportedError),
        (duckdb.DataError, errors.DataError),
        (duckdb.IntegrityError, errors.IntegrityError),
        (duckdb.OperationalError, errors.OperationalError),
        (duckdb.NotSupportedError, errors.NotSupportedError),
        (duckdb.InternalError, errors.InternalError),
        (duckdb.ProgrammingError, errors.ProgrammingError),
        (UnicodeDecodeError, errors.OperationalError),
    )
    error_class = next((ours for theirs, ours in kinds if isinstance(error, theirs)), None)
    message = str(error)
    if "module 'pytz'" in message:  # followed by a traceback
        return errors.InterfaceError(
            "Python's values of TIMESTAMP WITH TIME ZONE need the package pytz",
            hint="pip install pytz; or cast them to VARCHAR or TIMESTAMP, or use fetch_df() or "
            "fetch_arrow_table().",
        )
    if isinstance(error, UnicodeDecodeError):
        message = error.object.decode(errors="replace")
    elif "nanobind::str()" in message:  # the same error from DuckDB's Python package
        message = "Text is not in UTF-8"
    position = position_in(message, sql)
    message = _HEAD.sub("", _LINE.sub("", _STACK.sub("", message)).strip())
    reading = _READING.search(message)
    message = _READING.sub("", message)
    brief = _ADVICE.sub("\nread_csv() has options for such files.", message)
    lines = [_shortened(" ".join(line.split())) for line in brief.split("\n")]
    reason = lines[0].rstrip("!")
    hint = (" " if brief == message else "\n").join(line for line in lines[1:] if line)
    parameter = _PARAMETER.search(reason)
    if parameter is not None and parameter[1] in SETTINGS:
        hint = f"{parameter[1]} is a setting of einsql: SHOW {parameter[1]} prints its value."
    if isinstance(error, duckdb.PermissionException) and "disabled by configuration" in reason:
        hint = "enable_external_access is off, and stays off in this session."
    named = None
    never_about_files = (
        duckdb.InterruptException,
        duckdb.CatalogException,
        duckdb.BinderException,
        duckdb.ParserException,
        duckdb.ConstraintException,
        duckdb.TransactionException,
    )
    if not isinstance(error, never_about_files):
        text, path_read = f"{reason} {hint}", reading[1] if reading else None
        about_file = _OF_FILES.search(text) is not None or type(error) in (
            duckdb.Error,
            duckdb.IOException,
            duckdb.InternalException,
            RuntimeError,
            UnicodeDecodeError,
        )
        named = _file(text, sql, path_read, about_file)
    if named is not None:
        name, at = named
        position = at if position is None else position
        if name not in reason:
            reason = f"'{name}' cannot be read: {reason}"
        if error_class in (None, errors.ProgrammingError, errors.InternalError):
            error_class = errors.OperationalError  # the file is wrong, not the statement
    if _INVALID in reason:
        error_class, reason = (
            errors.OperationalError,
            "DuckDB has invalidated this database after an error",
        )
        hint = (
            "Close every connection to it and open it again: a file has its last commit. Tables "
            "in memory are lost; COPY can still write the tensors to files."
        )
    return (error_class or errors.DatabaseError)(reason, hint=hint, position=position)


def is_invalidated(error: Exception) -> bool:
    """True if DuckDB has invalidated the database after an earlier error."""
    return _INVALID in str(error)


def _shortened(line: str) -> str:
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def _file(
    message: str, sql: str, path_read: str | None, about_file: bool
) -> tuple[str, int | None] | None:
    """The file of a message, and the offset of its name, or of a pattern, in the text.

    Args:
        message: DuckDB's message.
        sql: The text that DuckDB ran.
        path_read: The path in DuckDB's message, if it has one.
        about_file: Whether the message is about a file if the text names one.
    """
    written = {
        m[1].replace("''", "'"): m.start()
        for m in _LITERAL.finditer(sql)
        if _FILE.search(m[1]) or "*" in m[1]
    }
    for name, at in written.items():
        if name == path_read or name in message:
            return name, at
    first = next(iter(written.values()), None)
    if path_read is not None:
        return path_read, first
    if written and about_file:
        return "' or '".join(written), first
    return None


def position_in(message: str, sql: str) -> int | None:
    """The offset in the text of the place in DuckDB's message."""
    match = _LINE.search(message)
    if match is None:
        return None
    column = len(match[3]) - len(f"LINE {match[1]}: ")
    return errors.pointed_at(sql, int(match[1]), match[2], column)
