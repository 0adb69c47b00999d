"""E2 planned: a training step of a wide classifier at the shapes of AmazonCat-14K."""

from __future__ import annotations

from functools import partial

from benchmarks.evaluation.experiment import Experiment, Table
from benchmarks.evaluation.plans import GPUS, Comparison, graph
from einsql.ir.einsum.graph import Roots
from tests.support.networks import FFNN, ffnn

LABELS, HIDDEN = 14_588, 8_192
FEATURES, MORE_FEATURES = (8_192, 597_540), (8_192, 32_768, 131_072, 597_540)
BATCHES = 128, 512
SITES, MORE_SITES = (2, 4, 8), (2, 3, 4, 5, 6, 7, 8, 16, 32, 64)


def step(batch: int, features: int, sites: int) -> Roots:
    """The graph of a step, whatever the sites."""
    return graph(ffnn(batch, features, HIDDEN, LABELS), FFNN)


def computed(full: bool) -> list[Table]:
    """Batches and features, for each measure."""
    subjects = {
        f"{features:,} features, batch {batch}": (
            partial(step, batch, features),
            MORE_SITES if full else SITES,
        )
        for features in (MORE_FEATURES if full else FEATURES)
        for batch in BATCHES
    }
    return Comparison(GPUS, ("data:n", "model"), 8).tables("a training step", subjects)


EXPERIMENT = Experiment(
    title="E2: training a classifier at full size, planned",
    source="EinDecomp §9, experiment 2",
    about=f"A step of gradient descent on squared error: {HIDDEN:,} hidden units, {LABELS:,} "
    "labels. The weights are read and their new values are made where they are needed. `data:n` is "
    "data parallelism, which sums the gradients of the batch's parts. `model` is model parallelism "
    "by columns of the weights. Every strategy minimises the measure of its table, within the cuts "
    "that it allows. `exact` is optimal by the search's estimate, and is asked for up to 8 sites.",
    sql={"The step": FFNN},
    computed=computed,
)
