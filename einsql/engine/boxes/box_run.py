"""Runs a node over boxes of its domain: within a memory limit, or where a condition may hold.

Each box is the node over narrower bounds, with operands that are cropped to it. So only the
tiles of these operands are read, and kernels are shared by boxes of equal extents.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, product

import numpy as np

from einsql.core.bfloat16 import stored
from einsql.engine.boxes.node_slicing import Box
from einsql.ir.einsum.graph import EinSum, Input, Operand, Output, Value, exprs, subexpressions
from einsql.ir.einsum.partial_merge import Total
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.einsum.tile_conditions import labels_read
from einsql.ir.functions import REDUCTIONS
from einsql.kernels.kernel import Arrays, Compile, Runner, Tick
from einsql.storage.fields import as_fields

RUNNERS = 64
"""Compiled kernels that a node keeps, for boxes of different extents: 0.7 ms each to compile."""

Allocate = Callable[[tuple[int, ...], np.dtype], np.ndarray]
"""Returns an array of zeros of a shape and a type."""

Parts = dict[tuple[tuple[int, int], ...], list[Box]]
"""Boxes by their bounds of the keys of the result."""


class BoxRun:
    """A node that runs over boxes.

    Attributes:
        node: The node.
    """

    def __init__(self, node: EinSum, compile_node: Compile) -> None:
        self.node = node
        self._compile = compile_node
        self._stated = with_state(node)
        self._fixed = labels_read(node) | {a.label for a in node.axes if a.define is not None}
        """The labels whose values matter; boxes elsewhere along other labels share a kernel."""
        for o in node.operands:  # sparse operands are not cropped
            self._fixed.update(o.labels if o.source.sparse else ())
        self._fields: dict[int, set[str]] = {n: set() for n in range(len(node.operands))}
        for e in (e for root in exprs(node) for e in subexpressions(root)):
            if isinstance(e, Value):
                self._fields[e.operand].add(e.field)
        self._runners: dict[object, Runner] = {}

    @property
    def everything(self) -> Box:
        """The bounds of all labels."""
        return {a.label: (a.lo, a.hi) for a in self.node.axes}

    def run(
        self,
        parts: Parts,
        operands: Sequence[Arrays],
        allocate: Allocate,
        tick: Tick,
        fills: bool = True,
    ) -> dict[str, np.ndarray]:
        """Computes the result; points outside of the boxes do not contribute.

        Args:
            parts: The boxes, from `parts`.
            operands: The fields of each operand.
            allocate: Allocates the arrays of the result.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.
            fills: Whether there are results without a box.
        """
        results = self._allocated(allocate, fills)
        merges = any(len(some) > 1 for some in parts.values())
        node = self._stated if merges else self.node
        total, done = sum(map(len, parts.values())), 0
        lows = [self.node.axis(k).lo for k in self.node.keys]
        for bounds, some in parts.items():
            merged = Total(node)
            for box in some:

                def share(fraction: float, done: int = done) -> None:
                    tick((done + fraction) / total)

                runner = self._runner(node, box)
                merged.add(runner(self._cropped(operands, box), share))
                done += 1
                share(1.0, done - 1)
            where = tuple(slice(b[0] - lo, b[1] - lo) for b, lo in zip(bounds, lows, strict=True))
            for name, values in merged.result().items():
                if name in results:
                    results[name][where] = values
        return results

    def parts(self, boxes: Sequence[Box], extents: Mapping[str, int]) -> Parts:
        """Cuts boxes, and groups the pieces by their bounds of the result's keys.

        Args:
            boxes: Disjoint boxes. Two boxes have equal or disjoint bounds of the result's keys.
            extents: The greatest number of values of a label in a piece.
        """
        parts: Parts = {}
        for box in boxes:
            cuts = (self._cut(x, box[x], extents.get(x, 0)) for x in box)
            for bounds in product(*cuts):
                piece = dict(zip(box, bounds, strict=True))
                parts.setdefault(tuple(piece[k] for k in self.node.keys), []).append(piece)
        return parts

    def _cut(self, label: str, bounds: tuple[int, int], most: int) -> list[tuple[int, int]]:
        """Cuts an interval at multiples of a number of values, which all boxes have in common."""
        (lo, hi), origin = bounds, self.node.axis(label).lo
        if not most or hi - lo <= 0:
            return [bounds]
        first, last = (lo - origin) // most, (hi - 1 - origin) // most
        edges = [lo, *(origin + most * n for n in range(first + 1, last + 1)), hi]
        return list(pairwise(edges))

    def _runner(self, node: EinSum, box: Box) -> Runner:
        """The kernel of a box."""
        starts = {a.label: a.lo for a in node.axes}
        place = {
            x: (lo, hi) if x in self._fixed else (starts[x], starts[x] + hi - lo)
            for x, (lo, hi) in box.items()
        }
        key = node is self.node, *place.items()
        runner = self._runners.pop(key, None)
        if runner is None:
            runner = self._compile(narrowed(node, place)).run
        self._runners[key] = runner
        if len(self._runners) > RUNNERS:
            del self._runners[next(iter(self._runners))]
        return runner

    def _cropped(self, operands: Sequence[Arrays], box: Box) -> list[Arrays]:
        """The operands over a box."""
        return [self._crop(n, fields, box) for n, fields in enumerate(operands)]

    def _crop(self, number: int, fields: Arrays, box: Box) -> Arrays:
        operand = self.node.operands[number]
        if operand.source.sparse or not operand.labels:
            return fields
        keys = zip(operand.labels, operand.source.schema.keys, strict=True)
        spans = [(box[x][0] - k.lo, box[x][1] - k.lo) for x, k in keys]
        names = sorted(self._fields[number])
        return as_fields(fields).part(names, np.array(spans, np.int64))

    def _allocated(self, allocate: Allocate, fills: bool) -> dict[str, np.ndarray]:
        """The arrays of the result, which no point has reached yet."""
        results = {}
        for o in self.node.outputs:
            results[o.name] = allocate(self.node.schema.shape, o.dtype.numpy)
            identity = identity_of(o)
            if fills and identity.tobytes().strip(b"\0"):
                results[o.name][...] = identity
        return results


def identity_of(o: Output) -> np.ndarray:
    """The value of an output where no point contributes, as the field stores it."""
    value = 0 if o.reduction is None else REDUCTIONS[o.reduction].identity(o.dtype)
    return stored(np.asarray(value, o.dtype.carrier), o.dtype)


def narrowed(node: EinSum, box: Box) -> EinSum:
    """The node over a box; dense operands have the keys of the box only."""
    axes = tuple(replace(a, lo=box[a.label][0], hi=box[a.label][1]) for a in node.axes)
    sources: dict[object, Input] = {}
    operands = []
    for o in node.operands:
        if o.source.sparse:
            operands.append(o)
            continue
        bounds = tuple(box[x] for x in o.labels)
        place = id(o.source), bounds
        if place not in sources:
            keys = (
                replace(k, lo=lo, hi=hi)
                for k, (lo, hi) in zip(o.source.schema.keys, bounds, strict=True)
            )
            schema = replace(o.source.schema, keys=tuple(keys))
            name = o.source.name if isinstance(o.source, Input) else ""
            sources[place] = Input(name, schema)
        operands.append(Operand(sources[place], o.labels))
    return replace(node, axes=axes, operands=tuple(operands))
