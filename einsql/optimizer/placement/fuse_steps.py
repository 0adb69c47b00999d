"""Fuses local steps of an SPMD program into groups that a site runs together.

The groups to fuse follow from the structure of the graph. The steps of a group are fused if
intermediates stay in the cell that computes them: the nodes have the same cut, and no exchange
between them moves or slices tiles. Readers of results of a group run after all of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.routing import RoutedGroup
from einsql.ir.spmd.program import Exchange, FusedSteps, Local, Program, reads, reordered
from einsql.optimizer.placement.row_moves import moved, with_moves


def joined(
    program: Program,
    groups: Iterable[Sequence[EinSum]],
    routed: Iterable[RoutedGroup] = (),
) -> Program:
    """The program with groups of nodes fused whose steps can run together.

    Args:
        program: A program whose local steps run nodes of a graph.
        groups: Disjoint groups of nodes of that graph, producers first.
        routed: Disjoint groups of nodes whose rows move to the blocks that they choose. A routed
            step in no such group moves its rows alone.
    """
    groups, routed = list(groups), list(routed)
    for nodes in (*groups, *(g.nodes for g in routed)):
        program = _contiguous(program, nodes)
    search = _Search(program)
    fused = [t for g in routed if (t := search.together(g.nodes)) is not None]
    moving = [m for t in fused if (m := with_moves(program, t)) is not None]
    taken = {n for t in moving for n in (*t.steps, *t.links)}
    for n, step in enumerate(program.steps):
        if isinstance(step, Local) and step.blocks is not None and n not in taken:
            alone = (tuple(-1 for _ in step.operands),)
            moving.append(moved(program, FusedSteps((n,), (True,), alone, (), ())))
            taken.add(n)
    fused = [t for nodes in groups if (t := search.together(nodes)) is not None]
    kept = [t for t in fused if taken.isdisjoint((*t.steps, *t.links))]
    return replace(program, together=(*kept, *moving))


def _contiguous(program: Program, nodes: Sequence[EinSum]) -> Program:
    """The program with the steps that only read a group's results after the group's last step."""
    inside = {id(n) for n in nodes}
    steps = [
        n for n, s in enumerate(program.steps) if isinstance(s, Local) and id(s.node) in inside
    ]
    if not steps:
        return program
    behind, needed = set(steps), set(steps)
    for n in range(steps[0], steps[-1] + 1):
        if not behind.isdisjoint(reads(program.steps[n])):
            behind.add(n)
    for n in reversed(range(steps[0], steps[-1] + 1)):
        if n in needed:
            needed.update(reads(program.steps[n]))
    late = [n for n in range(steps[0], steps[-1] + 1) if n in behind - needed]
    if not late:
        return program
    before = [n for n in range(steps[-1] + 1) if n not in behind - needed]
    return reordered(program, [*before, *late, *range(steps[-1] + 1, len(program.steps))])


class _Search:
    def __init__(self, program: Program) -> None:
        self.program = program
        self.place: dict[int, int] = {}
        self.readers: list[list[int]] = [[] for _ in program.steps]
        self.reached: list[int] = []  # bits of each step and of its dependencies
        for n, step in enumerate(program.steps):
            if isinstance(step, Local):
                self.place[id(step.node)] = n
            reached = 1 << n
            for source in reads(step):
                self.readers[source].append(n)
                reached |= self.reached[source]
            self.reached.append(reached)

    def together(self, nodes: Sequence[EinSum]) -> FusedSteps | None:
        """The fused steps of a group of nodes, or None if their steps cannot be fused."""
        steps = [self.place.get(id(n), -1) for n in nodes]
        if min(steps) < 0 or steps != sorted(steps):
            return None
        number = {id(n): at for n, at in zip(nodes, steps, strict=True)}
        links: set[int] = set()
        edges: list[tuple[int, ...]] = []
        for n in steps:
            local = self._local(n)
            if len(local.cells) != len(self._local(steps[-1]).cells):
                return None
            if (local.sites != self._local(steps[-1]).sites).any():
                return None
            makers = tuple(number.get(id(o.source), -1) for o in local.node.operands)
            for source, maker, picks in zip(local.operands, makers, local.picks, strict=True):
                if maker >= 0:
                    between = self._in_place(source, maker, picks)
                    if between is None:
                        return None
                    links |= between
                elif any(self.reached[source] >> m & 1 for m in steps):
                    return None  # the step depends on the group's results
            edges.append(makers)
        inside = {*steps, *links}
        outside = {n: [r for r in self.readers[n] if r not in inside] for n in inside}
        if any(r < steps[-1] for of in outside.values() for r in of):
            return None
        roots = self.program.roots
        shown = {n for n in links if outside[n] or n in roots}
        for n in sorted(links, reverse=True):  # a shown link needs the links that it reads
            if n in shown:
                shown |= links.intersection(reads(self.program.steps[n]))
        visible = tuple(
            bool(outside[n]) or n in roots or shown.intersection(self.readers[n]) != set()
            for n in steps
        )
        return FusedSteps(
            tuple(steps), visible, tuple(edges), tuple(sorted(links)), tuple(sorted(shown))
        )

    def _local(self, n: int) -> Local:
        step = self.program.steps[n]
        assert isinstance(step, Local)
        return step

    def _in_place(self, source: int, maker: int, picks: np.ndarray) -> set[int] | None:
        """The exchanges from a cell's result to that cell's operand; None if a tile moves."""
        links: set[int] = set()
        tiles, cells = picks, np.arange(len(picks))
        while source != maker:
            step = self.program.steps[source]
            if not isinstance(step, Exchange) or (step.at_hand[:, 0] < 0).any():
                return None
            links.add(source)
            of = np.unique(step.at_hand[tiles, 0])
            if len(of) != 1:
                return None
            source = step.sources[int(of[0])]
            before = step.at_hand[tiles, 1]
            have = self.program.steps[source].tiles
            if (step.tiles.boxes[tiles] != have.boxes[before]).any():
                return None
            tiles = before
        return links if np.array_equal(tiles, cells) else None
