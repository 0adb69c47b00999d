"""E3 planned: LLaMA-7B's first token by the strategies of the paper, on up to 1024 sites."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

from benchmarks.evaluation.experiment import Cell, Experiment, Table
from benchmarks.evaluation.plans import (
    CHOSEN,
    GPUS,
    Comparison,
    Subject,
    costs,
    graph,
    objective,
    site_plan,
)
from benchmarks.llama import SHAPE
from einsql.ir.einsum.graph import Roots
from tests.support.networks import transformer

LAYERS, FULL_LAYERS = 4, 32
"""All layers are alike; the last table checks that each one adds the same."""
SITES, MORE_SITES = (2, 4, 8, 64, 1024), (1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512, 1024)
EXACT_SITES = 8
BATCHES, MORE_BATCHES = (1, 2, 8), (1, 2, 4, 8)
STRATEGIES = ("megatron", "sequence", "attention")


@cache
def network(layers: int, batch: int, tokens: int) -> Roots:
    """The graph of some layers for some sequences."""
    return graph(*transformer(layers, **{**SHAPE, "b": batch, "s": tokens}))  # type: ignore[arg-type]  # SHAPE has no names


def on_sites(layers: int, batch: int, tokens: int, sites: int) -> Roots:
    """The same graph on any number of sites."""
    return network(layers, batch, tokens)


def computed(full: bool) -> list[Table]:
    """The three series of the paper, for each measure, and the layers."""
    layers = FULL_LAYERS if full else LAYERS
    numbers = MORE_SITES if full else SITES
    subjects: dict[str, tuple[Subject, Sequence[int]]] = {
        f"{batch} × 4096 tokens": (partial(on_sites, layers, batch, 4096), (8,))
        for batch in (MORE_BATCHES if full else BATCHES)
    }
    note = (
        f"{layers} layers. `exact` is asked for up to {EXACT_SITES} sites; its cells are empty "
        "beyond them."
    )
    compared = Comparison(GPUS, STRATEGIES, EXACT_SITES)
    what = "LLaMA-7B's first token"
    tables = compared.tables(f"{what} by batch", subjects, note)
    for batch, tokens in ((4, 4096), (8, 1024)):
        name = f"{batch} × {tokens} tokens"
        subject = {name: (partial(on_sites, layers, batch, tokens), numbers)}
        tables += compared.tables(f"{what}, {name}", subject, note)
    return [*tables, further_layers(full)]


def further_layers(full: bool) -> Table:
    """What each further layer adds to `eindecomp`'s plan."""
    rows: list[list[Cell]] = []
    before = None
    for layers in (1, 2, 3, 4, 31, 32) if full else (1, 2, 3, 4):
        plan = site_plan(network(layers, 4, 4096), 8, CHOSEN, objective("floats", GPUS, 8))
        assert plan is not None, "eindecomp cuts every statement"
        found = costs(plan, GPUS)
        added: list[Cell] = [None, None]
        if before is not None and layers == before[0] + 1:
            added = [found.floats - before[1].floats, found.nbytes - before[1].nbytes]
        rows.append([layers, found.floats, added[0], found.nbytes, added[1]])
        before = layers, found
    columns = "layers", "floats", "floats added", "bytes", "bytes added"
    return Table(
        "What each further layer of LLaMA-7B adds", columns, rows,
        {"bytes": "B", "bytes added": "B"}, note="4 × 4096 tokens, 8 sites, `eindecomp` in floats.",
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="E3: LLaMA-7B's first token, planned",
    source="EinDecomp §9, experiment 3",
    about="The network is one SQL statement over declared tensors, which hold nothing. Its width "
    "is 4096, with 32 heads and 11008 columns between the two weights of the feed-forward part. "
    "Every strategy minimises the measure of its table, within the cuts that it allows. `exact` is "
    "optimal by the search's estimate. Softmaxes are not split along their keys.",
    computed=computed,
)
