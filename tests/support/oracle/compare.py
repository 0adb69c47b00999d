"""Comparing two answers as multisets of rows, floats within proven bounds."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal

Value = bool | int | float | Decimal | None
Row = tuple[Value, ...]


def kind(value: Value) -> str:
    """NULL, a truth, a whole number or another number."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "int" if type(value) is int else "float" if type(value) is float else "decimal"


def canonical(value: Value) -> object:
    """A hashable stand-in that is equal where two values count as the same."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, bool):
        return ("bool", value)
    return value  # 0.0 == -0.0 and Decimal(2) == 2 hold, and so do their hashes


def differing_kinds(ours: Sequence[Row], theirs: Sequence[Row]) -> str:
    """A message if a column holds truths, whole numbers or floats on one side only."""
    if not ours or not theirs:
        return ""
    for n in range(len(theirs[0])):
        mine = {kind(r[n]) for r in ours} - {"null"}
        other = {kind(r[n]) for r in theirs} - {"null"}
        if "decimal" in other:
            continue  # DuckDB's DECIMAL is compared by value
        if mine and other and mine != other:
            return f"column {n}: einsql gives {sorted(mine)}, DuckDB {sorted(other)}"
    return ""


def close(mine: Value, other: Value, error: float | None) -> bool:
    """True if two floats are within twice the bound; an undefined bound allows all."""
    if mine is None or other is None:
        return mine is other
    a, b = float(mine), float(other)
    if canonical(a) == canonical(b):
        return True
    if error is None or math.isnan(error) or error == math.inf:
        return math.isfinite(b)
    return abs(a - b) <= 2 * error


def difference(
    ours: Sequence[Row], theirs: Sequence[Row], inexact: Sequence[int], ordered: bool = False
) -> str:
    """Explains how two answers differ, or returns an empty string.

    Args:
        ours: einsql's rows.
        theirs: The oracle's rows, followed by one bound for each inexact column.
        inexact: Numbers of the columns that are compared within bounds.
        ordered: The order of the rows counts.
    """
    if len(ours) != len(theirs):
        return f"einsql gives {len(ours)} rows, DuckDB {len(theirs)}"
    if not theirs:
        return ""
    width = len(theirs[0]) - len(inexact)
    if len(ours[0]) != width:
        return f"einsql gives {len(ours[0])} columns, DuckDB {width}"
    wrong = differing_kinds(ours, [r[:width] for r in theirs])
    if wrong:
        return wrong
    firm = [n for n in range(width) if n not in inexact]
    if ordered:
        for mine, other in zip(ours, theirs, strict=True):
            if [canonical(mine[n]) for n in firm] != [canonical(other[n]) for n in firm]:
                return f"rows are in another order: einsql {mine!r}, DuckDB {other!r}"
    if not inexact:
        own = Counter(tuple(canonical(v) for v in r) for r in ours)
        wanted = Counter(tuple(canonical(v) for v in r) for r in theirs)
        return _surplus(own - wanted, wanted - own)
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in theirs:
        groups[tuple(canonical(row[n]) for n in firm)].append(row)
    pairs: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in ours:
        pairs[tuple(canonical(row[n]) for n in firm)].append(row)
    if {k: len(v) for k, v in groups.items()} != {k: len(v) for k, v in pairs.items()}:
        extra = {k: v for k, v in pairs.items() if len(v) != len(groups.get(k, []))}
        return f"exact columns differ, such as {next(iter(extra.items()), None)!r}"
    for key, rows in pairs.items():
        if not _matched(rows, groups[key], inexact, width):
            return f"einsql gives {rows[:3]!r}, DuckDB (then bounds) {groups[key][:3]!r}"
    return ""


def _surplus(mine: Counter[tuple[object, ...]], other: Counter[tuple[object, ...]]) -> str:
    if not mine and not other:
        return ""
    return f"einsql alone {list(mine)[:3]!r}, DuckDB alone {list(other)[:3]!r}"


def _matched(ours: list[Row], theirs: list[Row], inexact: Sequence[int], width: int) -> bool:
    """True if the rows can be paired within their bounds (a bipartite matching)."""

    def fits(a: Row, b: Row) -> bool:
        return all(close(a[n], b[n], _number(b[width + m])) for m, n in enumerate(inexact))

    partner: dict[int, int] = {}

    def place(a: int, tried: set[int]) -> bool:
        for b in range(len(theirs)):
            if b not in tried and fits(ours[a], theirs[b]):
                tried.add(b)
                if b not in partner or place(partner[b], tried):
                    partner[b] = a
                    return True
        return False

    if len(ours) > 60:  # sorted order pairs the bulk; equal rows are common here
        ours, theirs = _ordered(ours, inexact), _ordered(theirs, inexact)
        return all(fits(a, b) for a, b in zip(ours, theirs, strict=True))
    return all(place(a, set()) for a in range(len(ours)))


def _ordered(rows: list[Row], inexact: Sequence[int]) -> list[Row]:
    def rank(row: Row) -> list[tuple[int, float]]:
        return [_rank(row[n]) for n in inexact]

    return sorted(rows, key=rank)


def _rank(value: Value) -> tuple[int, float]:
    if value is None:
        return (2, 0.0)
    number = float(value)
    return (1, 0.0) if math.isnan(number) else (0, number)


def _number(value: Value) -> float | None:
    return None if value is None else float(value)
