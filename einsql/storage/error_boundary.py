"""The boundary of einsql: no exception of DuckDB's or Arrow's leaves a public method."""

from __future__ import annotations

from einsql.errors import Error
from einsql.storage.duckdb.failures import foreign
from einsql.storage.out_of_memory import enough_memory


class _Boundary:
    """A context without state, for it is entered by every statement and fetch."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is None or isinstance(error, Error):
            return
        enough_memory.__exit__(kind, error, trace)
        translation = foreign(error)
        if translation is not None:
            raise translation from error


boundary = _Boundary()
"""Turns exceptions of DuckDB and Arrow, and a lack of memory, into errors of einsql."""
