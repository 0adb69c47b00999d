"""Reads the conditions of CHECK: comparisons of columns with integers, joined by AND."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sqlglot import exp

from einsql.errors import NotSupportedError
from einsql.sql.parser.positions import position

Bounds = tuple[int | None, int | None]
"""The least and the greatest value, both inclusive; None where there is no bound."""

_FLIPPED = {exp.GT: exp.LT, exp.GTE: exp.LTE, exp.LT: exp.GT, exp.LTE: exp.GTE, exp.EQ: exp.EQ}


def declared_bounds(condition: exp.Expr) -> list[tuple[exp.Column, Bounds]]:
    """The bounds that the condition of a tensor's CHECK sets.

    Args:
        condition: The condition.

    Returns:
        A column and its bounds for each comparison.

    Raises:
        NotSupportedError: A part of the condition is another expression.
    """
    bounds = []
    for part in _conjuncts(condition):
        comparison = _comparison(part)
        if comparison is None:
            raise NotSupportedError(
                "CHECK of a tensor compares integer columns with integers",
                hint="CHECK (val BETWEEN 0 AND 29) and CHECK (val >= 0 AND val < 30) work.",
                position=position(part),
            )
        bounds.append(comparison)
    return bounds


def both(a: Bounds, b: Bounds) -> Bounds:
    """The bounds of values that are within two bounds."""
    least = [x for x in (a[0], b[0]) if x is not None]
    most = [x for x in (a[1], b[1]) if x is not None]
    return max(least, default=None), min(most, default=None)


def _conjuncts(condition: exp.Expr) -> Iterator[exp.Expr]:
    if isinstance(condition, exp.Paren):
        yield from _conjuncts(condition.this)
    elif isinstance(condition, exp.And):
        yield from _conjuncts(condition.this)
        yield from _conjuncts(condition.expression)
    else:
        yield condition


def _comparison(part: exp.Expr) -> tuple[exp.Column, Bounds] | None:
    """The column and the bounds of a comparison with integers; None for other expressions."""
    if isinstance(part, exp.Between):
        column = _column(part.this)
        least, most = _integer(part.args["low"]), _integer(part.args["high"])
        if column is None or least is None or most is None or part.args.get("symmetric"):
            return None
        return column, (least, most)
    kind = type(part)
    if kind not in _FLIPPED:
        return None
    column, number = _column(part.this), _integer(part.expression)
    if column is None:
        kind, column, number = _FLIPPED[kind], _column(part.expression), _integer(part.this)
    if column is None or number is None:
        return None
    bounds: Mapping[type[exp.Expr], Bounds] = {
        exp.GT: (number + 1, None),
        exp.GTE: (number, None),
        exp.LT: (None, number - 1),
        exp.LTE: (None, number),
        exp.EQ: (number, number),
    }
    return column, bounds[kind]


def _column(e: exp.Expr) -> exp.Column | None:
    e = e.unnest()
    return e if isinstance(e, exp.Column) and not e.table else None


def _integer(e: exp.Expr) -> int | None:
    e = e.unnest()
    if isinstance(e, exp.Neg):
        number = _integer(e.this)
        return None if number is None else -number
    is_number = isinstance(e, exp.Literal) and not e.is_string and e.name.isdecimal()
    return int(e.name) if is_number else None
