"""Networks of einsum_benchmark's generators, in an environment that has it.

`python -m benchmarks.evaluation.instances NAME FOLDER` writes the operands and prints the format
and the digest of the expected answer, which is opt_einsum's in double precision.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.evaluation.experiment import digest


def generators() -> dict[str, Callable[[], Any]]:
    """The instances by name."""
    from einsum_benchmark.generators import language_model, quantum_computing, random, structured
    from einsum_benchmark.generators.structured.matrix_chain import generate_mcm

    return {
        "matrix chain, 10 of 10–1000": lambda: generate_mcm(10, 10, 1000, seed=1),
        "lattice of 5 × 5, 4 each": lambda: structured.lattice((5, 5), d_min=4, seed=1),
        "lattice of 3 × 3 × 3, 2 each": lambda: structured.lattice((3, 3, 3), d_min=2, seed=1),
        "tree of 60": lambda: structured.tree(n=60, d_min=4, d_max=12, n_outer=2, seed=1),
        "matrix product states, 60 sites": lambda: quantum_computing.matrix_product_state(
            n=60, phys_dim_min=10, phys_dim_max=100, bond_dim=20, seed=1
        ),
        "random network of 30": lambda: random.connected_network(
            30, 3, number_of_output_indices=2, min_axis_size=2, max_axis_size=6, seed=1
        ),
        "random hypernetwork of 20": lambda: random.connected_hypernetwork(
            20, 2.5, max_tensor_order=5, max_edge_order=4, number_of_output_indices=2,
            min_axis_size=2, max_axis_size=6, seed=1,
        ),
        "language model, 100 windows": lambda: language_model.sliding_likelihood(1, 8, 64, 100),
    }  # fmt: skip


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    import opt_einsum

    form, shapes = generators()[name]()[:2]
    shapes = [tuple(int(n) for n in getattr(s, "shape", s)) for s in shapes]
    chance = np.random.default_rng(0)
    operands = []
    for number, shape in enumerate(shapes):
        scale = np.prod(shape, dtype=np.float64) ** 0.25  # so that the answer is near 1
        operands.append((chance.standard_normal(shape) / scale).astype(np.float32))
        np.save(folder / f"{number}.npy", operands[-1])
    expected = opt_einsum.contract(form, *(o.astype(np.float64) for o in operands))
    (folder / "format.txt").write_text(form, encoding="utf-8")
    print(json.dumps(digest(np.asarray(expected))))


if __name__ == "__main__":
    main()
