"""Planning of nested scalar macros that repeat their argument.

Usage: `python -m benchmarks.nested_macros`.

Prints the processor time of a statement for each depth of nesting, until the statement is refused.
It sets `MAX_EXPANDED` and `_NODES_OF_QUERY` in `einsql/sql/macros/expansion.py`, and `WHOLE` in
`einsql/sql/binder/dependent_values.py`. The last lines are table macros over a table with text,
which DuckDB runs: they set `MAX_IN_DUCKDB` in `einsql/hybrid/split/split.py`.
"""

from __future__ import annotations

import time

import numpy as np

import einsql

MACROS = {
    "sum of two": "x + x",
    "three in CASE": "CASE WHEN x > 0 THEN x ELSE x * 2 END",
    "with NULLs": "x * 0.25e0 + x * 0.5e0 + coalesce(NULLIF(x, 3), 3) * 0.125e0",
    "with a subquery": "x + x * (SELECT SUM(val) FROM t)",
}
LEVELS = 11
"""The levels of table macros that join two calls of the level below."""


def main() -> None:
    """Prints a line for each macro and depth."""
    for title, body in MACROS.items():
        with einsql.connect() as con:
            con.register("t", np.arange(4.0), dims=("i",))
            con.execute(f"CREATE MACRO f(x) AS {body}")
            for depth in range(4, 20):
                call = "val"
                for _ in range(depth):
                    call = f"f({call})"
                start = time.process_time()
                try:
                    con.execute(f"SELECT SUM({call}) AS s FROM t")
                    outcome = "planned"
                except einsql.ProgrammingError:
                    outcome = "refused"
                print(f"{title:16} {depth:3} {time.process_time() - start:7.2f} s {outcome}")
                if outcome == "refused":
                    break
    table_macros()


def table_macros() -> None:
    """Prints a line for each level of table macros."""
    body = "SELECT a.i, a.val + b.val AS val FROM {0} AS a JOIN {0} AS b USING (i)"
    with einsql.connect() as con:
        con.execute("CREATE TABLE texts AS SELECT 0 AS i, 1.0 AS val, 'a' AS name")
        con.execute(f"CREATE MACRO t1(x) AS TABLE {body.format('x')}")
        for level in range(2, LEVELS + 1):
            con.execute(f"CREATE MACRO t{level}(x) AS TABLE {body.format(f't{level - 1}(x)')}")
            start = time.process_time()
            try:
                con.execute(f"SELECT val FROM t{level}(texts)").fetchall()
                outcome = "run"
            except einsql.ProgrammingError:
                outcome = "refused"
            print(f"{'tables':16} {level:3} {time.process_time() - start:7.2f} s {outcome}")


if __name__ == "__main__":
    main()
