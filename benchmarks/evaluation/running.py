"""Runs the cases of an experiment, pass by pass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.evaluation.experiment import Case, Experiment, digest
from benchmarks.evaluation.processes import Missing
from benchmarks.evaluation.trial import Json, Trial, log

ROUNDS = 9
"""The least number whose 95 % interval leaves out the smallest and the largest ratio."""
PASSES = 2
"""Passes over all experiments. A machine's speed drifts within an hour, so rounds are apart."""


@dataclass(frozen=True)
class Settings:
    """How experiments run.

    Attributes:
        full: Whether cases of unbounded time are run, too.
        rounds: Turns of each contestant, in all passes together.
        folder: Where inputs are written.
        passes: Passes over all experiments, which share the rounds.
    """

    full: bool
    rounds: int
    folder: Path
    passes: int = 1

    def rounds_of(self, number: int) -> int:
        """The rounds of a pass, which are counted from 0."""
        return self.rounds * (number + 1) // self.passes - self.rounds * number // self.passes


def measured(name: str, of: Experiment, case: Case, settings: Settings) -> Json:
    """A case's first pass: answers, times, bytes and memory, and why a contestant is absent.

    Raises:
        Failed: einsql gives no answer or a wrong one.
    """
    folder = _folder(name, case, settings)
    folder.mkdir(parents=True, exist_ok=True)
    contestants = [by for by in of.contestants if not case.only or by.name in case.only]
    entries: dict[str, Json] = {}
    expected: list[float] = []
    try:
        expected = _inputs(of, case, folder)
    except Missing as error:
        entries = {by.name: {"absent": str(error)} for by in contestants}
        log(f"  {error}")
    else:
        trial = Trial(name, of, case, folder, expected, settings.full)
        ways = {by.name: by.ways(case) for by in contestants}
        entries = trial.taken(ways, settings.rounds_of(0) if case.timed else 0, seed=0)
    order = {by.name: entries[by.name] for by in contestants}
    return {
        "ranks": case.ranks,
        "timed": case.timed,
        "passes": 1,
        "digest": expected,
        "bounds": [by.name for by in contestants if by.bound],
        "contestants": order,
    }


def continued(name: str, of: Experiment, case: Case, settings: Settings, earlier: Json) -> Json:
    """A case after a further pass: contestants with times start again and take more turns.

    They take the way that was the fastest in the first pass, and their answers are checked again.
    Bytes and memory are those of the first pass.

    Raises:
        Failed: einsql gives no answer or a wrong one.
    """
    number = earlier["passes"]
    before = {n: e for n, e in earlier["contestants"].items() if "seconds" in e}
    folder = _folder(name, case, settings)
    if before and not folder.exists():
        folder.mkdir(parents=True)
        _inputs(of, case, folder)
    trial = Trial(name, of, case, folder, earlier["digest"], settings.full)
    ways = {n: [e.get("way", "")] for n, e in before.items()}
    entries = trial.taken(ways, settings.rounds_of(number), seed=number)
    for by, entry in entries.items():
        if "absent" not in entry:
            entries[by] = before[by] | {"seconds": before[by]["seconds"] + entry["seconds"]}
    return earlier | {"passes": number + 1, "contestants": earlier["contestants"] | entries}


def _folder(name: str, case: Case, settings: Settings) -> Path:
    return settings.folder / name / case.name.replace("/", "-")


def _inputs(of: Experiment, case: Case, folder: Path) -> list[float]:
    """Writes the inputs; the digest of the answer."""
    if of.write is not None:
        return of.write(case, folder)
    inputs = of.inputs(case)
    for key, array in inputs.items():
        np.save(folder / f"{key}.npy", array)
    assert of.reference is not None, "an experiment needs a reference"
    return digest(of.reference(case, inputs))
