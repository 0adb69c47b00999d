"""What an experiment consists of: cases, contestants, tables that are computed.

Experiments are read by processes in environments without einsql. This module and the top of an
experiment's file import the standard library and NumPy alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Array = np.ndarray
EINSQL = "einsql"
"""The name of einsql among contestants, and of its environment."""
TOLERANCE = 1e-4
"""Largest difference of checksums, as a share of the answer's Frobenius norm: sums of FLOAT."""


@dataclass(frozen=True)
class Case:
    """A line of an experiment's table.

    Attributes:
        name: What the line is called.
        sizes: Numbers that inputs and contestants read.
        ranks: Processes of one core each; 0 for one process on all cores.
        timed: Whether times are compared. Otherwise answers, bytes and memory are.
        only: Contestants that take part; all if empty.
    """

    name: str
    sizes: Mapping[str, int] = field(default_factory=dict)
    ranks: int = 0
    timed: bool = True
    only: tuple[str, ...] = ()


class World(Protocol):
    """The processes of a contestant."""

    rank: int

    def share(self, text: str) -> str:
        """A text of the first process, at all of them."""

    def barrier(self) -> None:
        """Waits for all processes."""

    def total(self, values: Array) -> Array:
        """The sum of the arrays of all processes, at all of them."""


@dataclass(frozen=True)
class Task:
    """What a process of a contestant is asked for.

    Attributes:
        case: The case.
        folder: The directory of the inputs, an .npy file each.
        way: The contestant's way; empty for the only one.
        world: The processes that work together.
    """

    case: Case
    folder: Path
    way: str
    world: World

    @property
    def size(self) -> Mapping[str, int]:
        """The case's numbers."""
        return self.case.sizes

    @property
    def ranks(self) -> int:
        """How many processes work together."""
        return max(1, self.case.ranks)

    def load(self, name: str, *where: slice) -> Array:
        """An input, or a block of it, in memory of its own."""
        return np.array(np.load(self.folder / f"{name}.npy", mmap_mode="r")[where], order="C")


@dataclass(frozen=True)
class Prepared:
    """A contestant that is ready.

    Attributes:
        run: Computes once. The result is dropped before the next run.
        answer: The answer from the result, at the first process: an array, or a checksum where
            the experiment's `write` returns one.
        between: Runs before each computation, outside of its time.
        details: Numbers beside the answer, such as "sent_bytes".
    """

    run: Callable[[], Any]
    answer: Callable[[Any], Array | float]
    between: Callable[[], object] = lambda: None
    details: Callable[[], Mapping[str, Any]] = dict


Prepare = Callable[[Task], Prepared]


@dataclass(frozen=True)
class Contestant:
    """A system that computes the cases of an experiment.

    Attributes:
        name: The column of the tables.
        peer: Its environment, one of peers/.
        prepare: A function of the experiment's file that makes it ready.
        ways: The ways it may take in a case; the fastest is measured.
        launch: "alone", "mpi" or "torchrun": who starts its processes.
        program: Its command instead of `prepare`, for a case and a way, and its environment.
        bound: Whether its time is a bound, which takes no part in the comparison.
    """

    name: str
    peer: str = EINSQL
    prepare: Prepare | None = None
    ways: Callable[[Case], Sequence[str]] = lambda case: ("",)
    launch: str = "alone"
    program: Callable[[Case, str, Path], tuple[list[str], dict[str, str]]] | None = None
    bound: bool = False


Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table that is computed instead of measured in turns.

    Attributes:
        name: What the table is called, within its experiment.
        columns: Names of columns; the first one names the rows.
        rows: Cells: texts, numbers, or None for what cannot be had.
        units: Units of columns: "s", "B", "floats", "×", "%" or nothing.
        compete: Columns whose least number wins a row; none if nothing is compared.
        ours: The column of `compete` that is einsql's choice.
        plotted: The x of a plot of the columns that compete over the rows; none without a plot.
        rounds: The values of each round behind a row's medians, by column, for each row. With
            them a row is judged by intervals.
        note: What a reader needs to know, such as why a cell is empty.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    units: Mapping[str, str] = field(default_factory=dict)
    compete: Sequence[str] = ()
    ours: str = ""
    plotted: str = ""
    rounds: Sequence[Mapping[str, Sequence[float]]] = ()
    note: str = ""


@dataclass(frozen=True)
class Scaling:
    """How much faster one case is than another, of each contestant.

    Attributes:
        name: What the line of the table is called.
        slow: The case whose time is divided.
        fast: The case whose time divides it.
    """

    name: str
    slow: str
    fast: str


@dataclass(frozen=True)
class Experiment:
    """An experiment.

    Attributes:
        title: Its heading.
        source: Where the papers have it.
        about: What it shows and what is compared, in sentences.
        sql: Statements that the page shows, by what they are.
        cases: What is measured, and more of it in a full run.
        contestants: Who computes it, einsql first.
        inputs: The inputs of a case by name.
        reference: The answer of a case by NumPy in double precision.
        write: Writes the inputs of a case and returns the digest of its answer, in place of
            `inputs` and `reference`.
        computed: Tables that are computed, and more of them in a full run.
        scaling: Comparisons of cases with each other.
        tolerance: Largest difference of answers.
        reasons: Why einsql does not win, by case and by table; "" is for all others.
    """

    title: str
    source: str
    about: str
    sql: Mapping[str, str] = field(default_factory=dict)
    cases: Callable[[bool], Sequence[Case]] = lambda full: ()
    contestants: Sequence[Contestant] = ()
    inputs: Callable[[Case], Mapping[str, Array]] = lambda case: {}
    reference: Callable[[Case, Mapping[str, Array]], Array] | None = None
    write: Callable[[Case, Path], list[float]] | None = None
    computed: Callable[[bool], Sequence[Table]] = lambda full: ()
    scaling: Sequence[Scaling] = ()
    tolerance: float = TOLERANCE
    reasons: Mapping[str, str] = field(default_factory=dict)


def is_own(name: str) -> bool:
    """Whether a contestant is einsql with settings of its own, such as "einsql, megatron"."""
    return name.startswith(f"{EINSQL}, ")


def digest(answer: Array) -> list[float]:
    """Four numbers of an array, which change by as much as its elements do, and its norm.

    Each number is the sum of the elements with signs that depend on their place. Infinity counts
    as twice the largest number, and NaN as three times.
    """
    flat = np.ascontiguousarray(answer).reshape(-1).astype(np.float64)
    if not np.isfinite(flat).all():
        most = 1 + float(np.abs(flat[np.isfinite(flat)]).max(initial=0))
        flat = np.nan_to_num(flat, nan=3 * most, posinf=2 * most, neginf=-2 * most)
    places = np.arange(flat.size, dtype=np.uint64)
    hashed = (places + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    sums = [
        float(np.sum(np.where((hashed >> np.uint64(40 + n)) & np.uint64(1), flat, -flat)))
        for n in range(4)
    ]
    return [*sums, float(np.sqrt(np.dot(flat, flat)))]


def difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """The largest difference of two digests, as a share of the expected norm."""
    if len(found) != len(expected):
        return float("inf")
    scale = abs(expected[-1]) or 1.0
    apart = [abs(a - b) / scale for a, b in zip(found, expected, strict=True)]
    return float("inf") if any(x != x for x in apart) else max(apart)
