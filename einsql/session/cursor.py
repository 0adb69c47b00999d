"""PEP 249's cursor over a result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import date, time, timedelta
from functools import cache
from itertools import islice
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.core.schema import DType
from einsql.errors import DataError, InterfaceError, ProgrammingError
from einsql.planner.outcome import Changed, Description, Outcome, Rows
from einsql.session.fetched import Fetched
from einsql.session.script import run_script
from einsql.session.tracebacks import guarded_methods
from einsql.sql.parameters.values import refuse_names, values_by_name
from einsql.storage.error_boundary import boundary
from einsql.storage.results.result import Result

if TYPE_CHECKING:
    import decimal
    import uuid

    from einsql.planner.context import Context
    from einsql.planner.outcome import Results
else:  # loaded for parameters
    decimal, uuid = LazyModule("decimal"), LazyModule("uuid")

Parameters = Sequence[object] | Mapping[str, object] | None


def given_values(sql: object, parameters: object) -> tuple[object, ...]:
    """Returns the values of a call's parameters; rank-0 arrays become NumPy scalars.

    Raises:
        InterfaceError: The statement is no string, or the parameters are no sequence or mapping.
        ProgrammingError: A value has an unsupported type, a name has no value, or a value has
            no name.
        DataError: A value is an integer out of range.
    """
    if not isinstance(sql, str):
        raise InterfaceError(f"A statement is a str, not a {type(sql).__name__}")
    if parameters is None:
        return ()
    if (
        type(parameters) is list or type(parameters) is tuple
    ):  # the usual types, because the general check is slower
        if parameters:
            refuse_names(sql)
        return tuple([p if type(p) is int and -_MOST <= p < _MOST else _given_value(p)
                      for p in parameters])  # fmt: skip
    if isinstance(parameters, Mapping):
        return tuple(_given_value(p) for p in values_by_name(sql, parameters))
    if isinstance(parameters, np.ndarray) and parameters.ndim == 1:
        parameters = tuple(parameters)
    if not isinstance(parameters, Sequence) or isinstance(parameters, str | bytes | bytearray):
        raise InterfaceError(
            f"Parameters are a sequence, not a {type(parameters).__name__}",
            hint="Give a list, such as [1.5], or a dict for names.",
        )
    if parameters:
        refuse_names(sql)
    return tuple(_given_value(p) for p in parameters)


def _given_value(value: object) -> object:
    """Converts a parameter to a type that plans or DuckDB accept.

    An array without axes becomes a scalar, and a subclass of int or float becomes int or float.

    Raises:
        DataError: An integer has more than 128 bits.
        ProgrammingError: The type cannot be a parameter.
    """
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.generic):
        value = _given_scalar(value)
    elif isinstance(value, int) and type(value) is not bool:
        value = int(value)
    elif isinstance(value, float):
        value = float(value)
    if (
        type(value) is int and not -(2**127) <= value < 2**127
    ):  # DuckDB's largest integer type has 128 bits
        raise DataError(f"A whole number of {value.bit_length()} bits does not fit BIGINT")
    if value is None or isinstance(value, _parameter_types()):
        return value
    hint = "Numbers, booleans, None, and what DuckDB takes where it runs can be bound."
    if isinstance(value, np.ndarray):
        hint = "An array is named in FROM, as in FROM a AS a(i, j), not bound."
    elif hasattr(value, "item"):
        hint = "item() gives the number in a tensor of one element; others are named in FROM."
    raise ProgrammingError(f"A parameter cannot be a {type(value).__name__}", hint=hint)


_SHORT_UNITS = tuple(f"timedelta64[{unit}]" for unit in ("ns", "ps", "fs", "as"))
"""Durations that Python's timedelta cannot hold: NumPy gives integers for them."""


def _given_scalar(value: np.generic) -> object:
    """Returns a NumPy scalar unchanged, or as an int if it is an integer without a tensor type.

    Raises:
        ProgrammingError: No tensor has the floating type, or the type is complex or a structure.
    """
    kind = value.dtype.kind
    if str(value.dtype) in _SHORT_UNITS:
        raise ProgrammingError(
            f"A parameter cannot be a {value.dtype}", hint="value.astype('m8[us]') converts it."
        )
    if kind not in "iufcVO" or DType.of(value.dtype) is not None:
        return value
    if kind in "iu":
        return int(value)
    hint = "float(x) makes it a DOUBLE." if kind == "f" else ""
    raise ProgrammingError(f"A parameter cannot be a {value.dtype}", hint=hint)


