"""What NumPy says when memory or its index type is too small, as an error of einsql."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from einsql.errors import OperationalError

_TOO_LARGE = re.compile(r"too big|too large|[Mm]aximum (allowed|supported) dimension")


@contextmanager
def enough_memory() -> Iterator[None]:
    """Turns a lack of memory, and a shape beyond NumPy's index type, into an Error.

    Raises:
        OperationalError: Instead of MemoryError, and of ValueError for its shape.
    """
    try:
        yield
    except MemoryError as error:
        raise OperationalError("There is not enough memory for this statement") from error
    except ValueError as error:
        if not _TOO_LARGE.search(str(error)):
            raise
        raise OperationalError(
            "The statement needs an array larger than any memory",
            hint="Narrow its keys with WHERE, or aggregate.",
        ) from error
