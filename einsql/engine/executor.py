"""Runs a graph step by step; fields are freed after their last use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, nullcontext
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from einsql.core.fp_errors import Ignored
from einsql.core.lazy_module import lazy_modules
from einsql.core.sparse.arrays import arrays_in
from einsql.core.sparse.matrix import sparse_of
from einsql.engine.step import (
    Arrays,
    Compile,
    FindGroups,
    GraphExecutor,
    Group,
    Grouping,
    Measure,
    Run,
    Runner,
    Step,
    StepMeasure,
    Tick,
)
from einsql.ir.einsum.graph import EinSum, Input, Node, children, walk
from einsql.kernels.kernel import CompiledNode
from einsql.kernels.runtime import compile_cache
from einsql.kernels.storage_choice import choice_of
from einsql.kernels.tiers import tier_of
from einsql.storage.out_of_memory import require
from einsql.storage.sparse_fields import as_shown

if TYPE_CHECKING:
    from einsql.engine import program_writer, spilling_executor
    from einsql.engine.boxes import tile_reader
    from einsql.engine.boxes.tile_reader import TileReader
    from einsql.storage.memory import Memory
else:  # imported for repeated and large programs, and for tensors in files
    program_writer, spilling_executor = lazy_modules(
        "einsql.engine", "program_writer", "spilling_executor"
    )
    (tile_reader,) = lazy_modules("einsql.engine.boxes", "tile_reader")

WORKED = 2
"""Bytes that kernels take for each byte of a sparse operand: its transposed matrix, and values."""
_UNLIMITED: AbstractContextManager[None] = nullcontext()
REPEATED = 2
"""The run before which a program is converted to one generated function."""


class Program(GraphExecutor):
    """A graph compiled for one site.

    Args:
        root: The graph.
        compile_node: Compiles a node to a kernel.
        find_groups: Finds nodes that run together.
        memory: The memory limits; without them short memory raises an error.
        more: Further roots, which are computed in the same run.
        hurries: Whether it runs without a kernel that is being compiled where it can.
        tiled: The names of the inputs that are in files, in several tiles.
    """

    def __init__(
        self,
        root: Node,
        compile_node: Compile,
        find_groups: FindGroups | None = None,
        memory: Memory | None = None,
        more: Sequence[Node] = (),
        hurries: bool = False,
        tiled: AbstractSet[str] = frozenset(),
    ) -> None:
        self._hurries = hurries
        roots = (root, *more)
        nodes = walk(*roots)
        slots = {id(node): n for n, node in enumerate(nodes)}
        numbers = {id(n): at for at, n in enumerate(n for n in nodes if isinstance(n, EinSum))}
        grouping = None if find_groups is None else find_groups(roots)
        works: list[EinSum | Group] = _in_order(nodes, () if grouping is None else grouping.groups)
        last: dict[int, int] = {}
        for n, work in enumerate(works):
            for source in children(work) if isinstance(work, EinSum) else work.sources:
                last[slots[id(source)]] = n
        free: list[list[int]] = [[] for _ in works]
        shown = tuple(slots[id(r)] for r in roots)
        for slot, n in last.items():
            if slot not in shown:
                free[n].append(slot)
        self.roots = shown
        self.inputs = tuple(
            (slots[id(node)], node.name) for node in nodes if isinstance(node, Input)
        )
        self._peak = _bound(nodes)
        self._sure = memory is not None and self._peak <= memory.sure

        def single(node: EinSum, free: Sequence[int]) -> Step:
            compiled, reader = compile_node(node), None
            if tiled and not compiled.may_be_sparse:
                in_pieces = memory is not None and not self._sure
                reader = tile_reader.reader_of(node, compiled.run, compile_node, tiled, in_pieces)
            return _single_step(node, compiled, reader, grouping, slots, numbers, free)

        self.steps = tuple(
            single(work, free[n])
            if isinstance(work, EinSum)
            else _fused_step(work, slots, numbers, free[n])
            for n, work in enumerate(works)
        )
        self.verifies = _verified_inputs(self.inputs, self.steps, shown)
        self._bound = tuple((s.run, s.sources, s.targets, s.free) for s in self.steps)
        self.aliased_inputs = _aliased_inputs(self.inputs, self.steps, shown)
        self._runs = 0
        self._written: Run | None = None
        self._memory = memory
        self._compile = compile_node
        self._few = any(s.may_be_sparse for s in self.steps)
        self._stored = tuple(n.name for n in nodes if isinstance(n, Input) and n.sparse)
        if memory is None:
            self._peak = max((s.nbytes for s in self.steps), default=0)
        elif not self._sure:
            self._peak = spilling_executor.peak(self.steps, (slot for slot, _ in self.inputs))
            self._sure = self._peak <= memory.sure and not self._stored

    def run(self, inputs: Mapping[str, Arrays], tick: Tick) -> Sequence[Arrays]:
        """Runs every step; see `Executor.run`."""
        with compile_cache.Hurrying(self._hurries):
            if not self._sure and self._exceeds(inputs):
                return self._run_spilling(inputs, tick)[0]
            with Ignored(), self._limits():
                roots = self._run(inputs, tick)
            return [as_shown(root) for root in roots] if self._few else roots

    def _run(self, inputs: Mapping[str, Arrays], tick: Tick) -> Sequence[Arrays]:
        if self._runs < REPEATED:
            self._runs += 1
            if self._runs == REPEATED:
                self._written = program_writer.write_program(
                    self.inputs, self.steps, self.roots, StepProgress
                )
        if self._written is not None:
            return self._written(inputs, tick)
        slots: dict[int, Arrays] = {slot: inputs[name] for slot, name in self.inputs}
        count = len(self._bound)
        if count == 1 and len(self.roots) == 1:
            ((run, sources, targets, _),) = self._bound
            return (run([slots[s] for s in sources], tick)[targets.index(self.roots[0])],)
        part = StepProgress(tick, count)
        for run, sources, targets, free in self._bound:
            outputs = run([slots[s] for s in sources], part)
            if len(targets) == 1:
                slots[targets[0]] = outputs[0]
            else:
                slots.update(zip(targets, outputs, strict=True))
            del outputs
            for slot in free:
                del slots[slot]
            part.number += 1
            part(0.0)
        return [slots[root] for root in self.roots]

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Sequence[Arrays], Measure]:
        """Runs the steps one after another and measures each; see `Executor.measured`."""
        with compile_cache.Hurrying(self._hurries):
            return self._measured(inputs, tick)

    def _measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Sequence[Arrays], Measure]:
        if not self._sure and self._exceeds(inputs):
            return self._run_spilling(inputs, tick)
        measure = Measure()
        slots: dict[int, Arrays] = {slot: inputs[name] for slot, name in self.inputs}
        for step in self.steps:
            start, waited = time.perf_counter(), compile_cache.waited()
            with self._limits():
                outputs = step.run([slots[s] for s in step.sources], tick)
            seconds = time.perf_counter() - start
            seconds = max(0.0, seconds - (compile_cache.waited() - waited))
            nbytes = sum(a.nbytes for fields in outputs for a in arrays_in(fields))
            few = sparse_of(outputs[0])
            stored = None if few is None else few.taken().stored
            measured = StepMeasure(
                seconds, nbytes, tier=step.tier(), tiles=step.tiles, stored=stored
            )
            measure.steps.append(measured)
            slots.update(zip(step.targets, outputs, strict=True))
            for slot in step.free:
                del slots[slot]
        return [as_shown(slots[root]) for root in self.roots], measure

    def _limits(self) -> AbstractContextManager[None]:
        """The memory limits of kernels whose results depend on stored elements."""
        if self._memory is None or not (self._few or self._stored):
            return _UNLIMITED
        return self._memory.obeyed

    def _exceeds(self, inputs: Mapping[str, Arrays]) -> bool:
        """Whether the program must run box by box, or with files; an error without a session."""
        nbytes = self._peak
        for name in self._stored:
            few = sparse_of(inputs[name])
            nbytes += 0 if few is None else WORKED * few.matrix.nbytes
        if self._memory is not None:
            return nbytes > self._memory.sure and not self._memory.allows(nbytes)
        require(nbytes)
        return False

    def _run_spilling(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Sequence[Arrays], Measure]:
        assert self._memory is not None  # without memory limits nothing exceeds them
        fields = {slot: inputs[name] for slot, name in self.inputs}
        with self._limits():
            roots, measure = spilling_executor.run_within(
                self.steps, self.roots, self._memory, self._compile, fields, tick
            )
        return [as_shown(root) for root in roots], measure


class StepProgress:
    """Progress of one step among several.

    Attributes:
        number: The step's number.
    """

    __slots__ = ("_count", "_tick", "number")

    def __init__(self, tick: Tick, count: int) -> None:
        self.number = 0
        self._tick = tick
        self._count = count

    def __call__(self, fraction: float) -> None:
        """Reports the completed fraction of all steps, given that of this step."""
        self._tick((self.number + fraction) / self._count)


def _aliased_inputs(
    inputs: Sequence[tuple[int, str]], steps: Sequence[Step], roots: Sequence[int]
) -> tuple[str, ...]:
    """Returns the names of the inputs whose memory roots may share."""
    seen = {slot: {name} for slot, name in inputs}
    for step in steps:
        sources = step.sources if step.aliases_input else ()
        names = set[str]().union(*(seen[s] for s in sources))
        seen.update(dict.fromkeys(step.targets, names))
    return tuple(sorted(set[str]().union(*(seen[r] for r in roots))))


def _verified_inputs(
    inputs: Sequence[tuple[int, str]], steps: Sequence[Step], roots: Sequence[int]
) -> frozenset[str]:
    """Returns the names of the inputs that only steps read that verify their tiles."""
    others = {slot for step in steps if step.reader is None for slot in step.sources}
    return frozenset(name for slot, name in inputs if slot not in others and slot not in roots)


def _in_order(nodes: Sequence[Node], groups: Sequence[Group]) -> list[EinSum | Group]:
    """Returns nodes and groups in their execution order, producers first."""
    single: list[EinSum | Group] = [n for n in nodes if isinstance(n, EinSum)]
    if not groups:
        return single
    of: dict[int, Group] = {id(n): g for g in groups for n in g.nodes}
    works = list({id(w): w for n in single for w in [of.get(id(n), n)]}.values())
    place = {id(w): at for at, w in enumerate(works)}
    waits: list[set[int]] = []
    readers: list[list[int]] = [[] for _ in works]
    for at, work in enumerate(works):
        sources: Iterable[Node] = children(work) if isinstance(work, EinSum) else work.sources
        producers = {place[id(of.get(id(s), s))] for s in sources if isinstance(s, EinSum)}
        waits.append(producers)
        for other in producers:
            readers[other].append(at)
    ready = [at for at, producers in enumerate(waits) if not producers]
    heapify(ready)
    order: list[EinSum | Group] = []
    while ready:
        at = heappop(ready)
        order.append(works[at])
        for reader in readers[at]:
            waits[reader].discard(at)
            if not waits[reader]:
                heappush(ready, reader)
    return order


def _single_step(
    node: EinSum,
    compiled: CompiledNode[Runner],
    reader: TileReader | None,
    grouping: Grouping | None,
    slots: Mapping[int, int],
    numbers: Mapping[int, int],
    free: Sequence[int],
) -> Step:
    def run(operands: Sequence[Arrays], tick: Tick) -> Sequence[Arrays]:
        return (runner(operands, tick),)

    runner = compiled.run if reader is None else reader
    refusal = None if grouping is None else grouping.refusal(node)
    sources = tuple(slots[id(s)] for s in children(node))
    return Step(
        nodes=((numbers[id(node)], node),),
        kernel=compiled.kernel,
        run=run,
        sources=sources,
        targets=(slots[id(node)],),
        free=tuple(free),
        nbytes=0 if compiled.may_be_sparse else _nbytes(node, compiled.views),
        may_be_sparse=compiled.may_be_sparse,
        runner=runner,
        reader=reader,
        aliases_input=bool(compiled.views),
        calls_blas=compiled.calls_blas,
        choice=choice_of(compiled.run),
        chosen=tuple(r for r in (compiled.reason, refusal) if r is not None),
        tier=lambda: tier_of(compiled.run),
    )


def _fused_step(
    group: Group, slots: Mapping[int, int], numbers: Mapping[int, int], free: Sequence[int]
) -> Step:
    return Step(
        nodes=tuple((numbers[id(n)], n) for n in group.nodes),
        kernel="group",
        run=group.run,
        sources=tuple(slots[id(s)] for s in group.sources),
        targets=tuple(slots[id(n)] for n in group.results),
        free=tuple(free),
        nbytes=sum(map(_nbytes, group.results)),
        detail=group.detail,
        tier=lambda: group.tier,
    )


def _bound(nodes: Sequence[Node]) -> int:
    """Returns an upper bound of the bytes that a graph takes, which is fast to compute."""
    computed = sum(n.schema.size * len(n.schema.fields) for n in nodes if isinstance(n, EinSum))
    read = sum(n.schema.size * len(n.schema.fields) for n in nodes if isinstance(n, Input))
    return 32 * read + 64 * (os.cpu_count() or 1) * computed


def _nbytes(node: EinSum, views: AbstractSet[str] = frozenset()) -> int:
    """Returns the bytes of a node's result without the fields that are views."""
    fields = (f for f in node.schema.fields if f.name not in views)
    return node.schema.size * sum(f.dtype.numpy.itemsize for f in fields)
