"""What the processes of a peer that is written in Python share: arguments, turns, the answer."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.ranks.workloads import WORKLOADS, Workload

Array = np.ndarray


@dataclass(frozen=True)
class Task:
    """What one run of a peer is asked for.

    Attributes:
        name: The workload's name.
        folder: Where its files are.
        ranks: How many processes work.
        repeats: How often the computation is timed, after one that is not.
        option: Which of its ways to do it the peer takes; nothing for the first.
    """

    name: str
    folder: Path
    ranks: int
    repeats: int
    option: str

    @property
    def workload(self) -> Workload:
        """The computation."""
        return WORKLOADS[self.name]

    def load(self, name: str, rows: slice = slice(None), columns: slice = slice(None)) -> Array:
        """A block of an input, in memory of its own."""
        matrix = np.load(self.folder / f"{name}.npy", mmap_mode="r")
        return np.array(matrix[rows, columns], order="C")

    def checksum(self, block: Array, row: int, column: int) -> float:
        """What a block of the result, whose first element is given, adds to the checksum."""
        left = np.load(self.folder / "left.npy")[row : row + block.shape[0]]
        right = np.load(self.folder / "right.npy")[column : column + block.shape[1]]
        return float(left @ (block.astype(np.float64) @ right))


def task() -> Task:
    """Reads the command line, which all peers share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=WORKLOADS)
    parser.add_argument("folder", type=Path)
    parser.add_argument("ranks", type=int)
    parser.add_argument("repeats", type=int)
    parser.add_argument("option", nargs="?", default="")
    return Task(**vars(parser.parse_args()))


def turns(
    repeats: int,
    barrier: Callable[[], object],
    run: Callable[[], object],
    between: Callable[[], object],
) -> list[float]:
    """Seconds of each repetition, from a barrier to a barrier, after one that does not count.

    Args:
        repeats: How many count.
        barrier: Waits for all processes.
        run: The computation.
        between: Drops the result before the next one is timed.
    """
    taken = []
    for turn in range(repeats + 1):
        between()
        barrier()
        start = time.perf_counter()
        run()
        barrier()
        if turn:
            taken.append(time.perf_counter() - start)
    return taken


def answer(seconds: list[float], checksum: float, **details: object) -> None:
    """Prints the one line that the harness reads."""
    print(json.dumps({"seconds": seconds, "checksum": checksum, **details}), flush=True)


def part(length: int, parts: int, index: int) -> slice:
    """One of some contiguous parts, as even as they can be."""
    return slice(length * index // parts, length * (index + 1) // parts)
