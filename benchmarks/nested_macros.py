"""Planning of nested scalar macros that repeat their argument.

Usage: `python -m benchmarks.nested_macros`.

Prints the processor time of a statement for each depth of nesting, until the statement is refused.
It sets `MAX_EXPANDED` and `_NODES_OF_QUERY` in `einsql/sql/macros/expansion.py`.
"""

from __future__ import annotations

import time

import numpy as np

import einsql

MACROS = {
    "sum of two": "x + x",
    "three in CASE": "CASE WHEN x > 0 THEN x ELSE x * 2 END",
    "with a subquery": "x + x * (SELECT SUM(val) FROM t)",
}


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


if __name__ == "__main__":
    main()
