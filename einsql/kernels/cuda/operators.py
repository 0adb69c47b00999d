"""One node on a device: the choice of its kernel, and slabs if it exceeds the memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from einsql.core.schema import DType, Key, Schema
from einsql.ir.einsum.graph import EinSum, Input, Operand, exprs, subexpressions
from einsql.ir.einsum.partial_states import merges
from einsql.ir.einsum.states import has_states
from einsql.kernels.cuda.device import is_shortage, with_room
from einsql.kernels.cuda.generated import Compute, compile_generated
from einsql.kernels.cuda.memory import Handle, Memory
from einsql.kernels.cuda.products import compile_product
from einsql.kernels.cuda.slabs import Piece, plan_slabs, size, slabs
from einsql.kernels.cuda.tiles import LEAST, compile_tiles
from einsql.kernels.kernel import CompiledNode, Tick, no_progress
from einsql.kernels.registry import compile_node
from einsql.kernels.scalars import opaque_functions, values_of
from einsql.kernels.vectorized.views import plan_views

Handles = Mapping[str, Handle]
Runner = Callable[[Sequence[Handles], Tick], dict[str, Handle]]

TYPES = frozenset(
    DType(x) for x in ("BOOLEAN", "TINYINT", "INTEGER", "BIGINT", "HALF", "FLOAT", "DOUBLE")
)
"""Types that device kernels support; nodes with other types, and with states, run on the CPU."""
TEMPORARY = 2
"""Ratio of an array's bytes during its use to its own bytes: operands may be copied to another
order, and running values are as wide as DOUBLE."""


def compile_on_device(
    node: EinSum,
    memory: Memory,
    precision: str = "float32",
    jit: str = "auto",
    least: int = LEAST,
    limit: int | None = None,
) -> CompiledNode[Runner]:
    """Chooses a kernel of the device for a node.

    Args:
        node: A node with well-typed expressions.
        memory: The memory of the device.
        precision: The precision of FLOAT products: 'float32' or 'tf32'.
        jit: The mode of the CPU's registry, for nodes without a device kernel.
        least: Rows, columns and terms from which products other than float sums are tiled.
        limit: Greatest bytes of relations during a run; by default the device's memory.

    Returns:
        The node with a runner over handles. It raises DataError as CPU kernels do.
    """
    views = _views(node, memory)
    if views is not None:
        fields = frozenset(o.name for o in node.outputs)
        return CompiledNode("cuda view", views, fields)
    special = opaque_functions(node) or has_states(node)
    if special or not TYPES.issuperset(_types(node)):
        return _on_processor(node, memory, jit)
    name, compute = _compute(node, memory, precision, least)
    if compute is None:
        return _on_processor(node, memory, jit)
    run = _Operator(node, memory, compute, precision, jit, least, limit).run
    return CompiledNode(name, run)


def _compute(
    node: EinSum, memory: Memory, precision: str, least: int
) -> tuple[str, Compute | None]:
    if not merges(node):
        return "", None
    product = compile_product(node, memory.device, precision)
    if product is not None:
        return "cuda gemm", product
    tiles = compile_tiles(node, memory.device, least)
    if tiles is not None:
        return "cuda tiles", tiles
    return "cuda grid", compile_generated(node, memory.device)


def _views(node: EinSum, memory: Memory) -> Runner | None:
    plan = plan_views(node)
    if plan is None:
        return None
    shape = node.schema.shape

    def run(operands: Sequence[Handles], tick: Tick) -> dict[str, Handle]:
        fields: dict[str, Handle] = {}
        for name, value in plan.literals.items():
            fields[name] = memory.given(value)
        for name, operand, field, view in plan.reads:
            handle = operands[operand][field]
            fields[name] = handle if view is None else handle.viewed(view, shape)
        return fields

    return run


def _on_processor(node: EinSum, memory: Memory, jit: str) -> CompiledNode[Runner]:
    """Creates a runner of a CPU kernel, with copies from and to handles."""
    compiled = compile_node(node, jit)
    reads = _reads(node)

    def run(operands: Sequence[Handles], tick: Tick) -> dict[str, Handle]:
        fields = [
            {name: h.host() for name, h in o.items() if (n, name) in reads}
            for n, o in enumerate(operands)
        ]
        return {name: memory.given(a, made=True) for name, a in compiled.run(fields, tick).items()}

    return CompiledNode(compiled.kernel, run, calls_blas=compiled.calls_blas)


def _types(node: EinSum) -> set[DType]:
    expressions = (e for root in exprs(node) for e in subexpressions(root))
    return {e.dtype for e in expressions} | {o.dtype for o in node.outputs}


def _reads(node: EinSum) -> set[tuple[int, str]]:
    """The operand numbers and fields that a node reads."""
    return {(v.operand, v.field) for v in values_of(*exprs(node))}


class _Operator:
    def __init__(
        self,
        node: EinSum,
        memory: Memory,
        compute: Compute,
        precision: str,
        jit: str,
        least: int,
        limit: int | None,
    ) -> None:
        self.node, self.memory, self.compute = node, memory, compute
        self.precision, self.jit, self.least = precision, jit, least
        most = memory.device.memory
        self.limit = most if limit is None else min(limit, most)
        self.reads = _reads(node)
        self.results = prod(node.schema.shape) * sum(o.dtype.numpy.itemsize for o in node.outputs)

    def run(self, operands: Sequence[Handles], tick: Tick) -> dict[str, Handle]:
        """Runs the node at once, slab by slab, or on the CPU: the first method that fits."""
        read = [
            {name: h for name, h in o.items() if (n, name) in self.reads}
            for n, o in enumerate(operands)
        ]
        pieces, limit, short = self.pieces(read), self.limit, False
        try:
            handles = self.at_once(read)
        except Exception as error:
            if not is_shortage(error):
                raise
            handles, short = None, True  # the memory of libraries and other programs is unknown
            # Half of the failed size, so that every slab is smaller and the recursion ends.
            uncut = dict.fromkeys(self.cuttable(), 1)
            limit = min(limit, size(pieces, self.cuttable(), uncut)) // 2
        if handles is not None:
            tick(1.0)
            return handles
        parts = plan_slabs(pieces, self.cuttable(), limit)
        if parts is None or (short and not parts):
            return _on_processor(self.node, self.memory, self.jit).run(operands, tick)
        return self.in_slabs(read, parts, limit, tick)

    def at_once(self, read: Sequence[Handles]) -> dict[str, Handle] | None:
        """Runs the complete node; returns None if it is known to exceed the memory.

        Raises:
            Exception: The device lacked memory unexpectedly; see `is_shortage`.
        """
        handles = [h for o in read for h in o.values()]
        room = TEMPORARY * self.results + (TEMPORARY - 1) * sum(h.nbytes for h in handles)
        with self.memory.lock:
            if not self.memory.bring(handles, room, self.limit):
                return None
            arrays = [{name: h.device() for name, h in o.items()} for o in read]
            computed = with_room(lambda: self.compute(arrays), self.memory.device.give_back)
            return {name: self.memory.made(a) for name, a in computed.items()}

    def cuttable(self) -> dict[str, int]:
        """The extents of the keys that are not computed."""
        axes = [self.node.axis(k) for k in self.node.keys]
        return {a.label: a.extent for a in axes if a.define is None}

    def pieces(self, read: Sequence[Handles]) -> list[Piece]:
        pieces = [
            Piece(frozenset(self.node.operands[n].labels), TEMPORARY * h.nbytes)
            for n, o in enumerate(read)
            for h in o.values()
        ]
        return [*pieces, Piece(frozenset(self.node.keys), TEMPORARY * self.results)]

    def in_slabs(
        self, read: Sequence[Handles], parts: Mapping[str, int], limit: int, tick: Tick
    ) -> dict[str, Handle]:
        """Runs slab after slab; assembles the result in host memory."""
        node = self.node
        host = [{name: h.host() for name, h in o.items()} for o in read]
        host_fields = {o.name: np.empty(node.schema.shape, o.dtype.numpy) for o in node.outputs}
        bounds = {x: (node.axis(x).lo, node.axis(x).hi) for x in parts}
        total = prod(parts.values())
        current: list[tuple[tuple[slice, ...], Handles] | None] = [None] * len(read)
        for number, slab in enumerate(slabs(bounds, parts)):
            part, cuts = _slab(node, slab)
            for n, cut in enumerate(cuts):
                last = current[n]
                if last is None or last[0] != cut:  # the preceding slab's part is on the device
                    current[n] = cut, {x: self.memory.given(a[cut]) for x, a in host[n].items()}
            operands = [fields for _, fields in filter(None, current)]
            compiled = compile_on_device(
                part, self.memory, self.precision, self.jit, self.least, limit
            )
            computed = compiled.run(operands, no_progress)
            into = tuple(
                slice(slab[k][0] - node.axis(k).lo, slab[k][1] - node.axis(k).lo)
                if k in slab
                else slice(None)
                for k in node.keys
            )
            for name, handle in computed.items():
                host_fields[name][into] = handle.host()
            del operands, computed
            tick(min(1.0, (number + 1) / total))
        return {name: self.memory.given(a, made=True) for name, a in host_fields.items()}


def _slab(
    node: EinSum, slab: Mapping[str, tuple[int, int]]
) -> tuple[EinSum, list[tuple[slice, ...]]]:
    """The node for a part of its keys, and the parts of its operands."""
    axes = tuple(
        replace(a, lo=slab[a.label][0], hi=slab[a.label][1]) if a.label in slab else a
        for a in node.axes
    )
    operands, cuts = [], []
    for n, o in enumerate(node.operands):
        keys, cut = [], []
        for label, key in zip(o.labels, o.source.schema.keys, strict=True):
            lo, hi = slab.get(label, (key.lo, key.hi))
            keys.append(Key(key.name, lo, hi))
            cut.append(slice(lo - key.lo, hi - key.lo))
        source = Input(f"slab{n}", Schema(tuple(keys), o.source.schema.fields))
        operands.append(Operand(source, o.labels))
        cuts.append(tuple(cut))
    return replace(node, axes=axes, operands=tuple(operands)), cuts
