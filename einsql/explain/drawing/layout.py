"""The layout of a layered graph: layers, their order, coordinates (Sugiyama et al.).

Edges point downwards. A long edge passes every layer between its ends through a *bend*, a box
without a size, so that the edge has a path between other boxes. The layout is deterministic:
equal graphs have equal drawings.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import pairwise
from math import inf

from einsql.core.records import dataclass

Point = tuple[float, float]

GAP = 28.0
"""The horizontal space between neighbours of a layer, in pixels."""
DROP = 52.0
"""The vertical space between layers, in which edges turn, in pixels."""
MARGIN = 16.0
"""The space around the drawing, in pixels."""
_SWEEPS = 12
"""The most passes that reorder layers, and half the number of passes that straighten edges."""
_STRAIGHT = 6.0
"""The weight of a bend relative to a box, for straight edges."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Coordinates in pixels.

    Attributes:
        corners: The upper left corner of each box.
        paths: The points of each edge from the source's lower side to the target's upper
            side. Between points 2n and 2n + 1 it crosses layers; elsewhere it is straight.
        width: The width of the drawing, in pixels.
        height: The height of the drawing, in pixels.
    """

    corners: list[Point]
    paths: list[list[Point]]
    width: float
    height: float


def layered(sizes: Sequence[Point], edges: Sequence[tuple[int, int]]) -> Layout:
    """Computes the layout of a graph.

    Args:
        sizes: The width and height of each box, in pixels; producers come before their readers.
        edges: Distinct pairs (source, target).
    """
    layer = _layers(len(sizes), edges)
    grid = _Grid(sizes, edges, layer)
    grid.reduce_crossings()
    grid.straighten()
    return grid.layout(edges)


def _layers(boxes: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Returns the longest path to each box; a box without sources is right above its reader."""
    layer = [0] * boxes
    readers: list[list[int]] = [[] for _ in range(boxes)]
    reads = [False] * boxes
    for source, target in sorted(edges, key=lambda e: e[1]):
        layer[target] = max(layer[target], layer[source] + 1)
        readers[source].append(target)
        reads[target] = True
    for n in range(boxes):
        if readers[n] and not reads[n]:
            layer[n] = min(layer[r] for r in readers[n]) - 1
    return layer


