"""How much the rates of CALIBRATE scatter: `python -m benchmarks.calibration [CALIBRATIONS]`.

Each line has the median of a rate over the calibrations of one session, and its greatest ratio to
the median, in either direction.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import einsql


def scatter(count: int, ranks: int) -> None:
    """Calibrates a session some times and prints each rate's median and scatter."""
    rates: dict[str, list[float]] = {}
    seconds = []
    with einsql.connect(config={"mpi": ranks} if ranks else {}) as con:
        for _ in range(count):
            start = time.perf_counter()
            rows = con.execute("CALIBRATE").fetchall()
            seconds.append(time.perf_counter() - start)
            for name, value, _ in rows:
                rates.setdefault(name, []).append(value)
    print(f"{f'{ranks} ranks' if ranks else 'One process'}: {median(seconds):.1f} s each")
    for name, values in rates.items():
        middle = median(values)
        print(f"  {name:16} {middle:9.3g}  {max(max(v / middle, middle / v) for v in values):.2f}×")


if __name__ == "__main__":
    for ranks in (0, 2):
        scatter(int(sys.argv[1]) if len(sys.argv) > 1 else 8, ranks)
