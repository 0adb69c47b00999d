"""The processor's time for planning against the size of the graph and the number of sites."""

from __future__ import annotations

from functools import partial
from statistics import median

from benchmarks.evaluation.experiment import Cell, Experiment, Table
from benchmarks.evaluation.plans import CPUS, objective, site_plan
from benchmarks.llama import prepared, timed
from einsql.ir.einsum.graph import EinSum, walk

LAYERS, MORE_LAYERS = (1, 4, 16), (1, 2, 4, 8, 16, 32)
SITES, MORE_SITES = (2, 8, 64), (2, 4, 8, 16, 64, 256, 1024)
STAGES = ("parse", "bind", "optimise")
STRATEGIES = ("eindecomp", "paper", "megatron")
ROUNDS = 3
AT = 8
"""Sites of the table of layers; layers of the table of sites are half as many."""


def computed(full: bool) -> list[Table]:
    """Seconds by layers, and by sites."""
    layers = [line(count, AT, operations=True) for count in (MORE_LAYERS if full else LAYERS)]
    sites = [line(AT // 2, number) for number in (MORE_SITES if full else SITES)]
    units = dict.fromkeys((*STAGES, *STRATEGIES), "s")
    note = f"Seconds of one processor, medians of {ROUNDS} runs."
    return [
        Table(
            "Planning time by layers", ("layers", "operations", *STAGES, *STRATEGIES), layers,
            units, note=f"{note} {AT} sites, in floats.",
        ),
        Table(
            "Planning time by sites", ("sites", *STAGES, *STRATEGIES), sites, units,
            note=f"{note} {AT // 2} layers, in floats.",
        ),
    ]  # fmt: skip


def line(layers: int, sites: int, *, operations: bool = False) -> list[Cell]:
    """The seconds of the stages and of the plans by each strategy."""
    runs = [prepared(layers, 1) for _ in range(ROUNDS)]
    root = runs[0][0]
    stages = {stage: median(seconds[stage] for _, seconds in runs) for stage in STAGES}
    floats = objective("floats", CPUS, sites)
    taken = [
        median(timed(partial(site_plan, (root,), sites, s, floats), 1)[1] for _ in range(ROUNDS))
        for s in STRATEGIES
    ]
    count = [layers, sum(isinstance(n, EinSum) for n in walk(root))] if operations else [sites]
    return [*count, *(stages[s] for s in STAGES), *taken]


EXPERIMENT = Experiment(
    title="Planning time",
    source="EinDecomp §8; beyond the papers",
    about="LLaMA-7B's first token is parsed, bound, optimised, and planned by each strategy: cut, "
    "placed and compiled to the program of the sites. Equal layers are solved once.",
    computed=computed,
)
