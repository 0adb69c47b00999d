"""Bytes that products of matrices send, against lower bounds of any algorithm."""

from __future__ import annotations

from itertools import product
from math import sqrt

from benchmarks.evaluation.experiment import Cell, Experiment, Table
from benchmarks.evaluation.experiments.chains_planned import grid
from benchmarks.evaluation.plans import CHOSEN, CPUS, Planned, costs, graph, objective, site_plan
from benchmarks.simulated_ranks import PRODUCT

SHAPES = {
    "4096³": (4096, 4096, 4096),
    "16384 × 4096 × 1024": (16384, 4096, 1024),
    "65536 × 1024 × 1024": (65536, 1024, 1024),
}
"""Rows of A, columns of B, and the contracted extent between them."""
SITES, MORE_SITES = (2, 4, 8, 16, 64), (2, 3, 4, 6, 8, 9, 12, 16, 24, 27, 32, 48, 64)
WIDTH = 4
"""Bytes of a FLOAT."""


def least_words(m: int, n: int, k: int, sites: int) -> float:
    """Words that a site must send or receive at least (Al Daas et al. 2022, Theorem 3.1).

    Inputs and output have one copy over all sites, and each site multiplies as much.
    """
    k, n, m = sorted((m, n, k))
    own = (m * n + m * k + n * k) / sites
    if sites <= m / n:
        return (m * n + m * k) / sites + n * k - own
    if sites <= m * n / k**2:
        return 2 * sqrt(m * n * k**2 / sites) + m * n / sites - own
    faces: float = 3 * (m * n * k / sites) ** (2 / 3)
    return faces - own


def memory_words(m: int, n: int, k: int, sites: int, memory: int) -> float:
    """Words that a site of some bytes of memory reads at least: 2mnk/(P·√M)."""
    return 2 * m * n * k / (sites * sqrt(memory / WIDTH))


def best(m: int, n: int, k: int, sites: int) -> Planned:
    """The plan that sends the fewest bytes over layouts of one copy of each input."""
    layouts = dict.fromkeys([(sites, 1), (1, sites), grid(sites), grid(sites)[::-1]])
    tensors = {"a": {"i": m, "j": k}, "b": {"j": k, "k": n}}
    found = []
    for a, b in product(layouts, repeat=2):
        roots = graph(tensors, PRODUCT, {"a": a, "b": b})
        plan = site_plan(roots, sites, CHOSEN, objective("bytes", CPUS, sites))
        assert plan is not None, "eindecomp cuts every statement"
        found.append(costs(plan, CPUS))
    return min(found, key=lambda planned: planned.nbytes)


def computed(full: bool) -> list[Table]:
    """Bytes and bounds by shape and number of sites."""
    rows: list[list[Cell]] = []
    for name, shape in SHAPES.items():
        for sites in MORE_SITES if full else SITES:
            plan = best(*shape, sites)
            bound = WIDTH * sites * least_words(*shape, sites)
            read = WIDTH * sites * memory_words(*shape, sites, plan.memory)
            rows.append([name, sites, plan.nbytes, bound, plan.nbytes / bound, plan.memory, read])
    return [
        Table(
            "Bytes against lower bounds",
            ("m × n × k", "sites", "sent", "bound", "sent / bound", "memory of a site",
             "bound on reads"),
            rows,
            dict.fromkeys(("sent", "bound", "memory of a site", "bound on reads"), "B")
            | {"sent / bound": "×"},
            note="Bytes of all sites. `bound` is P times the tight bound of one processor: for "
            "m ≥ n ≥ k it is (mn + mk)/P + nk if P ≤ m/n, 2·√(mnk²/P) + mn/P if P ≤ mn/k², and "
            "3·(mnk/P)^⅔ beyond, less its own (mn + mk + nk)/P words. `bound on reads` is "
            "P · 2mnk/(P·√M), the leading term for a memory of M words, which is here the peak "
            "memory of a site; it also counts words that the site has from the beginning.",
        )
    ]  # fmt: skip


EXPERIMENT = Experiment(
    title="Bytes against lower bounds",
    source="beyond the papers; the bounds are of Al Daas, Ballard, Grigori, Kumar and Rouse, "
    "*Tight memory-independent parallel matrix multiplication communication lower bounds* (SPAA "
    "2022), and of Kwasniewski et al., *Red-blue pebbling revisited* (SC 2019)",
    about="A product of an m × k and a k × n matrix. Each site has one block of each input, by "
    "rows, by columns or by a grid, whichever leads to the fewest bytes. The result stays where "
    "it is made.",
    sql={"The statement": PRODUCT},
    computed=computed,
)
