"""Any ⊗ of two sides and any ⊕ over their common labels, in tiles of shared memory.

The threads of a block copy a tile of each side into shared memory; each thread reads a few
elements of both and combines all pairs of them. Loops over these pairs are short and of fixed
length, so that the compiler unrolls them and keeps running values in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    EinSum,
    Expr,
    Output,
    Value,
    labels_of,
)
from einsql.kernels.cuda.device import Array, Device
from einsql.kernels.cuda.generated import Arrays, Compute, literal, raise_failure, stored_type
from einsql.kernels.cuda.source import HEADER, CudaWriter, Grid, for_cuda
from einsql.kernels.loops.codegen import cells, read
from einsql.kernels.loops.expressions import STORED, memory
from einsql.kernels.loops.loop_nest import Mode, Nest
from einsql.kernels.scalars import values_of
from einsql.kernels.vectorized.views import reading

DEPTH = 16
"""Values of the reduced labels in a tile; sums of FLOAT are FLOAT over this number of terms."""
REGISTERS = 384
"""Greatest bytes of a thread's running values, so that they stay in registers."""
SMALL = 16
"""Results per thread at which reads of shared memory and arithmetic take equal time."""
LEAST = 16
"""Rows, columns and terms from which tiles pay."""


@dataclass(frozen=True, slots=True)
class _Sides:
    """The labels of a node in groups, and the field of each side."""

    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    left: Value
    right: Value


def compile_tiles(node: EinSum, device: Device, least: int = LEAST) -> Compute | None:
    """Matches nodes with one reduction of two fields over their common labels.

    Args:
        node: Any node.
        device: The device.
        least: Least rows, columns and terms.
    """
    sides = _sides(node)
    if sides is None:
        return None
    extent = {a.label: a.extent for a in node.axes}
    if min(prod(extent[x] for x in g) for g in (sides.m, sides.n, sides.k)) < least:
        return None
    return _Tiles(node, sides, device).run


def _sides(node: EinSum) -> _Sides | None:
    if (
        len(node.outputs) != 1
        or node.guard != TRUE
        or any(a.define for a in node.axes)
        or node.outputs[0].reduction is None
        or any(a.extent == 0 for a in node.axes)
    ):
        return None
    output = node.outputs[0]
    roots: tuple[Expr, ...] = (*output.args, output.where)
    values = values_of(*roots)
    if len(values) != 2 or values[0].operand == values[1].operand:
        return None
    a, b = (set(node.operands[v.operand].labels) for v in values)
    if a | b != {x.label for x in node.axes}:
        return None
    keys = node.keys
    groups = (
        tuple(x for x in keys if x in a & b),
        tuple(x for x in keys if x in a - b),
        tuple(x for x in keys if x in b - a),
        tuple(x.label for x in node.axes if x.label not in keys),
    )
    if not all(groups[1:]) or not set(groups[3]) <= a & b:
        return None
    named = {x for root in roots for x in labels_of(root)}
    if any(len(g) > 1 and named & set(g) for g in groups) or named & set(groups[0]):
        return None
    return _Sides(*groups, *values)


class _Writer(CudaWriter):
    """Writes the statements that accumulate a pair of elements into a result's running values."""

    def __init__(self, node: EinSum, sides: _Sides) -> None:
        loops = (*sides.batch, *sides.m, *sides.n, *sides.k)
        nest = Nest(loops, len(loops) - len(sides.k), Mode.REGISTERS, False)
        super().__init__(node, Grid(nest, (), False), 1)
        self.sides = sides
        names = zip((sides.m, sides.n, sides.k), ("i_", "j_", "k_"), strict=True)
        self.index |= {group[0]: name for group, name in names}
        self.output = node.outputs[0]
        self.chunks = self.output.reduction == "sum" and self.output.dtype is DType.FLOAT

    def load(self, e: Value) -> str:
        name = "u_" if e == self.sides.left else "v_"
        if e.dtype is DType.BOOLEAN:
            return f"{name} != 0"
        return f"half({name})" if e.dtype is DType.HALF else name

    def spelled(self, e: Call) -> str:
        """Computes a function; the product in a FLOAT sum may be fused with the addition."""
        term = self.chunks and e.fn == "mul" and e == self.output.args[0]
        return "{0} * {1}" if term else super().spelled(e)

    def accumulate(self, o: Output, reduction: str, run: str, new: str) -> None:
        """The type of a running value; FLOAT sums are FLOAT within one tile's terms."""
        if self.chunks:
            self.emit(f"z0 = plus(z0, np.float32({new}))")
        else:
            super().accumulate(o, reduction, run, new)

    def body(self) -> list[str]:
        """The statements, over `u_`, `v_`, the labels `i_`, `j_`, `k_`, and running values."""
        self.at = self.depth
        assert self.output.reduction is not None
        self.reduce(0, self.output, self.output.reduction)
        return [line for level in self.before for line in level]


