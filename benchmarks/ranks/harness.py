"""Runs the systems in turns, and keeps what each of them printed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from benchmarks.evaluation.processes import Failed, Process
from benchmarks.measure import Times
from benchmarks.ranks.peers import BOUND, Peer
from benchmarks.ranks.workloads import WORKLOADS, right, write


@dataclass(frozen=True)
class Job:
    """A system at work on a number of ranks.

    Attributes:
        peer: The system.
        workload: The workload's name.
        ranks: How many processes work.
        option: The way it takes.
    """

    peer: Peer
    workload: str
    ranks: int
    option: str


def folder_of(workload: str, root: Path) -> Path:
    """Where a workload's files are."""
    return root / workload


def run(job: Job, root: Path, repeats: int) -> dict[str, Any]:
    """Starts a system, lets it repeat the computation, and checks its answer.

    Returns:
        The answer, with the seconds of each repetition after one that does not count.

    Raises:
        Failed: It ends without an answer, takes too long, or the answer is wrong.
    """
    workload, folder = WORKLOADS[job.workload], folder_of(job.workload, root)
    expected = write(workload, folder)
    process = started(job, folder)
    try:
        process.ask("run")
        seconds = [process.ask("run")["seconds"] for _ in range(repeats)]
        answer = process.ask("answer") | {"seconds": seconds}
    finally:
        process.close()
    if not answer.get("blas", "OpenBLAS").startswith("OpenBLAS"):
        raise Failed("it does not multiply with OpenBLAS, which would be no fair comparison")
    if job.peer.name != BOUND and not right(workload, answer["checksum"], expected):
        raise Failed(f"checksum {answer['checksum']}, where NumPy finds {expected}")
    return answer


def started(job: Job, folder: Path) -> Process:
    """The processes of a system, ready to compute.

    Raises:
        Failed: They do not start.
    """
    arguments = [job.workload, str(folder), str(job.ranks), job.option]
    try:
        command = [*job.peer.command(job.ranks, job.option), *arguments]
    except (OSError, subprocess.SubprocessError) as error:  # it does not compile
        raise Failed(str(error)) from None
    return Process(command, job.peer.environment())


def tuned(peer: Peer, workload: str, ranks: int, root: Path) -> Job:
    """The fastest way of a system; found once for the files in a folder.

    Raises:
        Failed: None of its ways gives an answer.
    """
    notes = root / "tuned.json"
    known: dict[str, str] = json.loads(notes.read_text()) if notes.exists() else {}
    key = f"{peer.name}, {workload}, {ranks}"
    options = peer.options(workload, ranks)
    if key not in known and len(options) > 1:
        known[key] = _fastest([Job(peer, workload, ranks, o) for o in options], root)
        notes.write_text(json.dumps(known, indent=1))
    return Job(peer, workload, ranks, known.get(key, options[0]))


def _fastest(jobs: list[Job], root: Path) -> str:
    taken, failure = {}, None
    for job in jobs:
        try:
            taken[job.option] = median(run(job, root, 1)["seconds"])
        except Failed as error:
            failure = error
            log(f"{job.peer.name} {job.option} on {job.workload}: {error}")
    if not taken:
        raise Failed(f"none of its ways works, the last: {failure}")
    log(
        f"{jobs[0].peer.name} on {jobs[0].workload}, {jobs[0].ranks} ranks: "
        + ", ".join(
            f"{o or 'as is'} {t:.2f} s" for o, t in sorted(taken.items(), key=lambda x: x[1])
        )
    )
    return min(taken, key=taken.__getitem__)


def in_turns(
    jobs: Mapping[str, Job], rounds: int, repeats: int, root: Path
) -> tuple[Times, list[str]]:
    """Lets systems take turns, in another order in each round.

    Args:
        jobs: Who runs what, by name.
        rounds: How often each has its turn.
        repeats: Computations in one turn, whose median counts.
        root: Where the files are.

    Returns:
        Seconds of one computation of each, by round; and who failed, and why.
    """
    taken: dict[str, list[float]] = {name: [] for name in jobs}
    failures = []
    shuffle = Random(0)
    for _ in range(rounds):
        for name in shuffle.sample(list(taken), len(taken)):
            try:
                taken[name].append(median(run(jobs[name], root, repeats)["seconds"]))
            except Failed as error:
                log(f"{name}: {error}")
                failures.append(_failure(name, error))
                del taken[name]
        log("  ".join(f"{name} {t[-1]:.2f} s" for name, t in taken.items()))
    return Times(taken), failures


def _failure(name: str, error: Failed) -> str:
    return f"{name}, which fails: {str(error).strip().splitlines()[-1]}"


def ready(
    names: Mapping[str, Peer], find: Callable[[Peer], Job]
) -> tuple[dict[str, Job], list[str]]:
    """The jobs of the systems that can run, and why the others cannot."""
    jobs, absent = {}, []
    for name, peer in names.items():
        if reason := peer.missing():
            absent.append(f"{name}, for want of {reason}")
            continue
        try:
            jobs[name] = find(peer)
        except Failed as error:
            absent.append(_failure(name, error))
    return jobs, absent


def log(text: str) -> None:
    """Says on stderr how things are going."""
    print(text, file=sys.stderr, flush=True)
