"""What NumPy says when memory or its index type is too small, as an error of einsql."""

from __future__ import annotations

import re

from einsql.errors import OperationalError

_TOO_LARGE = re.compile(r"too big|too large|[Mm]aximum (allowed|supported) dimension")


class _EnoughMemory:
    """A context without state, for it is entered by every statement."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        if isinstance(error, MemoryError):
            raise OperationalError("There is not enough memory for this statement") from error
        if isinstance(error, ValueError) and _TOO_LARGE.search(str(error)):
            raise OperationalError(
                "The statement needs an array larger than any memory",
                hint="Narrow its keys with WHERE, or aggregate.",
            ) from error


enough_memory = _EnoughMemory()
"""Turns a lack of memory, or a shape beyond NumPy's index type, into an OperationalError."""
