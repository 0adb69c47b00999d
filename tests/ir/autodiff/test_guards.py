"""What a condition guards is never evaluated without it, in either pass."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ir.autodiff.differences import check
from tests.support.samples import combinations

CHANCE = np.random.default_rng(9)
ARRAYS = {
    "k": ("i", np.array([2, 0, 3, 1])),
    "f": ("i", np.array([1.5, 0.0, -2.0, 0.7])),
    "kk": ("ij", np.array([[0, 1, 2], [3, 0, 0], [0, 0, 0], [1, 4, 5]])),
    "w": ("ij", CHANCE.normal(size=(4, 3))),
    "u": ("jl", CHANCE.normal(size=(3, 5))),
    "v": ("i", CHANCE.normal(size=4)),
}
ROWS = "WITH r AS (SELECT {}, SUM({}) AS val FROM {} GROUP BY {})"
SQUARES = ", loss AS (SELECT SUM(val * val) AS val FROM r)"
PRODUCT = "kk JOIN u USING (j) WHERE kk.val <> 0"
NESTED = """CASE WHEN k.val <> 0 THEN CASE WHEN 12 // k.val > 3 THEN w.val ELSE 2 * w.val END
ELSE SIN(w.val) END"""
LONG = "(w.val / (2 + SIN(w.val * (12 // k.val)) * (12 // k.val) / 20))"
LOSSES = {
    "factor by a key": ("w", ROWS.format("j", "(12 // k.val) * w.val", "k JOIN w USING (i) "
                                         "WHERE k.val <> 0", "j") + SQUARES),
    "factor of a product": ("u", ROWS.format("i, l", "(12 // kk.val) * u.val", PRODUCT, "i, l")
                            + SQUARES),
    "maps": ("u", ROWS.format("i, l", "(12 // kk.val) * TANH(u.val)", PRODUCT, "i, l") + SQUARES),
    "filter": ("u", ROWS.format("i, l", "(12 // q.val) * TANH(u.val)", "(SELECT i, j, val FROM kk "
                                "WHERE val <> 0) q JOIN u USING (j)", "i, l") + SQUARES),
    "aggregate's filter": (
        "u", "WITH r AS (SELECT i, l, COALESCE(SUM((12 // kk.val) * TANH(u.val)) FILTER "
        "(WHERE kk.val <> 0), 0) AS val FROM kk JOIN u USING (j) GROUP BY i, l)" + SQUARES),
    "product": (
        "w", "WITH r AS (SELECT j, PRODUCT((12 // k.val) * w.val) FILTER (WHERE k.val <> 0) "
        "AS val FROM k JOIN w USING (i) GROUP BY j)" + SQUARES),
    "extreme": (
        "w", "WITH r AS (SELECT j, MAX((12 // k.val) * w.val) FILTER (WHERE k.val <> 0) "
        "AS val FROM k JOIN w USING (i) GROUP BY j)" + SQUARES),
    "three": ("u", "WITH loss AS (SELECT SUM((12 // k.val + 1) * w.val * u.val) AS val "
              "FROM k JOIN w USING (i) JOIN u USING (j) WHERE k.val <> 0)"),
    "its other factor": ("w", "WITH loss AS (SELECT SUM((12 // k.val) * w.val * u.val) AS val "
                         "FROM k JOIN w USING (i) JOIN u USING (j) WHERE k.val <> 0)"),
    "two conditions": ("u", ROWS.format("i, l", "(12 // (kk.val - k.val)) * u.val * TANH(k.val)",
                                        "kk JOIN u USING (j) JOIN k USING (i) "
                                        "WHERE kk.val <> k.val", "i, l") + SQUARES),
    "of a float": ("f", ROWS.format("j", "(12 // f.val) * w.val", "f JOIN w USING (i) "
                                    "WHERE ABS(f.val) > 0.1", "j") + SQUARES),
    "nested": ("w", f"WITH r AS (SELECT i, j, {NESTED} AS val FROM k JOIN w USING (i))" + SQUARES),
    "long": ("w", f"WITH r AS (SELECT i, j, {LONG} / (1 + {LONG} * {LONG}) AS val FROM k "
             "JOIN w USING (i) WHERE k.val <> 0)" + SQUARES),
    "cast": ("u", ROWS.format("i, l", "CAST(1e10 * kk.val AS INTEGER) * u.val", "kk JOIN u "
                              "USING (j) WHERE kk.val < 1", "i, l") + SQUARES),
}  # fmt: skip


@pytest.mark.parametrize(("name", "again"), combinations(LOSSES, [False, True]))
def test_what_is_guarded_raises_nowhere(name: str, again: bool) -> None:
    source, query = LOSSES[name]
    if again:
        query = query.replace("loss AS", "once AS")
        query += f", loss AS (SELECT SUM(val * val) AS val FROM GRADIENT(once, {source}))"
    arrays = {n: (d, a.copy()) for n, (d, a) in ARRAYS.items()}
    check(arrays, query, source, 1e-5)
