"""Places a cut graph on sites: which site runs which cell, and what has to move.

Cells are numbered by their coordinates in some order of the labels; the order is chosen
so that an operation finds as much of its operands as possible where it runs. A partial
result is completed at one site of its group or spread over the group, whichever lets
its first reader find more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, permutations
from math import prod

import numpy as np

from einsql.einsum import Axis, EinSum, Input, Node, walk
from einsql.intervals import interval
from einsql.optimizer.decomposition import Decomposition
from einsql.supersteps import (
    Complete,
    Exchange,
    Load,
    Local,
    Program,
    Step,
    Tiles,
    split,
    tuple_bytes,
    with_state,
)

ORDERS = 24
"""Orders of the labels that are tried for an operation."""

FOLLOWED = 256
"""Element-wise operations of so many cells may run wherever most of their data lies."""


@dataclass(frozen=True, slots=True, eq=False)
class _Cells:
    """Cells of an operation under one order of its labels.

    Attributes:
        coordinates: (cells, labels), which interval of each label a cell has.
        boxes: (cells, labels, 2).
        sites: (cells,).
    """

    labels: tuple[str, ...]
    grid: tuple[tuple[str, int], ...]
    coordinates: np.ndarray
    boxes: np.ndarray
    sites: np.ndarray


def place(root: Node, cut: Decomposition) -> Program:
    """The program of a cut graph.

    Args:
        root: The graph that was cut.
        cut: A vector for each of its operations.
    """
    return _Placing(root, cut).program()


class _Placing:
    """One placement, producers first."""

    def __init__(self, root: Node, cut: Decomposition) -> None:
        self.root = root
        self.sites = cut.sites
        nodes = [n for n in walk(root) if isinstance(n, EinSum)]
        self.parts = {id(n): c.parts for n, c in zip(nodes, cut.cuts, strict=True)}
        self.steps: list[Step] = []
        self.held: dict[int, int] = {}
        """Step that holds each node's complete tiles."""
        self.open: dict[int, tuple[int, _Cells]] = {}
        """Partial results that wait for their first reader: local step and cells."""
        self.fetched: dict[tuple[int, bytes, bytes], int] = {}

    def program(self) -> Program:
        """Places every operation."""
        for node in walk(self.root):
            if isinstance(node, EinSum):
                self._operation(node)
        return Program(self.sites, tuple(self.steps), self._result())

    def _result(self) -> int:
        if isinstance(self.root, Input):
            whole = np.array([[(k.lo, k.hi) for k in self.root.schema.keys]], np.int64)
            tiles = Tiles(np.zeros(1, np.int64), whole.reshape(1, -1, 2))
            return self._add(Load(self.root, tiles))
        if id(self.root) in self.open:
            self._close(self.root, self._completions(self.root)[0])
        return self.held[id(self.root)]

    def _add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    # ---- one operation

    def _operation(self, node: EinSum) -> None:
        waiting = [
            o.source for o in node.operands
            if isinstance(o.source, EinSum) and id(o.source) in self.open
        ]  # fmt: skip
        completions = {id(source): (source, self._completions(source)) for source in waiting}
        best: tuple[int, _Cells, dict[int, Complete]] | None = None
        for cells in self._candidates(node, completions):
            needs = [self._need(node, n, cells) for n in range(len(node.operands))]
            moved, closing = 0, {}
            for source, ways in completions.values():
                cost, chosen = min(
                    ((self._moved(node, source, needs, c.tiles), c)
                     for c in ways),
                    key=lambda pair: pair[0],
                )  # fmt: skip
                moved += cost
                closing[id(source)] = chosen
            for operand in {id(o.source): o.source for o in node.operands}.values():
                if id(operand) in self.held:
                    moved += self._moved(node, operand, needs, self._tiles(operand))
            if best is None or moved < best[0]:
                best = moved, cells, closing
            if moved == 0:
                break
        assert best is not None
        _, cells, closing = best
        for source, _ in completions.values():
            self._close(source, closing[id(source)])
        self._emit(node, cells)

    def _candidates(
        self, node: EinSum, completions: dict[int, tuple[EinSum, list[Complete]]]
    ) -> Iterator[_Cells]:
        """Cells under each order of the labels, and where element-wise work finds its data."""
        first: _Cells | None = None
        for cells in self._orders(node):
            first = first or cells
            yield cells
        if first is None or not node.is_elementwise or len(first.sites) > FOLLOWED:
            return
        for n, o in enumerate(node.operands):
            need = self._need(node, n, first)
            held = [self._tiles(o.source)] if id(o.source) in self.held else []
            ways = completions[id(o.source)][1] if id(o.source) in completions else []
            for have in (*held, *(c.tiles for c in ways)):
                sites = following(need, have)
                if sites is not None:
                    yield replace(first, sites=sites)

    def _tiles(self, node: Node) -> Tiles:
        step = self.steps[self.held[id(node)]]
        assert isinstance(step, Local | Complete)
        return step.tiles

    def _moved(self, node: EinSum, source: Node, needs: list[Tiles], have: Tiles) -> int:
        """Bytes that bringing a source's tiles to the cells of its reader takes."""
        total = 0
        for o, need in zip(node.operands, needs, strict=True):
            if o.source is source:
                total += missing(need, have) * tuple_bytes(source)
        return total

    def _orders(self, node: EinSum) -> Iterator[_Cells]:
        """Cells under each order of the labels that are cut."""
        free = [a for a in node.axes if a.define is None]
        parts = self.parts[id(node)]
        cut = [a.label for a in free if parts[a.label] > 1]
        number = prod(parts[x] for x in cut)
        sites = np.arange(number) * self.sites // number
        intervals = {a.label: split(a.lo, a.hi, parts[a.label]) for a in free}
        for order in islice(permutations(cut), ORDERS):
            at = dict(zip(order, np.unravel_index(np.arange(number), [parts[x] for x in order]),
                          strict=True)) if order else {}  # fmt: skip
            coordinates = np.zeros((number, len(free)), np.int64)
            for n, a in enumerate(free):
                if a.label in at:
                    coordinates[:, n] = at[a.label]
            boxes = np.empty((number, len(free), 2), np.int64)
            for n, a in enumerate(free):
                boxes[:, n] = intervals[a.label][coordinates[:, n]]
            labels = tuple(a.label for a in free)
            grid = tuple((x, parts[x]) for x in order)
            yield _Cells(labels, grid, coordinates, boxes, sites)

    def _need(self, node: EinSum, operand: int, cells: _Cells) -> Tiles:
        """The tile of an operand that each cell reads."""
        o = node.operands[operand]
        place = {label: n for n, label in enumerate(cells.labels)}
        boxes = np.empty((len(cells.sites), len(o.labels), 2), np.int64)
        for axis, label in enumerate(o.labels):
            if label in place:
                boxes[:, axis] = cells.boxes[:, place[label]]
            else:
                boxes[:, axis] = reach(node, node.axis(label), cells.labels, cells.boxes)
        return Tiles(cells.sites, boxes)

    # ---- completion of partial results

    def _completions(self, node: EinSum) -> list[Complete]:
        """Ways to complete a partial result: at one site of each group, or spread."""
        step, cells = self.open[id(node)]
        local = self.steps[step]
        assert isinstance(local, Local)
        keys = [n for n, x in enumerate(cells.labels) if x in node.keys]
        shape = cells.coordinates.max(axis=0) + 1
        group = np.zeros(len(cells.sites), np.int64)
        for n in keys:
            group = group * shape[n] + cells.coordinates[:, n]
        members = np.argsort(group, kind="stable").reshape(group.max() + 1, -1)
        width = tuple_bytes(with_state(node))
        first = members[:, 0]
        tiles = Tiles(local.tiles.sites[first], local.tiles.boxes[first])
        remote = cells.sites[members] != tiles.sites[:, None]
        nbytes = int((remote * tiles.volumes[:, None]).sum()) * width
        made = [Complete(step, tiles, members, "reduce", nbytes)]
        for axis in range(len(node.keys)):
            extents = tiles.boxes[:, axis, 1] - tiles.boxes[:, axis, 0]
            if extents.min(initial=0) >= members.shape[1]:
                made.append(self._spread(step, cells, members, tiles, axis, width))
        return made

    def _spread(
        self, step: int, cells: _Cells, members: np.ndarray, tiles: Tiles, axis: int, width: int
    ) -> Complete:
        """Each member of a group completes its piece of the group's tile."""
        n = members.shape[1]
        boxes = np.repeat(tiles.boxes, n, axis=0)
        pieces = [split(int(lo), int(hi), n) for lo, hi in tiles.boxes[:, axis]]
        boxes[:, axis] = np.concatenate(pieces)
        spread = Tiles(cells.sites[members].reshape(-1), boxes)
        parts = np.repeat(members, n, axis=0)
        remote = cells.sites[parts] != spread.sites[:, None]
        nbytes = int((remote * spread.volumes[:, None]).sum()) * width
        return Complete(step, spread, parts, "reduce-scatter", nbytes)

    def _close(self, node: Node, complete: Complete) -> None:
        self.held[id(node)] = self._add(complete)
        del self.open[id(node)]

    # ---- steps

    def _emit(self, node: EinSum, cells: _Cells) -> None:
        """Adds the exchanges of an operation and the operation itself."""
        operands, picks = [], []
        for n, o in enumerate(node.operands):
            need, pick = _distinct(self._need(node, n, cells))
            operands.append(self._fetch(o.source, need))
            picks.append(pick)
        number = len(cells.sites)
        place = {label: n for n, label in enumerate(cells.labels)}
        boxes = np.empty((number, len(node.keys), 2), np.int64)
        for axis, key in enumerate(node.keys):
            known = node.axis(key)
            boxes[:, axis] = cells.boxes[:, place[key]] if key in place else (known.lo, known.hi)
        merged = [n for n, x in enumerate(cells.labels) if x not in node.keys]
        partial = bool((cells.coordinates[:, merged] > 0).any())
        local = Local(
            node, cells.labels, cells.grid, cells.sites, cells.boxes, tuple(operands), tuple(picks),
            Tiles(cells.sites, boxes), partial,
        )  # fmt: skip
        at = self._add(local)
        if partial:
            self.open[id(node)] = (at, cells)
        else:
            self.held[id(node)] = at

    def _fetch(self, source: Node, need: Tiles) -> int:
        """The step that holds the needed tiles; equal needs are met once."""
        key = (id(source), need.sites.tobytes(), need.boxes.tobytes())
        if key not in self.fetched:
            if isinstance(source, Input):
                self.fetched[key] = self._add(Load(source, need))
            else:
                have = self._tiles(source)
                nbytes = missing(need, have) * tuple_bytes(source)
                name = collective(need, have, nbytes)
                self.fetched[key] = self._add(Exchange(self.held[id(source)], need, name, nbytes))
        return self.fetched[key]


