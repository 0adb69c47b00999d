"""What the processes of a peer that is written in Python share: arguments, commands, blocks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.evaluation import protocol
from benchmarks.evaluation.worker import versions
from benchmarks.ranks.workloads import WORKLOADS, Workload

Array = np.ndarray


@dataclass(frozen=True)
class Task:
    """What one run of a peer is asked for.

    Attributes:
        name: The workload's name.
        folder: Where its files are.
        ranks: How many processes work.
        option: Which of its ways to do it the peer takes; nothing for the first.
    """

    name: str
    folder: Path
    ranks: int
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
    parser.add_argument("option", nargs="?", default="")
    return Task(**vars(parser.parse_args()))


def serve(
    run: Callable[[], object],
    check: Callable[[], float],
    *,
    share: Callable[[str], str] = lambda text: text,
    barrier: Callable[[], object] = lambda: None,
    between: Callable[[], object] = lambda: None,
    first: bool = True,
    details: Callable[[], Mapping[str, object]] = dict,
) -> None:
    """Computes whenever it is asked to, and answers with the checksum that `check` finds.

    Args:
        run: The computation.
        check: The checksum of its result, at the first process.
        share: The first process's text, at all processes.
        barrier: Waits for all processes.
        between: Drops the result before the next one is timed.
        first: Whether this is the first process.
        details: What else is answered.
    """
    protocol.serve(
        run,
        lambda _: {"checksum": check(), "versions": versions(), **details()},
        share=share,
        barrier=barrier,
        between=between,
        first=first,
    )


def part(length: int, parts: int, index: int) -> slice:
    """One of some contiguous parts, as even as they can be."""
    return slice(length * index // parts, length * (index + 1) // parts)
