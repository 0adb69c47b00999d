"""Gradients of losses over stored elements: a factorisation of ratings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import einsql
from einsql.core.sparse import arrays
from einsql.storage import sparse_fields

USERS, FILMS, RANK = 400, 300, 3
LOSSES = {
    "of all products": "SELECT p.u, q.i, SUM(p.val * q.val) AS v FROM p JOIN q USING (k) "
    "GROUP BY p.u, q.i",
    "of rated products": "SELECT r.u, r.i, SUM(p.val * q.val) AS v FROM r JOIN p USING (u) "
    "JOIN q ON q.i = r.i AND q.k = p.k GROUP BY r.u, r.i",
}
KEYS = {"p": "u, k", "q": "i, k", "r": "u, i"}


def ratings() -> dict[tuple[int, int], float]:
    rng = np.random.default_rng(2)
    keys = rng.choice(USERS * FILMS, 900, replace=False)
    return {divmod(int(k), FILMS): float(k % 5) for k in keys}


def connected(storage: str, products: str) -> einsql.Connection:
    """Ratings, two factors, and the sum of squared errors over the ratings."""
    con, rng = einsql.connect(), np.random.default_rng(4)
    con.execute("SET jit = 'never'")
    con.execute(f"CREATE TENSOR r (u DIM({USERS}), i DIM({FILMS}), val DOUBLE) STORAGE {storage}")
    rows = ", ".join(f"({u}, {i}, {v})" for (u, i), v in ratings().items())
    con.execute(f"INSERT INTO r VALUES {rows}")
    for name, key, extent in (("p", "u", USERS), ("q", "i", FILMS)):
        con.register("factor", rng.random((extent, RANK)), dims=(key, "k"))
        con.execute(f"CREATE TENSOR {name} AS SELECT {key}, k, val FROM factor")
    con.execute(
        f"CREATE VIEW loss AS SELECT SUM(POW(r.val - s.v, 2)) AS l FROM r JOIN ({products}) AS s "
        "USING (u, i)"
    )
    return con


def gradient(con: einsql.Connection, name: str) -> einsql.Cursor:
    return con.execute(f"SELECT {KEYS[name]}, val FROM GRADIENT(loss, {name})")


@pytest.mark.parametrize("products", LOSSES.values(), ids=LOSSES)
def test_a_gradient_reads_stored_elements_only(
    products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = connected("DENSE", products)
    wanted = {name: gradient(dense, name).fetch_numpy(fill=0) for name in KEYS}
    con = connected("SPARSE", products)

    def refused(*_: Any) -> np.ndarray:
        raise AssertionError("a sparse tensor became dense")

    for module in (arrays, sparse_fields):
        monkeypatch.setattr(module, "dense_array", refused)
    for name in ("p", "q"):
        np.testing.assert_allclose(gradient(con, name).fetch_numpy(), wanted[name], rtol=1e-12)
    by_ratings = gradient(con, "r").fetch_scipy("coo")
    assert {*zip(*(c.tolist() for c in by_ratings.coords), strict=True)} == ratings().keys()
    np.testing.assert_allclose(
        by_ratings.tocsr()[by_ratings.coords], wanted["r"][by_ratings.coords]
    )


def test_a_gradient_equals_differences() -> None:
    con = connected("SPARSE", LOSSES["of all products"])
    (user, film), step = next(iter(ratings())), 1e-5
    for name, key in (("p", user), ("q", film)):
        found = gradient(con, name).fetch_numpy()[key, 1]
        losses: list[float] = []
        for sign in (1, -2):
            change = f"UPDATE {name} SET val = val + {sign * step} "
            con.execute(f"{change} WHERE {KEYS[name][0]} = {key} AND k = 1")
            losses += con.execute("SELECT l FROM loss").fetchone() or ()
        con.execute(f"UPDATE {name} SET val = val + {step} WHERE {KEYS[name][0]} = {key} AND k = 1")
        assert found == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=1e-6)


def test_an_epoch_of_a_factorisation_lowers_the_loss() -> None:
    losses: list[list[tuple[Any, ...]]] = []
    for storage in ("DENSE", "SPARSE"):
        con = connected(storage, LOSSES["of all products"])
        losses.append(con.execute("SELECT l FROM loss").fetchall())
        for _ in range(3):
            for name in ("p", "q"):
                con.execute(f"CREATE OR REPLACE TENSOR g AS SELECT * FROM GRADIENT(loss, {name})")
                key = KEYS[name][0]
                con.execute(
                    f"UPDATE {name} SET val = {name}.val - 0.02 * g.val FROM g "
                    f"WHERE g.{key} = {name}.{key} AND g.k = {name}.k"
                )
        losses.append(con.execute("SELECT l FROM loss").fetchall())
    np.testing.assert_allclose(losses[:2], losses[2:], rtol=1e-12)
    assert losses[1][0][0] < 0.8 * losses[0][0][0]