def reach(node: EinSum, axis: Axis, labels: tuple[str, ...], cells: np.ndarray) -> np.ndarray:
    """Bounds (cells, 2) of a derived axis in each cell: a window's halo, or the whole axis."""
    assert axis.define is not None
    whole = np.array([axis.lo, axis.hi], np.int64)
    if axis.label in node.keys:  # the result has all its values
        return np.tile(whole, (len(cells), 1))
    known = {a.label: (a.lo, a.hi) for a in node.axes}
    found = np.tile(whole, (len(cells), 1))
    seen: dict[bytes, np.ndarray] = {}
    for n, cell in enumerate(cells):
        key = cell.tobytes()
        if key not in seen:
            bounds = known | {
                x: (int(lo), int(hi)) for x, (lo, hi) in zip(labels, cell, strict=True)
            }
            inside = interval(axis.define, bounds)
            if inside is not None:
                lo, hi = max(axis.lo, inside[0]), min(axis.hi, inside[1] + 1)
                seen[key] = np.array([lo, max(lo, hi)], np.int64)
            else:
                seen[key] = whole
        found[n] = seen[key]
    return found


def _distinct(need: Tiles) -> tuple[Tiles, np.ndarray]:
    """The tiles without repetitions, and for each cell its tile."""
    rows = np.concatenate([need.sites[:, None], need.boxes.reshape(len(need.sites), -1)], axis=1)
    _, first, pick = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return Tiles(need.sites[first], need.boxes[first]), pick.reshape(-1)


