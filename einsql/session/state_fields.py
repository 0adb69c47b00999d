"""The fields of the state of an aggregate that Python defines, and states as Python gets them."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from einsql.core.quoting import in_quotes, literal
from einsql.core.schema import DType
from einsql.core.units import plural
from einsql.errors import InterfaceError, ProgrammingError
from einsql.session.create_function import type_text
from einsql.sql.parser.create.parameter_lists import TYPE_NAMES


class StateFields:
    """The fields of a state.

    Attributes:
        sizes: The number of elements of each field that is an array, else None, by name.
        names: The names of all fields, with elements of arrays as `v[1]`.
        dtypes: Their types.
        starts: Their values in a state without rows.
        declaration: The fields as STATE spells them.
    """

    def __init__(self, aggregate: str, fields: Mapping[str, Any]) -> None:
        """Reads the argument `state` of `create_aggregate`.

        Raises:
            InterfaceError: It is no dictionary of types and initial values.
        """
        if not isinstance(fields, Mapping) or not fields:
            raise InterfaceError(
                f"The state of {aggregate} is a dictionary of fields",
                hint="state={'m': ('DOUBLE', '-inf'), 'n': ('BIGINT', 0)}.",
            )
        self.sizes: dict[str, int | None] = {}
        self.names: list[str] = []
        self.dtypes: list[DType] = []
        self.starts: list[Any] = []
        texts = []
        for written, entry in fields.items():
            if not isinstance(entry, tuple | list) or len(entry) != 2:
                raise InterfaceError(
                    f"The field {written} is a type and the value without rows",
                    hint="state={'m': ('DOUBLE', '-inf')}.",
                )
            name, kind = str(written).lower(), type_text(entry[0])
            word, _, rest = kind.partition("[")
            size = int(rest[:-1]) if rest.endswith("]") and rest[:-1].isdecimal() else None
            texts.append(f"{in_quotes(name)} {kind} INIT {_constant(entry[1])}")
            count = 1 if size is None else size
            self.sizes[name] = size
            self.names += [name] if size is None else [f"{name}[{n + 1}]" for n in range(count)]
            self.dtypes += [TYPE_NAMES.get(word, DType.DOUBLE)] * count
            self.starts += [_number(entry[1])] * count
        self.declaration = ", ".join(texts)
        self._value = namedtuple("State", self.sizes, rename=True)  # type: ignore[misc]  # dynamic

    def read(self, table: str) -> list[tuple[str, DType | None]]:
        """The fields of a table as SQL spells them, with their types."""
        prefix = f"{table}." if table else ""
        texts = []
        for name, size in self.sizes.items():
            indices = [""] if size is None else [f"[{n + 1}]" for n in range(size)]
            texts += [f"{prefix}{in_quotes(name)}{index}" for index in indices]
        return list(zip(texts, self.dtypes, strict=True))

    def value(self, values: Sequence[Any]) -> Any:
        """The state as a Python function gets it: a named tuple, in which arrays are tuples."""
        return self._value(*self.grouped(values, tuple))

    def grouped(
        self, values: Sequence[Any], array: Callable[[Any], Any] | None = None
    ) -> list[Any]:
        """The values of all fields, with those of each array as one value."""
        array = array or (lambda elements: f"[{', '.join(elements)}]")
        entries, at = [], 0
        for size in self.sizes.values():
            count = 1 if size is None else size
            part = values[at : at + count]
            entries.append(part[0] if size is None else array(part))
            at += count
        return entries

    def _is_alone(self, returned: Any) -> bool:
        """Whether a function returned the only field itself, and no tuple of one field."""
        (size,) = self.sizes.values()
        return not isinstance(returned, tuple) or (size is not None and len(returned) != 1)

    def flat(self, returned: Any) -> list[Any]:
        """The values of all fields that a Python function returned.

        Raises:
            ProgrammingError: They are not one for each field.
        """
        if isinstance(returned, Mapping):
            by_name = {str(k).lower(): v for k, v in returned.items()}
            entries = [by_name[name] for name in self.sizes if name in by_name]
        elif len(self.sizes) == 1 and self._is_alone(returned):
            entries = [returned]
        else:
            entries = list(returned) if isinstance(returned, tuple | list) else [returned]
        sizes = self.sizes.values()
        values: list[Any] = []
        for entry, size in zip(entries, sizes, strict=False):
            if size is not None and not isinstance(entry, Iterable):
                raise ProgrammingError(
                    f"The function returns a {type(entry).__name__} for an array of {size} values",
                    hint="Return a sequence for each field with an array.",
                )
            values += [entry] if size is None else list(entry)
        if len(entries) != len(sizes) or len(values) != len(self.names):
            raise ProgrammingError(
                f"The function returns {plural(len(entries), 'value')} "
                f"for {plural(len(sizes), 'field')}",
                hint="Return a tuple of the fields, or a dictionary by their names.",
            )
        return values


def _constant(value: Any) -> str:
    """A constant behind INIT."""
    if isinstance(value, bool):
        return str(value).upper()
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    return str(value) if isinstance(value, int) else literal(str(value))


def _number(value: Any) -> Any:
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value
