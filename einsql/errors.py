"""PEP 249's exception classes, with a position in the SQL text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

OF_A_TABLE = (
    "CREATE TABLE … AS SELECT makes a table of what is needed, to be joined to a tensor's keys, "
    "and CREATE TENSOR … AS SELECT a tensor."
)
"""The hint of errors about tables that DuckDB cannot query and einsql cannot read."""


class Error(Exception):
    """The base class of all errors that einsql raises.

    Attributes:
        reason: One sentence that describes the error.
        hint: An alternative that works, or an empty string.
        position: The character offset in the statement, or None.
        sql: The statement's text that the position refers to, or None.
    """

    def __init__(
        self,
        reason: str,
        *,
        hint: str = "",
        position: int | None = None,
        sql: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.position = position
        self.sql = sql

    def locate(self, sql: str) -> Error:
        """Sets the statement's text unless it is set already, and returns self."""
        if self.sql is None:
            self.sql = sql
        return self

    @property
    def line(self) -> int | None:
        """The line number of the position, from 1; None without a position."""
        if self.sql is None or self.position is None:
            return None
        return self.sql.count("\n", 0, self.position) + 1

    def __str__(self) -> str:
        text = self.reason
        if self.hint:
            text += f"\n{self.hint}"
        if self.sql is None or self.position is None:
            return text
        start = self.sql.rfind("\n", 0, self.position) + 1
        end = self.sql.find("\n", self.position)
        shown = self.sql[start : end if end >= 0 else len(self.sql)]
        column = self.position - start
        cut = max(0, column - 60)
        rest = len(shown) > cut + 68
        shown, column = shown[cut : cut + 68], column - cut
        if rest:  # the last word that is shown is complete, unless the caret is below it
            shown = shown[: shown.rfind(" ", column) + 1 or len(shown)] + "…"
        head = f"LINE {self.line}: {'…' if cut else ''}"
        pad = " " * (len(head) + column)
        return f"{text}\n\n{head}{shown}\n{pad}^"


class Warning(Exception):  # noqa: N818 - the name is fixed by PEP 249
    """PEP 249's warning class; einsql reports notices on the connection instead."""


class InterfaceError(Error):
    """The Python interface is used wrongly: a closed cursor, a wrong argument.

    Correct the call; the message names the argument or the method that fits.
    """


class DatabaseError(Error):
    """The base class of errors of the database.

    Catch it for all errors of a statement.
    """


class DataError(DatabaseError):
    """A value is out of range: overflow, division by zero, a NULL that is not allowed.

    Cast to a wider type, filter the value out, or replace it by CASE or COALESCE.
    """


class OperationalError(DatabaseError):
    """The environment fails: a file is missing, truncated or not accessible.

    Repair the cause and run the statement again; it has changed nothing.
    """


class IntegrityError(DatabaseError):
    """A key is duplicate or out of bounds.

    Write INSERT OR REPLACE for keys that may exist, or create the tensor with larger bounds. INSERT
    into a tensor with DEFAULT sets the value of an existing key.
    """


class InternalError(DatabaseError):
    """An invariant of einsql is violated; please report the error.

    `SET disabled_rules` and `SET jit = 'never'` may avoid it until it is fixed.
    """


class ProgrammingError(DatabaseError):
    """The statement is wrong: a syntax error, an unknown name, a type mismatch.

    Correct the text at the position; the message proposes names that exist.
    """


class NotSupportedError(DatabaseError):
    """The statement is outside the tensor fragment; the message names the construct.

    Use the alternative of the message, or let DuckDB run the part by `SET fallback = on`.
    """


class UnknownHere(ProgrammingError):  # noqa: N818 - DuckDB may know it
    """einsql has no object of that name; DuckDB may have a table or a function of that name.

    Attributes:
        call: The name of a scalar function or an aggregate with parentheses; empty for others.
        relation: The unknown name of a tensor; empty for others.
        known: The names of the relations that einsql knows.
    """

    call: str = ""
    relation: str = ""
    known: tuple[str, ...] = ()

    def suggest_also(self, tables: Iterable[str]) -> None:
        """Adds the names of DuckDB's tables to the names in the hint."""
        tables = [t for t in tables if t.lower() not in map(str.lower, self.known)]
        if self.relation and (tables or self.known):
            listing = suggest(self.relation, self.known, "tensors")
            names = suggest(self.relation, [*self.known, *tables], "names")
            self.hint = self.hint.replace(listing, names) if listing in self.hint else names

    @property
    def outside(self) -> str:
        """The reason why DuckDB runs a statement, which knows the object."""
        return f"{self.call} is outside the tensor fragment" if self.call else self.reason


class ForeignNameError(NotSupportedError):
    """A name of WITH whose query is outside the tensor fragment.

    Attributes:
        name: The name.
        why: The error of the query, or None if it is unknown.
    """

    name: str = ""
    why: Error | None = None

    @property
    def chain(self) -> list[Error]:
        """Returns this error and the errors of the queries that it reads, the original one last."""
        errors: list[Error] = [self]
        while isinstance(last := errors[-1], ForeignNameError) and last.why is not None:
            errors.append(last.why)
        return errors


class InterruptedError(OperationalError):
    """The statement was cancelled by `interrupt` or Ctrl-C.

    It has changed nothing; run it again.
    """


class RanksLost(OperationalError):  # noqa: N818 - the statement is repeated
    """MPI ranks have ended and others remain; the statement can be repeated.

    Attributes:
        before: The number of ranks before the loss.
        left: The number of remaining ranks.
    """

    def __init__(self, reason: str, before: int, left: int) -> None:
        super().__init__(reason, hint="Run the statement again.")
        self.before = before
        self.left = left


@contextmanager
def located(offset: int, sql: str) -> Iterator[None]:
    """Converts error positions within a statement to positions in the script."""
    try:
        yield
    except Error as error:
        place(error, offset, sql)
        raise


def place(error: Error, offset: int, sql: str) -> None:
    """Converts an error's position in a statement at `offset` to a position in the script."""
    if not isinstance(error, InterruptedError):
        error.position = offset + (error.position or 0)
    error.sql = sql


def pointed_at(sql: str, line: int, shown: str, column: int) -> int | None:
    """Returns the offset that the caret of a DuckDB message points at.

    Args:
        sql: The statement's text.
        line: The number of the shown line, from 1.
        shown: The line, or a part of a long line between dots.
        column: The caret's column under the shown line.

    Returns:
        The offset; None if the line is a view's, or contains the shown part several times.
    """
    lines = sql.split("\n")
    if line > len(lines):
        return None
    whole, part, at = lines[line - 1], shown.removesuffix("..."), 0
    if part.startswith("..."):
        part, column = part[3:], column - 3
        at = whole.find(part)
        if at < 0 or whole.find(part, at + 1) >= 0:
            return None
    elif not whole.startswith(part):
        return None
    return sum(len(before) + 1 for before in lines[: line - 1]) + at + column


def suggest(name: str, known: Iterable[str], plural: str) -> str:
    """Returns a hint that lists the known names, the nearest one first.

    Args:
        name: The unknown name.
        known: The known names.
        plural: The plural noun for the known names, as in "tensors".
    """
    names = list(dict.fromkeys(known))
    if not names:
        return f"There are no {plural} here."
    original = nearest(name, names)
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    listing = f"Known {plural}: {shown}."
    return f'Did you mean "{original}"? {listing}' if original else listing


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Returns the known name most similar to a name, or None if all are below `likeness`."""
    names = list(known)
    near = get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=likeness)
    return next((n for n in names if near and n.lower() == near[0]), None)
