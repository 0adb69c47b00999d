"""Central differences of losses written in SQL, in DOUBLE, beside their gradients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import einsql

Arrays = Mapping[str, tuple[str, np.ndarray]]
"""Tensors by name: one letter for each key, and float64 or int64 values."""


def connected(arrays: Arrays) -> einsql.Connection:
    """A connection that runs tensor work alone, with these tensors."""
    con = einsql.connect()
    con.execute("SET fallback = off")
    for name, (dims, array) in arrays.items():
        con.register(name, array, dims=tuple(dims))
    return con


def gradient(con: einsql.Connection, query: str, source: str) -> np.ndarray:
    """GRADIENT(loss, source) where the query's WITH defines loss; absent rows are 0."""
    found = con.execute(f"{query} SELECT * FROM GRADIENT(loss, {source})").fetch_numpy(fill=0.0)
    assert isinstance(found, np.ndarray)
    return found


def loss(con: einsql.Connection, query: str) -> float:
    """The loss's value; that of no rows is 0."""
    row = con.execute(f"{query} SELECT * FROM loss").fetchone()
    assert row is not None
    return 0.0 if row[0] is None else float(row[0])


def numeric(
    con: einsql.Connection, query: str, array: np.ndarray, step: float = 1e-5
) -> np.ndarray:  # fmt: skip
    """Central differences by every element of a registered array, which it leaves as it was."""
    found = np.zeros(array.shape)
    for at in np.ndindex(array.shape):
        kept = array[at]
        array[at] = kept + step
        above = loss(con, query)
        array[at] = kept - step
        found[at] = (above - loss(con, query)) / (2 * step)
        array[at] = kept
    return found


def check(arrays: Arrays, query: str, source: str, tolerance: float = 1e-6) -> np.ndarray:
    """Compares a gradient with differences, relative to the largest; gives the gradient."""
    con = connected(arrays)
    got = gradient(con, query, source)
    wanted = numeric(con, query, arrays[source][1])
    bound = tolerance * max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=bound, err_msg=query)
    return got
