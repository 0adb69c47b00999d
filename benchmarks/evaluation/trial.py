"""The contestants of a case: they start, agree with NumPy, and take turns."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.evaluation import peers
from benchmarks.evaluation.experiment import EINSQL, Case, Contestant, Experiment, difference
from benchmarks.evaluation.processes import Failed, Process, loopback

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


def log(text: str) -> None:
    """Says on stderr how things are going."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Entry:
    """A contestant that runs.

    Attributes:
        process: Its processes.
        once: Seconds of a computation.
        result: What the run's JSON tells of it.
    """

    process: Process
    once: float
    result: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """A case whose inputs are written.

    Attributes:
        name: The module of the experiment.
        of: The experiment.
        case: The case.
        folder: The directory of the inputs.
        expected: The digest of the answer by NumPy.
        full: Whether it is part of a full run.
    """

    name: str
    of: Experiment
    case: Case
    folder: Path
    expected: Sequence[float]
    full: bool

    def taken(self, ways: Mapping[str, Sequence[str]], rounds: int, seed: int) -> dict[str, Json]:
        """Starts contestants and lets them take turns.

        Args:
            ways: The ways that each contestant may take; the fastest is measured.
            rounds: How many turns each has.
            seed: Chooses the order of each round.

        Returns:
            Each contestant's times, bytes and memory, or the reason why it is "absent".

        Raises:
            Failed: einsql gives no answer or a wrong one.
        """
        entries: dict[str, Entry] = {}
        absent: dict[str, str] = {}
        try:
            for by in self.of.contestants:
                if by.name not in ways:
                    continue
                try:
                    entries[by.name] = self._ready(by, ways[by.name])
                except Failed as error:
                    if by.name == EINSQL:
                        raise
                    absent[by.name] = str(error)
                    log(f"  {by.name}: {error}")
            if rounds:
                _turns(entries, absent, rounds, seed)
        finally:
            for entry in entries.values():
                entry.process.close()
        results: dict[str, Json] = {n: e.result for n, e in entries.items() if n not in absent}
        return results | {n: {"absent": reason} for n, reason in absent.items()}

    def _ready(self, by: Contestant, ways: Sequence[str]) -> Entry:
        """A contestant that has computed the answer in the fastest of its ways, and is stopped."""
        if lacking := peers.missing(by.peer):
            raise Failed(lacking)
        way = ways[0] if len(ways) == 1 else self._fastest(by, ways)
        process = self._started(by, way)
        try:
            result = self._first(process, by)
        except BaseException:
            process.close()
            raise
        if way:
            result["way"] = way
        once = result.pop("once")
        log(f"  {by.name}{f' ({way})' if way else ''}: {once:.3g} s")
        process.stop()
        return Entry(process, once, result)

    def _fastest(self, by: Contestant, ways: Iterable[str]) -> str:
        taken: dict[str, float] = {}
        failure = ""
        for way in ways:
            try:
                process = self._started(by, way)
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

    def _started(self, by: Contestant, way: str) -> Process:
        """The processes of a contestant."""
        case, folder = self.case, self.folder
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
        }[by.launch] + [*module, self.name, by.name, case.name, str(folder), way]  # fmt: skip
        if self.full:
            command.append("--full")
        threads = 1 if case.ranks else peers.usable_cores()
        return Process(command, peers.environment(threads), cores, LIMIT)

    def _first(self, process: Process, by: Contestant) -> Json:
        """Runs that compile kernels and start threads, the answer's check, memory and bytes."""
        once = min(process.ask("run")["seconds"] for _ in range(WARM_RUNS))
        process.forget_peak()
        ready = process.memory()["now"]
        before = loopback()
        once = min(once, process.ask("run")["seconds"])
        sent = loopback() - before
        peak = process.memory()["peak"]
        answer = process.ask("answer")
        result: Json = {"once": once, "memory": {"ready": ready, "peak": peak}}
        result["calls"] = max(1, min(1000, math.ceil(TURN / max(once, 1e-7))))
        if not by.bound:
            alone = [
                answer.get("checksum", math.nan),
                *self.expected[1:],
            ]  # beside the answer's norm
            digested: list[float] = answer.get("answer") or alone
            result["difference"] = difference(digested, self.expected)
            if not result["difference"] <= self.of.tolerance:
                raise Failed(f"a wrong answer: {digested}, where NumPy finds {list(self.expected)}")
        for key in ("answer", "checksum"):
            answer.pop(key, None)
        if self.case.ranks > 1 and not by.bound:
            counted = answer.pop("sent_bytes", None)
            if counted is None and sent > 1 << 16:
                result["sent_bytes"], result["sent_by"] = sent, LOOPBACK
            elif counted is not None:
                result["sent_bytes"], result["sent_by"] = counted, COUNTERS
        return result | answer


def _turns(entries: Mapping[str, Entry], absent: dict[str, str], rounds: int, seed: int) -> None:
    """Lets contestants take turns, in another order in each round."""
    shuffle = Random(seed)
    for entry in entries.values():
        entry.result["seconds"] = []
    for _ in range(rounds):
        names = [name for name in entries if name not in absent]
        for name in shuffle.sample(names, len(names)):
            entry = entries[name]
            try:
                entry.process.resume()
                calls = entry.result["calls"]
                if entry.once < UNCOUNTED_BELOW:
                    entry.process.ask("run")
                else:
                    time.sleep(SETTLE)
                entry.result["seconds"].append(entry.process.ask(f"run {calls}")["seconds"])
                entry.process.stop()
            except Failed as error:
                if name == EINSQL:
                    raise
                absent[name] = f"it fails between turns: {error}"
