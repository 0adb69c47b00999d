"""Maps of a sparse and a dense tensor to an array: by stored elements, and by loops over all keys.

Usage: `python -m benchmarks.sparse_maps [ROWS …]`. The result has all keys of both tensors. Each
line has the time of both methods for some stored elements; `POINTS_PER_ELEMENT` of
`kernels/sparse/elements.py` decides between them.
"""

from __future__ import annotations

import argparse
from functools import partial

import einsql
from benchmarks import report
from benchmarks.measure import Run, measure
from einsql.kernels.sparse import elements

MAP = "SELECT x.i, x.j, b.f, x.val * b.val AS v FROM x JOIN b USING (j)"
COLUMNS, WIDTH = 100, 40
POINTS = (4096, 1024, 256, 64)
"""Points for each element of the result."""


def session(rows: int, points: int) -> einsql.Connection:
    """A session with a sparse tensor x and a dense one b."""
    con = einsql.connect()
    con.execute(f"CREATE TENSOR x (i DIM({rows}), j DIM({COLUMNS}), val DOUBLE) STORAGE SPARSE")
    con.execute(
        f"INSERT INTO x SELECT range * {points} // {COLUMNS}, range * {points} % {COLUMNS}, "
        f"range::DOUBLE FROM range({rows * COLUMNS // points})"
    )
    con.execute(
        f"CREATE TENSOR b AS SELECT j, f, (j + f)::DOUBLE AS val FROM range({COLUMNS}) p(j), "
        f"range({WIDTH}) q(f)"
    )
    return con


def line(rows: int, points: int) -> str:
    """The times of both methods."""
    con = session(rows, points)

    def run(least: float) -> None:
        elements.POINTS_PER_ELEMENT = least
        con.execute(MAP).fetch_arrow_table()

    ways: dict[str, Run] = {"elements": partial(run, 0), "loops": partial(run, float("inf"))}
    taken = measure(ways, rounds=5, seconds=0.3)
    shown = ", ".join(f"{name} {report.duration(taken.median(name))}" for name in ways)
    size = rows * COLUMNS * WIDTH
    return f"{size:,} points, {points} for each element: {shown}"


def main() -> None:
    """Prints the times."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*", type=int, default=[1000, 10_000])
    print("\n".join(report.machine()), end="\n\n")
    for rows in parser.parse_args().rows:
        for points in POINTS:
            print(line(rows, points), flush=True)


if __name__ == "__main__":
    main()
