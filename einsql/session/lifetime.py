"""The lifetime of a connection: until it is closed, in the process that opened it."""

from __future__ import annotations

from collections.abc import Callable

from einsql import errors
from einsql.core import forks


def _closed() -> errors.Error:
    return errors.InterfaceError("The connection is closed")


class Lifetime:
    """The refusal of closed and inherited connections, and PEP 249's exceptions as attributes."""

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    def __init__(self) -> None:
        self._refusal: Callable[[], errors.Error] | None = None
        forks.register(self)

    @property
    def closed(self) -> bool:
        """True once the connection has been closed."""
        return self._refusal is _closed

    @property
    def inherited(self) -> bool:
        """True in a forked child, until the child closes the connection."""
        return isinstance(self._refusal, forks.Refusal)

    def forked(self, refusal: forks.Refusal) -> None:
        """Makes every statement and fetch fail; called in a child of the process that opened it."""
        if self._refusal is None:
            self._refusal = refusal

    def check_open(self) -> None:
        """Raises an error unless the connection can be used.

        Raises:
            InterfaceError: The connection is closed.
            OperationalError: The connection was opened by the parent process.
        """
        if self._refusal is not None:
            raise self._refusal()

    def _end(self) -> bool:
        """Marks the connection as closed.

        Returns:
            True if the connection has resources to release; False if they are another process's.

        Raises:
            InterfaceError: The connection is closed already.
        """
        inherited = self.inherited
        if not inherited:
            self.check_open()
        self._refusal = _closed
        return not inherited