@cache
def _parameter_types() -> tuple[type, ...]:
    """The types of parameters. Without DuckDB a statement takes numbers and booleans only."""
    numbers = (int, float, np.generic, decimal.Decimal)
    return (*numbers, str, bytes, bytearray, date, time, timedelta, uuid.UUID, list, tuple, dict)


PYTHON_WIDTH = 40
"""Bytes of a number as a Python object, and of its place in a row."""

_MOST = 2**63
"""The exclusive upper bound of BIGINT; larger integers take the slower check."""


class Session(Protocol):
    """The interface of a cursor's connection: PEP 249's methods and the ones that cursors use.

    Attributes:
        context: The services that its statements use.
    """

    context: Context

    def cursor(self) -> Cursor:
        """Returns a new cursor."""

    def execute(self, sql: str, parameters: Parameters = None) -> Cursor:
        """Runs every statement of a text on a new cursor."""

    def commit(self) -> None:
        """Commits the running transaction; does nothing without one."""

    def rollback(self) -> None:
        """Rolls back the running transaction; does nothing without one."""

    def close(self) -> None:
        """Closes the connection."""

    def check_open(self) -> None:
        """Raises InterfaceError unless the connection can be used."""

    def running(
        self, frame: FrameType | None, parameters: Sequence[object]
    ) -> AbstractContextManager[None]:
        """Locks the connection for a statement."""

    def fetching(self) -> AbstractContextManager[None]:
        """Context of a fetch, in which `interrupt` cancels reads from ranks."""


