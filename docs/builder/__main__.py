"""Builds docs/tour.html: python -m docs.builder."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from docs.builder.page import BuildError, build
from docs.builder.source import PAGE, ROOT, chapters


def main() -> int:
    """Builds the page; returns 1 if that failed."""
    parser = argparse.ArgumentParser(prog="python -m docs.builder", description=__doc__)
    parser.add_argument("--output", type=Path, default=PAGE, help="the page (docs/tour.html)")
    parser.add_argument("--only", default="", help="chapters by number, as in 1,5")
    parser.add_argument("--without-model", action="store_true", help="leave the model out")
    parser.add_argument("--quick", action="store_true", help="measure once only")
    options = parser.parse_args()
    given = [c for c in chapters() if not (options.without_model and c.needs_model)]
    if options.only:
        given = [c for c in given if c.name.partition("-")[0] in options.only.split(",")]
    if options.output == PAGE and len(given) < len(chapters()):
        parser.error("docs/tour.html has all chapters: name another file by --output")
    output = options.output.resolve()
    os.chdir(ROOT)  # the chapters name their data from here
    start = time.perf_counter()
    try:
        page = build(given, quick=options.quick, say=lambda line: print(line, flush=True))
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    output.write_text(page, encoding="utf-8")
    took = time.perf_counter() - start
    print(f"{output}: {len(page.encode()) / 1e6:.2f} MB in {took:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
