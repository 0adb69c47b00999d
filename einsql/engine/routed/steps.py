"""Runs fused steps at the sites of the blocks that their rows choose.

Every site reads from its rows where they go. All sites exchange the numbers of rows, then the rows.
The site of a block runs the steps on the rows that it has received, and sends the results back. So
the sizes of messages follow from data, and all processes know them before a message is sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from einsql.core.boxes import extents
from einsql.core.buffer_pool import empty
from einsql.engine.exchange import Held
from einsql.engine.routed.packed_nodes import compiled_rows, packed_node, repeated
from einsql.engine.routed.rows import Rows, chosen_rows, packed_rows, row_bounds
from einsql.engine.running import Running
from einsql.engine.step import Arrays, Compile, Runner
from einsql.engine.transport import Routes
from einsql.ir.einsum.flops import flops_at_point
from einsql.ir.spmd.program import FusedSteps, Local, Program, RowRelation

Pieces = Mapping[tuple[int, int], Arrays]
"""Rows of a relation by cell and block."""


class RoutedSteps:
    """Steps of a program that run where their rows have chosen, in the place of the last one."""

    def __init__(self, program: Program, plan: FusedSteps, compile_node: Compile) -> None:
        assert plan.routed is not None
        self._program, self._plan, self._compile = program, plan, compile_node
        self._moves, self._blocks = plan.routed, plan.routed.blocks
        self._steps = [self._local(n) for n in plan.steps]
        self._visible = [k for k, seen in enumerate(plan.visible) if seen]
        self._runners: dict[tuple[int, int, int], tuple[Runner, int]] = {}

    def run(self, run: Running) -> None:
        """Runs the steps, and stores the tiles of those that other steps read.

        Raises:
            DataError: A selected element overflows, divides by zero or cannot be cast.
        """
        owned = set(run.transport.owned)
        cells = [c for c, site in enumerate(self._steps[0].sites.tolist()) if site in owned]
        chooser = self._steps[self._moves.chooser]
        rows = {
            c: chosen_rows(self._program, chooser, self._blocks, c, run.tiles_of) for c in cells
        }
        counts = self._counts(rows, run)
        pieces = [self._sent(relation, rows, counts, run) for relation in self._moves.relations]
        results: dict[int, list[Arrays]] = {}
        for block, site in enumerate(self._blocks.sites.tolist()):
            if site in owned and counts[:, block].any():
                results[block] = self._computed(block, counts[:, block], pieces, run)
        self._note_memory(pieces, results, run)
        pieces.clear()
        for number, k in enumerate(self._visible):
            mine = {block: fields[number] for block, fields in results.items()}
            run.tiles_of[self._plan.steps[k]] = self._returned(k, mine, rows, counts, run)

    def _local(self, n: int) -> Local:
        step = self._program.steps[n]
        assert isinstance(step, Local)
        return step

    # ---- rows to blocks

    def _counts(self, rows: Mapping[int, Rows], run: Running) -> np.ndarray:
        """The numbers of rows of each cell for each block, int64 (cells, blocks), at all sites."""
        cells, blocks = self._steps[0].sites, len(self._blocks.sites)
        sites, number = self._program.sites, len(cells)
        piece = np.repeat(np.arange(number), sites)
        targets = np.tile(np.arange(sites), number)
        shapes = np.full((len(piece), 1), blocks, np.int64)
        routes = Routes(cells[piece], targets, shapes, {"rows": np.dtype(np.int64)}, piece)
        own = {c: {"rows": r.counts} for c, r in rows.items()}
        counts = np.zeros((number, blocks), np.int64)
        for n, arrays in run.transport.exchange(routes, lambda n: own[int(piece[n])]):
            counts[piece[n]] = arrays["rows"]
        return counts

    def _sent(
        self, relation: RowRelation, rows: Mapping[int, Rows], counts: np.ndarray, run: Running
    ) -> Pieces:
        """The rows of a relation that arrive at owned sites."""
        source, first = self._program.steps[relation.source], self._steps[0]
        fields = self._program.relation(relation.source).schema.fields
        dtypes = {f.name: f.dtype.numpy for f in fields}
        others = [axis for axis, row in enumerate(relation.axes) if row is None]
        lengths = extents(source.tiles.areas[relation.picks[:1]])[0, others]
        packed: dict[int, Arrays] = {}

        def cut(cell: int, block: int) -> Arrays:
            if cell not in packed:
                bounds = row_bounds(first, cell, self._moves.rows[0])
                packed[cell] = packed_rows(
                    self._program, relation, bounds, cell, rows[cell], run.tiles_of
                )
            return {k: a[rows[cell].of(block)] for k, a in packed[cell].items()}

        return self._exchanged(counts, lengths, dtypes, cut, run, back=False)

    def _exchanged(
        self,
        counts: np.ndarray,
        lengths: np.ndarray,
        dtypes: Mapping[str, np.dtype],
        cut: Callable[[int, int], Arrays],
        run: Running,
        *,
        back: bool,
    ) -> Pieces:
        """The rows that arrive at owned sites.

        Args:
            counts: int64 (cells, blocks), the number of rows of each piece.
            lengths: The extents of a row.
            dtypes: The dtype of each field.
            cut: Returns the rows of a cell for a block, at the site that sends them.
            run: The run.
            back: Whether the rows go from blocks to cells.
        """
        cell, block = np.nonzero(counts)
        if not len(cell):
            return {}
        ends = self._steps[0].sites[cell], self._blocks.sites[block]
        sources, targets = ends[::-1] if back else ends
        shapes = np.column_stack([counts[cell, block], np.tile(lengths, (len(cell), 1))])
        pairs = list(zip(cell.tolist(), block.tolist(), strict=True))
        numbers = np.arange(len(cell))
        routes = Routes(sources, targets, shapes.astype(np.int64), dtypes, numbers)
        arrived = run.transport.exchange(routes, lambda n: cut(*pairs[n]))
        return {pairs[n]: arrays for n, arrays in arrived}

    # ---- the steps at a block

    def _computed(
        self, block: int, counts: np.ndarray, pieces: Sequence[Pieces], run: Running
    ) -> list[Arrays]:
        """The results of visible steps for the rows of a block, in the order of the cells.

        Args:
            block: The number of the block.
            counts: int64 (cells,), the numbers of rows; some are positive.
            pieces: The rows of each relation.
            run: The run.
        """
        count, cells = int(counts.sum()), np.flatnonzero(counts).tolist()
        number = compiled_rows(count)
        arrived = [repeated(_joined([p[c, block] for c in cells]), number - count) for p in pieces]
        site, part = int(self._blocks.sites[block]), self._plan.steps[-1] / len(self._program.steps)
        outputs: dict[int, Arrays] = {}
        for k, (n, step) in enumerate(zip(self._plan.steps, self._steps, strict=True)):
            operands: list[Arrays] = []
            for o, edge in enumerate(self._plan.edges[k]):
                moving, tiles = self._moves.reads[k][o], self._moves.tiles[k][o]
                if edge >= 0:
                    operands.append(outputs[edge])
                elif moving is not None:
                    operands.append(arrived[moving])
                else:
                    assert tiles is not None
                    operands.append(run.tiles_of[step.operands[o]][int(tiles[block])])
            start = time.perf_counter()
            runner, points = self._runner(k, block, number)
            outputs[n] = runner(operands, lambda done: run.tick(part))
            run.measure.seconds[site] += time.perf_counter() - start
            run.measure.flops[site] += points * flops_at_point(step.node)
        results = (outputs[self._plan.steps[k]] for k in self._visible)
        return [{name: a[:count] for name, a in fields.items()} for fields in results]

    def _runner(self, k: int, block: int, count: int) -> tuple[Runner, int]:
        """The compiled step for a number of rows of a block, and its number of points."""
        key = k, block, count
        if key not in self._runners:
            step = self._steps[k]
            areas = [self._area(k, o, block) for o in range(len(step.operands))]
            chosen = None
            if step.blocks is not None:
                routing = step.blocks.routing
                expert = routing.experts[0]
                axis = step.node.operands[expert].labels.index(routing.label)
                area = areas[expert]
                assert area is not None
                chosen = routing.label, int(area[axis, 0]), int(area[axis, 1])
            node = packed_node(step.node, self._moves.rows[k], count, areas, chosen)
            self._runners[key] = self._compile(node).run, node.points
        return self._runners[key]

    def _area(self, k: int, operand: int, block: int) -> np.ndarray | None:
        """The keys of the tile of an operand at a block; None for a result of these steps."""
        if self._plan.edges[k][operand] >= 0:
            return None
        step, tiles = self._steps[k], self._moves.tiles[k][operand]
        tile = step.picks[operand][0] if tiles is None else tiles[block]
        area: np.ndarray = self._program.steps[step.operands[operand]].tiles.areas[int(tile)]
        return area

    # ---- results to rows

    def _returned(
        self,
        k: int,
        computed: Mapping[int, Arrays],
        rows: Mapping[int, Rows],
        counts: np.ndarray,
        run: Running,
    ) -> Held:
        """The tiles of a step at owned sites, from the results of their rows."""
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
        return tiles

    def _note_memory(
        self, pieces: Sequence[Pieces], results: Mapping[int, Sequence[Arrays]], run: Running
    ) -> None:
        """Counts the rows that sites of blocks have received, and their results."""
        if run.resident is None:
            return
        extra = [0] * self._program.sites
        sites = self._blocks.sites.tolist()
        received = ((b, fields) for p in pieces for (_, b), fields in p.items())
        tuples = ((b, fields) for b, every in results.items() for fields in every)
        for block, fields in (*received, *tuples):
            extra[sites[block]] += sum(a.nbytes for a in fields.values())
        run.resident.pass_through(extra)


def _joined(pieces: Sequence[Arrays]) -> Arrays:
    """The rows of several pieces in order."""
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([p[name] for p in pieces]) for name in pieces[0]}
