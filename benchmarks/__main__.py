"""Runs the benchmarks: `python -m benchmarks [--record] [NAME …]`."""

from __future__ import annotations

import argparse
import importlib
import sys
import time

from benchmarks import report

BENCHMARKS = {
    "startup": "startup:startup",
    "first": "first:first",
    "repeated": "small:repeated",
    "steps": "small:steps",
    "matmul": "matmul:large",
    "short": "matmul:short",
    "chain": "chain:chains",
    "contractions": "contractions:contractions",
    "rows": "rows:rows",
    "norms": "norms:fused",
    "attention": "attention:heads",
    "long-attention": "attention:long",
    "orders": "orders:orders",
    "semirings": "semirings:semirings",
    "user_aggregates": "user_aggregates:user_aggregates",
    "maps": "maps:maps",
    "reductions": "reductions:reductions",
    "windows": "windows:windows",
    "segments": "segments:segments",
    "sparse": "sparse:sparse",
    "training": "training:step",
    "encoder": "encoder:encoder",
    "spellings": "spellings:spellings",
}
"""Function of each benchmark; its module is imported when its turn comes."""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="einsql beside NumPy, PyTorch and DuckDB."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(BENCHMARKS)}")
    parser.add_argument("--record", action="store_true", help=f"write {report.DOCUMENT.name} too")
    options = parser.parse_args()
    names = options.names or list(BENCHMARKS)
    unknown = [n for n in names if n not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]}; there are {', '.join(BENCHMARKS)}")
    if options.record and set(names) != set(BENCHMARKS):
        parser.error("--record needs all benchmarks, for it replaces the whole result section")
    sections = [_run(name) for name in names]
    print("\n".join(report.machine()), end="\n\n")
    print(report.as_text(sections))
    if options.record:
        print(f"\nWritten to {report.record(sections)}")
        from benchmarks import plots  # matplotlib is needed for this alone

        plots.main()
    return 0


def _run(name: str) -> report.Section:
    module, _, function = BENCHMARKS[name].partition(":")
    start = time.perf_counter()
    print(f"{name} … ", end="", file=sys.stderr, flush=True)
    section: report.Section = getattr(importlib.import_module(f"benchmarks.{module}"), function)()
    print(f"{time.perf_counter() - start:.0f} s", file=sys.stderr)
    return section


if __name__ == "__main__":
    sys.exit(main())