def following(need: Tiles, have: Tiles) -> np.ndarray | None:
    """For each needed tile the site that has most of it, if these sites are all different."""
    lo = np.maximum(need.boxes[:, None, :, 0], have.boxes[None, :, :, 0])
    hi = np.minimum(need.boxes[:, None, :, 1], have.boxes[None, :, :, 1])
    sites = have.sites[np.maximum(0, hi - lo).prod(axis=2).argmax(axis=1)]
    return sites if len(np.unique(sites)) == len(sites) else None


def missing(need: Tiles, have: Tiles) -> int:
    """Elements of the needed tiles that do not lie at their sites yet."""
    order = np.argsort(have.sites, kind="stable")
    sites, boxes = have.sites[order], have.boxes[order]
    first = np.searchsorted(sites, need.sites, side="left")
    last = np.searchsorted(sites, need.sites, side="right")
    total = int(need.volumes.sum())
    for n in range(int((last - first).max(initial=0))):
        there = first + n < last
        mine = boxes[np.where(there, first + n, 0)]
        lo = np.maximum(need.boxes[:, :, 0], mine[:, :, 0])
        hi = np.minimum(need.boxes[:, :, 1], mine[:, :, 1])
        total -= int((np.maximum(0, hi - lo).prod(axis=1) * there).sum())
    return total


def collective(need: Tiles, have: Tiles, nbytes: int) -> str:
    """The name of what brings tiles from where they are to where they are needed."""
    if nbytes == 0:
        return "none" if need.volumes.sum() == have.volumes.sum() else "slice"
    senders, readers = np.unique(have.sites), np.unique(need.sites)
    copies = need.volumes.sum() > have.volumes.sum()
    if len(senders) == 1:
        return "broadcast" if copies else "scatter"
    if len(readers) == 1:
        return "gather"
    return "all-gather" if copies else "all-to-all"
