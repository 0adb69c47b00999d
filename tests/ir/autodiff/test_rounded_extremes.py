"""Gradients through extremes of functions whose last bits depend on the kernel."""

from __future__ import annotations

import numpy as np
import pytest

import einsql


@pytest.mark.parametrize("jit", ["never", "wait"])
@pytest.mark.parametrize("function", ["EXP", "SIN"])
@pytest.mark.parametrize("storage", ["", "STORAGE SPARSE "])
def test_a_running_maximum_has_finite_gradients(jit: str, function: str, storage: str) -> None:
    w = np.random.default_rng(1).normal(size=(96, 80)).astype(np.float32)
    con = einsql.connect()
    con.execute(f"SET jit = '{jit}'")
    con.register("given", w, dims=("i", "j"))
    con.execute(f"CREATE TENSOR w {storage}AS SELECT i, j, val FROM given")
    gradient = con.execute(
        f"WITH loss AS (SELECT SUM(val) AS val FROM (SELECT i, j, MAX({function}(val)) OVER "
        "(PARTITION BY i ORDER BY j) AS val FROM w)) SELECT i, j, val FROM GRADIENT(loss, w)"
    ).fetch_numpy()
    values = getattr(np, function.lower())(w.astype(np.float64))
    last = np.zeros(w.shape)
    slope = values if function == "EXP" else np.cos(w.astype(np.float64))
    for i, row in enumerate(values):
        best = 0
        for j in range(len(row)):
            best = j if row[j] > row[best] else best
            last[i, best] += slope[i, best]
    np.testing.assert_allclose(gradient, last, rtol=1e-4, atol=1e-5)


def test_a_maximum_over_a_join_has_the_gradient_of_its_largest_terms() -> None:
    chance = np.random.default_rng(2)
    w, x = chance.normal(size=(96, 80)), chance.normal(size=(80, 64))
    con = einsql.connect()
    con.register("w", w, dims=("i", "j"))
    con.register("x", x, dims=("j", "k"))
    sql = (
        "WITH loss AS (SELECT SUM(val) AS val FROM (SELECT i, k, MAX(TANH(w.val * x.val)) AS val "
        "FROM w JOIN x USING (j) GROUP BY i, k)) SELECT i, j, val FROM GRADIENT(loss, w)"
    )
    products = w[:, :, None] * x
    at = np.argmax(np.tanh(products), axis=1)
    expected = np.zeros(w.shape)
    for i in range(96):
        for k in range(64):
            j = at[i, k]
            expected[i, j] += (1 - np.tanh(products[i, j, k]) ** 2) * x[j, k]
    for jit in ("never", "auto", "wait", "auto"):
        con.execute(f"SET jit = '{jit}'")
        np.testing.assert_allclose(con.execute(sql).fetch_numpy(), expected, rtol=1e-9, atol=1e-12)
