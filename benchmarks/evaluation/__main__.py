"""Runs the evaluation: `python -m benchmarks.evaluation [NAME …]`.

All experiments together make a run, whose JSON goes to results/ and whose page is
docs/explanation/evaluation.md. An interrupted run continues. Named experiments are run and
printed alone.
"""

from __future__ import annotations

import argparse
import signal
import sys

from benchmarks.evaluation import page
from benchmarks.evaluation.processes import Failed
from benchmarks.evaluation.run import BUILD, RESULTS, Run, names
from benchmarks.evaluation.running import PASSES, ROUNDS, Settings
from benchmarks.evaluation.trial import log


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of: {', '.join(names())}")
    parser.add_argument("--full", action="store_true", help="also what takes longer than an hour")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="turns of each contestant")
    parser.add_argument("--passes", type=int, default=PASSES, help="parts of the rounds, in turn")
    parser.add_argument("--new", action="store_true", help="do not continue an interrupted run")
    parser.add_argument("--render", action="store_true", help="write the page of the newest run")
    options = parser.parse_args()
    if options.render:
        print(f"Written to {page.write()}")
        return 0
    if unknown := set(options.names) - set(names()):
        parser.error(f"there is no {unknown.pop()}; there are {', '.join(names())}")
    path = BUILD / ("part.json" if options.names else "run.json")
    if options.new or options.names:
        path.unlink(missing_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that contestants end, too
    passes = min(options.passes, options.rounds)
    settings = Settings(options.full, options.rounds, BUILD / "inputs", passes)
    run = Run.opened(path, settings)
    failures: dict[str, str] = {}
    for number in range(passes):
        log(f"Pass {number + 1} of {passes}")
        for name in options.names or names():
            if name in failures:
                continue
            try:
                run.add(name, settings, number)
            except Failed as error:
                failures[name] = str(error)
                log(f"{name}: {error}")
    if options.names:
        print(page.text(run.content, named=options.names))
    elif not failures:
        RESULTS.mkdir(exist_ok=True)
        run.content["seconds"] = round(
            sum(e["seconds"] for e in run.content["experiments"].values())
        )
        run.write()
        stamp = run.content["date"][:16].replace(":", "").replace("T", "-")
        path = path.rename(RESULTS / f"{stamp}.json")
        print(f"Written to {path} and {page.write()}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
