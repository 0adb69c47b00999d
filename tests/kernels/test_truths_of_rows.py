"""Truths over the rows of a sparse tensor, whose loops end once they are decided."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse

import einsql


def test_truths_over_rows_of_a_sparse_tensor() -> None:
    chance = np.random.default_rng(5)
    matrix: Any = sparse.random(3000, 2000, 0.01, "csr", rng=chance)
    matrix.sort_indices()
    flags, other = chance.random(2000) < 0.02, chance.random(3000) < 0.5
    con = einsql.connect()
    con.execute("SET jit = 'wait'")
    con.register("a", matrix, dims=("i", "j"))
    con.register("f", flags, dims=("j",))
    con.register("g", other, dims=("i",))
    rows = con.execute(
        "SELECT a.i, BOOL_OR(f.val) AS p, BOOL_AND(f.val OR a.val > 0.2) AS q, "
        "BOOL_OR(a.val > 0.9) FILTER (WHERE f.val) AS r "
        "FROM a JOIN f USING (j) JOIN g ON g.i = a.i WHERE g.val GROUP BY a.i ORDER BY a.i"
    ).fetchall()
    expected = []
    for i in np.flatnonzero(other):
        part = slice(matrix.indptr[i], matrix.indptr[i + 1])
        at, values = flags[matrix.indices[part]], matrix.data[part]
        if len(at):
            best = (values[at] > 0.9).any().item() if at.any() else None
            expected.append((i, at.any(), (at | (values > 0.2)).all(), best))
    assert rows == expected
