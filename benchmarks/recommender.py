"""A recommender over stored ratings as SQL, beside DuckDB over the same rows.

Usage: `python -m benchmarks.recommender [RATINGS …]`. There are 20,000 films, and a user for each
100 ratings. Popularity and activity are skewed, and a user rates at most 1,000 films. Both sides
run the same text, except for products, which DuckDB runs for the same films or users.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

import einsql
from benchmarks import report
from benchmarks.matrices import Array
from benchmarks.measure import Run, measure
from benchmarks.report import Finding, Section, factor, times

FILMS, EACH, MOST = 20_000, 100, 1000
FACTORS = 16
BLOCK = 500
"""Films whose neighbours one statement finds."""
OF_PRODUCTS, OF_OTHERS = 3.0, 1 / 1.2
"""The least ratio of DuckDB's time and einsql's."""

NEIGHBOURS = """
WITH alike AS (
  SELECT a.i, b.i AS k, SUM(a.val * b.val) AS val FROM unit a JOIN unit b ON a.u = b.u
  WHERE a.i BETWEEN 1000 AND {last} AND a.i <> b.i GROUP BY a.i, b.i)
SELECT i, ARG_MAX(k, val, 10) AS best FROM alike GROUP BY i
"""
RESIDUALS = """
SELECT r.u, r.i, SUM(p.val * q.val) AS val FROM r JOIN p ON r.u = p.u
JOIN q ON r.i = q.i AND p.k = q.k GROUP BY r.u, r.i
"""
BY_USER = "SELECT r.u, q.k, SUM(r.val * q.val) AS val FROM r JOIN q ON r.i = q.i GROUP BY r.u, q.k"
BY_FILM = "SELECT r.i, p.k, SUM(r.val * p.val) AS val FROM r JOIN p ON r.u = p.u GROUP BY r.i, p.k"
PRODUCTS = {
    f"10 nearest of {BLOCK} films": NEIGHBOURS.format(last=999 + BLOCK),
    "predictions of stored ratings": RESIDUALS,
    "gradient by users": BY_USER,
    "gradient by films": BY_FILM,
}
OTHERS = {
    "mean by user": "SELECT u, AVG(val) AS val FROM r WHERE val >= 2 GROUP BY u",
    "mean and number by film": "SELECT i, AVG(val) AS val, COUNT(*) AS n FROM r GROUP BY i",
    "range of keys": "SELECT COUNT(*) AS n, SUM(val) AS s FROM r WHERE i BETWEEN 500 AND 800",
    "mapped ratings": "SELECT u, i, val * 2 - 5 AS val FROM r WHERE val > 3",
    "differences from means": "SELECT r.u, r.i, r.val - m.val AS val FROM r JOIN m ON r.i = m.i",
    "groups of films": "SELECT i // 100 AS g, AVG(val) AS val FROM r GROUP BY i // 100",
    "one user's titles": "SELECT t.title, r.val FROM r JOIN titles t ON r.i = t.id WHERE r.u = 17",
    "best titles": "SELECT t.title, AVG(r.val) AS val FROM r JOIN titles t ON r.i = t.id "
    "GROUP BY t.title ORDER BY val DESC, t.title LIMIT 10",
}


def ratings(count: int, seed: int = 1) -> tuple[Array, Array, Array]:
    """Users, films and ratings from 0.5 to 5, in the order of users and films; keys of 32 bits."""
    chance = np.random.default_rng(seed)
    users = max(1, count // EACH)
    active = np.minimum(chance.pareto(1.5, users) * EACH / 2 + EACH / 4, MOST).astype(np.int64)
    user = np.repeat(np.arange(users), active)
    film = np.minimum(chance.pareto(0.8, len(user)) * 100, 2**40).astype(np.int64) % FILMS
    flat = np.unique(user * FILMS + chance.permutation(FILMS)[film])
    val = np.minimum(np.maximum(np.round(chance.normal(7, 2, len(flat))), 1), 10) / 2
    return (flat // FILMS).astype(np.int32), (flat % FILMS).astype(np.int32), val


def factors(users: int) -> dict[str, Array]:
    """The factors of users, p, and of films, q."""
    chance = np.random.default_rng(3)
    return {name: chance.standard_normal((n, FACTORS)) for name, n in (("p", users), ("q", FILMS))}


def title(film: int) -> str:
    """The title of a film."""
    return f"film {film}"


def connections(count: int) -> tuple[einsql.Connection, duckdb.DuckDBPyConnection]:
    """Sessions of einsql and DuckDB with the same tables."""
    user, film, val = ratings(count)
    ours, theirs = einsql.connect(), duckdb.connect()
    rows = pa.table({"u": user, "i": film, "val": val})
    films = np.arange(FILMS, dtype=np.int32)
    titles = pa.table({"id": films, "title": [title(n) for n in range(FILMS)]})
    for name, table in {"source": rows, "titles": titles}.items():
        theirs.register("arrow", table)
        theirs.execute(f"CREATE TABLE {name} AS FROM arrow")
        columns = ", ".join(table.column_names)
        ours.register("arrow", table)
        ours.execute(f"CREATE TABLE {name} AS SELECT {columns} FROM arrow")
    ours.execute("CREATE TENSOR r AS SELECT u, i, val FROM source")
    theirs.execute("CREATE TABLE r AS FROM source")
    for con, kind in ((ours, "TENSOR"), (theirs, "TABLE")):
        con.execute(f"CREATE {kind} m AS SELECT i, AVG(val) AS val FROM r GROUP BY i")
        con.execute(
            f"CREATE {kind} unit AS SELECT r.u, r.i, r.val / n.val AS val FROM r JOIN "
            "(SELECT i, SQRT(SUM(val * val)) AS val FROM r GROUP BY i) n ON r.i = n.i"
        )
    for (name, array), key in zip(factors(int(user.max()) + 1).items(), "ui", strict=True):
        ours.register(name, array, dims=(key, "k"))
        places = np.indices(array.shape, dtype=np.int32).reshape(2, -1)
        theirs.register(
            "arrow", pa.table({key: places[0], "k": places[1], "val": array.reshape(-1)})
        )
        theirs.execute(f"CREATE TABLE {name} AS FROM arrow")
    return ours, theirs


def check(ours: Any, theirs: Any, sql: str, *, ties: bool) -> None:
    """Compares the number of rows, and the sums of their columns if no ties decide about them."""
    found, wanted = _all(ours, sql), _all(theirs, sql)
    assert found.num_rows == wanted.num_rows, sql
    for name in () if ties else found.column_names:
        if pa.types.is_floating(found[name].type) or pa.types.is_integer(found[name].type):
            ours_sum, other = (float(np.sum(np.asarray(t[name]))) for t in (found, wanted))
            np.testing.assert_allclose(ours_sum, other, rtol=1e-9, atol=1e-6)


def findings(count: int, only: str = "", rounds: int = 5) -> Iterator[Finding]:
    """Every statement over some number of ratings."""
    ours, theirs = connections(count)
    ((stored,),) = theirs.execute("SELECT COUNT(*) FROM r").fetchall()
    aims = dict.fromkeys(PRODUCTS, OF_PRODUCTS) | dict.fromkeys(OTHERS, OF_OTHERS)
    for what, sql in {**PRODUCTS, **OTHERS}.items():
        if only not in what:
            continue
        check(ours, theirs, sql, ties="ARG_MAX" in sql)
        contestants: dict[str, Run] = {
            "einsql": partial(_all, ours, sql),
            "duckdb": partial(_all, theirs, sql),
        }
        taken = measure(contestants, rounds=rounds, seconds=0.1 * rounds)
        ratio, least = taken.ratio("duckdb", "einsql"), aims[what]
        yield Finding(
            f"{what}, {stored:,} ratings",
            factor(ratio, 2),
            f"≥ {least:.2f}×",
            ratio.value >= least,
            times({name: taken.median(name) for name in contestants}),
        )


def _all(con: Any, sql: str) -> Any:
    if isinstance(con, duckdb.DuckDBPyConnection):
        return con.sql(sql).to_arrow_table()
    return con.execute(sql).fetch_arrow_table()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recommender")
    parser.add_argument("ratings", nargs="*", type=int, default=[200_000])
    parser.add_argument("--only", default="", help="a part of the name of statements")
    options = parser.parse_args()
    found = tuple(f for count in options.ratings for f in findings(count, options.only))
    print("\n".join(report.machine()), end="\n\n")
    print(report.as_text([Section("Recommender: DuckDB's time / einsql's time", found)]))


if __name__ == "__main__":
    main()
