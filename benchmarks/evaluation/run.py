"""A run of all experiments, kept in a JSON file as it goes, so that it can be continued."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.evaluation import peers
from benchmarks.evaluation.processes import MEMORY, Process
from benchmarks.evaluation.running import Settings, continued, measured
from benchmarks.evaluation.trial import Json, log
from benchmarks.evaluation.worker import experiment

BUILD = peers.ROOT / "build" / "evaluation"
RESULTS = Path(__file__).parent / "results"
"""Runs that are complete, a file each, in the order of their names."""
COMPUTED_LIMIT = 900.0
"""Seconds that the computed tables of an experiment may take; ten times as many in a full run."""
SCHEMA = 3


def names() -> list[str]:
    """The names of all experiments, in the page's order."""
    from benchmarks.evaluation.contents import PARTS

    return [name for part in PARTS.values() for name in part]


class Lap:
    """Adds the time of an experiment's parts to its seconds, so that they outlast the process."""

    def __init__(self, done: Json, clock: Callable[[], float] = time.monotonic) -> None:
        self.done = done
        self.clock = clock
        self.start = clock()

    def add(self) -> None:
        """Adds the seconds since the last part."""
        now = self.clock()
        self.done["seconds"] = self.done.get("seconds", 0.0) + now - self.start
        self.start = now


@dataclass
class Run:
    """A run's JSON file.

    Attributes:
        path: The file.
        content: What it has.
    """

    path: Path
    content: Json

    @classmethod
    def opened(cls, path: Path, settings: Settings) -> Run:
        """The run in a file, or a new one if there is none of these settings."""
        asked = {
            "full": settings.full,
            "rounds": settings.rounds,
            "passes": settings.passes,
            "commit": commit(),
        }
        if path.exists():
            content = json.loads(path.read_text(encoding="utf-8"))
            other = [f"{k} {content.get(k)}" for k, v in asked.items() if content.get(k) != v]
            if not other:
                return cls(path, content)
            log(f"{path} is discarded: a run of {', '.join(other)} is not continued")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "schema": SCHEMA,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            **asked,
            "machine": machine(),
            "memory": MEMORY,
            "experiments": {},
        }
        return cls(path, content)

    def add(self, name: str, settings: Settings, number: int = 0) -> None:
        """Runs a pass of an experiment, unless the file has it.

        Args:
            name: The experiment's module.
            settings: How it runs.
            number: The pass, counted from 0. The first pass computes the tables.
        """
        done = self.content["experiments"].setdefault(name, {"cases": {}, "passes": 0})
        if done["passes"] > number:
            return
        of = experiment(name)
        cases = [case for case in of.cases(settings.full) if case.timed or not number]
        lap = Lap(done)
        if cases or not number:
            log(f"{name}: {of.title}")
            done["busy_before"] = max(busy(), done.get("busy_before", 0.0))
        for case in cases:
            earlier: Json | None = done["cases"].get(case.name)
            if earlier and earlier["passes"] > number:
                continue
            log(f" {case.name}")
            done["cases"][case.name] = (
                continued(name, of, case, settings, earlier)
                if earlier
                else measured(name, of, case, settings)
            )
            lap.add()
            self.write()
        if not number:
            done["tables"] = computed(name, settings.full)
        lap.add()
        done["passes"] = number + 1
        log(f"{name}: {done['seconds']:.0f} s")
        self.write()

    def write(self) -> None:
        """Writes the file; a reader sees it whole."""
        partial = self.path.with_suffix(".partial")
        text = json.dumps(self.content, indent=1, ensure_ascii=False)
        partial.write_text(text + "\n", encoding="utf-8")
        partial.replace(self.path)


def computed(name: str, full: bool) -> list[Json]:
    """The computed tables of an experiment, from a process of their own."""
    command = [sys.executable, "-m", "benchmarks.evaluation.compute", name]
    limit = COMPUTED_LIMIT * (10 if full else 1)
    process = Process([*command, *["--full"] * full], peers.environment(), 0, limit)
    try:
        tables: list[Json] = process.ask("tables")["tables"]
    finally:
        process.close()
    return tables


def busy() -> float:
    """The share of the processors' time that other processes take, over a second."""
    before = _processor_times()
    time.sleep(1)
    idle, total = (b - a for a, b in zip(before, _processor_times(), strict=True))
    return round(1 - idle / max(total, 1), 3)


def _processor_times() -> tuple[int, int]:
    numbers = [int(n) for n in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return numbers[3] + numbers[4], sum(numbers)


def machine() -> dict[str, Any]:
    """The machine and the versions, for the page."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    debian = [f"{name} {version}" for name, version in peers.debian_versions().items()]
    return {
        "lines": [line.partition("; load")[0] for line in report.machine()]
        + ([f"Debian's packages of peers: {', '.join(debian)}"] if debian else []),
        "memory_bytes": memory,
        "kernel": platform.release(),
        "load": os.getloadavg()[0],
    }


def commit() -> str:
    """The commit that is checked out, with a + if files differ from it; nothing without git."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(peers.ROOT), *arguments]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        return ran.stdout.strip() if ran.returncode == 0 else ""

    changed = git("status", "--porcelain", "--untracked-files=no", "einsql", "benchmarks")
    return git("rev-parse", "--short=12", "HEAD") + ("+" if changed else "")


def complete() -> list[Path]:
    """The files of complete runs, the newest last."""
    return sorted(RESULTS.glob("*.json"))
