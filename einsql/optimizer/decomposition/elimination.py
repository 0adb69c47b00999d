"""The best choice of all, by eliminating one vertex after another.

What a vertex means to the rest is a table over its neighbours' views; summing its
tables and keeping the least entry over its own states removes it. The work grows with
the width of the graph, so a limit decides when to give up.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einsql.optimizer.decomposition.model import Choice, Model

LIMIT = 1.5e9
"""Additions all eliminations together may take; about three seconds."""


@dataclass(frozen=True, slots=True, eq=False)
class _Table:
    """Costs over views of vertices: axis n is indexed by `views[n][state]`."""

    vertices: tuple[int, ...]
    views: tuple[np.ndarray, ...]
    costs: np.ndarray

    def view(self, v: int) -> np.ndarray:
        """How the table sees a vertex."""
        return self.views[self.vertices.index(v)]


@dataclass(frozen=True, slots=True, eq=False)
class _Removed:
    """What is left of a vertex: least costs over its neighbours' views, and its states."""

    views: tuple[np.ndarray, ...]
    costs: np.ndarray
    states: np.ndarray


def eliminate(model: Model, limit: float = LIMIT) -> Choice | None:
    """The optimal choice, or None if finding it would exceed the limit."""
    return _Elimination(model).run(limit)


class _Elimination:
    """One run; equal neighbourhoods, as the layers of a network have, are summed once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.around: list[list[_Table]] = [[] for _ in model.states]
        for t in _tables(model):
            for v in t.vertices:
                self.around[v].append(t)
        self._joints: dict[object, tuple[np.ndarray, int]] = {}
        self._removed: dict[object, _Removed] = {}

    def run(self, limit: float) -> Choice | None:
        left = set(range(len(self.around)))
        works = {v: self._work(v) for v in left}
        steps: list[tuple[int, list[int], _Removed]] = []
        while left:
            v = min(left, key=lambda u: (works[u], u))
            near = self._neighbours(v)
            key = self._key(v, near)
            if key not in self._removed:
                limit -= works[v]
                if limit < 0:
                    return None
                self._removed[key] = self._remove(v, near)
            removed = self._removed[key]
            steps.append((v, near, removed))
            left.discard(v)
            table = _Table(tuple(near), removed.views, removed.costs)
            for u in near:
                self.around[u] = [t for t in self.around[u] if v not in t.vertices] + [table]
            for u in near:
                works[u] = self._work(u)
        choice = [0] * len(self.around)
        for v, near, removed in reversed(steps):
            at = tuple(view[choice[u]] for u, view in zip(near, removed.views, strict=True))
            choice[v] = int(removed.states[at])
        return choice

    def _neighbours(self, v: int) -> list[int]:
        return sorted({u for t in self.around[v] for u in t.vertices} - {v})

    def _work(self, v: int) -> float:
        """Additions it takes to eliminate a vertex, at most."""
        work = float(len(self.model.states[v]))
        for u in self._neighbours(v):
            work *= self._joint(v, u)[1]
        return work

    def _key(self, v: int, near: list[int]) -> object:
        """What the outcome of an elimination depends on."""
        rank = {u: n for n, u in enumerate((v, *near))}
        return id(self.model.alone[v]), tuple(
            (tuple(rank[u] for u in t.vertices), id(t.costs), tuple(map(id, t.views)))
            for t in self.around[v]
        )

    def _joint(self, v: int, u: int) -> tuple[np.ndarray, int]:
        """One view of u that tells apart what any table it shares with v tells apart."""
        views = [t.view(u) for t in self.around[v] if u in t.vertices]
        key = tuple(map(id, views))
        if key not in self._joints:
            if len(views) == 1:
                self._joints[key] = views[0], int(views[0].max()) + 1
            else:
                found, index = np.unique(np.stack(views), axis=1, return_inverse=True)
                self._joints[key] = index.reshape(-1), found.shape[1]
        return self._joints[key]

    def _remove(self, v: int, near: list[int]) -> _Removed:
        """Sums the tables around a vertex and keeps the least entry over its states."""
        tables = self.around[v]
        joint = {u: self._joint(v, u) for u in near}
        shape = tuple(joint[u][1] for u in near)
        alone = self.model.alone[v]
        best = np.full(shape, np.inf)
        states = np.zeros(shape, np.int32)
        spread = [(t.view(v), _spread(t, v, near, joint)) for t in tables]
        for state in _leaders(alone, [t.view(v) for t in tables]):
            total = np.full(shape, alone[state])
            for rows, costs in spread:
                total += costs[rows[state]]
            better = total < best
            np.copyto(best, total, where=better)
            states[better] = state
        return _Removed(tuple(joint[u][0] for u in near), best, states)


def _tables(model: Model) -> list[_Table]:
    """The edges' tables, without the axes of vertices that have no choice."""
    made: list[_Table] = []
    slices: dict[tuple[int, int, int], np.ndarray] = {}

    def at(table: np.ndarray, axis: int, index: int) -> np.ndarray:
        key = (id(table), axis, index)
        if key not in slices:
            slices[key] = table.take(index, axis=axis)
        return slices[key]

    for e in model.edges:
        fixed = [len(model.states[v]) == 1 for v in (e.source, e.target)]
        if not any(fixed):
            made.append(_Table((e.source, e.target), (e.made, e.used), e.floats))
        elif not fixed[1]:
            made.append(_Table((e.target,), (e.used,), at(e.floats, 0, int(e.made[0]))))
        elif not fixed[0]:
            made.append(_Table((e.source,), (e.made,), at(e.floats, 1, int(e.used[0]))))
    return made


def _leaders(alone: np.ndarray, views: list[np.ndarray]) -> np.ndarray:
    """The cheapest of the states that no view tells apart."""
    if not views:
        return np.array([alone.argmin()])
    groups = np.unique(np.stack(views), axis=1, return_inverse=True)[1].reshape(-1)
    order = np.lexsort((alone, groups))
    first = np.concatenate(([True], np.diff(groups[order]) != 0))
    return order[first]


def _spread(
    t: _Table, v: int, near: list[int], joint: dict[int, tuple[np.ndarray, int]]
) -> np.ndarray:
    """The table's costs with v's view first and one axis, perhaps of length 1, per neighbour."""
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
