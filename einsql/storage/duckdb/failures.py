"""DuckDB's errors as einsql's."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from einsql import errors

_LINE = re.compile(r"\n*LINE (\d+): (.*)\n( *)\^.*", re.DOTALL)
_HEAD = re.compile(r"^(?:[A-Z][\w ]*?)(?: Error)?: ")
_READING = re.compile(r"\n*^ *file = ([^\n]*)\n.*", re.DOTALL | re.MULTILINE)
"""DuckDB's message about an unreadable CSV file: its name and every option."""
_ADVICE = re.compile(r"\n(?:Possible (?:fixes|solutions)|The search space used was):.*", re.DOTALL)
_LITERAL = re.compile(r"'((?:[^']++|'')*+)'")
_FILE = re.compile(r"(?i)\.(csv|tsv|txt|parquet|json|jsonl|ndjson|xlsx|db|duckdb)(\.(gz|zst))?$")
_OF_FILES = re.compile(r"CSV|JSON|Parquet|parquet|file|File|magic bytes|UTF-?8")
_STACK = re.compile(r"\n+(?:Stack Trace:|This error signals an assertion failure).*", re.DOTALL)
_INVALID = "database has been invalidated"
"""DuckDB's reply to every statement after a fatal internal error."""
_IN_CALLBACK = re.compile(r"(?:failed: |^)KeyboardInterrupt:?\s*$", re.MULTILINE)
"""The end of DuckDB's message about Ctrl-C in a Python function that it called."""
_SHOWN = 300
"""Characters of a line of a message: DuckDB repeats what a file holds."""


@contextmanager
def translated(sql: str) -> Iterator[None]:
    """Errors of DuckDB inside become einsql's, with the position in DuckDB's text."""
    try:
        yield
    except Exception as error:
        ours = foreign(error, sql)
        if ours is None and type(error) is RuntimeError:  # DuckDB has no class for some errors
            ours = translate(error, sql)
        if ours is None:
            raise
        raise ours from None


def foreign(error: BaseException, sql: str = "") -> BaseException | None:
    """Translates an exception of DuckDB or Arrow; None for any other one.

    Args:
        error: The exception.
        sql: The text that DuckDB ran.
    """
    duckdb, arrow = sys.modules.get("duckdb"), sys.modules.get("pyarrow")
    if duckdb is not None and isinstance(error, duckdb.Error | RuntimeError) and is_stopped(error):
        return _stopped()
    if duckdb is not None and isinstance(error, duckdb.Error | UnicodeDecodeError):
        return translate(error, sql)  # DuckDB says what files hold, which may be no UTF-8
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


def is_stopped(error: BaseException) -> bool:
    """True for what DuckDB raises in the place of what the handler of a signal raised."""
    text = str(error)
    if type(error) is RuntimeError:
        return text == "Query interrupted"
    return "KeyboardInterrupt" in text and _IN_CALLBACK.search(text) is not None


def _stopped() -> BaseException:
    """The exception of the default SIGINT handler; a user's own handler is not known."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        return KeyboardInterrupt()
    return errors.InterruptedError("The statement was cancelled")


def translate(error: Any, sql: str) -> errors.Error:
    """Einsql's error for one of DuckDB's.

    One about a file names it and, if DuckDB says no position, has that of its name.
    """
    import duckdb  # as above

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
    if isinstance(error, UnicodeDecodeError):
        message = error.object.decode(errors="replace")
    elif "nanobind::str()" in message:  # how DuckDB's Python package says the same
        message = "Text is not in UTF-8"
    position = place(message, sql)
    message = _HEAD.sub("", _LINE.sub("", _STACK.sub("", message)).strip())
    reading = _READING.search(message)
    message = _READING.sub("", message)
    brief = _ADVICE.sub("\nread_csv() has options for such files.", message)
    lines = [_shortened(" ".join(line.split())) for line in brief.split("\n")]
    reason = lines[0].rstrip("!")
    hint = (" " if brief == message else "\n").join(line for line in lines[1:] if line)
    if isinstance(error, duckdb.PermissionException) and "disabled by configuration" in reason:
        hint = "enable_external_access is off, and stays off in this session."
    named = None
    if not isinstance(error, _unrelated()):
        text, path_read = f"{reason} {hint}", reading[1] if reading else None
        surely = type(error) in _sure() or _OF_FILES.search(text) is not None
        named = _file(text, sql, path_read, surely)
    if named is not None:
        name, at = named
        position = at if position is None else position
        if name not in reason:
            reason = f"'{name}' cannot be read: {reason}"
        if error_class in (None, errors.ProgrammingError, errors.InternalError):
            error_class = errors.OperationalError  # what a file holds is no mistake in the text
    if _INVALID in reason:
        error_class, reason = (
            errors.OperationalError,
            "DuckDB has given this database up after an error",
        )
        hint = (
            "Close every connection to it and open it again: a file holds its last commit. In "
            "memory its tables are lost; COPY can still write the tensors to files."
        )
    return (error_class or errors.DatabaseError)(reason, hint=hint, position=position)


def is_given_up(error: Exception) -> bool:
    """True if DuckDB says that an earlier error has ended the database."""
    return _INVALID in str(error)


def _sure() -> tuple[type, ...]:
    """Errors that are about a file if a statement has one, whatever they say."""
    import duckdb  # as above

    return (
        duckdb.Error,
        duckdb.IOException,
        duckdb.InternalException,
        RuntimeError,
        UnicodeDecodeError,
    )


def _unrelated() -> tuple[type, ...]:
    """Errors that are never about a file."""
    import duckdb  # as above

    return (
        duckdb.InterruptException,
        duckdb.CatalogException,
        duckdb.BinderException,
        duckdb.ParserException,
        duckdb.ConstraintException,
        duckdb.TransactionException,
    )


def _shortened(line: str) -> str:
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}…"


def _file(
    message: str, sql: str, path_read: str | None, surely: bool
) -> tuple[str, int | None] | None:
    """The file that a message is about, and where its name, or a pattern, is in the text.

    Args:
        message: What DuckDB says.
        sql: The text that it ran.
        path_read: Which one DuckDB says it is.
        surely: Whether the message is about a file, if there is one.
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
    if written and surely:
        return "' or '".join(written), first
    return None


def place(message: str, sql: str) -> int | None:
    """The offset in a text that DuckDB points at."""
    match = _LINE.search(message)
    if match is None:
        return None
    column = len(match[3]) - len(f"LINE {match[1]}: ")
    return errors.pointed_at(sql, int(match[1]), match[2], column)
