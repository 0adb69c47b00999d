"""The experiments in the page's order."""

from __future__ import annotations

PARTS: dict[str, tuple[str, ...]] = {
    "EinDecomp": ("chains", "chains_in_sql", "training", "memory"),
    "Tensor-relational algebra": ("matmul", "nearest"),
    "Partitioning by work": ("attention", "softmax", "spmv", "monte_carlo", "scaling"),
    "Beyond the papers": (
        "networks",
        "graph_algorithms",
        "ratings",
        "algebras",
        "spelling",
        "first_answers",
    ),
}
"""Names of experiments' files, by the heading above them."""
