"""Local steps of a placed program, compiled for each cell at the sites of a process."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from einsql.core.boxes import extents
from einsql.core.records import dataclass
from einsql.core.schema import is_flag
from einsql.core.sparse.matrix import sparse_of
from einsql.core.sparse.tiles import as_elements
from einsql.engine.step import Arrays, Compile, Runner, Tick
from einsql.engine.straight_segments import LIGHT
from einsql.ir.einsum.cells import cell_node, sized
from einsql.ir.einsum.flops import flops_at_point
from einsql.ir.einsum.graph import FALSE, EinSum, exprs, stored_operands
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.einsum.points import cell_work
from einsql.ir.functions import REDUCTIONS
from einsql.ir.spmd.program import Local, Program, tuple_bytes


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """A compiled local step on one cell.

    Attributes:
        runner: Runs the cell.
        site: The site of the cell.
        sources: The step of each operand's tile, and the tile's number.
        flops: The number of scalar operations if all points exist.
        driving: The operands whose absent elements make no point exist.
    """

    runner: Runner
    site: int
    sources: tuple[tuple[int, int], ...]
    flops: int
    driving: tuple[int, ...] = ()

    def flops_on(self, operands: Sequence[Arrays]) -> int:
        """The number of scalar operations, expected for joins of sparse operands."""
        flops: float = self.flops
        for n in self.driving:
            few = sparse_of(operands[n])
            if few is not None:
                flops *= few.matrix.stored / max(1, few.matrix.size)
        return round(flops)


@dataclass(frozen=True, slots=True)
class EmptyCell:
    """Nodes of a cell in which no point exists: their results are the values of empty groups.

    Attributes:
        results: The nodes with a result.
    """

    results: Sequence[EinSum]

    def run(self, operands: Sequence[Arrays], tick: Tick) -> Sequence[Arrays]:
        """Returns the fields of the results."""
        return [nothing(node) for node in self.results]

    def run_one(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """Returns the fields of the only result."""
        return nothing(self.results[0])


def is_empty(node: EinSum) -> bool:
    """True if a node of a cell provably has no point."""
    return node.guard == FALSE


def nothing(node: EinSum) -> dict[str, np.ndarray]:
    """The fields of a result without points: each reduction's identity, and 0 for other values.

    They are read-only and take the memory of one element.
    """
    shape = tuple(k.extent for k in node.schema.keys)
    fields = {}
    for o in node.outputs:
        has_identity = o.reduction is not None and not is_flag(o.name)
        least = REDUCTIONS[o.reduction or ""].identity(o.dtype) if has_identity else 0
        fields[o.name] = np.broadcast_to(np.array(least, o.dtype.numpy), shape)
    return fields


class Cells:
    """The compiled cells of a program, each compiled when it is first asked for."""

    def __init__(self, program: Program, compile_node: Compile) -> None:
        self._program = program
        self._compile = compile_node
        self._runners: dict[object, tuple[Runner, int]] = {}
        self._cells: dict[tuple[int, int], Cell] = {}
        self._stated = {
            n: with_state(s.node)
            for n, s in enumerate(program.steps)
            if isinstance(s, Local) and s.partial
        }

    @property
    def kernels(self) -> int:
        """The number of compiled kernels."""
        return len(self._runners)

    def node(self, number: int) -> EinSum:
        """Returns the node of a local step, with the state that merging needs."""
        step = self._program.steps[number]
        assert isinstance(step, Local)
        return self._stated.get(number, step.node)

    def is_heavy(self, number: int) -> bool:
        """Whether a tile of a local step is larger than generated functions may keep."""
        step = self._program.steps[number]
        assert isinstance(step, Local)
        width = tuple_bytes(self.node(number))
        return int(step.tiles.volumes.max(initial=0)) * width > LIGHT

    def cell(self, number: int, step: Local, n: int) -> Cell:
        """Returns the compiled local step over one cell."""
        compiled = self._cells.get((number, n))
        if compiled is None:
            node = self.node(number)
            sources = tuple(
                (s, int(pick[n])) for s, pick in zip(step.operands, step.picks, strict=True)
            )
            boxes = [self._program.steps[s].tiles.areas[t] for s, t in sources]
            runner, points = self.runner(number, node, step, step.cells[n], boxes)
            flops = points * flops_at_point(step.node)
            if not step.is_template:
                flops = int(cell_work(step.node, step.labels, step.cells[n : n + 1])[1][0])
            site, driving = int(step.sites[n]), stored_operands(step.node)
            compiled = self._cells[number, n] = Cell(runner, site, sources, flops, driving)
        return compiled

    def runner(
        self, number: int, node: EinSum, step: Local, cell: np.ndarray, boxes: Sequence[np.ndarray]
    ) -> tuple[Runner, int]:
        """Returns the compiled node over one cell, and its number of points. Cells that differ
        only in position share the kernel.
        """
        key: object
        if step.is_template:
            local = sized(node, tuple(tuple(extents(box).tolist()) for box in boxes))
            key = local, step.node.sparse
        else:
            local = cell_node(node, step.labels, cell, boxes)
            key = (
                number,
                tuple((a.lo, a.hi) for a in local.axes),
                tuple(k for o in local.operands for k in o.source.schema.keys),
                tuple(exprs(local)),
            )
        if key not in self._runners:
            if is_empty(local):
                self._runners[key] = EmptyCell((local,)).run_one, 0
            else:
                self._runners[key] = self._compile(local).run, local.points
            if local.sparse or step.node.sparse:
                run, points = self._runners[key]
                stores = _sparsely if step.node.sparse else _densely
                self._runners[key] = stores(run), points
        return self._runners[key]


def _sparsely(run: Runner) -> Runner:
    """Returns a runner whose result is an `Elements`, as a kernel for sparse results may choose."""

    def run_sparsely(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        return as_elements(run(operands, tick))  # type: ignore[return-value] # by `EinSum.sparse`

    return run_sparsely


def _densely(run: Runner) -> Runner:
    """Returns a runner whose result is arrays, for cells that could store elements by themselves.

    The values of absent keys may differ between such cells.
    """

    def run_densely(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        return dict(run(operands, tick))

    return run_densely
