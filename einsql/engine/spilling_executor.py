"""Runs the steps of a program within the memory limit of a session.

A step that takes more than its share runs box by box. Fields that later steps read move to
mapped files if they do not fit beside the other results.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.sparse.arrays import arrays_in
from einsql.core.sparse.matrix import sparse_of
from einsql.core.units import data_size
from einsql.engine.boxes.box_run import Allocate, BoxRun
from einsql.engine.boxes.node_slicing import Box, Footprint, cut
from einsql.engine.step import Arrays, Compile, Measure, Step, StepMeasure, Tick
from einsql.errors import OperationalError
from einsql.ir.einsum.graph import EinSum
from einsql.storage.array_ownership import owner
from einsql.storage.fields import as_fields
from einsql.storage.memory.budget import HELD, WORKING, Memory, anonymous, trim
from einsql.storage.memory.spill_files import is_mapped


def run_within(
    steps: Sequence[Step],
    roots: Sequence[int],
    memory: Memory,
    compile_node: Compile,
    inputs: Mapping[int, Arrays],
    tick: Tick,
) -> tuple[Sequence[Arrays], Measure]:
    """Runs the steps of a program that takes more memory than a statement may use.

    Args:
        steps: The steps, in order.
        roots: The slots of the results.
        memory: The memory limits.
        compile_node: Compiles the kernels of boxes.
        inputs: The input fields by their slots.
        tick: Callback with the completed fraction, 0 to 1; raises to cancel.

    Returns:
        The fields of each root, and the measure of the run.

    Raises:
        OperationalError: The arrays needed at once do not fit into memory, or
            there is no room for temporary files.
    """
    run = _SpillingRun(memory, compile_node, inputs, tick)
    for step in steps:  # refuses steps that cannot fit before hours of work
        if step.nbytes > run.room // HELD:
            memory.space.require(step.nbytes)
    measure = Measure([run.step(s, n, len(steps)) for n, s in enumerate(steps)])
    return [run.held[root] for root in roots], measure


class _SpillingRun:
    """A run of a program; `held` has the fields that later steps read, by slot."""

    def __init__(
        self, memory: Memory, compile_node: Compile, inputs: Mapping[int, Arrays], tick: Tick
    ) -> None:
        self.memory = memory
        self.compile = compile_node
        self.tick = tick
        self.held: dict[int, Arrays] = dict(inputs)
        self.foreign = {
            id(owner(a)) for f in inputs.values() if isinstance(f, dict) for a in f.values()
        }
        self.room = memory.room
        self.boxes = 1

    def step(self, step: Step, number: int, of: int) -> StepMeasure:
        """Runs step `number` of `of`."""

        def part(fraction: float) -> None:
            self.tick((number + fraction) / of)

        start = time.perf_counter()
        self.boxes = 1
        outputs = self._outputs(step, [self.held[s] for s in step.sources], part)
        self.held.update(zip(step.targets, outputs, strict=True))
        del outputs  # frees the memory of fields that move to a file below
        for slot in step.free:
            del self.held[slot]
        self._spill(step.targets)
        results = [a for t in step.targets if t in self.held for a in arrays_in(self.held[t])]
        spilled = sum(a.nbytes for a in results if is_mapped(owner(a))) if step.nbytes else 0
        trim()
        part(1.0)
        return StepMeasure(
            seconds=time.perf_counter() - start,
            nbytes=sum(a.nbytes for a in results),
            spilled=spilled,
            boxes=self.boxes,
            tiles=step.tiles,
        )

    def _outputs(self, step: Step, operands: Sequence[Arrays], tick: Tick) -> Sequence[Arrays]:
        if len(step.nodes) > 1:
            with self.memory.lending():
                return step.run(operands, tick)
        ((_, node),) = step.nodes
        chosen = None if step.reader is None else step.reader.chosen(operands)
        run = BoxRun(node, self.compile) if step.reader is None else step.reader.boxes
        boxes = [run.everything] if chosen is None else chosen
        extents = {} if step.nbytes == 0 else self._extents(node, boxes, operands)
        if chosen is None and not extents:
            return step.run(operands, tick)
        parts = run.parts(boxes, extents)
        self.boxes = max(1, sum(map(len, parts.values())))
        return [run.run(parts, operands, self._allocating(node), tick, chosen is not None)]

    def _extents(
        self, node: EinSum, boxes: Sequence[Box], operands: Sequence[Arrays]
    ) -> dict[str, int]:
        """The extents of the labels along which boxes are cut; none if they fit into memory."""
        most = self.room // WORKING
        widest = {x: max(b[x][1] - b[x][0] for b in boxes) for x in (boxes[0] if boxes else ())}
        axes = (replace(a, hi=a.lo + widest.get(a.label, a.extent)) for a in node.axes)
        shown = [
            f if o.source.sparse else as_fields(f).unread()
            for o, f in zip(node.operands, operands, strict=True)
        ]
        footprint = Footprint(replace(node, axes=tuple(axes)), shown)
        if not boxes or footprint.nbytes() <= most:
            return {}
        pieces = cut(footprint, most)
        if pieces.nbytes > most:
            raise OperationalError(
                f"There is not enough memory: a step takes {data_size(pieces.nbytes)} at least, "
                f"and has {data_size(most)} of memory_limit",
                hint=f"SET memory_limit = '{WORKING * pieces.nbytes // 10**6 + 1}MB' is enough "
                "for it, if nothing else is stored.",
            )
        return {x: n for x, n in pieces.extents.items() if n < footprint.extents[x]}

    def _allocating(self, node: EinSum) -> Allocate:
        """Returns the allocator of a result's arrays.

        They are in files if they do not fit beside the fields in memory.
        """
        nbytes = sum(f.dtype.numpy.itemsize for f in node.schema.fields) * node.schema.size
        if nbytes + anonymous(self.held.values(), self.foreign) <= self.room // HELD:
            return np.zeros
        return self.memory.space.empty

    def _spill(self, targets: Iterable[int]) -> None:
        """Moves new results to files until the fields in memory fit."""
        for target in targets:
            fields = self.held.get(target)
            if fields is None or sparse_of(fields) is not None:
                continue
            if anonymous(self.held.values(), self.foreign) <= self.room // HELD:
                continue
            self.held[target] = {
                name: a if id(owner(a)) in self.foreign else self.memory.moved(a)
                for name, a in fields.items()
            }


def peak(steps: Sequence[Step], inputs: Iterable[int]) -> int:
    """Estimates the bytes that steps take in sequence, from their schemas."""
    inputs_set = set(inputs)
    sizes: dict[int, int] = {}
    most = 0
    for step in steps:
        if len(step.nodes) == 1:
            ((_, node),) = step.nodes
            needed = Footprint(node).nbytes() if step.nbytes else 0
        else:
            needed = step.nbytes
        most = max(most, sum(sizes.values()) + needed)
        share = step.nbytes
        for target in step.targets:
            sizes[target], share = share, 0  # all results of a step with its last target
        for slot in step.free:
            if slot not in inputs_set:
                sizes.pop(slot, None)
    return most
