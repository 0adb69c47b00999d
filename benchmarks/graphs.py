"""Graph algorithms as SQL statements over a stored sparse tensor, beside SciPy.

Usage: `python -m benchmarks.graphs [SCALE …] [--only NAME]`; a graph of scale s has 2^s vertices
and 2^(s+4) edges. Both sides run the same algorithm with the same vectors: one statement, or one
expression of SciPy and NumPy, for each step. The time of a statement over a graph of 1,024 vertices
is the overhead that does not depend on the graph.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csgraph, csr_array

import einsql
from benchmarks import report
from benchmarks.matrices import Array
from benchmarks.measure import Run, measure
from benchmarks.report import Finding, Section, factor, times

QUADRANTS = (0.57, 0.19, 0.19, 0.05)
"""The probabilities of the quadrants of R-MAT, as in Graph500."""
EACH = 16
"""Edges for each vertex before duplicates and loops are removed."""
SMALL = 10
"""The scale of the graph whose statements show the overhead."""
DAMPING = 0.85
MOST_STEPS = 64
"""The greatest number of steps of shortest paths and components."""
TIMES_OF_SCIPY = {"PageRank": 1.5, "triangles": 1.5}
"""The greatest time relative to SciPy's; 3 for the others."""


def edges_of(scale: int, seed: int = 1) -> tuple[Array, Array]:
    """The distinct edges of an R-MAT graph without loops, ordered by source and target."""
    chance = np.random.default_rng(seed)
    count = EACH << scale
    source, target = np.zeros(count, np.int64), np.zeros(count, np.int64)
    bounds = np.cumsum(QUADRANTS[:3])
    for _ in range(scale):
        quadrant = np.searchsorted(bounds, chance.random(count), side="right")
        source, target = 2 * source + quadrant // 2, 2 * target + quadrant % 2
    order = chance.permutation(1 << scale)  # degrees do not depend on the number of a vertex
    source, target = order[source], order[target]
    flat = np.unique((source << scale | target)[source != target])
    return flat >> scale, flat & ((1 << scale) - 1)


@dataclass(frozen=True)
class Graph:
    """A graph, and its edges as tensors of a session.

    Attributes:
        con: The session, with the tensors e (directed), u (undirected), w (with lengths) and l
            (undirected edges from the vertex of greater degree, which triangles are counted by).
        directed: The directed edges, from rows to columns.
        undirected: The edges in both directions.
        lengths: The directed edges with lengths from 1 to 8.
        lower: The edges of l.
    """

    con: einsql.Connection
    directed: Any
    undirected: Any
    lengths: Any
    lower: Any

    @property
    def vertices(self) -> int:
        """The number of vertices."""
        return int(self.directed.shape[0])

    def column(self, sql: str, fill: float) -> Array:
        """The result of a statement with one key, and a number for absent vertices."""
        values: Array = self.con.execute(sql).fetch_numpy(fill=fill)
        return values


def graph(scale: int) -> Graph:
    """Generates a graph and stores its tensors."""
    source, target = edges_of(scale)
    shape = (1 << scale, 1 << scale)
    directed = _matrix(source, target, shape, np.ones(len(source)))
    both = np.unique(np.concatenate((source << scale | target, target << scale | source)))
    from_, to = both >> scale, both & (shape[0] - 1)
    undirected = _matrix(from_, to, shape, np.ones(len(both)))
    degree = np.bincount(from_, minlength=shape[0])
    rank = np.empty(shape[0], np.int64)
    rank[np.argsort(degree, kind="stable")] = np.arange(shape[0])
    down = rank[from_] > rank[to]
    lower = _matrix(rank[from_[down]], rank[to[down]], shape, np.ones(np.count_nonzero(down)))
    chance = np.random.default_rng(2)
    lengths = _matrix(source, target, shape, chance.integers(1, 9, len(source)).astype(np.float64))
    con = einsql.connect()
    for name, matrix in {"e": directed, "u": undirected, "w": lengths, "l": lower}.items():
        con.register("source", matrix, dims=("i", "j"))
        con.execute(f"CREATE TENSOR {name} STORAGE SPARSE AS SELECT i, j, val FROM source")
        con.unregister("source")
    return Graph(con, directed, undirected, lengths, lower)


def _matrix(rows: Array, columns: Array, shape: tuple[int, int], values: Array) -> Any:
    matrix = csr_array((values, (rows, columns)), shape=shape)
    matrix.sort_indices()
    return matrix


