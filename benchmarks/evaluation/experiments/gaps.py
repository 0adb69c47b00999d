"""How much more than the optimum each strategy moves, on random graphs and on the networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from benchmarks.evaluation.experiment import Cell, Experiment, Table
from benchmarks.evaluation.experiments import chains_planned, classifier_planned, llama_planned
from benchmarks.evaluation.plans import CPUS, objective, site_plan
from benchmarks.optimality import SITES
from einsql.ir.einsum.graph import Roots
from einsql.optimizer.decomposition.decompose import cut_problem
from einsql.optimizer.decomposition.descent import search
from einsql.optimizer.decomposition.model import free_candidates, model_of
from tests.optimizer.problems import random_problem

SEEDS, MORE_SEEDS = range(600, 610), range(600, 900)
S = chains_planned.S
NETWORKS: Mapping[str, Callable[[], Roots]] = {
    "square chain": lambda: chains_planned.chain(S, S),
    "skewed chain": lambda: chains_planned.chain(S // 10, 10 * S),
    "training step, batch 512": lambda: classifier_planned.step(512, 597_540, 0),
    "LLaMA-7B, 2 layers": lambda: llama_planned.network(2, 4, 4096),
}
STRATEGIES = ("eindecomp", "paper", "equal", "data:n", "model", "megatron", "sequence", "attention")


def computed(full: bool) -> list[Table]:
    """The gaps on random graphs and on the networks of the other experiments."""
    return [on_random_graphs(MORE_SEEDS if full else SEEDS), on_networks()]


def on_random_graphs(seeds: range) -> Table:
    """Median and worst gaps by the number of sites."""
    ways = "eindecomp", "search", "paper", "equal"
    rows: list[list[Cell]] = []
    for sites in SITES:
        gaps: dict[str, list[float]] = {way: [] for way in ways}
        for seed in seeds:
            problem = random_problem(seed, 8 + seed % 13)
            best = cut_problem(problem, sites, "exact").cost
            model = model_of(problem.published, free_candidates(sites))
            costs = {
                way: cut_problem(problem, sites, way).floats for way in ways if way != "search"
            }
            costs["search"] = model.cost(search(model))
            for way, cost in costs.items():
                gaps[way].append(cost / best - 1 if best else 0.0)
        rows.append([sites, *(f(gaps[way]) for way in ways for f in (median, max))])
    columns = [f"{way}, {what}" for way in ways for what in ("median", "worst")]
    return Table(
        "Gaps on random graphs", ("sites", *columns), rows, dict.fromkeys(columns, "%"),
        note=f"{len(seeds)} graphs of 8 to 20 operations with shared results, in floats, against "
        "`exact`. `search` is what `eindecomp` falls back to on graphs that are too wide for its "
        "elimination. `equal` may take more calls than there are sites, or fewer.",
    )  # fmt: skip


def on_networks() -> Table:
    """The gap of each strategy on each network."""
    rows: list[list[Cell]] = []
    for name, graph in NETWORKS.items():
        roots = graph()
        for sites in (4, 8):
            floats = objective("floats", CPUS, sites)
            best = site_plan(roots, sites, "exact", floats)
            assert best is not None, "the networks are solved exactly"
            plans = [site_plan(roots, sites, s, floats) for s in STRATEGIES]
            gaps = [None if p is None else p.cut.cost / best.cut.cost - 1 for p in plans]
            rows.append([name, sites, *gaps])
    return Table(
        "Gaps on networks", ("", "sites", *STRATEGIES), rows, dict.fromkeys(STRATEGIES, "%"),
        note="In floats, against `exact`. A cell is empty if the strategy has nothing to cut.",
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="The gap to the optimum",
    source="EinDecomp §8; beyond the papers",
    about="`exact` proves its choice of cuts optimal by the search's estimate. A gap is how much "
    "more a strategy costs, as a share of that optimum.",
    computed=computed,
)
