"""The optimal choice, by variable elimination.

Eliminating a vertex sums the tables around it and minimizes over its own states, which gives a
table over its neighbours' views. The work grows exponentially with the width of the graph, so a
limit decides when to give up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from heapq import heapify, heappop, heappush
from math import prod

import numpy as np

from einsql.core.mappings import grouped, memoized
from einsql.core.records import dataclass
from einsql.optimizer.decomposition.model import Choice, Model

LIMIT = 4e8
"""The maximum of additions of all eliminations together; about a second."""

BLOCK = 2**17
"""Sums per block; a block fits into a processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Costs over views of vertices: axis n is indexed by `views[n][state]`.

    `source` provides the costs: an edge's table, or the elimination that computes them.
    """

    vertices: tuple[int, ...]
    views: tuple[np.ndarray, ...]
    source: np.ndarray | _Elimination

    def view(self, v: int) -> np.ndarray:
        """The table's view of a vertex."""
        return self.views[self.vertices.index(v)]

    @property
    def costs(self) -> np.ndarray:
        """The table's entries."""
        return self.source if isinstance(self.source, np.ndarray) else self.source.costs


@dataclass(slots=True, eq=False)
class _Elimination:
    """The elimination of a vertex, and its outcome.

    Attributes:
        alone: The vertex's own costs.
        tables: The tables around it.
        vertex: The vertex's number in these tables.
        near: The vertex's neighbours in these tables.
        joint: For each neighbour the coarsest view that refines those of all tables.
        work: An upper bound of the additions.
        costs: The least costs over the neighbours' views, after `run`.
        leaders: The states that can be optimal.
    """

    alone: np.ndarray
    tables: list[_Table]
    vertex: int
    near: list[int]
    joint: dict[int, tuple[np.ndarray, int]]
    work: float
    costs: np.ndarray = field(init=False)
    leaders: np.ndarray = field(init=False)

    def run(self) -> None:
        """Sums the tables and minimizes over the vertex's states."""
        shape = tuple(self.joint[u][1] for u in self.near)
        views = [t.view(self.vertex) for t in self.tables]
        self.leaders = _leaders(self.alone, views)
        spread = [_spread(t, self.vertex, self.near, self.joint) for t in self.tables]
        # Small tables first: each addition to a sum over all neighbours costs as much as the last.
        pairs = sorted(zip(views, spread, strict=True), key=lambda p: p[1].size)
        best = np.full(shape, np.inf)
        together = max(1, BLOCK // max(1, best.size))
        for first in range(0, len(self.leaders), together):
            states = self.leaders[first : first + together]
            total = self.alone[states].reshape(-1, *(1 for _ in shape))
            for view, costs in pairs:
                total = total + costs[view[states]]
            np.minimum(best, total.min(axis=0), out=best)
        self.costs = best

    def state(self, near: Sequence[int]) -> int:
        """The vertex's state that gives the least cost for given states of its neighbours."""
        state_of = dict(zip(self.near, near, strict=True))
        total = self.alone[self.leaders]
        for t in self.tables:
            at = tuple(
                view[self.leaders] if u == self.vertex else view[state_of[u]]
                for u, view in zip(t.vertices, t.views, strict=True)
            )
            total = total + t.costs[at]
        return int(self.leaders[total.argmin()])


def eliminate(model: Model, limit: float = LIMIT) -> Choice | None:
    """The optimal choice, or None if its additions would exceed the limit."""
    order = _Order(model)
    steps = order.steps()
    needed = {id(e): e for _, _, e in steps}.values()
    if sum(e.work for e in needed) > limit:
        return None
    for e in needed:
        e.run()
    choice = [0] * len(model.states)
    for v, near, e in reversed(steps):
        choice[v] = e.state([choice[u] for u in near])
    return choice


class _Order:
    """The order of eliminations, cheapest next; it is determined before any elimination runs.

    Equal neighbourhoods, as the layers of a network have, share one elimination.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.around: list[list[_Table]] = [[] for _ in model.states]
        for t in _tables(model):
            for v in t.vertices:
                self.around[v].append(t)
        self._joint_of: dict[int, dict[int, tuple[np.ndarray, int]]] = {}
        self._joints: dict[object, tuple[np.ndarray, int]] = {}
        self._known: dict[object, _Elimination] = {}

    def steps(self) -> list[tuple[int, list[int], _Elimination]]:
        """Vertices with their neighbours and eliminations, in order."""
        works = [self._work(v) for v in range(len(self.around))]
        heap = [(w, v) for v, w in enumerate(works)]
        heapify(heap)
        done: set[int] = set()
        steps: list[tuple[int, list[int], _Elimination]] = []
        while heap:
            work, v = heappop(heap)
            if v in done or work != works[v]:
                continue
            joint = self._joint(v)
            near = list(joint)
            fresh = _Elimination(self.model.alone[v], self.around[v], v, near, joint, work)
            e = self._known.setdefault(self._key(v, near), fresh)
            steps.append((v, near, e))
            done.add(v)
            table = _Table(tuple(near), tuple(e.joint[m][0] for m in e.near), e)
            for u in near:
                self.around[u] = [t for t in self.around[u] if v not in t.vertices] + [table]
                self._joint_of.pop(u, None)
            for u in near:
                works[u] = self._work(u)
                heappush(heap, (works[u], u))
        return steps

    def _work(self, v: int) -> float:
        sizes = (size for _, size in self._joint(v).values())
        return prod(sizes, start=float(len(self.model.states[v])))

    def _key(self, v: int, near: list[int]) -> object:
        """The cache key of an elimination: the values that determine its outcome."""
        rank = {u: n for n, u in enumerate((v, *near))}
        return id(self.model.alone[v]), tuple(
            (tuple(rank[u] for u in t.vertices), id(t.source), tuple(map(id, t.views)))
            for t in self.around[v]
        )

    def _joint(self, v: int) -> dict[int, tuple[np.ndarray, int]]:
        """For each neighbour of v the coarsest view that refines the views of all tables with v."""

        def joint() -> dict[int, tuple[np.ndarray, int]]:
            pairs = (p for t in self.around[v] for p in zip(t.vertices, t.views, strict=True))
            views = grouped((u, view) for u, view in pairs if u != v)
            return {u: self._together(views[u]) for u in sorted(views)}

        return memoized(self._joint_of, v, joint)

    def _together(self, views: list[np.ndarray]) -> tuple[np.ndarray, int]:
        def finest() -> tuple[np.ndarray, int]:
            view = _finest(views)
            return view, int(view.max()) + 1

        return memoized(self._joints, tuple(map(id, views)), finest)


def _tables(model: Model) -> list[_Table]:
    """The edges' tables, without the axes of vertices with a single state."""
    tables: list[_Table] = []
    slices: dict[tuple[int, int, int], np.ndarray] = {}

    def at(table: np.ndarray, axis: int, index: int) -> np.ndarray:
        key = (id(table), axis, index)
        return memoized(slices, key, lambda: table.take(index, axis=axis))

    for e in model.edges:
        fixed = [len(model.states[v]) == 1 for v in (e.source, e.target)]
        if not any(fixed):
            tables.append(_Table((e.source, e.target), (e.produced, e.consumed), e.costs))
        elif not fixed[1]:
            tables.append(_Table((e.target,), (e.consumed,), at(e.costs, 0, int(e.produced[0]))))
        elif not fixed[0]:
            tables.append(_Table((e.source,), (e.produced,), at(e.costs, 1, int(e.consumed[0]))))
    return tables


def _leaders(alone: np.ndarray, views: list[np.ndarray]) -> np.ndarray:
    """The cheapest state of each class of states with equal views; the first among equals."""
    if not views:
        return np.array([alone.argmin()])
    groups = _finest(views)
    order = np.lexsort((alone, groups))
    first = np.concatenate(([True], np.diff(groups[order]) != 0))
    return np.sort(order[first])


def _finest(views: Sequence[np.ndarray]) -> np.ndarray:
    """The coarsest view that refines all given views, in their lexicographic order."""
    finest = views[0]
    for view in views[1:]:
        keys = finest * (int(view.max()) + 1) + view
        finest = np.unique(keys, return_inverse=True)[1].reshape(-1)
    return finest


def _spread(
    t: _Table, v: int, near: list[int], joint: dict[int, tuple[np.ndarray, int]]
) -> np.ndarray:
    """The table's costs with v's view first and one axis per neighbour, of length 1 if absent."""
    costs = np.moveaxis(t.costs, t.vertices.index(v), 0)
    others = [u for u in t.vertices if u != v]
    for axis, u in enumerate(others, start=1):
        view, size = joint[u]
        index = np.zeros(size, np.int64)
        index[view] = t.view(u)
        costs = np.take(costs, index, axis=axis)
    order = sorted(range(len(others)), key=lambda n: near.index(others[n]))
    costs = costs.transpose(0, *(n + 1 for n in order))
    sizes = [joint[u][1] if u in others else 1 for u in near]
    return np.ascontiguousarray(costs).reshape(costs.shape[0], *sizes)
