"""The queries of relations: texts with the variables that they read, and how they are combined."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import count

from einsql.core.quoting import in_quotes, literal
from einsql.core.records import dataclass
from einsql.errors import InterfaceError
from einsql.session.cursor import Parameters, given_values
from einsql.session.pieces import single
from einsql.sql.parser.lexical import scan
from einsql.storage.host_arrays import is_array, is_table

Paths = str | os.PathLike[str] | Iterable[str]
"""A file, or several ones."""

_numbers = count(1)


def fresh_name() -> str:
    """A name of a captured table or of a relation without an alias."""
    return f"__einsql_relation_{next(_numbers)}"


@dataclass(frozen=True, slots=True)
class Source:
    """The query of a relation.

    Attributes:
        text: The query.
        captured: The variables of Python that it reads, by their names.
        parameters: The values of its parameters.
    """

    text: str
    captured: Mapping[str, object]
    parameters: tuple[object, ...] = ()


def bare(text: str) -> str:
    """A statement without a semicolon after it."""
    (span,) = scan(text)
    return text[span.start : span.end]


def as_item(text: str, alias: str) -> str:
    """A query as an item of FROM; a line end closes a comment."""
    return f"(\n{bare(text)}\n) AS {in_quotes(alias)}"


def both(text: str, left: Source, right: Source) -> Source:
    """The source of a text over two sources."""
    captured = {**left.captured, **right.captured}
    return Source(text, captured, (*left.parameters, *right.parameters))


def source_of(query: object, parameters: Parameters) -> Source:
    """The source of a text with parameters.

    Raises:
        InterfaceError: The text is no string, or the parameters are no sequence or mapping.
    """
    values = given_values(query, parameters)
    assert isinstance(query, str)
    return Source(query, {}, values)


def values_source(rows: Sequence[object]) -> Source:
    """Returns the source of rows of values.

    Args:
        rows: A tuple or a list for each row; or the values of one row.

    Raises:
        InterfaceError: There are no values, or the rows differ in length.
    """
    are_rows = bool(rows) and all(isinstance(row, tuple | list) for row in rows)
    table = [list(row) for row in rows if isinstance(row, tuple | list)] if are_rows else [rows]
    widths = {len(row) for row in table}
    if len(widths) != 1 or widths == {0}:
        raise InterfaceError(
            "values() takes rows with the same number of values",
            hint="Write con.values([1, 'a']) or con.values((1, 'a'), (2, 'b')).",
        )
    row_text = f"({', '.join('?' * widths.pop())})"
    return source_of(
        f"SELECT * FROM (VALUES {', '.join([row_text] * len(table))})",
        [value for row in table for value in row],
    )


def rows_source(rows: object) -> Source:
    """The source that reads a DataFrame or an Arrow table."""
    if not is_table(rows) and not is_array(rows):
        raise InterfaceError(
            f"from_df takes a DataFrame or an Arrow table, not a {type(rows).__name__}",
            hint="pandas.DataFrame(…) makes one.",
        )
    name = fresh_name()
    return Source(f"SELECT * FROM {name}", {name: rows})


def quoted_parts(name: str) -> str:
    """A name in quotes, each part of it if it is qualified; parts in quotes are kept."""
    parts = re.findall(r'"(?:[^"]|"")*"|[^."]+', name) or [name]
    return ".".join(part if part.startswith('"') else in_quotes(part) for part in parts)


def call_text(function: str, path: Paths, options: Mapping[str, object]) -> str:
    """The call of a table function that reads files, with its options as named arguments."""
    if isinstance(path, os.PathLike):
        path = os.fspath(path)
    if not isinstance(path, str | Iterable):
        raise InterfaceError(f"A path is a str, not a {type(path).__name__}")
    paths = literal(path) if isinstance(path, str) else _value([str(p) for p in path])
    named = (f"{name} = {_value(value)}" for name, value in options.items() if value is not None)
    return single(f"SELECT * FROM {function}({', '.join([paths, *named])})")


def _value(value: object) -> str:
    if isinstance(value, bool | int | float):
        return str(value).lower()
    if isinstance(value, Mapping):
        pairs = (f"{literal(str(k))}: {_value(v)}" for k, v in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_value, value))}]"
    return literal(str(value))


_NUMBERS = re.compile(
    r"U?(?:TINY|SMALL|BIG|HUGE)?INT(?:EGER)?|FLOAT|DOUBLE|HALF|BFLOAT16|DECIMAL.*|BIGNUM"
)
_STATISTICS = {
    "count": "COUNT({0})",
    "mean": "AVG({0})",
    "stddev": "STDDEV({0})",
    "min": "MIN({0})",
    "max": "MAX({0})",
    "median": "MEDIAN({0})",
}
"""The rows of `Relation.describe`, as in DuckDB; others than numbers have no mean."""


def statistics_items(columns: Iterable[tuple[str, str]]) -> str:
    """The items of the SELECT that describes columns, with one row for each statistic.

    Args:
        columns: The columns with their types.
    """
    items = [f"UNNEST([{', '.join(map(literal, _STATISTICS))}]) AS aggr"]
    for name, kind in columns:
        is_number = _NUMBERS.fullmatch(kind) is not None
        to, read = "DOUBLE" if is_number else "VARCHAR", in_quotes(name)
        values = [
            f"CAST({form.format(read)} AS {to})"
            if is_number or statistic in ("count", "min", "max")
            else "NULL"
            for statistic, form in _STATISTICS.items()
        ]
        items.append(f"UNNEST([{', '.join(values)}]) AS {read}")
    return ", ".join(items)
