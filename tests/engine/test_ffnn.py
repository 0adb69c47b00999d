"""A training step of a feed-forward network: data against model parallelism (tra-slides)."""

from __future__ import annotations

import json

import numpy as np
import pytest

import einsql
from einsql.optimizer.decomposition import Decomposition, decompose
from tests.support.networks import (
    FFNN,
    FFNN_BY_GRADIENT,
    FFNN_STEP,
    FFNN_STEP_BY_GRADIENT,
    connected,
    ffnn,
    graph,
)
from tests.support.samples import combinations

SITES = 5
GOOGLE = (10**4, 1600, 10**5, 10)
AMAZON = (10**3, 597_540, 10**3, 14_588)


def cut(shape: tuple[int, int, int, int], strategy: str) -> Decomposition:
    """The step with its weights stored by columns."""
    root = graph(ffnn(*shape), FFNN, {"w1": (1, SITES), "w2": (1, SITES)})
    return decompose(root, sites=SITES, strategy=strategy)


OPERATIONS = ("z", "a", "p", "g", "da", "dz", "dw1", "m1", "dw2", "m2")
"""The optimised graph's, in its order, before the last one that shows both scalars."""


def test_data_parallelism_cuts_the_points_and_nothing_else() -> None:
    cuts = dict(zip(OPERATIONS, cut(GOOGLE, "data:n").cuts, strict=False))
    for name, c in cuts.items():
        assert c.parts == {x: SITES if x == "n" else 1 for x in c.parts}, name
        assert c.copies == 1
    _, d, h, labels = GOOGLE
    moved = {name: c.repartition for name, c in cuts.items() if c.repartition}
    # EinDecomp counts the tiles that meet, so a broadcast is (s - 1)(Size / s + Size).
    assert moved == {
        "z": (SITES - 1) * (d * h / SITES + d * h),
        "p": (SITES - 1) * (h * labels / SITES + h * labels),
    }
    merged = {name: c.aggregate for name, c in cuts.items() if c.aggregate}
    assert merged == {"dw1": (SITES - 1) * d * h, "dw2": (SITES - 1) * h * labels}


@pytest.mark.parametrize("strategy", ["model", "model:l,h"])
@pytest.mark.parametrize("shape", [GOOGLE, AMAZON])
def test_model_parallelism_cuts_columns_of_weights(
    shape: tuple[int, int, int, int], strategy: str
) -> None:
    cuts = dict(zip(OPERATIONS, cut(shape, strategy).cuts, strict=False))
    along = {name: [x for x, parts in c.parts.items() if parts > 1] for name, c in cuts.items()}
    assert along == {
        "z": ["h"], "a": ["h"], "p": ["l"], "g": ["l"],
        # Backward: cut along what the operand is cut by; its partial results complete
        # everywhere, where the derivative of relu is computed.
        "da": ["l"], "dz": [], "dw1": ["h"], "m1": ["h"], "dw2": ["l"], "m2": ["l"],
    }  # fmt: skip
    assert {name for name, c in cuts.items() if c.copies == SITES} == {"dz"}
    assert cuts["dw1"].repartition == 0  # it finds its columns at every site
    assert cuts["m1"].repartition == cuts["m2"].repartition == 0  # where the weights lie


@pytest.mark.parametrize("shape", [GOOGLE, AMAZON])
def test_an_unrestricted_planner_does_better_than_both(shape: tuple[int, int, int, int]) -> None:
    best = cut(shape, "eindecomp")
    for strategy in ("data:n", "model"):
        assert best.floats < cut(shape, strategy).floats
    if shape is GOOGLE:  # hidden columns, then their rows: only N x L partial results move
        products = [c for c in best.cuts if len(c.parts) == 3]
        assert all([x for x, parts in c.parts.items() if parts > 1] == ["h"] for c in products)


@pytest.mark.parametrize(
    ("strategy", "step"),
    combinations(
        ["data:n", "model", "model:l,h", "megatron", "eindecomp"], [FFNN, FFNN_BY_GRADIENT]
    ),
)
def test_every_plan_takes_the_same_step(strategy: str, step: str) -> None:
    tensors = ffnn(20, 7, 15, 10)
    con = connected(tensors)
    chance = np.random.default_rng(5)
    data = {
        name: chance.integers(-2, 3, tuple(keys.values())).astype(np.float32)
        for name, keys in tensors.items()
    }
    for name, array in data.items():
        con.execute(f"DROP TENSOR {name}")
        con.register(name, array, dims=tuple(tensors[name]))
    x, y, w1, w2 = (data[name] for name in ("x", "y", "w1", "w2"))
    a = np.maximum(x @ w1, 0)
    g = a @ w2 - y
    dz = np.where(a > 0, g @ w2.T, 0)
    expected = np.abs(w1 - 0.5 * x.T @ dz).max(), np.abs(w2 - 0.5 * a.T @ g).max()
    con.execute(f"SET sites = {SITES}; SET strategy = '{strategy}'")
    assert con.execute(step).fetchall() == [pytest.approx(expected, rel=1e-6)]


def stored_by_columns(shape: tuple[int, int, int, int]) -> einsql.Connection:
    con = connected({k: v for k, v in ffnn(*shape).items() if k in ("x", "y")})
    _, d, h, _ = shape
    for name, first, second in (("w1", f"d DIM({d})", "h"), ("w2", f"h DIM({h})", "l")):
        extent = ffnn(*shape)[name][second]
        con.execute(
            f"CREATE TENSOR {name} ({first}, {second} DIM({extent}), val FLOAT) "
            f"PARTITION BY ({second} {SITES}) DEFAULT 0"
        )
    return con


@pytest.mark.parametrize(
    ("data_set", "hidden", "data", "model"),
    [
        ("Google speech", 10**5, 9.7e8, 1.0e10),
        ("Google speech", 2 * 10**5, 1.9e9, 2.0e10),
        ("Amazon-14k", 10**3, 3.7e9, 1.0e7),
        ("Amazon-14k", 5 * 10**3, 1.8e10, 5.0e7),
    ],
)
@pytest.mark.parametrize("step", [FFNN_STEP, FFNN_STEP_BY_GRADIENT], ids=["by hand", "by GRADIENT"])
def test_predicted_costs_are_those_of_the_tables(
    data_set: str, hidden: int, data: float, model: float, step: str
) -> None:
    n, d, _, labels = GOOGLE if data_set == "Google speech" else AMAZON
    con = stored_by_columns((n, d, hidden, labels))
    weights = hidden * (d + labels)
    totals = {}
    for strategy in ("data:n", "model", "eindecomp"):
        con.execute(f"SET strategy = '{strategy}'")
        (text,) = con.execute(f"EXPLAIN (SITES {SITES}, FORMAT json) {step}").fetchone() or ("",)
        totals[strategy] = json.loads(text)["plan"]["total"]
    found = {strategy: total["tra_cost"] for strategy, total in totals.items()}
    assert found["data:n"] == 6 * weights
    assert found["model"] == 2 * SITES * n * hidden
    # The tables print two digits.
    assert f"{found['data:n']:.1e}" == f"{data:.1e}"
    assert f"{found['model']:.1e}" == f"{model:.1e}"
    # Of the two, data parallelism wins the first set and model parallelism the second.
    assert (found["data:n"] < found["model"]) == (data_set == "Google speech")
    for measure in ("tra_cost", "floats_moved"):
        assert all(totals["eindecomp"][measure] <= t[measure] for t in totals.values())
