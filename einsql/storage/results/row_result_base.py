"""The base class of results without keys: rows with named and typed columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from einsql.errors import InterfaceError


class Keyless:
    """A result whose rows have no keys.

    Attributes:
        names: The columns.
        types: The SQL types of the columns.
    """

    names: tuple[str, ...]
    types: tuple[str, ...]
    _no_keys: ClassVar[tuple[str, str]]
    """The reason and the hint of the error on a request for keys."""

    @property
    def description(self) -> tuple[tuple[Any, ...], ...]:
        """PEP 249's description."""
        pairs = zip(self.names, self.types, strict=True)
        return tuple((n, t, None, None, None, None, None) for n, t in pairs)

    @property
    def origin(self) -> tuple[int, ...]:
        """The least value of each key.

        Raises:
            InterfaceError: Always, as there are no keys.
        """
        reason, hint = self._no_keys
        raise InterfaceError(reason, hint=hint)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the keys: none."""
        return ()

    @property
    def shape(self) -> None:
        """The extents of the keys: none."""
        return None

    def _check_names(self) -> None:
        """Refuses columns with the same name.

        Raises:
            InterfaceError: Two columns have the same name.
        """
        if len(set(self.names)) != len(self.names):
            raise InterfaceError("Two columns have the same name", hint="Rename one with AS.")


def distinct_names(names: Sequence[str]) -> list[str]:
    """The names, with a number after the repetitions of one, as in DuckDB."""
    distinct: list[str] = []
    for name in names:
        candidate, n = name, 0
        while candidate in distinct:
            n += 1
            candidate = f"{name}_{n}"
        distinct.append(candidate)
    return distinct
