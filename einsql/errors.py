"""The one family of errors: PEP 249 classes that know where in the SQL text they arose."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

OF_A_TABLE = (
    "CREATE TABLE … AS SELECT makes a table of what is needed, to be joined to a tensor's keys, "
    "and CREATE TENSOR … AS SELECT a tensor."
)
"""The way out where DuckDB cannot run what no tensor work can read of a table."""


class Error(Exception):
    """Any mistake or failure einsql reports.

    Attributes:
        reason: One sentence saying what is wrong.
        hint: What would work instead, or an empty string.
        position: Character offset into the statement, or None.
        sql: The statement text the position refers to, or None.
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
        """Attaches the statement text if none is attached yet, and returns self."""
        if self.sql is None:
            self.sql = sql
        return self

    @property
    def line(self) -> int | None:
        """Line number of the position, counted from 1, or None without a position."""
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
        shown, column = shown[cut : cut + 68], column - cut
        head = f"LINE {self.line}: {'…' if cut else ''}"
        pad = " " * (len(head) + column)
        return f"{text}\n\n{head}{shown}\n{pad}^"


class Warning(Exception):  # noqa: N818 - the name is fixed by PEP 249
    """PEP 249's warning class; einsql reports notices on the connection instead."""


class InterfaceError(Error):
    """The Python interface was misused: a closed cursor, a wrong argument."""


class DatabaseError(Error):
    """Anything the database itself reports."""


class DataError(DatabaseError):
    """A value is out of range: overflow, division by zero, NULL where none may be."""


class OperationalError(DatabaseError):
    """The environment failed: a file is missing, truncated or refused."""


class IntegrityError(DatabaseError):
    """A key would be duplicated, or lies outside its bounds."""


class InternalError(DatabaseError):
    """einsql broke one of its own rules; please report it."""


class ProgrammingError(DatabaseError):
    """The statement is wrong: syntax, unknown names, types that do not fit."""


class NotSupportedError(DatabaseError):
    """The statement is SQL, but no tensor work; the message names the part."""


class UnknownHere(ProgrammingError):  # noqa: N818 - DuckDB may know it
    """Nothing of einsql has that name; DuckDB may have a table or a function of it."""


class ForeignNameError(NotSupportedError):
    """A name of WITH that is no tensor work.

    Attributes:
        name: The name.
        why: Why its query is none, if that is known.
    """

    name: str = ""
    why: Error | None = None

    @property
    def chain(self) -> list[Error]:
        """This, and why the queries that it reads are no tensor work, up to what is none itself."""
        found: list[Error] = [self]
        while isinstance(last := found[-1], ForeignNameError) and last.why is not None:
            found.append(last.why)
        return found


class InterruptedError(OperationalError):
    """The statement was cancelled by interrupt() or Ctrl-C."""


class RanksLost(OperationalError):  # noqa: N818 - whoever catches it goes on
    """MPI ranks have ended and the others go on; the statement can be repeated.

    Attributes:
        before: How many ranks there were.
        left: How many there are.
    """

    def __init__(self, reason: str, before: int, left: int) -> None:
        super().__init__(reason, hint="Run the statement again.")
        self.before = before
        self.left = left


@contextmanager
def located(offset: int, sql: str) -> Iterator[None]:
    """Makes positions in a statement count from the start of the whole script."""
    try:
        yield
    except Error as error:
        place(error, offset, sql)
        raise


def place(error: Error, offset: int, sql: str) -> None:
    """Makes an error's position, in a statement that starts at `offset`, count in the script."""
    if not isinstance(error, InterruptedError):
        error.position = offset + (error.position or 0)
    error.sql = sql


def pointed_at(sql: str, line: int, shown: str, column: int) -> int | None:
    """The offset that a caret of DuckDB's points at.

    Args:
        sql: The text.
        line: Which of its lines is shown, counted from 1.
        shown: The line; of a long one a part between dots.
        column: Where the caret stands under what is shown.

    Returns:
        None if the line is not the text's, but a view's, or has the part several times.
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
    """Returns a hint listing the known names, leading with the nearest one.

    Args:
        name: What was written.
        known: What could have been meant.
        plural: What the known names are, as in "tensors".
    """
    names = list(dict.fromkeys(known))
    if not names:
        return f"There are no {plural} here."
    original = nearest(name, names)
    shown = ", ".join(names[:12]) + (", …" if len(names) > 12 else "")
    listing = f"Known {plural}: {shown}."
    return f'Did you mean "{original}"? {listing}' if original else listing


def nearest(name: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """The known name that is most like a name, if any is as like as that."""
    names = list(known)
    near = get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=likeness)
    return next((n for n in names if near and n.lower() == near[0]), None)
