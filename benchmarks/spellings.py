"""How much a query's spelling matters: the slowest of its spellings beside the fastest.

`python -m benchmarks spellings` says what all queries come to;
`python -m benchmarks.spellings [--only TEXT] [--seed 0] [--count 8] [--json PATH]` prints a line
for each query, or for those with TEXT in their name.

Statements wait for their kernels. A spelling's time is the least of interleaved runs: seven, and
up to three times as many where the slowest looks too slow. A result whose axes are in another
order than the fastest spelling's may need a transposition: what NumPy takes to copy the fastest's
result into that order is taken off. Spellings agree with each other, and with DuckDB over few
elements.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import duckdb
import numpy as np

import einsql
from benchmarks.report import Finding, Section, duration
from benchmarks.respelling import Spelling, respelled
from benchmarks.spelled import QUERIES, Query
from benchmarks.statements import Array, drawn, registered, split
from einsql.errors import Error

COUNT, RUNS, AGAIN = 8, 7, 2
"""Spellings of a query, runs of each, and how often they run again where the slowest is slow."""
MEDIAN, WORST = 1.5, 3.0
SHOWN = 8
"""Queries that are named."""
TOLERANCE = 1e-4
"""Largest difference, as a share of the largest element: sums of FLOAT in other orders."""


@dataclass(frozen=True)
class Line:
    """What was measured of a query.

    Attributes:
        name: The query's name.
        seconds: The least time of each spelling, less a transposition of its own.
        spellings: The texts.
    """

    name: str
    seconds: tuple[float, ...]
    spellings: tuple[Spelling, ...]

    @property
    def ratio(self) -> float:
        """The slowest spelling's time over the fastest's."""
        return max(self.seconds) / min(self.seconds)

    def extremes(self) -> tuple[str, str]:
        """The fastest and the slowest text."""
        ordered = sorted(range(len(self.seconds)), key=self.seconds.__getitem__)
        return self.spellings[ordered[0]].sql, self.spellings[ordered[-1]].sql


def spellings() -> Section:
    """All queries."""
    lines = [line(query) for query in QUERIES]
    return Section(
        f"Spellings of {len(lines)} queries, {COUNT} each: the slowest's time / the fastest's",
        tuple(findings(lines)),
    )


def findings(lines: Sequence[Line]) -> Iterator[Finding]:
    """The median and the worst queries."""
    ordered = sorted(lines, key=lambda x: x.ratio, reverse=True)
    middle = median(x.ratio for x in lines)
    yield Finding("median", f"{middle:.2f}×", f"≤ {MEDIAN}×", middle <= MEDIAN)
    for number, found in enumerate(ordered[:SHOWN]):
        times = ", ".join(duration(f(found.seconds)) for f in (min, max))
        aim: dict[str, Any] = {"target": f"≤ {WORST}×", "met": found.ratio <= WORST}
        yield Finding(
            f"{'the next' if number else 'the worst'}: {found.name}",
            f"{found.ratio:.2f}×",
            times=times,
            **({} if number else aim),
        )


def line(query: Query, seed: int = 0, count: int = COUNT) -> Line:
    """Measures a query's spellings.

    Raises:
        AssertionError: Two spellings differ, or one differs from DuckDB.
    """
    small = _drawn(query, query.small(), seed, count)
    _compare_with_duckdb(query, small)
    texts = _drawn(query, query.sizes, seed, count)
    with _connected(query, query.sizes) as con:
        runs = [_run(con, spelling.sql) for spelling in texts]
        results = [run() for run in runs]
        keys = texts[0].keys
        for spelling, result in zip(texts, results, strict=True):
            found = _ordered(result, spelling.keys, keys)
            _agree(found, results[0], result.dtype == results[0].dtype, query.name, spelling.sql)
        taken = least(runs)
        for _ in range(AGAIN):
            if max(taken) > MEDIAN * min(taken):  # another process may have had the processor
                taken = [min(pair) for pair in zip(taken, least(runs), strict=True)]
        best = taken.index(min(taken))
        fastest, order = results[best], texts[best].keys
        seconds = tuple(
            max(t - _transposition(fastest, order, s.keys), taken[best])
            for t, s in zip(taken, texts, strict=True)
        )
    return Line(query.name, seconds, tuple(texts))


def _drawn(query: Query, sizes: Mapping[str, int], seed: int, count: int) -> list[Spelling]:
    """The text as it is, and different ones."""
    sql = query.sql.format(**sizes) if "{" in query.sql else query.sql
    tensors = {name: split(axes)[0] for name, axes in query.tensors.items()}
    found = {s.sql: s for s in [respelled(sql, tensors, None)]}
    for number in range(8 * count):
        if len(found) < count:
            other = respelled(sql, tensors, Random(f"{seed} {number} {query.name}"))
            found.setdefault(other.sql, other)
    return list(found.values())


def _connected(query: Query, sizes: Mapping[str, int]) -> einsql.Connection:
    con = einsql.connect()
    with suppress(Error):  # where kernels are always waited for there is no such choice
        con.execute("SET jit = 'wait'")
    for name, array, dims in _tensors(query, sizes):
        con.register(name, array, dims=dims)
    return con


def _tensors(query: Query, sizes: Mapping[str, int]) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    return registered(query.tensors, sizes, drawn(query.tensors, sizes))


def _run(con: einsql.Connection, sql: str) -> Callable[[], Array]:
    def run() -> Array:
        found: Array = np.asarray(con.execute(sql).fetch_numpy(fill=0))
        return found

    return run


def least(runs: Sequence[Callable[[], object]]) -> list[float]:
    """The least seconds of each, of interleaved runs after one that does not count."""
    taken: list[list[float]] = [[] for _ in runs]
    shuffle = Random(0)
    for turn in range(RUNS + 1):
        for number in shuffle.sample(range(len(runs)), len(runs)):
            start = time.perf_counter()
            runs[number]()
            if turn:
                taken[number].append(time.perf_counter() - start)
    return [min(seconds) for seconds in taken]


def _ordered(result: Array, keys: Sequence[str], wanted: Sequence[str]) -> Array:
    return np.transpose(result, [keys.index(key) for key in wanted])


def _transposition(result: Array, keys: Sequence[str], wanted: Sequence[str]) -> float:
    if keys == wanted:
        return 0.0
    turned = _ordered(result, keys, wanted)
    return least([lambda: np.ascontiguousarray(turned)])[0]


def _agree(found: Array, wanted: Array, same_type: bool, name: str, sql: str) -> None:
    scale = float(np.abs(wanted).max(initial=1e-30))
    error = float(np.abs(found - wanted).max(initial=0.0)) / scale
    if not same_type or not error <= TOLERANCE:
        raise AssertionError(f"{name}: {error} of the largest element, {found.dtype}:\n{sql}")


def _compare_with_duckdb(query: Query, texts: Sequence[Spelling]) -> None:
    with _connected(query, query.small()) as con, duckdb.connect() as other:
        for name, array, dims in _tensors(query, query.small()):
            other.register(f"{name}_rows", _rows(array, dims))
            other.execute(f"CREATE TABLE {name} AS FROM {name}_rows")
        for spelling in texts:
            found, wanted = (c.execute(spelling.sql).fetchall() for c in (con, other))
            names = [d[0] for d in con.execute(spelling.sql).description or ()]
            keys = [names.index(k) for k in spelling.keys]
            found, wanted = (
                sorted(rows, key=lambda row: [row[k] for k in keys]) for rows in (found, wanted)
            )
            a, b = (np.asarray(r, np.float64) for r in (found, wanted))
            if a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-4):
                raise AssertionError(f"{query.name} is not DuckDB's:\n{spelling.sql}")


def _rows(array: Any, dims: Sequence[str]) -> Any:
    import pyarrow as pa

    if hasattr(array, "tocoo"):
        stored = array.tocoo()
        places, values = stored.coords, stored.data
    else:
        places, values = np.indices(array.shape).reshape(array.ndim, -1), array.reshape(-1)
    return pa.table({**dict(zip(dims, places, strict=True)), "val": values})


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spellings", description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=COUNT, help="spellings of each query")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    lines = []
    for query in QUERIES:
        if options.only in query.name:
            found = line(query, options.seed, options.count)
            lines.append(found)
            times = "  ".join(f"{duration(f(found.seconds)):>8}" for f in (min, max))
            print(f"{found.ratio:6.2f}×  {times}  {found.name}", flush=True)
    for finding in findings(lines):
        print("  ".join(finding.cells()))
    for found in sorted(lines, key=lambda x: x.ratio, reverse=True)[:SHOWN]:
        print(f"\n{found.name}: {found.ratio:.2f}×", *found.extremes(), sep="\n")
    if options.json:
        entries = [
            {"name": x.name, "ratio": x.ratio, "seconds": x.seconds,
             "spellings": [s.sql for s in x.spellings]} for x in lines
        ]  # fmt: skip
        options.json.write_text(json.dumps(entries, indent=1, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
