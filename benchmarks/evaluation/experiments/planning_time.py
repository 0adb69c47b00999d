"""The processor's time for planning against the size of the graph and the number of sites."""

from __future__ import annotations

from functools import partial

from benchmarks.evaluation.experiment import Cell, Experiment, Table
from benchmarks.evaluation.plans import CPUS, objective, site_plan
from benchmarks.llama import prepared, timed
from einsql.ir.einsum.graph import EinSum, walk

LAYERS, MORE_LAYERS = (1, 4, 16), (1, 2, 4, 8, 16, 32)
SITES, MORE_SITES = (2, 8, 64), (2, 4, 8, 16, 64, 256, 1024)
STAGES = ("parse", "bind", "optimise")
STRATEGIES = ("eindecomp", "paper", "megatron")
AT = 8
"""Sites of the table of layers; layers of the table of sites are half as many."""


def computed(full: bool) -> list[Table]:
    """Seconds by layers, and by sites."""
    rounds = 3 if full else 1
    layers = [
        line(count, AT, rounds, operations=True) for count in (MORE_LAYERS if full else LAYERS)
    ]
    sites = [line(AT // 2, number, rounds) for number in (MORE_SITES if full else SITES)]
    units = dict.fromkeys((*STAGES, *STRATEGIES), "s")
    note = "Seconds of one processor, which other processes on the machine hardly change."
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


def line(layers: int, sites: int, rounds: int, *, operations: bool = False) -> list[Cell]:
    """The seconds of the stages and of the plans by each strategy."""
    root, stages = prepared(layers, rounds)
    floats = objective("floats", CPUS, sites)
    taken = [timed(partial(site_plan, (root,), sites, s, floats), rounds)[1] for s in STRATEGIES]
    count = [layers, sum(isinstance(n, EinSum) for n in walk(root))] if operations else [sites]
    return [*count, *(stages[s] for s in STAGES), *taken]


EXPERIMENT = Experiment(
    title="Planning time",
    source="EinDecomp §8; beyond the papers",
    about="LLaMA-7B's first token is parsed, bound, optimised, and planned by each strategy: cut, "
    "placed and compiled to the program of the sites. Equal layers are solved once.",
    computed=computed,
)
