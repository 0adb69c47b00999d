"""Local steps of a site that run as one group, cell by cell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from einsql.core.records import dataclass
from einsql.engine.site_cells import EmptyCell, is_empty
from einsql.engine.step import Arrays, Group, Tick
from einsql.ir.einsum.cells import cell_node, is_relative
from einsql.ir.einsum.graph import EinSum, Input, Node, Operand, exprs
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.einsum.points import cell_work
from einsql.ir.spmd.program import FusedSteps, Local, Program

Join = Callable[[Sequence[EinSum], Sequence[bool]], Group | None]
"""Joins nodes, producers first, to a group. The flags mark results that are visible outside. The
session passes the function in from the kernels. It returns None for nodes that do not join."""

Place = tuple[int, int]
"""A step, and the number of one of its tiles."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The compiled steps of one cell that run together.

    Attributes:
        group: Runs the steps.
        sources: The steps and tiles outside the group that the steps read.
        flops: The number of scalar operations.
    """

    group: Group | EmptyCell
    sources: tuple[Place, ...]
    flops: int


class Fused:
    """Steps of a program that run together.

    Attributes:
        plan: The plan of the fused steps.
        last: The number of the last step; all steps run in its place.
        visible: The numbers of the steps whose tiles other steps read.
    """

    def __init__(self, program: Program, plan: FusedSteps, join: Join) -> None:
        self.plan = plan
        self.last = plan.steps[-1]
        self.visible = [n for n, seen in zip(plan.steps, plan.visible, strict=True) if seen]
        self._program = program
        self._join = join
        self._cells: dict[int, Cell | None] = {}
        self._groups: dict[object, Group | None] = {}
        self._nodes = [
            with_state(s.node) if s.partial else s.node for s in map(self._local, plan.steps)
        ]
        self._shifted = all(map(is_relative, self._nodes))

    def run(
        self, cell: int, tiles_of: Mapping[int, Mapping[int, Arrays]], tick: Tick
    ) -> tuple[Sequence[Arrays], int] | None:
        """Returns the tiles of visible steps, and the flops; None if steps must run separately."""
        joined = self.cell(cell)
        if joined is None:
            return None
        return joined.group.run([tiles_of[s][t] for s, t in joined.sources], tick), joined.flops

    def cell(self, number: int) -> Cell | None:
        """Returns the compiled steps of a cell; None if they must run separately."""
        if number not in self._cells:
            self._cells[number] = self._ready(number)
        return self._cells[number]

    def _ready(self, cell: int) -> Cell | None:
        """Joins the cell's nodes, whose operands are each other or tiles."""
        steps = self._program.steps
        inputs: dict[object, Input] = {}
        places: dict[int, Place] = {}
        chain: dict[int, EinSum] = {}
        flops = 0
        for n, node, edges in zip(self.plan.steps, self._nodes, self.plan.edges, strict=True):
            step = self._local(n)
            tiles = [int(pick[cell]) for pick in step.picks]
            boxes = [steps[s].tiles.areas[t] for s, t in zip(step.operands, tiles, strict=True)]
            local = cell_node(node, step.labels, step.cells[cell], boxes, self._shifted)
            operands: list[Operand] = []
            for o, source, tile, edge in zip(
                local.operands, step.operands, tiles, edges, strict=True
            ):
                read: Node
                if edge >= 0:
                    read = chain[edge]
                    if read.schema.keys != o.source.schema.keys:
                        return None
                else:
                    at = (source, tile, o.source.schema)
                    name, schema, sparse = f"#{source}.{tile}", o.source.schema, o.source.sparse
                    read = inputs.setdefault(at, Input(name, schema, sparse=sparse))
                    places[id(read)] = source, tile
                operands.append(replace(o, source=read))
            chain[n] = replace(local, operands=tuple(operands))
            (work,) = cell_work(step.node, step.labels, step.cells[cell : cell + 1])[1]
            flops += int(work)
        if all(map(is_empty, chain.values())):
            results = [chain[n] for n in self.visible]
            return Cell(EmptyCell(results), (), 0)
        group = self._group(tuple(chain.values()))
        if group is None:
            return None
        outside = {id(o.source): None for n in chain.values() for o in n.operands}
        sources = tuple(places[k] for k in outside if k in places)
        return Cell(group, sources, flops)

    def _group(self, nodes: tuple[EinSum, ...]) -> Group | None:
        """Returns the group of some nodes; cells that differ only in position share it."""
        seen: dict[int, int] = {}
        key = tuple(
            (
                tuple((a.lo, a.hi) for a in n.axes),
                tuple(
                    (seen.setdefault(id(o.source), len(seen)), o.source.schema.keys)
                    for o in n.operands
                ),
                tuple(exprs(n)),
            )
            for n in nodes
        )
        if key not in self._groups:
            self._groups[key] = self._join(nodes, self.plan.visible)
        return self._groups[key]

    def _local(self, n: int) -> Local:
        step = self._program.steps[n]
        assert isinstance(step, Local)
        return step


def postponed(plans: Sequence[FusedSteps]) -> dict[int, int]:
    """For each step that is skipped in its place, returns the step in whose place it runs."""
    return {n: plan.steps[-1] for plan in plans for n in (*plan.steps[:-1], *plan.links)}
