"""The error boundary of public methods: translates exceptions of DuckDB and Arrow."""

from __future__ import annotations

from einsql.errors import Error
from einsql.storage.duckdb.failures import translation
from einsql.storage.out_of_memory import enough_memory


class _Boundary:
    """A context without state, as every statement and fetch enters it."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is None or isinstance(error, Error):
            return
        enough_memory.__exit__(kind, error, trace)
        translated = translation(error)
        if translated is not None:
            raise translated from error


boundary = _Boundary()
"""Translates exceptions of DuckDB and Arrow, and lack of memory, into einsql's errors."""
