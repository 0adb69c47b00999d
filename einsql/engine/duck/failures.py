"""DuckDB's errors as einsql's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from einsql import errors

_LINE = re.compile(r"\n*LINE (\d+): (.*)\n( *)\^.*", re.DOTALL)
_HEAD = re.compile(r"^(?:[A-Z][\w ]*?)(?: Error)?: ")


@contextmanager
def translated(sql: str) -> Iterator[None]:
    """Errors of DuckDB inside become einsql's, with the position in DuckDB's text."""
    import duckdb  # 40 ms, and a statement in it has imported it

    try:
        yield
    except duckdb.Error as error:
        raise translate(error, sql) from None


def translate(error: Any, sql: str) -> errors.Error:
    """Einsql's error for one of DuckDB's."""
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
    )
    made = next((ours for theirs, ours in kinds if isinstance(error, theirs)), None)
    message = str(error)
    position = place(message, sql)
    message = _HEAD.sub("", _LINE.sub("", message).strip())
    reason, _, hint = message.partition("\n")
    found = (made or errors.DatabaseError)(
        reason.strip().rstrip("!"), hint=" ".join(hint.split()), position=position
    )
    return found


def place(message: str, sql: str) -> int | None:
    """The offset in a text that DuckDB points at."""
    found = _LINE.search(message)
    if found is None or found[2].startswith("..."):
        return None
    before = sql.split("\n")[: int(found[1]) - 1]
    shown = len(f"LINE {found[1]}: ")
    return sum(len(line) + 1 for line in before) + len(found[3]) - shown
