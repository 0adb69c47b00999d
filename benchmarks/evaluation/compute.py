"""The computed tables of an experiment: `python -m benchmarks.evaluation.compute NAME [--full]`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from benchmarks.evaluation.protocol import say
from benchmarks.evaluation.worker import experiment


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.evaluation.compute")
    parser.add_argument("name")
    parser.add_argument("--full", action="store_true")
    asked = parser.parse_args()
    say({"ready": True})
    say({"tables": [asdict(table) for table in experiment(asked.name).computed(asked.full)]})


if __name__ == "__main__":
    main()