@guarded_methods("fetchone", "run", "result")
class Cursor(Fetched):
    """Runs statements and returns their results.

    Attributes:
        arraysize: The default number of rows of `fetchmany`.
    """

    def __init__(self, connection: Session) -> None:
        self._connection = connection
        self._closed = False
        self.arraysize = 1
        self._clear()

    def _clear(self) -> None:
        self._description: Description | None = None
        self._changes = -1
        self._result: Results | None = None
        self._rows: Iterator[tuple[Any, ...]] | None = None
        self._given: int | None = 0  # number of fetched rows; None if they are not counted
        self._on_fetch: Callable[[], None] | None = None

    def shared(self, forget: Callable[[], None]) -> Rows | None:
        """The result, for the fetches of the connection; None without one.

        Args:
            forget: Called before this cursor's first fetch.
        """
        if self._result is None or self._description is None:
            return None
        self._on_fetch = forget
        return Rows(self._result, self._description)

    def kept(self) -> Cursor:
        """A cursor on the present result, which a later statement of this one does not replace."""
        if self._result is None or self._description is None:
            return self
        return Cursor.over(self._connection, Rows(self._result, self._description))

    @classmethod
    def over(cls, connection: Session, rows: Rows) -> Cursor:
        """A cursor on a result of `shared`."""
        cursor = cls(connection)
        cursor._show(rows)
        return cursor

    def _show(self, outcome: Outcome) -> None:
        if isinstance(outcome, Rows):
            self._result, self._description = outcome.result, outcome.description
        elif isinstance(outcome, Changed):
            self._changes = outcome.count
        else:
            listing = outcome.result()
            self._result, self._description = listing, listing.description

    def _run(self, sql: str, parameters: Parameters, frame: FrameType) -> None:
        self._clear()
        with self._connection.running(frame, given_values(sql, parameters)):
            self.run(sql)

    def run(self, sql: str) -> None:
        """Runs a text on the locked connection; if a loop fails, shows its completed steps."""
        try:
            outcome = run_script(self._connection.context, sql)
        except BaseException:
            partial = self._connection.context.progress.partial
            if isinstance(partial, Rows | Changed):
                self._show(partial)
            raise
        self._show(outcome)

    # ---- PEP 249

    @property
    def description(self) -> Description | None:
        """One 7-tuple (name, type, None, …) per column; None without a result."""
        return self._description

    @property
    def connection(self) -> Session:
        """The cursor's connection."""
        return self._connection

    @property
    def rowcount(self) -> int:
        """The number of result rows or changed rows; -1 if it is unknown."""
        return self._changes if self._result is None else len(self._result)

    def execute(self, sql: str, parameters: Parameters = None) -> Cursor:
        """Runs every statement of a text; the cursor gets the last one's result.

        Raises:
            Error: A statement is wrong or fails; the ones before it have been run.
        """
        self._open()
        self._run(sql, parameters, sys._getframe(1))
        return self

    def executemany(self, sql: str, many: Iterable[Parameters]) -> Cursor:
        """Runs a text once for each set of parameters.

        `rowcount` is the sum of the changed rows. After a SELECT the cursor has the last
        result, as in DuckDB; PEP 249 leaves this open.

        Raises:
            InterfaceError: `many` is not iterable.
            Error: A statement is wrong or fails; the ones before it have been run.
        """
        self._open()
        given_values(sql, None)
        if isinstance(many, str | bytes | Mapping) or not isinstance(many, Iterable):
            raise InterfaceError(
                f"executemany takes a sequence of parameters, not a {type(many).__name__}"
            )
        self._clear()
        self._changes = total = 0
        for parameters in many:
            self._run(sql, parameters, sys._getframe(1))
            total += max(0, self.rowcount)
        self._changes = total
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """Returns the next row, or None."""
        if self._connection.context.cluster is not None:
            return next(iter(self._take(1)), None)
        rows = self._iterator()
        self._given = None  # counting would take longer than fetching
        return next(rows, None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """Returns the next `size` rows, by default `arraysize`.

        Raises:
            InterfaceError: The size is no integer, or negative.
        """
        wanted: object = self.arraysize if size is None else size
        if not isinstance(wanted, int | np.integer) or wanted < 0:
            raise InterfaceError(f"fetchmany takes a number of rows, not {wanted!r}")
        with boundary:
            return self._take(int(wanted))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Returns all remaining rows, in SELECT's column order, ordered by key."""
        with boundary:
            return self._take(None)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        if self._connection.context.cluster is not None:
            return iter(self.fetchone, None)
        rows = self._iterator()
        self._given = None
        return rows

    def rewind(self) -> None:
        """Begins again with the first row at the next fetch; an extension of PEP 249."""
        self._open()
        self._rows, self._given = None, 0

    def close(self) -> None:
        """Closes the cursor and frees its result; `rowcount` remains."""
        count = self.rowcount
        self._clear()
        self._changes, self._closed = count, True

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Does nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing, as PEP 249 allows."""

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- private

    def _open(self) -> None:
        if self._closed:
            raise InterfaceError("The cursor is closed")
        self._connection.check_open()

    def _fetching(self) -> AbstractContextManager[None]:
        return self._connection.fetching()

    def _tensor(self) -> Results:
        if self._on_fetch is not None:
            self._on_fetch()
            self._on_fetch = None
        return self.result()

    def result(self) -> Results:
        """The result.

        Raises:
            InterfaceError: There is no result, or the cursor or the connection is closed.
        """
        self._open()
        if self._result is None:
            raise InterfaceError("There are no results to fetch", hint="Execute a SELECT first.")
        return self._result

    def _iterator(self) -> Iterator[tuple[Any, ...]]:
        self._open()
        if self._rows is None:
            if self._given is None:
                raise InterfaceError("A fetch was cut short", hint="Execute the statement again.")
            with boundary:  # DuckDB computes all rows here
                rows = self._tensor().rows()
            self._rows = islice(rows, self._given, None) if self._given else rows
        return self._rows

    def _take(self, count: int | None) -> list[tuple[Any, ...]]:
        """Returns the next rows, or all; after a failure the next fetch repeats this one."""
        rows = self._iterator()
        try:
            with self._connection.fetching():
                if count is None and isinstance(self._result, Result):
                    self._result.require_rows(PYTHON_WIDTH)
                taken = list(islice(rows, count))
        except BaseException:
            self._rows = None
            raise
        if self._given is not None:
            self._given += len(taken)
        return taken