# Algorithms: each function returns the step of einsql and that of SciPy ----------------------

Solve = Callable[[], Array]


def page_rank(g: Graph) -> tuple[Solve, Solve]:
    """Ten iterations, with the rank of vertices without edges spread over all vertices."""
    n = g.vertices
    degree = g.directed.sum(axis=1)
    dangling = degree == 0
    share = np.zeros(n)
    rank = np.full(n, 1 / n)
    g.con.register("share", share, dims=("i",))

    def iterated(product: Callable[[], Array]) -> Array:
        rank[:] = 1 / n
        for _ in range(10):
            np.divide(rank, degree, out=share, where=~dangling)
            rest = (1 - DAMPING) / n + DAMPING * rank[dangling].sum() / n
            rank[:] = DAMPING * product() + rest
        return rank.copy()

    def ours() -> Array:
        return g.column(
            "SELECT e.j AS i, SUM(e.val * share.val) AS val FROM e JOIN share ON e.i = share.i "
            "GROUP BY e.j",
            0.0,
        )

    turned = g.directed.T.tocsr()
    return lambda: iterated(ours), lambda: iterated(lambda: turned @ share)


def breadth_first(g: Graph) -> tuple[Solve, Solve]:
    """The number of edges to every vertex from that of the greatest degree, -1 for none."""
    n, start = g.vertices, int(np.argmax(g.directed.sum(axis=1)))
    depth, frontier = np.empty(n, np.int32), np.empty(n, np.bool_)
    g.con.register("depth", depth, dims=("i",))
    g.con.register("frontier", frontier, dims=("i",))

    def levels(reached: Callable[[], Array]) -> Array:
        depth[:], frontier[:] = -1, False
        depth[start], frontier[start] = 0, True
        level = 0
        while frontier.any():
            level += 1
            frontier[:] = reached()
            depth[frontier] = level
        return depth.copy()

    def ours() -> Array:
        return g.column(
            "SELECT e.j AS i, BOOL_OR(f.val) AS val FROM e JOIN frontier f ON e.i = f.i "
            "JOIN depth d ON e.j = d.i WHERE d.val < 0 GROUP BY e.j",
            False,
        )

    turned = g.directed.astype(np.bool_).T.tocsr()
    return lambda: levels(ours), lambda: levels(lambda: (turned @ frontier) & (depth < 0))


def shortest_paths(g: Graph) -> tuple[Solve, Solve]:
    """The distance of every vertex from that of the greatest degree (Bellman and Ford)."""
    start = int(np.argmax(g.directed.sum(axis=1)))
    distance = np.empty(g.vertices)
    g.con.register("distance", distance, dims=("i",))

    def ours() -> Array:
        return g.column(
            "SELECT w.j AS i, MIN(w.val + d.val) AS val FROM w JOIN distance d ON w.i = d.i "
            "GROUP BY w.j",
            np.inf,
        )

    turned = g.lengths.T.tocsr()

    def begin() -> None:
        distance[:] = np.inf
        distance[start] = 0

    theirs = _least(turned, lambda: turned.data + distance[turned.indices], np.inf)
    return lambda: _fixed(begin, distance, ours), lambda: _fixed(begin, distance, theirs)


def components(g: Graph) -> tuple[Solve, Solve]:
    """The least vertex of every vertex's component, by the least label of the neighbours."""
    label = np.empty(g.vertices, np.int32)
    g.con.register("label", label, dims=("i",))

    def ours() -> Array:
        return g.column(
            "SELECT u.i, MIN(label.val) AS val FROM u JOIN label ON u.j = label.i GROUP BY u.i",
            g.vertices,
        )

    def begin() -> None:
        label[:] = np.arange(g.vertices)

    theirs = _least(g.undirected, lambda: label[g.undirected.indices], g.vertices)
    return lambda: _fixed(begin, label, ours), lambda: _fixed(begin, label, theirs)


def _least(matrix: Any, terms: Callable[[], Array], nothing: float) -> Solve:
    """The least term of each row, by NumPy: SciPy has no other semiring than + and *."""
    there = np.diff(matrix.indptr) > 0
    starts = matrix.indptr[:-1][there]

    def run() -> Array:
        values = terms()
        least = np.full(len(there), nothing, values.dtype)
        least[there] = np.minimum.reduceat(values, starts)
        return least

    return run