class _Grid:
    """Boxes and bends by layer, ordered from left to right in each layer."""

    def __init__(
        self, sizes: Sequence[Point], edges: Sequence[tuple[int, int]], layer: list[int]
    ) -> None:
        self.sizes = list(sizes)
        self.boxes = len(sizes)
        layer = list(layer)
        self.above: list[list[int]] = [[] for _ in sizes]
        self.below: list[list[int]] = [[] for _ in sizes]
        self.chains: list[list[int]] = []
        for source, target in edges:
            chain = [source]
            for between in range(layer[source] + 1, layer[target]):
                self.sizes.append((0.0, 0.0))
                self.above.append([])
                self.below.append([])
                layer.append(between)
                chain.append(len(layer) - 1)
            chain.append(target)
            self.chains.append(chain)
            for a, b in pairwise(chain):
                self.below[a].append(b)
                self.above[b].append(a)
        self.layer = layer
        self.rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
        for n, at in enumerate(layer):
            self.rows[at].append(n)
        self.x = [0.0] * len(layer)

    # ---- the order within layers

    def reduce_crossings(self) -> None:
        """Sorts each layer by its neighbours' positions, down and up; selects the best order."""
        best, fewest = [list(r) for r in self.rows], self._crossings()
        for sweep in range(_SWEEPS):
            if fewest == 0:
                break
            down = sweep % 2 == 0
            rows = self.rows[1:] if down else self.rows[-2::-1]
            for row in rows:
                self._sort(row, self.above if down else self.below)
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(r) for r in self.rows], crossings
        self.rows = best

    def _sort(self, row: list[int], neighbours: list[list[int]]) -> None:
        place = {}
        for at in {self.layer[m] for n in row for m in neighbours[n]}:
            place.update({m: k for k, m in enumerate(self.rows[at])})
        old = {n: float(k) for k, n in enumerate(row)}

        def centre(n: int) -> float:
            near = neighbours[n]
            return sum(place[m] for m in near) / len(near) if near else old[n]

        row.sort(key=centre)

    def _crossings(self) -> int:
        """Returns the number of crossing pairs of edges: inversions between consecutive layers."""
        total = 0
        for upper, lower in pairwise(self.rows):
            place = {n: k for k, n in enumerate(lower)}
            seen: list[int] = []
            for n in upper:
                ends = sorted(place[m] for m in self.below[n])
                total += sum(len(seen) - bisect_left(seen, e + 1) for e in ends)
                for e in ends:
                    insort(seen, e)
        return total

    # ---- coordinates

    def straighten(self) -> None:
        """Moves the boxes of each layer towards their neighbours without a change of order."""
        for row in self.rows:
            self._move(row, [self.x[n] for n in row])
        for sweep in range(2 * _SWEEPS):
            down = sweep % 2 == 0
            # After two passes in each direction the neighbours of both sides have weight.
            one = self.above if down else self.below
            for row in self.rows if down else reversed(self.rows):
                near = [one[n] if sweep < 4 else self.above[n] + self.below[n] for n in row]
                self._move(row, [self._centre(n, m) for n, m in zip(row, near, strict=True)])
        self._align()

    def _align(self) -> None:
        """Makes segments of long edges vertical where their neighbours leave space."""
        beside: dict[int, tuple[int | None, int | None]] = {}
        for row in self.rows:
            for k, n in enumerate(row):
                if n >= self.boxes:
                    right = row[k + 1] if k + 1 < len(row) else None
                    beside[n] = (row[k - 1] if k else None, right)
        for chain in self.chains:
            run: list[int] = []
            least, most = -inf, inf
            for n in chain[1:-1]:
                lo, hi = self._room(*beside[n])
                if max(least, lo) > min(most, hi):
                    self._stack(run, least, most)
                    run, least, most = [], -inf, inf
                run.append(n)
                least, most = max(least, lo), min(most, hi)
            self._stack(run, least, most)

    def _stack(self, run: list[int], least: float, most: float) -> None:
        if run:
            x = min(most, max(least, sum(self.x[m] for m in run) / len(run)))
            for m in run:
                self.x[m] = x

    def _room(self, left: int | None, right: int | None) -> Point:
        """Returns the least and greatest position of a bend between its neighbours."""
        lo = -inf if left is None else self.x[left] + self.sizes[left][0] / 2 + GAP / 2
        hi = inf if right is None else self.x[right] - self.sizes[right][0] / 2 - GAP / 2
        return lo, hi

    def _centre(self, n: int, near: list[int]) -> float:
        """Returns the mean of neighbours' positions; bends of one edge attract each other more."""
        if not near:
            return self.x[n]
        weights = [_STRAIGHT if m >= self.boxes and n >= self.boxes else 1.0 for m in near]
        total = sum(w * self.x[m] for w, m in zip(weights, near, strict=True))
        return total / sum(weights)

    def _move(self, row: list[int], wanted: list[float]) -> None:
        """Moves a layer to the nearest positions (least squares) with the required distances.

        After subtraction of the required offsets from the left end, positions must not
        decrease. Pooling of adjacent positions that decrease is the exact solution.
        """
        offsets, reached = [], 0.0
        for k, n in enumerate(row):
            if k:
                reached += (self.sizes[row[k - 1]][0] + self.sizes[n][0]) / 2 + GAP
            offsets.append(reached)
        pools: list[tuple[float, float, int]] = []  # mean, weight, members
        for n, want, offset in zip(row, wanted, offsets, strict=True):
            mean, weight, members = want - offset, 1.0 if n < self.boxes else _STRAIGHT, 1
            while pools and pools[-1][0] >= mean:
                other, more, count = pools.pop()
                mean = (mean * weight + other * more) / (weight + more)
                weight, members = weight + more, members + count
            pools.append((mean, weight, members))
        means = [mean for mean, _, members in pools for _ in range(members)]
        for n, mean, offset in zip(row, means, offsets, strict=True):
            self.x[n] = mean + offset

    # ---- the result

    def layout(self, edges: Sequence[tuple[int, int]]) -> Layout:
        """Returns the coordinates of boxes and edges; the boxes of a layer are on one line."""
        left = min((self.x[n] - self.sizes[n][0] / 2 for n in range(len(self.x))), default=0.0)
        self.x = [round(x - left + MARGIN, 1) for x in self.x]
        tops, bottoms, y = [], [], MARGIN
        for row in self.rows:
            tops.append(y)
            y += max(self.sizes[n][1] for n in row)
            bottoms.append(y)
            y += DROP
        corners = [
            (round(self.x[n] - w / 2, 1), round(bottoms[self.layer[n]] - h, 1))
            for n, (w, h) in enumerate(self.sizes[: self.boxes])
        ]
        leave = self._ports(self.below)
        enter = self._ports(self.above)
        paths = []
        for chain in self.chains:
            points = [(leave[chain[0], chain[1]], bottoms[self.layer[chain[0]]])]
            for n in chain[1:-1]:
                at = self.layer[n]
                points += [(self.x[n], tops[at]), (self.x[n], bottoms[at])]
            last = chain[-1]
            points.append((enter[last, chain[-2]], corners[last][1]))
            paths.append(points)
        right = max((self.x[n] + self.sizes[n][0] / 2 for n in range(len(self.x))), default=0.0)
        return Layout(corners, paths, round(right + MARGIN, 1), round(y - DROP + MARGIN, 1))

    def _ports(self, neighbours: list[list[int]]) -> dict[tuple[int, int], float]:
        """Returns the ends of edges at each box: side by side, in the order of their other ends."""
        ports = {}
        for n in range(self.boxes):
            near = sorted(neighbours[n], key=lambda m: self.x[m])
            step = min(30.0, self.sizes[n][0] / (len(near) + 1))
            for k, m in enumerate(near):
                ports[n, m] = round(self.x[n] + (k - (len(near) - 1) / 2) * step, 1)
        return ports
