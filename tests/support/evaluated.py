"""A small experiment, for the test of what runs them."""

from collections.abc import Mapping

import numpy as np

from benchmarks.evaluation.element_rows import by_einsql
from benchmarks.evaluation.experiment import (
    Array,
    Case,
    Contestant,
    Experiment,
    Prepared,
    Table,
    Task,
)

PRODUCT = "SELECT a.i, b.j, SUM(a.val * b.val) AS val FROM a JOIN b ON a.j = b.i GROUP BY a.i, b.j"


def by_numpy(task: Task) -> Prepared:
    a, b = task.load("a"), task.load("b")
    return Prepared(lambda: a @ b, lambda result: result)


def wrong(task: Task) -> Prepared:
    a, b = task.load("a"), task.load("b")
    return Prepared(lambda: a @ b + 1, lambda result: result)


def inputs(case: Case) -> dict[str, Array]:
    shape = case.sizes["n"], case.sizes["n"]
    return {
        name: np.random.default_rng(ord(name)).standard_normal(shape, np.float32) for name in "ab"
    }


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    product: Array = given["a"].astype(np.float64) @ given["b"]
    return product


EXPERIMENT = Experiment(
    title="Products",
    source="nowhere",
    about="Products of matrices.",
    cases=lambda full: [Case("64²", {"n": 64})],
    contestants=(
        Contestant("einsql", prepare=by_einsql(PRODUCT, dict.fromkeys("ab", ("i", "j")))),
        Contestant("NumPy", prepare=by_numpy),
        Contestant("wrong", prepare=wrong),
        Contestant("absent", "absent-peer", by_numpy),
    ),
    inputs=inputs,
    reference=reference,
    computed=lambda full: [
        Table("Floats", ("sites", "eindecomp", "equal"), [(2, 5, 7), (4, 9, 8)], {"equal": ""},
              ("eindecomp", "equal"), "eindecomp", "sites"),
    ],
)  # fmt: skip
