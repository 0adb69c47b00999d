"""Random queries with parameters for literals: read at run time, or known when planning."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import einsql
from einsql.hybrid import fragments
from einsql.planner import queries
from einsql.planner.context import Context
from einsql.planner.queries import query_binder
from einsql.sql.parser.lexical import QUIET
from einsql.sql.query_binder import QueryBinder
from einsql.storage.session_store import Store
from tests.support.oracle.changes import stored
from tests.support.oracle.choices import Choices
from tests.support.oracle.data import random_database
from tests.support.oracle.generate import Generator
from tests.support.oracle.oracle import INTERPRETED, Pair

if TYPE_CHECKING:
    from einsql.engine.ranks.driver import Cluster

_NUMBER = re.compile(
    rf"(?P<quiet>{QUIET})|(?<![\w.$])(?P<number>\d+(\.\d+)?([eE][+-]?\d+)?)(?![\w.])",
    re.VERBOSE | re.DOTALL,
)
VALUES = 6
"""How many sets of values each statement runs with."""
PER_DATABASE = 12


_EARLY: WeakSet[Store] = WeakSet()
"""The stores of sessions that plan every statement for the values of its parameters."""


def _plan_early(con: einsql.Connection) -> None:
    """Has a session plan every statement for the values of its parameters."""
    _EARLY.add(con.store)
    for module in (queries, fragments):
        setattr(module, "query_binder", _query_binder)  # noqa: B010 - all binders come from it


def _query_binder(ctx: Context, late: bool = False, *args: Any, **more: Any) -> QueryBinder:
    return query_binder(ctx, late and ctx.store not in _EARLY, *args, **more)


@dataclass
class Report:
    """What became of the statements.

    Attributes:
        differences: Each with its statement and values.
        statements: How many there were.
        shared: Runs that needed no plan of their own.
    """

    differences: list[str] = field(default_factory=list)
    statements: int = 0
    shared: int = 0


def parameter_campaign(
    statements: int, seed: int, settings: Mapping[str, str] = INTERPRETED, sites: int = 1,
    cluster: Cluster | None = None,
) -> Report:  # fmt: skip
    """Runs random statements with changing values in both ways.

    Args:
        statements: How many.
        seed: Of the random choices.
        settings: Of both sessions.
        sites: Over how many of them values are read at run time; they are known at one.
        cluster: The ranks that these are, if any.
    """
    report = Report()
    number = 1000 * seed
    while report.statements < statements:
        number += 1
        rng = random.Random(number)
        db = random_database(Choices(random.Random(number)))
        if sites > 1:
            db = stored(db, Choices(random.Random(number)), sites)
        late, early = Pair(db, settings=settings, cluster=cluster), Pair(db, settings=settings)
        early.con.execute("SET sites = 1")
        _plan_early(early.con)
        for n in range(PER_DATABASE):
            query = Generator(Choices(random.Random(100 * number + n)), db).query()
            sql, first = parameterised(query.sql, rng)
            if not first or report.statements == statements:
                continue
            report.statements += 1
            before = late.con.planner_calls
            for given in (first, *(changed(first, rng) for _ in range(VALUES - 1))):
                found, wanted = (answer(p.con, sql, given) for p in (late, early))
                if len(set(map(repr, given))) < len(given):  # as constants they are one
                    found, wanted = (*found[:2], None, None), (*wanted[:2], None, None)
                if not alike(found, wanted):
                    report.differences.append(
                        f"database {number}: {sql}\n{given}\nlate {found}\nearly {wanted}"
                    )
            report.shared += max(0, VALUES - (late.con.planner_calls - before))
        late.close()
        early.close()
    return report


def parameterised(sql: str, rng: random.Random) -> tuple[str, list[object]]:
    """A query with parameters for some of its numbers, and their values.

    All numbers that are spelled alike become one parameter or none: a GROUP BY item is known
    again by its values where these are constants.
    """
    share = rng.choice((0.3, 0.6, 1.0))
    kept: dict[str, bool] = {}
    values: list[object] = []
    spelled: list[str] = []
    parts, last = [], 0
    for found in _NUMBER.finditer(sql):
        text = found["number"]
        if text is None or kept.setdefault(text, rng.random() > share):
            continue
        if text not in spelled:
            spelled.append(text)
            values.append(float(text) if any(c in text for c in ".eE") else int(text))
        parts += [sql[last : found.start()], f" ${spelled.index(text) + 1} "]
        last = found.end()
    return "".join(parts) + sql[last:], values


def changed(values: list[object], rng: random.Random) -> list[object]:
    """Other values, most of them near the given ones and of their types."""
    return [_other(v, rng) for v in values]


def _other(value: object, rng: random.Random) -> object:
    chance = rng.random()
    if chance < 0.05:
        return rng.choice((None, True, 2.0, 3))
    if isinstance(value, int):
        if chance < 0.5:
            return value + rng.choice((-2, -1, 1, 2, 3))
        far = (0, -1, 7, 100, 2**31, 2**40, -(2**40), 2**63 - 1, -(2**63))
        return rng.choice(far) if chance < 0.6 else value
    assert isinstance(value, float)
    if chance < 0.7:
        return value * rng.choice((0.5, 2.0, -1.0))
    special = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1e300)
    return rng.choice(special) if chance < 0.8 else value


Answer = tuple[str, Any, Any, Any]


def answer(con: einsql.Connection, sql: str, given: list[object]) -> Answer:
    """Rows, shape and columns of a statement's result, or its error."""
    try:
        cur = con.execute(sql, given)
        rows = cur.fetchall()
    except einsql.Error as error:
        return "error", type(error).__name__, error.reason, None
    try:
        where = cur.shape, cur.origin
    except einsql.Error:
        where = None
    return "rows", rows, where, [d[:2] for d in cur.description or ()]


def alike(a: Answer, b: Answer) -> bool:
    """True if two answers are the same but for the rounding of floats."""
    if a[0] == b[0] == "error":
        return bool(a[1] == b[1])
    if a[0] != b[0] or a[2:] != b[2:] or len(a[1]) != len(b[1]):
        return False
    found, wanted = (x[1] if x[2] else sorted(x[1], key=_order) for x in (a, b))
    return all(_equal(x, y) for r, s in zip(found, wanted, strict=True)
               for x, y in zip(r, s, strict=True))  # fmt: skip


def _order(row: tuple[object, ...]) -> list[str]:
    """Of rows that DuckDB gave in any order."""
    return [f"{x:.3g}" if isinstance(x, float) else repr(x) for x in row]


def _equal(x: object, y: object) -> bool:
    if isinstance(x, float) and isinstance(y, float):
        if math.isnan(x) or math.isnan(y) or x == y:
            return math.isnan(x) == math.isnan(y)
        return abs(x - y) <= 1e-5 * max(abs(x), abs(y), 1e-3)
    return type(x) is type(y) and x == y
