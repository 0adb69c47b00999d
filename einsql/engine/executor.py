"""Runs a graph as a straight line of steps; buffers go after their last use."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from einsql.einsum import EinSum, Input, Node, walk
from einsql.engine.memory import require

Fields = Mapping[str, np.ndarray]
Tick = Callable[[float], None]
Runner = Callable[[Sequence[Fields], Tick], dict[str, np.ndarray]]
Compile = Callable[[EinSum], tuple[str, Runner]]
"""What the session hands in from the kernels: a node to its kernel's name and runner."""


@dataclass(frozen=True, slots=True)
class Step:
    """One node: where its operands lie, where its result goes, what is dead afterwards."""

    node: EinSum
    kernel: str
    run: Runner
    sources: tuple[int, ...]
    target: int
    free: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the result; a view takes none."""
        width = sum(f.dtype.numpy.itemsize for f in self.node.schema.fields)
        return 0 if self.kernel == "view" else self.node.schema.size * width


@dataclass(frozen=True, slots=True)
class Measure:
    """What one step took."""

    seconds: float
    nbytes: int


class Program:
    """A compiled graph; it may run any number of times over other inputs."""

    def __init__(self, root: Node, compile_node: Compile) -> None:
        nodes = walk(root)
        slots = {id(node): n for n, node in enumerate(nodes)}
        last: dict[int, int] = {}
        for n, node in enumerate(nodes):
            if isinstance(node, EinSum):
                for o in node.operands:
                    last[slots[id(o.source)]] = n
        self.root = slots[id(root)]
        self.inputs = tuple(
            (slots[id(node)], node.name) for node in nodes if isinstance(node, Input)
        )
        self.steps = tuple(
            Step(
                node,
                *compile_node(node),
                tuple(slots[id(o.source)] for o in node.operands),
                n,
                tuple(s for s, at in last.items() if at == n and s != self.root),
            )
            for n, node in enumerate(nodes)
            if isinstance(node, EinSum)
        )
        self._size = len(nodes)
        self._largest = max((s.nbytes for s in self.steps), default=0)

    def run(self, inputs: Mapping[str, Fields], tick: Tick) -> Fields:
        """Runs every step.

        Args:
            inputs: Fields of each Input node by name.
            tick: Told the fraction done; raises to cancel.

        Returns:
            The root's fields.

        Raises:
            DataError: A selected element overflows, divides by zero or cannot be cast.
        """
        require(self._largest)
        held: list[Fields | None] = [None] * self._size
        for slot, name in self.inputs:
            held[slot] = inputs[name]
        steps = self.steps
        if len(steps) == 1:
            step = steps[0]
            return step.run([held[s] for s in step.sources], tick)  # type: ignore[misc]  # filled
        for n, step in enumerate(steps):

            def part(fraction: float, n: int = n) -> None:
                tick((n + fraction) / len(steps))

            operands = [held[s] for s in step.sources]
            held[step.target] = step.run(operands, part)  # type: ignore[arg-type]  # filled
            del operands
            for slot in step.free:
                held[slot] = None
            tick((n + 1) / len(steps))
        result = held[self.root]
        assert result is not None
        return result

    def measured(self, inputs: Mapping[str, Fields], tick: Tick) -> tuple[Fields, list[Measure]]:
        """As `run`, with what each step took."""
        require(self._largest)
        measures: list[Measure] = []
        held: dict[int, Fields] = {slot: inputs[name] for slot, name in self.inputs}
        for step in self.steps:
            start = time.perf_counter()
            made = step.run([held[s] for s in step.sources], tick)
            seconds = time.perf_counter() - start
            measures.append(Measure(seconds, sum(a.nbytes for a in made.values())))
            held[step.target] = made
            for slot in step.free:
                del held[slot]
        return held[self.root], measures
