"""The steps of executors, their measures, and the functions passed in from the kernels."""

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
"""Compiles a node to the name of its kernel and a runner; the session passes it in."""


Run = Callable[[Mapping[str, Fields], Tick], Sequence[Fields]]
"""Runs all steps of a program; takes the inputs by name, and returns the fields of each root."""


class Group(Protocol):
    """Nodes that run together, so that their intermediate results never exist as a whole."""

    @property
    def nodes(self) -> tuple[EinSum, ...]:
        """The nodes, producers first; no other node is between them."""

    @property
    def sources(self) -> tuple[Node, ...]:
        """Their operands from outside, each once."""

    @property
    def results(self) -> tuple[EinSum, ...]:
        """Those that something else reads."""

    @property
    def detail(self) -> str:
        """How they run, for EXPLAIN."""

    def run(self, operands: Sequence[Fields], tick: Tick) -> Sequence[Fields]:
        """Runs the nodes on the fields of their sources; returns those of their results."""


FindGroups = Callable[[Sequence[Node]], Sequence[Group]]
"""Finds the nodes of a graph that run together; the session passes it in from the kernels."""


@dataclass(frozen=True, slots=True)
class Step:
    """One node, or several that run together.

    Attributes:
        nodes: The nodes, with their numbers among all nodes that are no inputs.
        kernel: The name of the kernel, for EXPLAIN.
        run: Runs them; returns the fields of each result.
        sources: Slots of their operands.
        targets: Where their results go.
        free: Slots that no later step reads.
        nbytes: Bytes of the results; a view takes none.
        detail: How several run together.
        runner: The runner of a single node; `run` calls it.
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
    """The measure of one step.

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
