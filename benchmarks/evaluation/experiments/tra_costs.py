"""T1 to T3: the counts of the tensor-relational algebra beside the bytes of runs."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.evaluation.executed import COLUMNS, NOTE, UNITS, Statement, compared
from benchmarks.evaluation.experiment import Array, Cell, Experiment, Table
from benchmarks.simulated_ranks import PRODUCT
from tests.support.networks import FFNN, FFNN_STEP, connected, ffnn

NEAREST = """
WITH apart AS (SELECT n, d, x.val - q.val AS val FROM x JOIN q USING (d)),
  turned AS (SELECT n, e, SUM(apart.val * a.val) AS val FROM apart JOIN a USING (d) GROUP BY n, e),
  far AS (SELECT turned.n, SUM(turned.val * apart.val) AS val
          FROM turned JOIN apart ON turned.n = apart.n AND turned.e = apart.d GROUP BY turned.n)
SELECT ARG_MIN(n, val) AS n, MIN(val) AS val FROM far
"""
"""The row of x nearest to q in the metric a."""

SITES = 5
"""Of the tables of the paper's authors."""
STEPS = (
    ("Google speech, 100,000 hidden", (10_000, 1_600, 100_000, 10), 9.7e8, 1.0e10),
    ("Google speech, 200,000 hidden", (10_000, 1_600, 200_000, 10), 1.9e9, 2.0e10),
    ("Amazon-14k, 1,000 hidden", (1_000, 597_540, 1_000, 14_588), 3.7e9, 1.0e7),
    ("Amazon-14k, 5,000 hidden", (1_000, 597_540, 5_000, 14_588), 1.8e10, 5.0e7),
)


def predicted() -> Table:
    """The authors' eight numbers, and einsql's own choice."""
    rows: list[list[Cell]] = []
    for name, (n, d, h, labels), data, model in STEPS:
        tensors = ffnn(n, d, h, labels)
        con = connected({k: tensors[k] for k in ("x", "y")})
        for weights, (first, second) in (("w1", "dh"), ("w2", "hl")):
            extents = tensors[weights]
            con.execute(
                f"CREATE TENSOR {weights} ({first} DIM({extents[first]}), {second} "
                f"DIM({extents[second]}), val FLOAT) PARTITION BY ({second} {SITES}) DEFAULT 0"
            )
        con.execute("SET cost = 'floats'")
        found = []
        for strategy in ("eindecomp", "data:n", "model"):
            con.execute(f"SET strategy = '{strategy}'")
            plan = con.explain(FFNN_STEP, sites=SITES).to_dict()["plan"]
            found.append(plan["total"]["tra_cost"])
        rows.append([name, *found, data, model])
    own = "eindecomp", "data:n", "model"
    return Table(
        "Predicted cost of a training step", ("", *own, "printed TRA-DP", "printed TRA-MP"), rows,
        compete=own, ours="eindecomp", note=f"Floats on {SITES} sites, as the algebra counts them: "
        "a broadcast is the tensor's size times the sites, a shuffle is its size. The weights are "
        "stored by columns.",
    )  # fmt: skip


def statements() -> list[tuple[Statement, tuple[str, ...]]]:
    """Small cases of the three tasks, with the strategies of each."""
    chance = np.random.default_rng(0)

    def some(*shape: int) -> Array:
        return chance.standard_normal(shape, dtype=np.float32)

    product = Statement(
        "T1: a product of 512²", PRODUCT,
        {"a": (("i", "j"), some(512, 512)), "b": (("j", "k"), some(512, 512))},
        lambda given: given["a"] @ given["b"], cut={"a": "i", "b": "j"},
    )  # fmt: skip
    root = some(64, 64)
    nearest = Statement(
        "T2: the nearest of 10,000", NEAREST,
        {"x": (("n", "d"), some(10_000, 64)), "q": (("d",), some(64)),
         "a": (("d", "e"), root @ root.T)},
        distance, is_row=True, cut={"x": "n"},
    )  # fmt: skip
    shapes = ffnn(256, 400, 512, 10)
    arrays = {n: (tuple(e), some(*e.values()) * np.float32(0.1)) for n, e in shapes.items()}
    step = Statement(
        "T3: a training step",
        FFNN,
        arrays,
        trained,
        is_row=True,
        cut={"x": "n", "y": "n", "w1": "h", "w2": "l"},
    )
    return [
        (product, ("eindecomp", "data:i", "data:j", "equal")),
        (nearest, ("eindecomp", "data:n", "data:d")),
        (step, ("eindecomp", "data:n", "model")),
    ]


def distance(given: Mapping[str, Array]) -> Array:
    """The nearest row and its distance."""
    apart = given["x"] - given["q"]
    far = np.einsum("nd,de,ne->n", apart, given["a"], apart)
    return np.array([far.argmin(), far.min()])


def trained(given: Mapping[str, Array]) -> Array:
    """The largest new weight of each layer."""
    x, y, w1, w2 = (given[n] for n in ("x", "y", "w1", "w2"))
    a = np.maximum(x @ w1, 0)
    g = a @ w2 - y
    dz = np.where(a > 0, g @ w2.T, 0)
    return np.array([np.abs(w1 - 0.5 * x.T @ dz).max(), np.abs(w2 - 0.5 * a.T @ g).max()])


def computed(full: bool) -> list[Table]:
    """The predictions, and runs on virtual sites and ranks."""
    rows = [
        row
        for statement, strategies in statements()
        for sites in (2, 4)
        for ranks in (False, True)
        for row in compared(statement, sites, ranks, strategies)
    ]
    return [predicted(), Table("T1 to T3 on sites", COLUMNS, rows, UNITS, note=NOTE)]


EXPERIMENT = Experiment(
    title="T1 to T3: predicted and measured",
    source="TRA §5, and the slides' tables",
    about="T1 is a product of matrices, T2 a nearest neighbour in a Riemannian metric, T3 a "
    "training step of a network of two layers. Each site has a part of the rows of A and B, of "
    "the points, and of the columns of the weights.",
    sql={"T2": NEAREST, "T3": FFNN},
    computed=computed,
)
