"""Runs each example on einsql and on DuckDB, and compares answers and times.

DuckDB gets the same statements over tables with one row per element. Run from anywhere:

    python examples/demo.py
"""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa

import einsql

PARTS = {
    "digits_knn.sql": "Nearest-neighbour classification of handwritten digits",
    "digits_covariance.sql": "Covariance of the digits' pixels",
    "karate_shortest_paths.sql": "Shortest paths in Zachary's karate club, by a min-plus product",
}
AXES = {"digits": ("i", "p"), "labels": ("i",), "karate": ("i", "j")}
REPEATS = 5
ACCURACY = 592 / 599
TOLERANCE = 1e-5
"""Largest difference allowed, as a share of the column's largest value: sums of FLOAT."""


def main() -> int:
    """Runs the parts; returns 1 if an answer is wrong."""
    os.chdir(Path(__file__).parents[1])  # the scripts name their data from here
    failures = []
    for name, title in PARTS.items():
        sql = Path("examples", name).read_text(encoding="utf-8")
        print(f"\n=== {title} (examples/{name})\n\n{sql}")
        answers, first, repeated = run_einsql(sql)
        for answer in answers:
            print(answer.to_string(index=False, max_rows=16), "\n")
        expected, scalar = run_duckdb(sql)
        share = max(difference(a, e) for a, e in zip(answers, expected, strict=True))
        print(
            f"einsql {first:.4f} s the first time, {repeated:.4f} s repeated; "
            f"DuckDB over element rows {scalar:.4f} s: {scalar / repeated:.3g} times as long.\n"
            f"Largest difference: {share:.1e} of the largest value."
        )
        if not share <= TOLERANCE:
            failures.append(f"{name}: the answers differ by {share:.1e} of the largest value")
        if "accuracy" in answers[0] and round(answers[0]["accuracy"][0] - ACCURACY, 6) != 0:
            failures.append(f"{name}: the accuracy is not {ACCURACY:.3f}")
    for failure in failures:
        print(failure, file=sys.stderr)
    print("\n" + ("FAILED" if failures else "All answers agree."))
    return 1 if failures else 0


def run_einsql(sql: str) -> tuple[list[pd.DataFrame], float, float]:
    """The script's answers, its seconds when run first, and the least of some repeats."""
    with einsql.connect() as con:
        statements = [text for _, text in con.split(sql)]
        seconds = []
        for _ in range(1 + REPEATS):
            start = time.perf_counter()
            cursors = [con.execute(text) for text in statements]
            seconds.append(time.perf_counter() - start)
        answers = [c.fetch_df() for c in cursors if c.description is not None]
    return answers, seconds[0], min(seconds[1:])


def run_duckdb(sql: str) -> tuple[list[pd.DataFrame], float]:
    """The same statements' answers over element rows, and their seconds."""
    text = sql.replace("REPLACE TENSOR", "REPLACE TABLE")
    text = re.sub(r"'examples/data/(\w+)\.npy'", r"elements.\1", text)
    with duckdb.connect() as con:
        con.execute("CREATE SCHEMA elements")
        for name, axes in AXES.items():
            array = np.load(f"examples/data/{name}.npy")
            keys = zip(axes, np.indices(array.shape), strict=True)
            con.register("rows", pa.table({k: n.ravel() for k, n in keys} | {"val": array.ravel()}))
            con.execute(f"CREATE TABLE elements.{name} AS FROM rows")
        answers = []
        start = time.perf_counter()
        for statement in con.extract_statements(text):
            result = con.execute(statement)
            if statement.type == duckdb.StatementType.SELECT:
                answers.append(result.df())
        return answers, time.perf_counter() - start


def difference(answer: pd.DataFrame, expected: pd.DataFrame) -> float:
    """Largest difference as a share of the column's largest value; inf if rows differ."""
    if answer.shape != expected.shape or list(answer) != list(expected):
        return float("inf")
    if len(expected) > 1:  # the rows of a query are in no order; a key leads each of ours
        keys = list(expected)[:-1]
        answer, expected = (frame.sort_values(keys) for frame in (answer, expected))
    worst = 0.0
    for name in expected:
        got, want = (np.asarray(frame[name], np.float64) for frame in (answer, expected))
        finite = np.isfinite(want)
        if not np.array_equal(got[~finite], want[~finite], equal_nan=True):
            return float("inf")
        scale = np.abs(want[finite]).max(initial=1)
        worst = max(worst, float(np.abs(got[finite] - want[finite]).max(initial=0) / scale))
    return worst


if __name__ == "__main__":
    sys.exit(main())
