"""Losses with elements that are NULL, compared with differences of the same SQL in DuckDB."""

from __future__ import annotations

import duckdb
import numpy as np
import pytest

import einsql
from tests.support.samples import spread

VALUES = (0.5, 1.0, 2.0, 0.0)
NULLS = (
    "NULLIF(val, 1)",
    "SQRT(NULLIF(val, 0))",
    "1 / NULLIF(val, 0)",
    "LN(NULLIF(val, 0))",
    "CASE WHEN val > 0.25 THEN SQRT(val) END",
    "CASE WHEN val > 0.75 THEN LN(val - 0.7) END",
    "COALESCE(SQRT(NULLIF(val, 0)), 0)",
    "NULLIF(1 / val, 'inf'::DOUBLE)",
    "SQRT(val) * CASE WHEN val > 0.25 THEN 1 END",
)
LOSSES = (
    "SELECT SUM(s * s) AS val FROM (SELECT i // 2 AS h, MAX({0}) AS s FROM w GROUP BY i // 2)",
    "SELECT SUM(m.val * w.val) AS val FROM w JOIN (SELECT i, {0} AS val FROM w) m USING (i)",
    "SELECT AVG(val * top) AS val FROM (SELECT {0} AS val, MAX({0}) OVER () AS top FROM w)",
    "SELECT SUM({0}) / COUNT({0}) AS val FROM w WHERE {0} IS NOT NULL",
)


def _differences(sql: str) -> list[float]:
    """By every element that may move; where a NULL is made of 0 or 1 it stays."""
    duck = duckdb.connect()
    found = []
    for i in range(len(VALUES)):
        told: list[float] = []
        for step in (1e-6, -1e-6):
            rows = [f"({n}, {v + step * (n == i)!r}::DOUBLE)" for n, v in enumerate(VALUES)]
            duck.execute(f"CREATE OR REPLACE VIEW w AS FROM (VALUES {', '.join(rows)}) w(i, val)")
            told += [row[0] for row in duck.execute(sql).fetchall()]
        found.append((told[0] - told[1]) / 2e-6 if None not in told else np.nan)
    return found


@pytest.mark.parametrize("value", spread(NULLS, 5))
def test_null_elements_get_nothing_and_the_others_what_differences_say(value: str) -> None:
    con = einsql.connect()
    con.register("w", np.array(VALUES), dims=("i",))
    nulls = [n for _, n in con.execute(f"SELECT i, ({value}) IS NULL FROM w").fetchall()]
    for form in LOSSES:
        sql = form.format(value)
        got = con.execute(f"SELECT i, val FROM GRADIENT(({sql}), w)").fetch_numpy()
        wanted = _differences(sql)
        for i, null in enumerate(nulls):
            if null and "m.val" not in sql:
                assert got[i] == 0, (sql, i)
            elif not null and VALUES[i] != 0:
                assert got[i] == pytest.approx(wanted[i], rel=1e-5, abs=1e-5), (sql, i)
        assert np.isfinite(got).all(), sql


@pytest.mark.parametrize("value", ["1 / val", "GREATEST(val, 1 / val)", "-LN(val)"])
def test_a_pole_that_is_not_the_extreme_gets_nothing(value: str) -> None:
    con = einsql.connect()
    con.register("w", np.array(VALUES), dims=("i",))
    sql = f"SELECT MIN({value}) AS val FROM w"
    got = con.execute(f"SELECT i, val FROM GRADIENT(({sql}), w)").fetch_numpy()
    assert got[3] == 0
    assert np.isfinite(got).all()
