"""The experiments in the page's order."""

from __future__ import annotations

PARTS: dict[str, tuple[str, ...]] = {
    "EinDecomp": (
        "chains", "chains_planned", "chains_in_sql", "training", "classifier_planned",
        "llama_planned", "llama_on_ranks", "memory",
    ),
    "Tensor-relational algebra": ("matmul", "nearest", "tra_costs"),
    "Partitioning by work": ("attention", "softmax", "spmv", "monte_carlo", "scaling"),
    "Sharding": ("sharding",),
    "Beyond the papers": (
        "gaps", "planning_time", "rules_left_out", "lower_bounds", "simulation_on_ranks",
        "networks", "graph_algorithms", "ratings", "algebras", "spelling", "first_answers",
    ),
}  # fmt: skip
"""Names of experiments' files, by the heading above them."""
