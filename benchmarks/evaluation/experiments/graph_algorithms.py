"""Graph algorithms as statements over a sparse tensor, beside SciPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import (
    Array,
    Case,
    Contestant,
    Experiment,
    Prepared,
    Task,
    digest,
)

NAMES = ("PageRank", "breadth-first search", "shortest paths", "components", "triangles")
SAME, OWN = "the same steps", "its own algorithm"


def cases(full: bool) -> list[Case]:
    """All algorithms, over one size of graph or two."""
    return [
        Case(f"{name}, {1 << scale:,} vertices", {"algorithm": n, "scale": scale})
        for scale in ((16, 18) if full else (16,))
        for n, name in enumerate(NAMES)
    ]


def write(case: Case, folder: Path) -> list[float]:
    """The answer by another algorithm than einsql's; each contestant generates the graph."""
    from benchmarks.graphs import OTHERS, graph

    name, of = NAMES[case.sizes["algorithm"]], graph(case.sizes["scale"])
    return digest(OTHERS[name](of)() if name in OTHERS else ranked(of))


def ranked(g: Any) -> Array:
    """The ranks of PageRank's vertices after ten iterations, by sums over a list of edges."""
    from benchmarks.graphs import DAMPING

    n, edges = g.vertices, g.directed.tocoo()
    degree = np.bincount(edges.row, minlength=n)
    rank = np.full(n, 1 / n)
    for _ in range(10):
        share = np.divide(rank, degree, out=np.zeros(n), where=degree > 0)
        rest = (1 - DAMPING + DAMPING * rank[degree == 0].sum()) / n
        rank = DAMPING * np.bincount(edges.col, share[edges.row], n) + rest
    return rank


def ways(case: Case) -> tuple[str, ...]:
    """Steps like einsql's, and an algorithm that is SciPy's own."""
    from benchmarks.graphs import OTHERS

    return (SAME, OWN) if NAMES[case.sizes["algorithm"]] in OTHERS else (SAME,)


def _pair(case: Case) -> tuple[Callable[[], Array], Callable[[], Array]]:
    from benchmarks.graphs import ALGORITHMS, graph

    ours, theirs = ALGORITHMS[NAMES[case.sizes["algorithm"]]](graph(case.sizes["scale"]))
    return ours, theirs


def by_einsql(task: Task) -> Prepared:
    """einsql, a statement for each step."""
    ours, _ = _pair(task.case)
    return Prepared(ours, lambda result: result)


def by_scipy(task: Task) -> Prepared:
    """SciPy and NumPy, with the same steps or with an algorithm of SciPy."""
    from benchmarks.graphs import OTHERS, graph

    if task.way == SAME:
        _, theirs = _pair(task.case)
    else:
        theirs = OTHERS[NAMES[task.size["algorithm"]]](graph(task.size["scale"]))
    return Prepared(theirs, lambda result: result)


EXPERIMENT = Experiment(
    title="Graph algorithms over sparse tensors",
    source="benchmarks/graphs.py",
    about="R-MAT graphs with 16 edges for each vertex. einsql runs one statement for each step. "
    "SciPy takes the same steps, an expression of SciPy and NumPy for each, or its own algorithm "
    "if that is faster: `breadth_first_order`, `dijkstra` and `connected_components` of csgraph, "
    "and L·Lᵀ in place of L·L for triangles. einsql computes only the elements of L·L that L has, "
    "which SciPy has no function for. The reference is NumPy's for PageRank and SciPy's own "
    "algorithm for the others.",
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql),
        Contestant("SciPy", prepare=by_scipy, ways=ways),
    ),
    write=write,
)
