"""Products of a graph's matrix with a vector at several sites: answers, bytes, memory, balance.

`python -m benchmarks.sparse_sites [--scale 16] [--edges 20] [--ranks 2]` prints a table for R-MAT
graphs of 2^edges edges over 2^scale nodes. Each node also has a stored 0 at its own place, so that
each one has a row in every result. "complete" is the bytes of the other sites' parts of the vector
at each site. "elements" is the greatest number of stored elements of a site over the least.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from scipy import sparse

import einsql

PROBABILITIES = (0.57, 0.19, 0.19)
"""The chances of three quadrants, as in Graph500."""
STEPS = 10
DAMPING = 0.85
PRODUCT = "SELECT a.i, SUM(a.val * x.val) AS val FROM a JOIN x ON a.j = x.i GROUP BY a.i"


def main() -> None:
    """Prints a line for each number of sites."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=int, default=16)
    parser.add_argument("--edges", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=0)
    asked = parser.parse_args()
    matrix = transitions(asked.scale, 2**asked.edges)
    nodes = matrix.shape[0]
    print(f"{nodes:,} nodes, {matrix.nnz:,} stored elements")
    print("sites     predicted      counted     complete  memory/site  elements  PageRank")
    for sites in (1, 2, 4):
        show(matrix, sites, einsql.connect(config={"sites": sites}))
    if asked.ranks:
        con = einsql.connect(config={"mpi": asked.ranks})
        show(matrix, asked.ranks, con, "ranks")
        con.close()


def show(matrix: Any, sites: int, con: Any, kind: str = "") -> None:
    """Prints the measures of one number of sites."""
    nodes = matrix.shape[0]
    con.register("given", matrix, dims=("i", "j"))
    con.register("ones", np.full(nodes, 1.0 / nodes), dims=("i",))
    con.execute("CREATE TENSOR a AS SELECT i, j, val FROM given")
    con.execute(f"CREATE TENSOR x PARTITION BY (i {sites}) AS SELECT i, val FROM ones")
    con.execute("SET strategy = 'data:i'")
    product = con.execute(PRODUCT).fetch_numpy()
    same = np.allclose(product, matrix @ np.full(nodes, 1.0 / nodes), rtol=1e-13, atol=0)
    report = con.explain(PRODUCT, sites=sites, analyze=True).to_dict()
    each = report.get("per_site", [])
    predicted = report["total"]["bytes_sent"] if each else 0
    sent = sum(site["bytes_sent"] for site in each)
    memory = max((site.get("memory_measured", 0) for site in each), default=0)
    work = [site["flops"] for site in each]
    balance = f"{max(work) / min(work):.3f}" if work else ""
    complete = (sites - 1) * nodes * 8
    error = np.abs(ranked(con, nodes) / reference(matrix) - 1).max()
    print(
        f"{sites:2} {kind:6} {predicted:10,} {sent:12,} {complete:12,} {memory:12,} {balance:>9}"
        f"  {error:.1e}{'' if same else '  product differs'}"
    )


def ranked(con: Any, nodes: int) -> np.ndarray:
    """PageRank by repeated statements."""
    con.execute("CREATE OR REPLACE TENSOR r AS SELECT i, val FROM ones")
    product = PRODUCT.replace(" x ", " r ").replace("x.", "r.")
    step = (
        f"CREATE OR REPLACE TENSOR r AS WITH y AS ({product}) "
        f"SELECT i, {DAMPING} * val + {(1 - DAMPING) / nodes} AS val FROM y"
    )
    for _ in range(STEPS):
        con.execute(step)
    result: np.ndarray = con.execute("SELECT i, val FROM r").fetch_numpy()
    return result


def reference(matrix: Any) -> np.ndarray:
    """PageRank by SciPy."""
    nodes = matrix.shape[0]
    ranks = np.full(nodes, 1.0 / nodes)
    for _ in range(STEPS):
        ranks = DAMPING * (matrix @ ranks) + (1 - DAMPING) / nodes
    return ranks


def transitions(scale: int, edges: int) -> Any:
    """The transposed transition matrix of an R-MAT graph, with stored zeros on the diagonal."""
    rng = np.random.default_rng(1)
    at = np.zeros((2, edges), np.int64)
    first, second, third = PROBABILITIES
    for _ in range(scale):
        chance = rng.random(edges)
        down = chance >= first + second
        right = ((chance >= first) & ~down) | (chance >= first + second + third)
        at = at * 2 + [right, down]
    nodes = 2**scale
    graph = sparse.csr_array(
        sparse.coo_array((np.ones(edges), (at[0], at[1])), shape=(nodes, nodes))
    )
    graph.data[:] = 1.0
    leaving = np.asarray(graph.sum(axis=0)).reshape(-1)
    graph.data /= leaving[graph.indices]
    loops = sparse.coo_array((np.zeros(nodes), (np.arange(nodes), np.arange(nodes))))
    every = sparse.coo_array(graph)
    rows = np.concatenate([every.coords[0], loops.coords[0]])
    columns = np.concatenate([every.coords[1], loops.coords[1]])
    values = np.concatenate([every.data, loops.data])
    both = sparse.coo_array((values, (rows, columns)), shape=(nodes, nodes))
    return sparse.csr_array(both)  # adds the zero of a loop to an edge at its place


if __name__ == "__main__":
    main()