def _fixed(begin: Callable[[], None], state: Array, step: Solve) -> Array:
    """Takes minima with the results of steps until nothing changes."""
    begin()
    for _ in range(MOST_STEPS):
        least = np.minimum(state, step())
        if np.array_equal(least, state):
            break
        state[:] = least
    return state.copy()


def triangles(g: Graph) -> tuple[Solve, Solve]:
    """The number of triangles: pairs of edges that a third one closes.

    einsql computes the elements of the product that have an edge, SciPy all of them.
    """

    def ours() -> Array:
        return np.array(
            g.con.execute(
                "SELECT COUNT(*) FROM l a JOIN l b ON a.j = b.i JOIN l c ON a.i = c.i AND b.j = c.j"
            ).fetchone()
        )

    return ours, lambda: np.array([((g.lower @ g.lower).multiply(g.lower)).sum()])


ALGORITHMS: dict[str, Callable[[Graph], tuple[Solve, Solve]]] = {
    "PageRank": page_rank,
    "breadth-first search": breadth_first,
    "shortest paths": shortest_paths,
    "components": components,
    "triangles": triangles,
}


# Algorithms of SciPy that take other steps: each function returns the computation -------------


def breadth_first_order(g: Graph) -> Solve:
    """The levels of csgraph's order, in which the places of parents ascend."""
    n, start = g.vertices, int(np.argmax(g.directed.sum(axis=1)))

    def run() -> Array:
        order, parents = csgraph.breadth_first_order(g.directed, start)
        places = np.empty(n, np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        above = places[parents[order[1:]]]
        depth = np.full(n, -1, np.int32)
        level, first, last = 0, 0, 1
        while first < last:
            depth[order[first:last]] = level
            first, last = last, 1 + int(np.searchsorted(above, last))
            level += 1
        return depth

    return run


def dijkstra(g: Graph) -> Solve:
    """The distances by csgraph's Dijkstra, which has a heap."""
    start = int(np.argmax(g.directed.sum(axis=1)))
    return lambda: csgraph.dijkstra(g.lengths, indices=start)


def connected_components(g: Graph) -> Solve:
    """The least vertex of each of csgraph's components."""

    def run() -> Array:
        count, labels = csgraph.connected_components(g.undirected, directed=False)
        least = np.empty(count, np.int32)
        least[labels[::-1]] = np.arange(g.vertices - 1, -1, -1, dtype=np.int32)
        found: Array = least[labels]
        return found

    return run


def common_neighbours(g: Graph) -> Solve:
    """The triangles by L·Lᵀ, whose vertices have fewer pairs of neighbours."""
    turned = g.lower.T.tocsr()
    return lambda: np.array([((g.lower @ turned).multiply(g.lower)).sum()])


OTHERS: dict[str, Callable[[Graph], Solve]] = {
    "breadth-first search": breadth_first_order,
    "shortest paths": dijkstra,
    "components": connected_components,
    "triangles": common_neighbours,
}
"""SciPy's algorithms that are not einsql's, with the same answer."""


def findings(scale: int, only: str = "") -> Iterator[Finding]:
    """Every algorithm over a graph, beside SciPy, and over a small graph."""
    large, small = graph(scale), graph(SMALL)
    for name, algorithm in ALGORITHMS.items():
        if only not in name:
            continue
        ours, theirs = algorithm(large)
        np.testing.assert_allclose(ours(), theirs(), rtol=1e-9)
        short, _ = algorithm(small)
        contestants: dict[str, Run] = {"einsql": ours, "scipy": theirs, "einsql, small": short}
        taken = measure(contestants, rounds=5, seconds=2.0)
        ratio, most = taken.ratio("einsql", "scipy"), TIMES_OF_SCIPY.get(name, 3.0)
        yield Finding(
            f"{name}, {1 << scale:,} vertices, {large.directed.nnz:,} edges",
            factor(ratio, 2),
            f"≤ {most}×",
            ratio.value <= most,
            times({contestant: taken.median(contestant) for contestant in contestants}),
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.graphs")
    parser.add_argument("scales", nargs="*", type=int, default=[16])
    parser.add_argument("--only", default="", help="a part of the name of algorithms")
    options = parser.parse_args()
    found = tuple(f for scale in options.scales for f in findings(scale, options.only))
    title = "Graphs: einsql's time / SciPy's time"
    print("\n".join(report.machine()), end="\n\n")
    print(report.as_text([Section(title, found)]))


if __name__ == "__main__":
    main()
