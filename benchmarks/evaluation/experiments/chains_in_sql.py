"""E1 in scalar SQL: the same text on arrays, and on DuckDB's and PostgreSQL's rows of elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from benchmarks.evaluation.element_rows import by_duckdb, by_einsql, by_postgresql
from benchmarks.evaluation.experiment import Array, Case, Contestant, Experiment
from benchmarks.evaluation.experiments.chains import PAIRWISE

KEYS = dict.fromkeys("abcde", ("i", "j"))


def cases(full: bool) -> list[Case]:
    """Sizes that PostgreSQL ends within seconds, and larger ones for DuckDB."""
    sizes = {100: (), 250: ("einsql", "DuckDB")} | ({500: ("einsql", "DuckDB")} if full else {})
    return [
        Case(f"{shape}, s = {s}", {"s": s, "skewed": shape == "skewed"}, only=only)
        for s, only in sizes.items()
        for shape in ("square", "skewed")
    ]


def inputs(case: Case) -> dict[str, Array]:
    """The five matrices."""
    s = case.sizes["s"]
    thin, wide = (s // 10, 10 * s) if case.sizes["skewed"] else (s, s)
    shapes = {"a": (s, thin), "b": (thin, s), "c": (s, thin), "d": (thin, wide), "e": (wide, s)}
    return {
        name: np.random.default_rng(ord(name)).standard_normal(shape, dtype=np.float32)
        for name, shape in shapes.items()
    }


def reference(case: Case, given: Mapping[str, Array]) -> Array:
    """NumPy's."""
    a, b, c, d, e = (given[n].astype(np.float64) for n in "abcde")
    found: Array = a @ b + c @ (d @ e)
    return found


EXPERIMENT = Experiment(
    title="E1: the same chains in scalar SQL",
    source="EinDecomp §9, experiment 1",
    about="The same text on three systems with all cores. DuckDB and PostgreSQL have a row for "
    "each element, PostgreSQL with primary keys and settings for data in memory. einsql returns "
    "an array, DuckDB an Arrow table, and PostgreSQL keeps a temporary table.",
    cases=cases,
    contestants=(
        Contestant("einsql", prepare=by_einsql(PAIRWISE, KEYS)),
        Contestant("DuckDB", "duckdb", by_duckdb(PAIRWISE, KEYS, ("i", "j"))),
        Contestant("PostgreSQL", "postgresql", by_postgresql(PAIRWISE, KEYS, ("i", "j"))),
    ),
    inputs=inputs,
    reference=reference,
)
