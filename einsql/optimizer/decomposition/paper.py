"""EinDecomp as published: exactly p kernel calls, powers of two, linearized DAGs (§8).

If every result has one reader, dynamic programming over the tree is optimal for the cuts
considered. Otherwise the longest path is solved on its own, then the longest path of the
remaining graph, and so on; edges off the path are ignored while it is solved.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np

from einsql.core.mappings import grouped
from einsql.optimizer.decomposition.model import Candidates, Choice, Edge, Model
from einsql.optimizer.decomposition.objective import fitting
from einsql.optimizer.decomposition.problem import Vertex
from einsql.optimizer.decomposition.vectors import viable


def paper_candidates(sites: int, memory: int | None = None) -> Candidates:
    """Vectors of exactly as many calls as the next power of two, for every operation."""
    p = 1 << (sites - 1).bit_length()

    def candidates(v: Vertex) -> np.ndarray:
        return fitting(v, viable(v, p, exactly=True), memory)

    return candidates


def solve_paper(model: Model) -> Choice:
    """The published algorithm's choice."""
    readers = Counter(e.source for e in model.edges)
    choice: list[int | None] = [None] * len(model.states)
    if max(readers.values(), default=0) <= 1:
        _solve(model, set(range(len(choice))), model.edges, choice)
    while None in choice:
        path = _longest_path(model.edges, choice)
        edges = [
            next(e for e in model.edges if (e.source, e.target) == ends) for ends in pairwise(path)
        ]
        _solve(model, set(path), edges, choice)
    return [c for c in choice if c is not None]


def _longest_path(edges: list[Edge], choice: list[int | None]) -> list[int]:
    """The longest chain of readers among the vertices without a choice."""
    length = {v: 1 for v, c in enumerate(choice) if c is None}
    before: dict[int, int] = {}
    for e in sorted(edges, key=lambda e: e.target):
        if e.source in length and e.target in length and length[e.source] >= length[e.target]:
            length[e.target], before[e.target] = length[e.source] + 1, e.source
    at = max(length, key=lambda v: (length[v], -v))
    path = [at]
    while at in before:
        at = before[at]
        path.append(at)
    return path[::-1]


def _solve(model: Model, inside: set[int], edges: list[Edge], choice: list[int | None]) -> None:
    """Dynamic programming over vertices whose edges form a forest towards the results."""
    reach: dict[int, np.ndarray] = {}
    back: list[tuple[Edge, np.ndarray]] = []
    into = grouped((e.target, e) for e in edges)
    for v in sorted(inside):
        total = model.alone[v].copy()
        for e in into.get(v, []):
            pairs = reach[e.source][:, None] + e.costs[e.produced]
            at = pairs.argmin(axis=0)
            total += pairs[at, np.arange(pairs.shape[1])][e.consumed]
            back.append((e, at))
        reach[v] = total
    read = {e.source for e in edges}
    for v in inside - read:
        choice[v] = int(reach[v].argmin())
    for e, at in reversed(back):
        reader = choice[e.target]
        assert reader is not None
        choice[e.source] = int(at[e.consumed[reader]])
