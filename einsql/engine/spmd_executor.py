"""Runs a placed program: local steps on the tiles of each site, exchanges between sites.

The same code runs all sites of a process, one after another, so virtual sites and ranks differ
only in their transport.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from einsql.core.boxes import extents
from einsql.core.fp_errors import Ignored
from einsql.core.schema import Schema
from einsql.engine.exchange import Held, Index, Merging, Moving, cut_of, paste, slices
from einsql.engine.fused_steps import Fused, Join, postponed
from einsql.engine.partial_merge import Total
from einsql.engine.single_readers import merged_on_arrival, nested_steps
from einsql.engine.step import Arrays, Compile, GraphExecutor, Measure, Runner, StepMeasure, Tick
from einsql.engine.streaming_exchange import (
    WINDOW,
    Part,
    Share,
    Stream,
    candidates,
    streamed,
    within,
)
from einsql.engine.transport import LocalTransport, Transport
from einsql.ir.einsum.cells import cell_node, sized
from einsql.ir.einsum.flops import flops_at_point
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.spmd.program import Complete, Exchange, Load, Local, Program, View, tuple_bytes
from einsql.storage.fields import LocalFields

ALONG = 2**15
"""Greatest size in bytes of a result that is sent with an answer, to save a request."""


def combined_measure(measures: Sequence[Measure]) -> Measure:
    """Combines the measures of all ranks. The time of a step is that of its slowest rank."""
    every = zip(*(m.steps for m in measures), strict=True)
    steps = [
        StepMeasure(max(s.seconds for s in each), sent=sum(s.sent for s in each)) for each in every
    ]
    seconds = [sum(each) for each in zip(*(m.seconds for m in measures), strict=True)]
    counts = ([getattr(m, name) for m in measures] for name in ("flops", "sent", "received"))
    flops, sent, received = ([sum(n) for n in zip(*lists, strict=True)] for lists in counts)
    read = sum(m.read for m in measures)
    each_root = zip(*(m.tiles for m in measures), strict=True)
    tiles = [{n: f for part in parts for n, f in part.items()} for parts in each_root]
    return Measure(
        steps=steps,
        seconds=seconds,
        flops=flops,
        sent=sent,
        received=received,
        read=read,
        ranks=len(measures),
        tiles=tiles,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """A compiled local step on one cell.

    Attributes:
        runner: Runs the cell.
        site: The site of the cell.
        sources: The step of each operand's tile, and the tile's number.
        flops: The number of scalar operations.
    """

    runner: Runner
    site: int
    sources: tuple[tuple[int, int], ...]
    flops: int


Loading = Callable[[int, Load, Sequence[int]], Held]
"""Returns tiles of a stored tensor, given the number of the step and the numbers of the tiles."""


class SiteProgram(GraphExecutor):
    """A placed program for the transport's sites; `run` uses virtual sites in this process."""

    def __init__(self, program: Program, compile_node: Compile, join: Join | None = None) -> None:
        if join is None:
            program = replace(program, together=())
        self.program = program
        self.sites = program.sites
        self._compile = compile_node
        self._runners: dict[object, tuple[Runner, int]] = {}
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._points: dict[int, int] = {}
        self._loads: dict[int, list[tuple[int, Index | None]]] = {}
        self._stated = {
            n: with_state(s.node)
            for n, s in enumerate(program.steps)
            if isinstance(s, Local) and s.partial
        }
        self._moving = Moving(program)
        self._nested = nested_steps(program)
        self._released = program.released(self._nested)
        self.aliased_inputs = program.inputs
        self._fused = {t.steps[-1]: Fused(program, t, join) for t in program.together if join}
        self._postponed = postponed(program.together)
        apart = {*self._postponed, *self._fused}
        self._merged = {n: m for n, m in merged_on_arrival(program).items() if n not in apart}
        self._streaming = {e: r for e, r in candidates(program).items() if r not in apart}
        self._streams: dict[int, Stream | None] = {}

    def measured(
        self, inputs: Mapping[str, Arrays], tick: Tick
    ) -> tuple[Sequence[LocalFields], Measure]:
        """Runs every step on virtual sites and assembles the results; see `Executor.measured`."""
        results, measure = self.run_virtually(inputs, tick)
        return [
            self._assembled(*each) for each in zip(self.program.roots, results, strict=True)
        ], measure

    def run_virtually(self, inputs: Mapping[str, Arrays], tick: Tick) -> tuple[list[Held], Measure]:
        """Runs every step on virtual sites; returns the tiles of each root at all sites."""

        def load(number: int, step: Load, tiles: Sequence[int]) -> Held:
            if number not in self._loads:
                bounds = _bounds(step.source.schema)
                self._loads[number] = [(n, cut_of(step.tiles.boxes[n], bounds)) for n in tiles]
            fields = inputs[step.source.name]
            arrays = {f.name: fields[f.name] for f in step.source.schema.fields}
            return {
                n: arrays if at is None else {k: a[at] for k, a in arrays.items()}
                for n, at in self._loads[number]
            }

        with Ignored():
            return self.execute(LocalTransport(self.program.sites), load, tick)

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
        sites, moving = self.program.sites, self._moving
        moving.begin(transport)
        measure = Measure(seconds=[0.0] * sites, flops=[0] * sites)
        tiles_of: dict[int, Held] = {}
        streams: dict[int, Stream] = {}
        merges: dict[int, Merging] = {}
        for n, step in enumerate(self.program.steps):
            start, before = time.perf_counter(), sum(transport.sent)
            done = self._released[n]
            if n in self._postponed or n in self._nested:
                pass
            elif isinstance(step, Load):
                tiles_of[n] = load(n, step, moving.owned(n, step.tiles, transport))
            elif isinstance(step, Exchange):
                stream = self._stream(n, step)
                if stream is None:
                    tiles_of[n] = moving.exchange(n, step, tiles_of, transport)
                else:  # its reader runs it, and needs its sources
                    streams[self._streaming[n]] = replace(stream, released=done)
                    done = []
            elif isinstance(step, Local) and n in streams:
                tiles_of[n] = self._streamed(streams[n], step, tiles_of, transport, tick, measure)
                done = [*streams[n].released, *(m for m in done if m != streams[n].exchange)]
            elif n in self._fused:
                self._run_fused(self._fused[n], tiles_of, transport, tick, measure)
            elif isinstance(step, Local):
                results = self._local(n, step, tiles_of, transport, tick, measure)
                if n in self._merged:
                    at = self._merged[n]
                    merges[at] = self._merge(at, results, measure)
                else:
                    tiles_of[n] = dict(results)
            elif isinstance(step, View):
                tiles_of[n] = moving.view(n, step, tiles_of[step.source], transport)
            else:
                merge = merges.pop(n, None) or self._merge(
                    n, tiles_of[step.source].items(), measure
                )
                tiles_of[n] = moving.complete(n, step, merge, transport)
            for source in done:
                tiles_of.pop(source, None)  # fused steps may store no tiles
            took, sent = time.perf_counter() - start, sum(transport.sent) - before
            if n in streams:
                measure.steps[streams[n].exchange].sent, sent = sent, 0
            measure.steps.append(StepMeasure(took, sent=sent))
            tick((n + 1) / len(self.program.steps))
        measure.sent, measure.received = transport.sent, transport.received
        for root in self.program.roots:
            once = self.program.steps[root].tiles.once if is_small(self.program, root) else 0
            measure.tiles.append({n: f for n, f in tiles_of[root].items() if n < once})
        return [tiles_of[root] for root in self.program.roots], measure

    # ---- the steps

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
        cell = self._cell(number, step, n)
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
        parts: Iterable[tuple[int, dict[str, np.ndarray]]],
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
        cell: _Cell,
        number: int,
        operands: Sequence[Arrays],
        tick: Tick,
        measure: Measure,
    ) -> dict[str, np.ndarray]:
        """Runs a local step on one cell."""
        start = time.perf_counter()
        fields = dict(cell.runner(operands, lambda done: tick(number / len(self.program.steps))))
        measure.seconds[cell.site] += time.perf_counter() - start
        measure.flops[cell.site] += cell.flops
        return fields

    def _cell(self, number: int, step: Local, n: int) -> _Cell:
        """Returns the compiled local step over one cell."""
        compiled = self._cells.get((number, n))
        if compiled is None:
            node = self._stated.get(number, step.node)
            sources = tuple(
                (s, int(pick[n])) for s, pick in zip(step.operands, step.picks, strict=True)
            )
            boxes = [self.program.steps[s].tiles.areas[t] for s, t in sources]
            runner, points = self._runner(number, node, step, step.cells[n], boxes)
            if number not in self._points:
                self._points[number] = flops_at_point(step.node)
            flops = points * self._points[number]
            compiled = self._cells[number, n] = _Cell(runner, int(step.sites[n]), sources, flops)
        return compiled

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
                tiles_of[at][n] = dict(fields)
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
                self._cell(number, step, n), number, operands, tick, measure
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

    def _streamed(
        self,
        stream: Stream,
        step: Local,
        tiles_of: dict[int, Held],
        transport: Transport,
        tick: Tick,
        measure: Measure,
    ) -> Held:
        """Runs a local step on pieces of an operand as they arrive."""
        steps, number = self.program.steps, self._streaming[stream.exchange]
        node = with_state(step.node)
        names = [o.name for o in self._stated.get(number, step.node).outputs]
        exchange = steps[stream.exchange]
        assert isinstance(exchange, Exchange)
        moves = self._moving.gathering(stream.exchange, exchange)
        outputs: Held = {n: {} for n in self._moving.owned(number, step.tiles, transport)}
        totals: dict[tuple[int, Part], Total] = {}
        each = flops_at_point(step.node)

        def work(share: Share, box: np.ndarray, arrays: Arrays) -> None:
            """Computes the shares of a tile of the operand, or of a piece of one."""
            start, cell = time.perf_counter(), share.cell
            boxes, operands = [], []
            for n, (o, source, pick) in enumerate(
                zip(step.node.operands, step.operands, step.picks, strict=True)
            ):
                tile, fields = box, arrays
                if n != stream.operand:
                    tile = steps[source].tiles.areas[pick[cell]]
                    fields = tiles_of[source][int(pick[cell])]
                boxes.append(within(o.labels, tile, step, share.domain))
                inside = slices(boxes[-1], tile[:, 0])
                operands.append({k: a[inside] for k, a in fields.items()})
            runner, points = self._runner(number, node, step, share.domain, boxes)
            part = runner(operands, lambda done: tick(number / len(steps)))
            total = totals.setdefault((cell, share.made), Total(node))
            total.add(part)
            if total.parts == stream.parts[cell][share.made]:
                at = np.array(share.made, np.int64).reshape(-1, 2)
                merged = totals.pop((cell, share.made)).result()
                paste(outputs[cell], at, {k: merged[k] for k in names}, step.tiles.boxes[cell])
            site = int(step.sites[cell])
            measure.seconds[site] += time.perf_counter() - start
            measure.flops[site] += points * each

        share_of = self._moving.share(stream.exchange, moves, exchange, tiles_of)
        for n, arrays in transport.exchange(moves.routes, share_of, window=WINDOW):
            for share in stream.shares.get(n, ()):
                work(share, moves.boxes[n], arrays)
        for share in stream.at_hand:
            if share.cell in outputs:
                tile = int(step.picks[stream.operand][share.cell])
                box = exchange.tiles.areas[tile]
                fields = self._moving.at_hand(exchange, tile, tiles_of)
                work(share, box, fields or self._moving.nothing(exchange.sources[0], box))
        return outputs

    def _runner(
        self, number: int, node: EinSum, step: Local, cell: np.ndarray, boxes: Sequence[np.ndarray]
    ) -> tuple[Runner, int]:
        """Returns the compiled node over one cell, and its number of points. Cells that differ
        only in position share the kernel.
        """
        key: object
        if step.is_template:
            key = local = sized(node, tuple(tuple(extents(box).tolist()) for box in boxes))
        else:
            local = cell_node(node, step.labels, cell, boxes)
            key = (
                number,
                tuple((a.lo, a.hi) for a in local.axes),
                tuple(k for o in local.operands for k in o.source.schema.keys),
            )
        if key not in self._runners:
            self._runners[key] = self._compile(local).run, local.points
        return self._runners[key]

    def _assembled(self, root: int, parts: Held) -> LocalFields:
        """Assembles a result from one copy of the tiles of its step."""
        tiles = self.program.steps[root].tiles
        bounds = _bounds(self.program.relation(root).schema)
        fields = LocalFields()
        for n, part in parts.items():
            if n < tiles.once:
                paste(fields, tiles.boxes[n], part, bounds)
        return fields


def is_small(program: Program, root: int) -> bool:
    """Whether the result of a step is small enough to be sent with the answers of ranks."""
    tiles = program.steps[root].tiles
    size = int(tiles.volumes[: tiles.once].sum())
    return size * tuple_bytes(program.relation(root)) <= ALONG


def sliced(step: Load, fields: Arrays, tiles: Sequence[int]) -> Held:
    """Cuts tiles of a stored tensor from its complete arrays, as views.

    Args:
        step: The step with the keys of each tile.
        fields: The arrays, over all keys of the tensor.
        tiles: The numbers of the tiles.
    """
    origin = [k.lo for k in step.source.schema.keys]
    names = [f.name for f in step.source.schema.fields]
    return {
        n: {name: fields[name][slices(step.tiles.boxes[n], origin)] for name in names}
        for n in tiles
    }


def _bounds(schema: Schema) -> np.ndarray:
    """Returns the box of all keys, int64 (keys, 2)."""
    return np.array([(k.lo, k.hi) for k in schema.keys], np.int64).reshape(-1, 2)
