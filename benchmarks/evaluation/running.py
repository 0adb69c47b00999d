"""Runs the cases of an experiment: contestants start, agree with NumPy, and take turns."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.evaluation import peers
from benchmarks.evaluation.experiment import (
    EINSQL,
    Case,
    Contestant,
    Experiment,
    difference,
    digest,
)
from benchmarks.evaluation.processes import Failed, Missing, Process, loopback

ROUNDS = 9
"""The least number whose 95 % interval leaves out the smallest and the largest ratio."""
TURN = 0.1
"""Seconds of a turn at least: short computations are repeated."""
UNCOUNTED_BELOW = 2.0
"""Seconds of a computation that is run once before its turn, after its processes resume."""
SETTLE = 0.05
"""Seconds that the processes of a longer computation have before its turn."""
WARM_RUNS = 2
"""Runs that start threads and compile kernels before any counts."""
LIMIT = 120.0
"""Seconds that one answer may take."""
LOOPBACK, COUNTERS = "the loopback interface", "its own counters"
"""Where the number of bytes sent comes from."""

Json = dict[str, Any]


@dataclass(frozen=True)
class Settings:
    """How experiments run.

    Attributes:
        full: Whether cases of unbounded time are run, too.
        rounds: Turns of each contestant.
        folder: Where inputs are written.
    """

    full: bool
    rounds: int
    folder: Path


@dataclass
class Entry:
    """A contestant that runs.

    Attributes:
        process: Its processes.
        once: Seconds of a computation.
        found: What the run's JSON tells of it.
    """

    process: Process
    once: float
    found: Json = field(default_factory=dict)


def log(text: str) -> None:
    """Says on stderr how things are going."""
    print(text, file=sys.stderr, flush=True)


def measured(name: str, of: Experiment, case: Case, settings: Settings) -> Json:
    """A case: its contestants' times, bytes and memory, and the reasons of those that lack.

    Raises:
        Failed: einsql gives no answer or a wrong one.
    """
    folder = settings.folder / name / case.name.replace("/", "-")
    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, Entry] = {}
    absent: dict[str, str] = {}
    contestants = [by for by in of.contestants if not case.only or by.name in case.only]
    try:
        expected = _inputs(of, case, folder)
    except Missing as error:
        absent = {by.name: str(error) for by in contestants}
        contestants = []
        log(f"  {error}")
    try:
        for by in contestants:
            try:
                entries[by.name] = _ready(name, of, by, case, folder, expected, settings.full)
            except Failed as error:
                if by.name == EINSQL:
                    raise
                absent[by.name] = str(error)
                log(f"  {by.name}: {error}")
        if case.timed:
            _turns(entries, absent, settings.rounds)
    finally:
        for entry in entries.values():
            entry.process.close()
    found: dict[str, Json] = {n: e.found for n, e in entries.items() if n not in absent}
    found |= {n: {"absent": reason} for n, reason in absent.items()}
    order = {by.name: found[by.name] for by in of.contestants if by.name in found}
    bounds = [by.name for by in of.contestants if by.bound and by.name in found]
    return {"ranks": case.ranks, "timed": case.timed, "bounds": bounds, "contestants": order}


def _inputs(of: Experiment, case: Case, folder: Path) -> list[float]:
    """Writes the inputs; the digest of the answer."""
    if of.write is not None:
        return of.write(case, folder)
    inputs = of.inputs(case)
    for key, array in inputs.items():
        np.save(folder / f"{key}.npy", array)
    assert of.reference is not None, "an experiment needs a reference"
    return digest(of.reference(case, inputs))


def _ready(
    name: str,
    of: Experiment,
    by: Contestant,
    case: Case,
    folder: Path,
    expected: list[float],
    full: bool,
) -> Entry:
    """A contestant that has computed the answer in the fastest of its ways, and is stopped."""
    if lacking := peers.missing(by.peer):
        raise Failed(lacking)
    ways = list(by.ways(case))
    way = ways[0]
    if len(ways) > 1:
        way = _fastest(name, of, by, case, folder, full)
    process = started(name, by, case, way, folder, full)
    try:
        found = _first(process, of, by, case, expected)
    except BaseException:
        process.close()
        raise
    if way:
        found["way"] = way
    once = found.pop("once")
    log(f"  {by.name}{f' ({way})' if way else ''}: {once:.3g} s")
    process.stop()
    return Entry(process, once, found)


def _fastest(
    name: str, of: Experiment, by: Contestant, case: Case, folder: Path, full: bool
) -> str:
    taken: dict[str, float] = {}
    failure = ""
    for way in by.ways(case):
        try:
            process = started(name, by, case, way, folder, full)
        except Failed as error:
            failure = str(error)
            continue
        try:
            process.ask("run")
            taken[way] = process.ask("run")["seconds"]
        except Failed as error:
            failure = str(error)
        finally:
            process.close()
    if not taken:
        raise Failed(f"none of its ways works, the last: {failure}")
    return min(taken, key=taken.__getitem__)


def started(name: str, by: Contestant, case: Case, way: str, folder: Path, full: bool) -> Process:
    """The processes of a contestant."""
    cores = case.ranks
    if by.program is not None:
        command, environment = by.program(case, way, folder)
        return Process(command, environment, cores, LIMIT)
    python = peers.python(by.peer)
    module = ["-m", "benchmarks.evaluation.worker"]
    ranks = str(max(1, case.ranks))
    command = {
        "alone": [str(python)],
        "mpi": [str(python.parent / "mpiexec"), "-n", ranks, str(python), "-m", "mpi4py"],
        "torchrun": [str(python), "-m", "torch.distributed.run", "--standalone",
                     "--nproc-per-node", ranks],
    }[by.launch] + [*module, name, by.name, case.name, str(folder), way]  # fmt: skip
    if full:
        command.append("--full")
    threads = 1 if case.ranks else peers.usable_cores()
    return Process(command, peers.environment(threads), cores, LIMIT)


def _first(
    process: Process, of: Experiment, by: Contestant, case: Case, expected: list[float]
) -> Json:
    """Runs that start threads and compile kernels, the check of the answer, memory and bytes."""
    once = min(process.ask("run")["seconds"] for _ in range(WARM_RUNS))
    process.forget_peak()
    ready = process.memory()["now"]
    before = loopback()
    once = min(once, process.ask("run")["seconds"])
    sent = loopback() - before
    peak = process.memory()["peak"]
    answer = process.ask("answer")
    found: Json = {"once": once, "memory": {"ready": ready, "peak": peak}}
    found["calls"] = max(1, min(1000, math.ceil(TURN / max(once, 1e-7))))
    if not by.bound:
        alone = [answer.get("checksum", math.nan), *expected[1:]]  # beside the answer's norm
        digested: list[float] = answer.get("answer") or alone
        found["difference"] = difference(digested, expected)
        if not found["difference"] <= of.tolerance:
            raise Failed(f"a wrong answer: {digested}, where NumPy finds {expected}")
    for key in ("answer", "checksum"):
        answer.pop(key, None)
    if case.ranks > 1 and not by.bound:
        counted = answer.pop("sent_bytes", None)
        if counted is None and sent > 1 << 16:
            found["sent_bytes"], found["sent_by"] = sent, LOOPBACK
        elif counted is not None:
            found["sent_bytes"], found["sent_by"] = counted, COUNTERS
    return found | answer


def _turns(entries: Mapping[str, Entry], absent: dict[str, str], rounds: int) -> None:
    """Lets contestants take turns, in another order in each round."""
    shuffle = Random(0)
    for entry in entries.values():
        entry.found["seconds"] = []
    for _ in range(rounds):
        names = [name for name in entries if name not in absent]
        for name in shuffle.sample(names, len(names)):
            entry = entries[name]
            try:
                entry.process.resume()
                calls = entry.found["calls"]
                if entry.once < UNCOUNTED_BELOW:
                    entry.process.ask("run")
                else:
                    time.sleep(SETTLE)
                entry.found["seconds"].append(entry.process.ask(f"run {calls}")["seconds"])
                entry.process.stop()
            except Failed as error:
                if name == EINSQL:
                    raise
                absent[name] = f"it fails between turns: {error}"
