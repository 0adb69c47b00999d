"""The steps that executors run, what one took, and the functions that the kernels hand in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from einsql.ir.einsum.graph import EinSum, Node

Fields = Mapping[str, np.ndarray]
Tick = Callable[[float], None]
Runner = Callable[[Sequence[Fields], Tick], dict[str, np.ndarray]]
Compile = Callable[[EinSum], tuple[str, Runner]]
"""What the session hands in from the kernels: a node to its kernel's name and runner."""


Run = Callable[[Mapping[str, Fields], Tick], Sequence[Fields]]
"""What all steps of a program do, as one function."""


class Group(Protocol):
    """Nodes that run together: what passes between them is never there as a whole."""

    @property
    def nodes(self) -> tuple[EinSum, ...]:
        """The nodes, producers first; no other node lies between them."""

    @property
    def sources(self) -> tuple[Node, ...]:
        """What they read from outside, each once."""

    @property
    def results(self) -> tuple[EinSum, ...]:
        """Those that something else reads."""

    @property
    def detail(self) -> str:
        """How they run, for EXPLAIN."""

    def run(self, operands: Sequence[Fields], tick: Tick) -> Sequence[Fields]:
        """Runs the nodes on the fields of their sources; returns those of their results."""


FindGroups = Callable[[Sequence[Node]], Sequence[Group]]
"""What the session hands in from the kernels: which nodes of a graph run together."""


@dataclass(frozen=True, slots=True)
class Step:
    """One node, or several that run together.

    Attributes:
        nodes: The nodes, with their numbers among all nodes that are no inputs.
        kernel: What runs them.
        run: Runs them; returns the fields of each result.
        sources: Where their operands lie.
        targets: Where their results go.
        free: What is dead afterwards.
        nbytes: Bytes of the results; a view takes none.
        detail: How several run together.
        runner: What `run` calls for one node.
    """

    nodes: tuple[tuple[int, EinSum], ...]
    kernel: str
    run: Callable[[Sequence[Fields], Tick], Sequence[Fields]]
    sources: tuple[int, ...]
    targets: tuple[int, ...]
    free: tuple[int, ...]
    nbytes: int
    detail: str = ""
    runner: Runner | None = None

    @property
    def points(self) -> int:
        """Points of all nodes."""
        return sum(node.points for _, node in self.nodes)


@dataclass(frozen=True, slots=True)
class Measure:
    """What one step took.

    Attributes:
        seconds: From its begin to its end.
        nbytes: Bytes of its results.
        spilled: Those among them that went to files.
        boxes: In how many boxes it ran.
    """

    seconds: float
    nbytes: int
    spilled: int = 0
    boxes: int = 1
