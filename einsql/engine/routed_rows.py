"""Fused steps whose rows run at the sites of the blocks that they choose.

Every site reads from its rows where they go. All sites exchange the numbers of rows, then the rows.
The site of a block runs the steps on the rows that it has received, and sends the results back. So
the sizes of messages follow from data, and all processes know them before a message is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.boxes import extents
from einsql.core.buffer_pool import empty
from einsql.core.records import dataclass
from einsql.core.schema import Key, Schema
from einsql.engine.exchange import Held
from einsql.engine.running import Running
from einsql.engine.step import Arrays, Compile, Runner
from einsql.engine.transport import Routes
from einsql.ir.einsum.evaluation import expression_value
from einsql.ir.einsum.flops import flops_at_point
from einsql.ir.einsum.graph import Axis, EinSum, Input, Label, Operand, Value, fresh
from einsql.ir.spmd.program import FusedSteps, Local, Program, RoutedRows, RowRelation

FEWEST = 8
"""The least number of rows of a kernel."""
PER_DOUBLING = 8
"""Numbers of rows for which kernels are compiled, in each doubling. A kernel runs on up to an eighth
more rows than there are, which repeat a row; every number of rows would need a kernel of its own."""


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """The rows of a cell, in the order of the blocks that they choose.

    Attributes:
        at: For each label of the rows int64 (rows,), the positions in the cell.
        ends: int64 (blocks,), the end of the rows of each block.
    """

    at: tuple[np.ndarray, ...]
    ends: np.ndarray

    def of(self, block: int) -> slice:
        """The rows of a block."""
        return slice(int(self.ends[block - 1]) if block else 0, int(self.ends[block]))


class RoutedSteps:
    """Steps of a program that run where their rows have chosen.

    Attributes:
        last: The number of the last step; all steps run in its place.
    """

    def __init__(self, program: Program, plan: FusedSteps, compile_node: Compile) -> None:
        assert plan.routed is not None
        self.last = plan.steps[-1]
        self._program, self._plan, self._compile = program, plan, compile_node
        self._moves: RoutedRows = plan.routed
        self._steps = [self._local(n) for n in plan.steps]
        self._visible = [k for k, seen in enumerate(plan.visible) if seen]
        self._runners: dict[tuple[int, int, int], tuple[Runner, int]] = {}

    def run(self, run: Running) -> None:
        """Runs the steps, and stores the tiles of those that other steps read."""
        first, owned = self._steps[0], set(run.transport.owned)
        cells = [c for c, site in enumerate(first.sites.tolist()) if site in owned]
        rows = {c: self._chosen(c, run.tiles_of) for c in cells}
        counts = self._counts(rows, run)
        pieces = [self._sent(relation, rows, counts, run) for relation in self._moves.relations]
        results: dict[int, list[Arrays]] = {}
        for block, site in enumerate(self._moves.blocks.sites.tolist()):
            if site in owned:
                arrived = [_joined([p[c, block] for c in _from(counts, block)]) for p in pieces]
                results[block] = self._computed(block, int(counts[:, block].sum()), arrived, run)
        self._note_memory(pieces, results, run)
        pieces.clear()
        for number, k in enumerate(self._visible):
            mine = {block: fields[number] for block, fields in results.items() if fields}
            self._return(k, mine, rows, counts, run)

    def _local(self, n: int) -> Local:
        step = self._program.steps[n]
        assert isinstance(step, Local)
        return step

    # ---- rows to blocks

    def _chosen(self, cell: int, tiles_of: Mapping[int, Held]) -> _Rows:
        """The rows of a cell, by block. A value that is no key may choose any block."""
        step, blocks = self._steps[self._moves.chooser], self._moves.blocks
        routing = blocks.routing
        define = step.node.axis(routing.label).define
        assert define is not None
        source, tile = step.operands[routing.chooser], int(step.picks[routing.chooser][cell])
        inside = self._inside(step, cell, routing.rows, source, tile)
        fields = {k: a[inside] for k, a in tiles_of[source][tile].items()}
        shape = next(iter(fields.values())).shape

        def leaf(e: Label | Value) -> np.ndarray:
            assert isinstance(e, Value)
            return fields[e.field]

        with np.errstate(all="ignore"):
            values = expression_value(define, leaf, np.zeros(shape, bool))
            values = np.broadcast_to(values, shape).reshape(-1)
        last = len(blocks.starts) - 1
        block = np.clip(np.searchsorted(blocks.starts, values, side="right") - 1, 0, last)
        order = np.argsort(block, kind="stable")
        ends = np.cumsum(np.bincount(block, minlength=last + 1))
        return _Rows(tuple(np.unravel_index(order, shape)), ends)

    def _inside(
        self, step: Local, cell: int, rows: Sequence[str], source: int, tile: int
    ) -> tuple[slice, ...]:
        """The part of a tile over the rows of a cell, whose axes are the labels of the rows."""
        area = self._program.steps[source].tiles.areas[tile]
        at = [step.labels.index(x) for x in rows]
        return tuple(
            slice(int(lo - start), int(hi - start))
            for (lo, hi), start in zip(step.cells[cell, at], area[:, 0], strict=True)
        )

    def _counts(self, rows: dict[int, _Rows], run: Running) -> np.ndarray:
        """The numbers of rows of each cell for each block, int64 (cells, blocks), at all sites."""
        cells, blocks = self._steps[0].sites, len(self._moves.blocks.sites)
        sites, number = self._program.sites, len(cells)
        piece = np.repeat(np.arange(number), sites)
        targets = np.tile(np.arange(sites), number)
        shapes = np.full((len(piece), 1), blocks, np.int64)
        dtypes = {"rows": np.dtype(np.int64)}
        routes = Routes(cells[piece], targets, shapes, dtypes, piece)
        counts = np.zeros((number, blocks), np.int64)
        cut = {c: {"rows": np.diff(r.ends, prepend=0)} for c, r in rows.items()}
        for n, arrays in run.transport.exchange(routes, lambda n: cut[int(piece[n])]):
            counts[piece[n]] = arrays["rows"]
        return counts

    def _sent(
        self, relation: RowRelation, rows: dict[int, _Rows], counts: np.ndarray, run: Running
    ) -> dict[tuple[int, int], Arrays]:
        """The rows of a relation that arrive at owned sites, by cell and block."""
        source = self._program.steps[relation.source]
        fields = self._program.relation(relation.source).schema.fields
        dtypes = {f.name: f.dtype.numpy for f in fields}
        others = [axis for axis, row in enumerate(relation.axes) if row is None]
        lengths = extents(source.tiles.areas[relation.picks[:1]])[0, others]
        packed: dict[int, Arrays] = {}

        def cut(cell: int, block: int) -> Arrays:
            if cell not in packed:
                packed[cell] = self._packed(relation, cell, rows[cell], run.tiles_of)
            return {k: a[rows[cell].of(block)] for k, a in packed[cell].items()}

        return self._exchanged(counts, lengths, dtypes, cut, run, back=False)

    def _packed(
        self, relation: RowRelation, cell: int, rows: _Rows, tiles_of: Mapping[int, Held]
    ) -> Arrays:
        """The rows of a cell of a relation, with the axis of rows first, in the order of blocks."""
        tile = int(relation.picks[cell])
        area = self._program.steps[relation.source].tiles.areas[tile]
        first, labels = self._steps[0], self._moves.rows[0]
        index, order = [], []
        for axis, row in enumerate(relation.axes):
            if row is not None:
                start = first.cells[cell, first.labels.index(labels[row]), 0] - area[axis, 0]
                index.append(rows.at[row] + start)
                order.append(axis)
        order += [axis for axis, row in enumerate(relation.axes) if row is None]
        fields = tiles_of[relation.source][tile]
        return {k: a.transpose(order)[tuple(index)] for k, a in fields.items()}

    def _exchanged(
        self,
        counts: np.ndarray,
        lengths: np.ndarray,
        dtypes: dict[str, np.dtype],
        cut: Callable[[int, int], Arrays],
        run: Running,
        *,
        back: bool,
    ) -> dict[tuple[int, int], Arrays]:
        """The pieces of rows that arrive at owned sites, by cell and block.

        Args:
            counts: int64 (cells, blocks), the rows of each piece.
            lengths: The extents of a row.
            dtypes: The dtype of each field.
            cut: Returns the rows of a cell for a block, at the site that sends them.
            run: The run.
            back: Whether the rows go from blocks to cells.
        """
        cell, block = np.nonzero(counts)
        if not len(cell):
            return {}
        ends = self._steps[0].sites[cell], self._moves.blocks.sites[block]
        sources, targets = ends[::-1] if back else ends
        shapes = np.column_stack([counts[cell, block], np.tile(lengths, (len(cell), 1))])
        pairs = list(zip(cell.tolist(), block.tolist(), strict=True))
        pieces = np.arange(len(cell))
        routes = Routes(sources, targets, shapes.astype(np.int64), dtypes, pieces)
        arrived = run.transport.exchange(routes, lambda n: cut(*pairs[n]))
        return {pairs[n]: arrays for n, arrays in arrived}

    # ---- the steps at a block

    def _computed(
        self, block: int, count: int, arrived: Sequence[Arrays], run: Running
    ) -> list[Arrays]:
        """The results of visible steps for the rows of a block; none without rows."""
        if not count:
            return []
        number = _compiled_rows(count)
        arrived = [_repeated(fields, number - count) for fields in arrived]
        site = int(self._moves.blocks.sites[block])
        outputs: dict[int, Arrays] = {}
        part = self.last / len(self._program.steps)
        for k, (n, step) in enumerate(zip(self._plan.steps, self._steps, strict=True)):
            operands = [
                outputs[edge]
                if edge >= 0
                else arrived[moving]
                if moving is not None
                else run.tiles_of[source][int(tiles[block])]
                for edge, moving, source, tiles in zip(
                    self._plan.edges[k],
                    self._moves.reads[k],
                    step.operands,
                    self._moves.tiles[k],
                    strict=True,
                )
            ]
            start = time.perf_counter()
            runner, points = self._runner(k, block, number)
            outputs[n] = runner(operands, lambda done: run.tick(part))
            run.measure.seconds[site] += time.perf_counter() - start
            run.measure.flops[site] += points * flops_at_point(step.node)
        return [
            {name: a[:count] for name, a in outputs[self._plan.steps[k]].items()}
            for k in self._visible
        ]

    def _runner(self, k: int, block: int, count: int) -> tuple[Runner, int]:
        """The compiled step for a number of rows of a block, and its number of points."""
        key = k, block, count
        if key not in self._runners:
            node = self._packed_node(k, block, count)
            self._runners[key] = self._compile(node).run, node.points
        return self._runners[key]

    def _packed_node(self, k: int, block: int, count: int) -> EinSum:
        """A step over packed rows: one label takes the place of all labels of the rows."""
        step, rows = self._steps[k], self._moves.rows[k]
        node, steps = step.node, self._program.steps
        row = fresh("row", [a.label for a in node.axes])
        bounds: dict[str, tuple[int, int]] = {}
        operands = []
        for n, (o, source, tiles) in enumerate(
            zip(node.operands, step.operands, self._moves.tiles[k], strict=True)
        ):
            keys, labels = o.source.schema.keys, o.labels
            kept = [(key, x) for key, x in zip(keys, labels, strict=True) if x not in rows]
            if tiles is not None:
                area = steps[source].tiles.areas[int(tiles[block])].tolist()
                kept = [
                    (Key(key.name, lo, hi), x)
                    for (key, x), (lo, hi) in zip(kept, area, strict=True)
                ]
                if step.blocks is not None and n in step.blocks.routing.experts:
                    bounds |= {x: (key.lo, key.hi) for key, x in kept}
            elif self._moves.reads[k][n] is not None:
                area = steps[source].tiles.areas[int(step.picks[n][0])].tolist()
                inside = [b for b, x in zip(area, labels, strict=True) if x not in rows]
                kept = [
                    (Key(key.name, lo, hi), x)
                    for (key, x), (lo, hi) in zip(kept, inside, strict=True)
                ]
            if tiles is None:
                kept = [(Key(row, 0, count), row), *kept]
            schema = Schema(tuple(key for key, _ in kept), o.source.schema.fields)
            operands.append(Operand(Input(f"#{n}", schema), tuple(x for _, x in kept)))
        axes = [Axis(row, 0, count)]
        for a in node.axes:
            if a.label not in rows:
                lo, hi = bounds.get(a.label, (a.lo, a.hi)) if a.define is not None else (a.lo, a.hi)
                axes.append(replace(a, lo=max(a.lo, lo), hi=max(lo, min(a.hi, hi))))
        keys_of = (row, *(x for x in node.keys if x not in rows))
        return replace(
            node, axes=tuple(axes), operands=tuple(operands), keys=keys_of, hint=(), grid=()
        )

    # ---- results to rows

    def _return(
        self,
        k: int,
        computed: Mapping[int, Arrays],
        rows: Mapping[int, _Rows],
        counts: np.ndarray,
        run: Running,
    ) -> None:
        """Sends the results of a step to the cells of their rows, and stores the cells' tiles."""
        step, labels = self._steps[k], self._moves.rows[k]
        keys = [key.name for key in step.node.schema.keys]
        others = [axis for axis, x in enumerate(keys) if x not in labels]
        order = [*map(keys.index, labels), *others]
        dtypes = {f.name: f.dtype.numpy for f in step.node.schema.fields}
        before = np.cumsum(counts, axis=0) - counts

        def cut(cell: int, block: int) -> Arrays:
            start = int(before[cell, block])
            end = start + int(counts[cell, block])
            return {name: a[start:end] for name, a in computed[block].items()}

        lengths = extents(step.tiles.areas[:1])[0, others]
        pieces = self._exchanged(counts, lengths, dtypes, cut, run, back=True)
        tiles: Held = {}
        for cell in rows:
            shape = tuple(extents(step.tiles.areas[cell]).tolist())
            tiles[cell] = {name: empty(shape, dtype) for name, dtype in dtypes.items()}
        for (cell, block), arrays in pieces.items():
            here = rows[cell].of(block)
            index = tuple(positions[here] for positions in rows[cell].at)
            for name, a in arrays.items():
                tiles[cell][name].transpose(order)[index] = a
        run.tiles_of[self._plan.steps[k]] = tiles

    def _note_memory(
        self,
        pieces: Sequence[Mapping[tuple[int, int], Arrays]],
        results: Mapping[int, Sequence[Arrays]],
        run: Running,
    ) -> None:
        """Counts the rows that sites of blocks have received, and their results."""
        if run.resident is None:
            return
        extra = [0] * self._program.sites
        sites = self._moves.blocks.sites.tolist()
        received = ((b, fields) for p in pieces for (_, b), fields in p.items())
        made = ((b, fields) for b, every in results.items() for fields in every)
        for block, fields in (*received, *made):
            extra[sites[block]] += sum(a.nbytes for a in fields.values())
        run.resident.pass_through(extra)


def _from(counts: np.ndarray, block: int) -> list[int]:
    """The cells with rows for a block."""
    return [int(cell) for cell in np.flatnonzero(counts[:, block])]


def _joined(pieces: Sequence[Arrays]) -> Arrays:
    """The rows of several pieces in order."""
    if len(pieces) <= 1:
        return pieces[0] if pieces else {}
    return {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}


def _repeated(fields: Arrays, more: int) -> Arrays:
    """Rows followed by copies of the first one."""
    if not more:
        return fields
    return {k: np.concatenate([a, np.repeat(a[:1], more, axis=0)]) for k, a in fields.items()}


def _compiled_rows(count: int) -> int:
    """The number of rows of the kernel for a number of rows, which is at most an eighth greater."""
    if count <= FEWEST:
        return FEWEST
    step = max(1, 2 ** ((count - 1).bit_length() - 1) // PER_DOUBLING)
    return -(-count // step) * step
