"""Runs a placed program: local steps on the tiles of each site, exchanges between sites.

The same code runs all sites of a process, one after another, so virtual sites and ranks differ
only in their transport.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from einsql.core.fp_errors import Ignored
from einsql.core.schema import Schema
from einsql.engine.exchange import Held, Index, Merging, Moving, cut_of, paste
from einsql.engine.executor import REPEATED
from einsql.engine.fused_steps import Fused, Join, postponed
from einsql.engine.routed.steps import RoutedSteps
from einsql.engine.running import Loading, Resident, Running
from einsql.engine.single_readers import merged_on_arrival, nested_steps
from einsql.engine.site_cells import Cell, Cells
from einsql.engine.sparse.stored_elements import sparse_tile, whole_of
from einsql.engine.step import Arrays, Compile, GraphExecutor, Measure, Runner, StepMeasure, Tick
from einsql.engine.straight_segments import Segment, Work, segments
from einsql.engine.streamed_tiles import streamed_tiles
from einsql.engine.streaming_exchange import (
    Stream,
    candidates,
    streamed,
)
from einsql.engine.transport import LocalTransport, Transport
from einsql.ir.spmd.program import Complete, Exchange, Load, Local, Program, View, tuple_bytes
from einsql.storage.fields import Fields, LocalFields, as_fields
from einsql.storage.sparse_fields import as_shown

ALONG = 2**15
"""Greatest size in bytes of a result that is sent with an answer, to save a request."""


Execute = Callable[[Transport, Loading, Tick], tuple[list[Held], Measure]]
"""Runs a program at the sites of a transport; see `SiteProgram.execute`."""


class SiteProgram(GraphExecutor):
    """A placed program for the transport's sites; `run` uses virtual sites in this process.

    Attributes:
        program: The program.
        sites: The number of sites.
        cells: The compiled local steps.
    """

    def __init__(self, program: Program, compile_node: Compile, join: Join | None = None) -> None:
        if join is None:
            moving = tuple(t for t in program.together if t.routed is not None)
            program = replace(program, together=moving)
        self.program = program
        self.sites = program.sites
        self.cells = Cells(program, compile_node)
        self._loads: dict[int, list[tuple[int, Index | None]]] = {}
        self._moving = Moving(program)
        self._nested = nested_steps(program)
        self._released = program.released(self._nested)
        self.aliased_inputs = program.inputs
        self._fused = {
            t.steps[-1]: Fused(program, t, join)
            for t in program.together
            if join is not None and t.routed is None
        }
        self._routed = {
            t.steps[-1]: RoutedSteps(program, t, compile_node)
            for t in program.together
            if t.routed is not None
        }
        self._postponed = postponed(program.together)
        apart = {*self._postponed, *self._fused, *self._routed}
        self._merged = {n: m for n, m in merged_on_arrival(program).items() if n not in apart}
        self._posts = program.posts_before
        early = {e for numbers in self._posts.values() for e in numbers}
        self._streaming = {
            e: r for e, r in candidates(program).items() if r not in apart and e not in early
        }
        self._streams: dict[int, Stream | None] = {}
        self._small = [
            program.steps[root].tiles.once if is_small(program, root) else 0
            for root in program.roots
        ]
        self._runs = 0
        self._parts: list[Segment | int] | None = None
        self._parts_at: Sequence[int] = ()

    def run(self, inputs: Mapping[str, Arrays], tick: Tick) -> Sequence[Fields]:
        """Runs every step on virtual sites and assembles the results; see `Executor.run`."""
        return self._assembled(self._virtually(self.execute_repeated, inputs, tick)[0])

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Sequence[Fields], Measure]:
        """Runs every step on virtual sites and assembles the results; see `Executor.measured`."""
        results, measure = self.run_virtually(inputs, tick)
        return self._assembled(results), measure

    def run_virtually(self, inputs: Mapping[str, Arrays], tick: Tick) -> tuple[list[Held], Measure]:
        """Runs every step on virtual sites; returns the tiles of each root at all sites."""
        return self._virtually(self.execute, inputs, tick)

    def _virtually(
        self, execute: Execute, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[list[Held], Measure]:
        """Runs the program by one of the functions below on virtual sites."""

        def load(number: int, step: Load, tiles: Sequence[int]) -> Held:
            if number not in self._loads:
                bounds = _bounds(step.source.schema)
                self._loads[number] = [(n, cut_of(step.tiles.boxes[n], bounds)) for n in tiles]
            fields = inputs[step.source.name]
            if step.source.sparse:
                return {n: sparse_tile(fields, at) for n, at in self._loads[number]}
            arrays = {f.name: fields[f.name] for f in step.source.schema.fields}
            return {
                n: arrays if at is None else {k: a[at] for k, a in arrays.items()}
                for n, at in self._loads[number]
            }

        with Ignored():
            return execute(LocalTransport(self.program.sites), load, tick)

    def execute(
        self, transport: Transport, load: Loading, tick: Tick
    ) -> tuple[list[Held], Measure]:
        """Runs every step at the transport's owned sites.

        Args:
            transport: Moves arrays between sites.
            load: Returns the tiles of stored tensors.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.

        Returns:
            The tiles of each root at these sites, and the measures of the run.

        Raises:
            DataError: A selected element overflows, divides by zero or cannot be cast.
        """
        resident = Resident(self.program)
        run = replace(self._begun(transport, load, tick), resident=resident)
        measure, streams = run.measure, run.streams
        early: dict[int, int] = {}
        with run.completing():
            for n in range(len(self.program.steps)):
                early |= self._post(n, run)
                start, before = time.perf_counter(), sum(transport.sent)
                self._step(n, run)
                took, sent = time.perf_counter() - start, sum(transport.sent) - before
                if n in streams:
                    measure.steps[streams[n].exchange].sent, sent = sent, 0
                measure.steps.append(StepMeasure(took, sent=sent + early.pop(n, 0)))
        measure.sent, measure.received = transport.sent, transport.received
        measure.memory = resident.peak
        return self._ended(run), measure

    def execute_repeated(
        self, transport: Transport, load: Loading, tick: Tick
    ) -> tuple[list[Held], Measure]:
        """Runs every step like `execute`, without measures of steps and sites.

        From its second run on, the program runs short steps as generated functions.

        Args:
            transport: Moves arrays between sites.
            load: Returns the tiles of stored tensors.
            tick: Callback with the completed fraction, 0 to 1; raises to cancel.

        Returns:
            The tiles of each root at these sites, and the small results only in the measure.

        Raises:
            DataError: A selected element overflows, divides by zero or cannot be cast.
        """
        if transport.owned != self._parts_at:
            self._parts_at, self._parts, self._runs = transport.owned, None, 0
        self._runs += 1
        if self._runs < REPEATED:
            results, measure = self.execute(transport, load, tick)
            return results, Measure(tiles=measure.tiles)
        run, parts = self._begun(transport, load, tick), self._parts
        if parts is None:
            work, skipped = partial(self._work, transport), self._nested | self._postponed
            parts = segments(self.program, self._moving, transport, work, skipped)
            self._parts = parts
        with run.completing():
            for part in parts:
                self._post(part if isinstance(part, int) else part.steps[0], run)
                if isinstance(part, int):
                    self._step(part, run)
                else:
                    self._segment(part, run)
        return self._ended(run), Measure(tiles=run.measure.tiles)

    def _segment(self, part: Segment, run: Running) -> None:
        """Runs short steps as one function."""
        for n in part.loads:
            self._load(n, run)
        count = len(self.program.steps)
        first, share = part.steps[0] / count, len(part.steps) / count
        part.execute(run.tiles_of, _shifted(run.progress, first, share))
        for n in part.steps:
            for source in self._released[n]:
                run.tiles_of.pop(source, None)

    def _post(self, number: int, run: Running) -> dict[int, int]:
        """Starts the exchanges that precede a step; returns the bytes sent by each of them."""
        sent: dict[int, int] = {}
        for n in self._posts.get(number, ()):
            step, before = self.program.steps[n], sum(run.transport.sent)
            assert isinstance(step, Exchange)
            run.posted[n] = self._moving.post(n, step, run.tiles_of, run.transport)
            sent[n] = sum(run.transport.sent) - before
            if run.resident is not None:
                run.resident.expect(n, run.transport.owned)
        return sent

    def _begun(self, transport: Transport, load: Loading, tick: Tick) -> Running:
        sites = self.program.sites
        self._moving.begin(transport)
        measure = Measure(seconds=[0.0] * sites, flops=[0] * sites)
        return Running(transport, load, tick, measure)

    def _ended(self, run: Running) -> list[Held]:
        """Returns the tiles of each root, and adds those of small results to the measure."""
        for root, once in zip(self.program.roots, self._small, strict=True):
            run.measure.tiles.append({n: f for n, f in run.tiles_of[root].items() if n < once})
        return [run.tiles_of[root] for root in self.program.roots]

    # ---- the steps

    def _step(self, n: int, run: Running) -> None:
        """Runs a step, and removes the tiles that no later step reads."""
        step, moving = self.program.steps[n], self._moving
        tiles_of, transport = run.tiles_of, run.transport
        done = self._released[n]
        if n in self._postponed or n in self._nested:
            pass
        elif isinstance(step, Load):
            self._load(n, run)
        elif isinstance(step, Exchange):
            stream = self._stream(n, step)
            if n in run.posted:
                tiles_of[n] = run.posted.pop(n).tiles()
            elif stream is None:
                tiles_of[n] = moving.exchange(n, step, tiles_of, transport)
            else:  # its reader runs it, and needs its sources
                run.streams[self._streaming[n]] = replace(stream, released=done)
                done = []
        elif isinstance(step, Local) and n in run.streams:
            stream = run.streams[n]
            tiles_of[n] = streamed_tiles(self.program, self.cells, moving, stream, n, run)
            done = [*stream.released, *(m for m in done if m != stream.exchange)]
        elif n in self._routed:
            self._routed[n].run(run)
        elif n in self._fused:
            self._run_fused(self._fused[n], tiles_of, transport, run.progress, run.measure)
        elif isinstance(step, Local):
            results = self._local(n, step, tiles_of, transport, run.progress, run.measure)
            if n in self._merged:
                at = self._merged[n]
                run.merges[at] = self._merge(at, results, run.measure)
            else:
                tiles_of[n] = dict(results)
        elif isinstance(step, View):
            tiles_of[n] = moving.view(n, step, tiles_of[step.source], transport)
        else:
            merge = run.merges.pop(n, None) or self._merge(
                n, tiles_of[step.source].items(), run.measure
            )
            tiles_of[n] = moving.complete(n, step, merge, transport)
        if run.resident is not None:
            run.resident.store(tiles_of)
            run.resident.release(done)
        for source in done:
            tiles_of.pop(source, None)  # fused steps may store no tiles
        run.progress((n + 1) / len(self.program.steps))

    def _load(self, n: int, run: Running) -> None:
        step = self.program.steps[n]
        assert isinstance(step, Load)
        owned = self._moving.owned(n, step.tiles, run.transport)
        run.tiles_of[n] = run.load(n, step, owned)

    def _work(self, transport: Transport, number: int, step: Local) -> list[Work] | None:
        """Returns the work of a local step in a generated function; None for another step."""
        fused = self._fused.get(number)
        owned = self._moving.owned(number, step.tiles, transport)
        computed = [number] if fused is None else fused.visible
        if number in self._routed:
            return None
        if any(map(self.cells.is_heavy, computed)) or not self._nested.keys().isdisjoint(
            step.operands
        ):
            return None
        if fused is not None:
            cells = [fused.cell(n) for n in owned]
            if fused.plan.shown or None in cells:
                return None
            return [
                Work(cell.group.run, None, cell.sources, tuple((at, n) for at in computed))
                for n, cell in zip(owned, cells, strict=True)
                if cell is not None
            ]
        exchanges = [e for e, reader in self._streaming.items() if reader == number]
        if any(e in self._streams and self._streams[e] is not None for e in exchanges):
            return None
        if number in self._merged and len(owned) > 1:
            return None
        ready = [(n, self.cells.cell(number, step, n)) for n in owned]
        return [Work(_alone(c.runner), c.runner, c.sources, ((number, n),)) for n, c in ready]

    def _local(
        self,
        number: int,
        step: Local,
        tiles_of: dict[int, Held],
        transport: Transport,
        tick: Tick,
        measure: Measure,
    ) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
        """Yields the result tile of each owned cell as soon as it is computed."""
        for n in self._moving.owned(number, step.tiles, transport):
            yield n, self._tile(number, step, n, tiles_of, tick, measure)

    def _tile(
        self,
        number: int,
        step: Local,
        n: int,
        tiles_of: dict[int, Held],
        tick: Tick,
        measure: Measure,
    ) -> dict[str, np.ndarray]:
        """Computes a tile of a local step, and tiles of nested steps that only it reads."""
        cell = self.cells.cell(number, step, n)
        operands: list[Arrays] = []
        for source, tile in cell.sources:
            if source in self._nested:
                maker = self.program.steps[source]
                assert isinstance(maker, Local)
                operands.append(self._tile(source, maker, tile, tiles_of, tick, measure))
            else:
                operands.append(tiles_of[source][tile])
        return self._run_cell(cell, number, operands, tick, measure)

    def _merge(
        self,
        number: int,
        parts: Iterable[tuple[int, Arrays]],
        measure: Measure,
    ) -> Merging:
        """Merges the partial tiles of owned sites, each on its arrival."""
        step = self.program.steps[number]
        assert isinstance(step, Complete)
        merging = self._moving.merge(number, step, measure)
        for part, fields in parts:
            merging.add(part, fields)
        return merging

    def _run_cell(
        self,
        cell: Cell,
        number: int,
        operands: Sequence[Arrays],
        tick: Tick,
        measure: Measure,
    ) -> dict[str, np.ndarray]:
        """Runs a local step on one cell."""
        start = time.perf_counter()
        fields = cell.runner(operands, lambda done: tick(number / len(self.program.steps)))
        measure.seconds[cell.site] += time.perf_counter() - start
        measure.flops[cell.site] += cell.flops_on(operands)
        return fields

    def _run_fused(
        self,
        fused: Fused,
        tiles_of: dict[int, Held],
        transport: Transport,
        tick: Tick,
        measure: Measure,
    ) -> None:
        """Runs fused local steps, and the exchanges of their tiles."""
        steps, number = self.program.steps, fused.last
        last = steps[number]
        assert isinstance(last, Local)
        for n in fused.plan.steps:
            tiles_of[n] = {}
        for n in self._moving.owned(number, last.tiles, transport):
            start = time.perf_counter()
            joined = fused.run(n, tiles_of, lambda done: tick(number / len(steps)))
            if joined is None:
                self._run_unfused(fused, n, tiles_of, tick, measure)
                continue
            for at, fields in zip(fused.visible, joined[0], strict=True):
                tiles_of[at][n] = fields
            site = int(last.sites[n])
            measure.seconds[site] += time.perf_counter() - start
            measure.flops[site] += joined[1]
        for n in fused.plan.shown:
            step = steps[n]
            assert isinstance(step, Exchange)
            tiles_of[n] = self._moving.exchange(n, step, tiles_of, transport)

    def _run_unfused(
        self, fused: Fused, n: int, tiles_of: dict[int, Held], tick: Tick, measure: Measure
    ) -> None:
        """Runs local steps separately on a cell for which they do not join."""
        outputs: dict[int, dict[str, np.ndarray]] = {}
        for number, edges in zip(fused.plan.steps, fused.plan.edges, strict=True):
            step = self.program.steps[number]
            assert isinstance(step, Local)
            operands = [
                outputs[maker] if maker >= 0 else tiles_of[source][int(pick[n])]
                for maker, source, pick in zip(edges, step.operands, step.picks, strict=True)
            ]
            outputs[number] = self._run_cell(
                self.cells.cell(number, step, n), number, operands, tick, measure
            )
        for number in fused.visible:
            tiles_of[number][n] = outputs[number]

    def _stream(self, number: int, step: Exchange) -> Stream | None:
        """Returns the stream of an exchange's reader, or None if it needs the complete operand."""
        if number not in self._streaming:
            return None
        if number not in self._streams:
            moves, reader = self._moving.gathering(number, step), self._streaming[number]
            others = (s for n, s in self._streams.items() if self._streaming[n] == reader)
            taken = any(s is not None for s in others)
            stream = None if taken else streamed(self.program, number, reader, moves)
            self._streams[number] = stream
        return self._streams[number]

    def _assembled(self, results: Sequence[Held]) -> list[Fields]:
        """Assembles each result from one copy of its tiles."""
        every: list[Fields] = []
        for root, parts in zip(self.program.roots, results, strict=True):
            tiles, relation = self.program.steps[root].tiles, self.program.relation(root)
            bounds = _bounds(relation.schema)
            if relation.sparse:
                boxes = {n: tiles.boxes[n] for n in parts if n < tiles.once}
                every.append(as_fields(as_shown(whole_of(parts, boxes, bounds))))
                continue
            fields = LocalFields()
            for n, part in parts.items():
                if n < tiles.once:
                    paste(fields, tiles.boxes[n], part, bounds)
            every.append(fields)
        return every


def _alone(runner: Runner) -> Callable[[Sequence[Arrays], Tick], Sequence[Arrays]]:
    """Returns the function of a step that runs one node."""

    def run(operands: Sequence[Arrays], tick: Tick) -> Sequence[Arrays]:
        return (runner(operands, tick),)

    return run


def _shifted(tick: Tick, first: float, share: float) -> Tick:
    """Returns the callback of a part of a program, given the fraction before it and its share."""
    return lambda fraction: tick(first + share * fraction)


def is_small(program: Program, root: int) -> bool:
    """Whether the result of a step is small enough to be sent with the answers of ranks.

    A sparse result is collected once the number of its elements is known.
    """
    tiles, relation = program.steps[root].tiles, program.relation(root)
    size = int(tiles.volumes[: tiles.once].sum())
    return not relation.sparse and size * tuple_bytes(relation) <= ALONG


def _bounds(schema: Schema) -> np.ndarray:
    """Returns the box of all keys, int64 (keys, 2)."""
    return np.array([(k.lo, k.hi) for k in schema.keys], np.int64).reshape(-1, 2)