class _Tiles:
    def __init__(self, node: EinSum, sides: _Sides, device: Device) -> None:
        self.node, self.sides, self.device = node, sides, device
        self.extent = {a.label: a.extent for a in node.axes}
        groups = sides.batch, sides.m, sides.n, sides.k
        self.sizes = [prod(self.extent[x] for x in g) for g in groups]
        side = int(device.threads**0.5)
        self.threads = side, device.threads // side
        self.micro = self.choose()
        self.writer = _Writer(node, sides)
        self.source = self.write()

    def choose(self) -> tuple[int, int]:
        """The rows and columns of a thread, limited by registers and by enough blocks."""
        rows, cols = self.device.tile
        kept = sum(d.numpy.itemsize for _, d, _ in cells(0, self.node.outputs[0]))
        batch, m, n, _ = self.sizes
        while rows * cols > SMALL or rows * cols * kept > REGISTERS:
            tiles = batch * (m // (rows * self.threads[0])) * (n // (cols * self.threads[1]))
            if rows * cols * kept <= REGISTERS and 4 * tiles >= self.device.blocks:
                break
            rows, cols = (rows, cols // 2) if cols >= rows else (rows // 2, cols)
        return rows, cols

    @property
    def tile(self) -> tuple[int, int]:
        """The rows and columns of a block's results."""
        return self.threads[0] * self.micro[0], self.threads[1] * self.micro[1]

    def run(self, operands: Sequence[Arrays]) -> dict[str, Array]:
        s, device = self.sides, self.device
        output = self.node.outputs[0]
        left = self.stack(operands, s.left, (s.batch, s.m, s.k))
        right = self.stack(operands, s.right, (s.batch, s.k, s.n))
        batch, m, n, k = self.sizes
        down, across = -(-m // self.tile[0]), -(-n // self.tile[1])
        result = device.empty((batch * m * n,), stored_type(output.dtype))
        failed = device.full((1,), 0, np.dtype(np.int64))
        program = self.writer.out
        numbers = [p.of_node(self.node) for p in program.params]  # labels are read, no arrays
        work = batch * down * across
        args: list[Any] = [work, m, n, k, down, across, *numbers]
        args += [*map(literal, program.constants), left, right, result, failed]
        device.launch(self.source, min(work, device.grid), args)
        raise_failure(program, device, failed)
        labels = (*s.batch, *s.m, *s.n)
        result = result.view(output.dtype.numpy).reshape([self.extent[x] for x in labels])
        return {output.name: result.transpose([labels.index(key) for key in self.node.keys])}

    def stack(
        self, operands: Sequence[Arrays], side: Value, groups: Sequence[tuple[str, ...]]
    ) -> Array:
        """A side with one axis per group of labels."""
        operand = self.node.operands[side.operand]
        labels = tuple(x for g in groups for x in g)
        view = reading(self.node, operand, labels)
        array = operands[side.operand][side.field]
        if array.dtype == np.bool_:
            array = array.view(np.uint8)
        array = array if view is None else view(array)
        return array.reshape([prod(self.extent[x] for x in g) for g in groups])

    def write(self) -> str:
        w, o = self.writer, self.node.outputs[0]
        body = w.body()
        w.at = w.nest.kept
        CudaWriter.finish_reductions(w)
        after = w.after[w.nest.kept]
        (rows, cols), (high, wide) = self.micro, self.tile
        over = self.threads[1]
        state = [*cells(0, o), *([("z0", DType.FLOAT, "np.float32(0)")] if w.chunks else [])]
        registers = {name: f"r_{name}[r * {cols} + c]" for name, _, _ in state}
        threads = self.device.threads
        # Indices outside are replaced by valid ones; their elements are never used.
        at_m, at_n = "min(first_m + x, m - 1)", "min(first_n + x, n - 1)"
        at_k = "min(k0 + y, k - 1)"
        lines = [
            "bad = np.int64(0)",
            f"left = cuda.shared.array(({DEPTH}, {high + 1}), np.{_kept(self.sides.left)})",
            f"right = cuda.shared.array(({DEPTH}, {wide + 1}), np.{_kept(self.sides.right)})",
            f"u = cuda.local.array({rows}, np.{_kept(self.sides.left)})",
            f"v = cuda.local.array({cols}, np.{_kept(self.sides.right)})",
            *(f"r_{c} = cuda.local.array({rows * cols}, np.{memory(d)})" for c, d, _ in state),
            "t = cuda.threadIdx.x",
            f"tx = t % {over}",
            f"ty = t // {over}",
            "for w in range(cuda.blockIdx.x, work, cuda.gridDim.x):",
            f"    first_n = (w % across) * {wide}",
            f"    first_m = (w // across) % down * {high}",
            "    b = w // (across * down)",
            *_nested(self.micro, 1, [f"{registers[c]} = {start}" for c, _, start in state]),
            f"    for k0 in range(0, k, {DEPTH}):",
            *_copying("left", high, f"a0[b, {at_m}, {at_k}]", threads, True),
            *_copying("right", wide, f"a1[b, {at_k}, {at_n}]", threads, False),
            "        cuda.syncthreads()",
            f"        for y in range(min({DEPTH}, k - k0)):",
            "            k_ = k0 + y",
            f"            for r in range({rows}):",
            f"                u[r] = left[y, ty * {rows} + r]",
            f"            for c in range({cols}):",
            f"                v[c] = right[y, tx + c * {over}]",
        ]
        place = [f"i_ = first_m + ty * {rows} + r", f"j_ = first_n + tx + c * {over}"]
        one = ["u_ = u[r]", "v_ = v[c]", *place]
        one += [f"{c} = {read(registers[c], d)}" for c, d, _ in state]
        one += [*body, *(f"{registers[c]} = {c}" for c, _, _ in state)]
        lines += _nested(self.micro, 3, one)
        if w.chunks:
            total = f"{registers['s0']} = plus({registers['s0']}, np.float64({registers['z0']}))"
            lines += _nested(self.micro, 2, [total, f"{registers['z0']} = np.float32(0)"])
        lines.append("        cuda.syncthreads()")
        last = [*place, "if i_ < m and j_ < n:", "    x = (b * m + i_) * n + j_"]
        last += [f"    {c} = {read(registers[c], d)}" for c, d, _ in state]
        lines += _nested(self.micro, 1, [*last, *(f"    {line}" for line in after)])
        lines += ["if bad != 0:", "    cuda.atomic.or_(failed, 0, bad)"]
        names = ["work", "m", "n", "k", "down", "across"]
        names += [f"p{n}" for n in range(len(w.out.params))]
        names += [f"c{n}" for n in range(len(w.out.constants))]
        text = "\n".join(f"    {for_cuda(line)}" for line in lines)
        arguments = ", ".join([*names, "a0", "a1", "o0", "failed"])
        return f"{HEADER}@cuda.jit\ndef kernel({arguments}):\n{text}\n"


def _nested(micro: tuple[int, int], depth: int, lines: Sequence[str]) -> list[str]:
    """Statements for each result of a thread; the compiler unrolls such short loops."""
    pad = "    " * depth
    heads = [f"{pad}for r in range({micro[0]}):", f"{pad}    for c in range({micro[1]}):"]
    return heads + [f"{pad}        {line}" for line in lines]


def _copying(name: str, width: int, element: str, threads: int, by_rows: bool) -> list[str]:
    """Statements that copy a tile; neighbouring threads copy neighbouring elements."""
    inner = ["y = e % {0}", "x = e // {0}"] if by_rows else ["x = e % {1}", "y = e // {1}"]
    return [
        f"        for e in range(t, {width * DEPTH}, {threads}):",
        *(f"            {line.format(DEPTH, width)}" for line in inner),
        f"            {name}[y, x] = {element}",
    ]


def _kept(value: Value) -> str:
    """The type of an element in shared memory."""
    return "float16" if value.dtype is DType.HALF else STORED[value.dtype]
