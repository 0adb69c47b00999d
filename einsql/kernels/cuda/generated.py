"""Generated kernels on a device, for any node whose keys can be mapped to a grid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from einsql.core.schema import DType
from einsql.ir.einsum.graph import TRUE, Const, EinSum, Output
from einsql.kernels.cuda.device import Array, Device
from einsql.kernels.cuda.source import Grid, finishing, generate_cuda, plan_grid
from einsql.kernels.loops.codegen import cells
from einsql.kernels.loops.expressions import Program, first_error
from einsql.kernels.scalars import bounds_of, fails
from einsql.kernels.segments.rows import placed, places
from einsql.kernels.vectorized.reductions import start_of
from einsql.kernels.vectorized.views import window

Arrays = Mapping[str, Array]
"""The fields of a relation on a device, by name."""
Compute = Callable[[Sequence[Arrays]], dict[str, Array]]
"""A function from the operands' fields that the node reads to the outputs' fields."""

LONG = 256
"""Points per key from which a team of threads pays, if there are few keys."""

EACH = 4
"""Least points per thread of a team if several blocks share a key."""


def raise_failure(program: Program, device: Device, failed: Array) -> None:
    """Raises the first error that a kernel has reported in an array of one element."""
    bits = int(device.download(failed)[0]) if program.reasons else 0
    if bits:
        raise first_error(program.reasons, bits)


def compile_generated(node: EinSum, device: Device) -> Compute | None:
    """Creates a generated kernel for a node; None if a grid cannot represent a computed key.

    Element-wise outputs are 0 where no point exists. The kernel raises DataError for a selected
    element that fails.
    """
    shape = node.schema.shape
    if any(a.extent == 0 for a in node.axes):
        return lambda operands: {
            o.name: device.full(shape, start_of(o), o.dtype.numpy) for o in node.outputs
        }
    grid = plan_grid(node)
    if grid is None:
        return None
    if grid.sorted and _tells_too_early(node, grid):
        return None
    team, splits = _team(node, grid, device)
    program = generate_cuda(node, grid, team)
    if program is None:
        return None
    return _Generated(node, device, grid, program, team, splits).run


def _team(node: EinSum, grid: Grid, device: Device) -> tuple[int, int]:
    """The number of threads of a block, and the number of blocks, that share a key."""
    size = _size(node, grid)
    points = prod(node.axis(x).extent for x in grid.nest.loops[grid.nest.kept :])
    enough = device.blocks * device.threads
    if grid.indexed or size * 4 > enough or points < LONG or size == 0:
        return 1, 1
    wanted = min(device.blocks // size, points // (EACH * device.threads))
    return device.threads, max(1, wanted)


def _size(node: EinSum, grid: Grid) -> int:
    """The number of keys of a grid."""
    if grid.sorted:
        return node.schema.size
    return prod(node.axis(x).extent for x in grid.nest.loops[: grid.nest.kept])


class _Generated:
    def __init__(
        self, node: EinSum, device: Device, grid: Grid, program: Program, team: int, splits: int
    ) -> None:
        self.node, self.device, self.grid = node, device, grid
        self.program, self.team, self.splits = program, team, splits
        self.size = _size(node, grid)
        self.failed: Array | None = None
        self.axes = {a.label: a for a in node.axes}
        self.partial = node.guard != TRUE or any(a.define is not None for a in node.axes)
        self.finish = finishing(node, grid) if team > 1 else None
        self.places = compile_generated(_places(node, grid), device) if grid.sorted else None

    def run(self, operands: Sequence[Arrays]) -> dict[str, Array]:
        node, device = self.node, self.device
        sorts = list(self.sort(operands)) if self.places is not None else []
        outputs = [self.result(o) for o in node.outputs]
        numbers: list[Any] = [self.size]
        inputs = [
            *(self.axes[x].extent for x in self.grid.nest.loops),
            *(p.of_node(self.node) for p in self.program.params),
            *map(literal, self.program.constants),
            *(self.array(operands, *key) for key in self.program.arrays),
            *sorts,
        ]
        if self.finish is None:
            self.launch(self.program, self.size, [*numbers, *inputs, *outputs])
        else:
            states = [self.state(d, v) for o in node.outputs for d, v in _states(o)]
            numbers.append(self.splits)
            work = self.size * self.splits * device.threads
            self.launch(self.program, work, [*numbers, *inputs, *states])
            self.launch(self.finish, self.size, [*numbers, *states, *outputs])
        return {
            o.name: a.view(o.dtype.numpy).reshape(node.schema.shape)
            for o, a in zip(node.outputs, outputs, strict=True)
        }

    def launch(self, program: Program, work: int, args: list[Any]) -> None:
        """Runs a kernel over a number of threads, and raises the errors that it reports."""
        device = self.device
        if program.reasons or self.failed is None:
            self.failed = device.full((1,), 0, np.dtype(np.int64))
        failed = self.failed
        blocks = max(1, min(-(-work // device.threads), device.grid))
        device.launch(program.source, blocks, [*args, failed])
        raise_failure(program, device, failed)

    def sort(self, operands: Sequence[Arrays]) -> tuple[Array, Array]:
        """The points sorted by key, and the start of each key's points."""
        assert self.places is not None
        places = self.places(operands)["place"].reshape(-1)  # 0 for points without a key
        order = places.argsort()
        keys = [k for k in self.node.keys if not self.is_plain(k)]
        segments = prod(self.axes[k].extent for k in keys)
        wanted = self.device.upload(np.arange(1, segments + 2))
        return order, np.searchsorted(places[order], wanted)

    def is_plain(self, key: str) -> bool:
        """True for a key that is not computed and decides no computed key."""
        return key in self.grid.nest.loops and key not in self.grid.sorted

    def result(self, o: Output) -> Array:
        """Allocates the array that a kernel writes for an output."""
        dtype = stored_type(o.dtype)
        if self.partial or self.grid.sorted:
            return self.device.full((self.node.schema.size,), start_of(o), dtype)
        return self.device.empty((self.node.schema.size,), dtype)

    def state(self, dtype: DType, value: Any) -> Array:
        """Allocates the initial running values of every block of every key."""
        carried = np.dtype(np.float32) if dtype is DType.HALF else stored_type(dtype)
        return self.device.full((self.size * self.splits,), value, carried)

    def array(self, operands: Sequence[Arrays], operand: int, name: str) -> Array:
        """The part of a field within the domain."""
        read = self.node.operands[operand]
        part = window(self.node, read)
        array = operands[operand][name]
        if array.dtype == np.bool_:
            array = array.view(np.uint8)
        return array if part is None else array[part]


def _states(o: Output) -> list[tuple[DType, Any]]:
    """The type and initial value of each running value of an output."""
    first, *rest = (dtype for _, dtype, _ in cells(0, o))
    return [(first, start_of(o)), *((dtype, 0) for dtype in rest)]


def stored_type(dtype: DType) -> np.dtype:
    """A view of an array with the element type that kernels read."""
    return np.dtype(np.uint8) if dtype is DType.BOOLEAN else dtype.numpy


def literal(c: Const) -> Any:
    """Converts a literal to an argument of a kernel."""
    value = c.dtype.numpy.type(c.value)
    return np.float32(value) if c.dtype is DType.HALF else value


def _tells_too_early(node: EinSum, grid: Grid) -> bool:
    """True if sorting could raise at a point that another computed axis excludes."""
    early = placed(node, grid.sorted)
    others = any(a.define is not None and a not in early for a in node.axes)
    return others and any(a.define is not None and fails(a.define, bounds_of(node)) for a in early)


def _places(node: EinSum, grid: Grid) -> EinSum:
    """Creates a node that computes the place of each point's key among the computed keys."""
    keys = [k for k in node.keys if k not in grid.nest.loops or k in grid.sorted]
    return places(node, grid.sorted, keys)
