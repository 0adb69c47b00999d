"""The search for the best values of groups, and the sort of rows of sparse products."""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import einsql
from einsql.kernels.sparse import products
from einsql.kernels.vectorized import candidates
from tests.support.samples import sample

TYPES = ("f4", "f8", "i1", "i4", "i8", "?")


@settings(max_examples=sample(60, 2000))
@given(st.integers(0, 2**32 - 1), st.sampled_from(TYPES), st.booleans(), st.integers(1, 3))
def test_no_excluded_value_is_among_the_best(
    seed: int, dtype: str, greatest: bool, wanted: int
) -> None:
    chance = np.random.default_rng(seed)
    counts = chance.integers(0, 12 * wanted, 6)
    firsts = np.cumsum(counts) - counts
    values = chance.choice([-2, -1, 0, 1, 2, 3], counts.sum()).astype(dtype)
    if values.dtype.kind == "f":
        values[chance.random(len(values)) < 0.2] = chance.choice([np.nan, np.inf, -np.inf, -0.0])
    chosen = candidates.reaching(values, firsts, counts, wanted, greatest)
    if chosen is None:
        assert (counts <= candidates.PARTS * wanted).all()
        return
    codes = candidates.codes_of(values, greatest)
    for first, count in zip(firsts.tolist(), counts.tolist(), strict=True):
        own, left = codes[first : first + count], chosen[first : first + count]
        worst = np.sort(own)[: min(wanted, count)].max(initial=np.iinfo(np.int64).min)
        assert left[own < worst].all()
        assert np.count_nonzero(left & (own <= worst)) >= min(wanted, count)
        assert left[own <= worst].all()  # ties are decided by arguments


@pytest.mark.parametrize("least", [0, np.inf, None])
def test_rows_of_a_product_are_sorted(monkeypatch: pytest.MonkeyPatch, least: float | None) -> None:
    if least is None:  # SciPy without the functions, which are not public
        monkeypatch.setitem(sys.modules, "scipy.sparse._sparsetools", None)
    else:
        monkeypatch.setattr(products, "TRANSPOSED", least)
    chance = np.random.default_rng(7)
    counts = np.array([0, 5, 40, 0, 1])
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    columns = np.concatenate([chance.permutation(40)[:n] for n in counts]).astype(np.int32)
    room = np.zeros(3, np.int32)  # behind the elements, as a product may have fewer than expected
    own, values = np.append(columns, room), np.append(columns * 0.5, room)
    products.sort_rows(starts, own, values, 40)
    for start, end in pairwise(starts):
        np.testing.assert_array_equal(own[start:end], np.sort(columns[start:end]))
    np.testing.assert_array_equal(values[: len(columns)], own[: len(columns)] * 0.5)
    assert not own[len(columns) :].any()


def test_best_stored_elements_with_equal_values_and_nan() -> None:
    chance = np.random.default_rng(3)
    rows, columns = np.nonzero(chance.random((7, 200)) < 0.7)
    values = chance.integers(0, 6, len(rows)).astype(float)
    values[values == 5] = np.nan
    con = einsql.connect()
    con.register("t", pa.table({"i": rows, "j": columns, "val": values}))
    con.execute("CREATE TENSOR x STORAGE SPARSE AS SELECT i, j, val FROM t")
    for name in ("ARG_MAX", "ARG_MIN"):
        best = con.execute(f"SELECT i, {name}(j, val, 3) AS b FROM x WHERE j <> 5 GROUP BY i")
        order = np.isnan(values) * 10 + np.nan_to_num(values)
        order = -order if name == "ARG_MAX" else order
        for i, chosen in best.fetchall():
            places = np.flatnonzero((rows == i) & (columns != 5))
            places = places[np.lexsort((columns[places], order[places]))][:3]
            assert chosen == columns[places].tolist(), (name, i)


def test_equal_values_of_groups_that_alternate() -> None:
    con = einsql.connect()
    con.register("t", pa.table({"j": [0, 1, 1], "k": [34, 2, 10], "val": [1.0, 1.0, 1.0]}))
    for storage in ("SPARSE", "DENSE"):
        con.execute(f"CREATE TENSOR s{storage} STORAGE {storage} AS SELECT j, k, val FROM t")
        sql = f"SELECT k % 3 AS g, ARG_MIN(k, val, 2) AS l FROM s{storage} GROUP BY g ORDER BY g"
        assert con.execute(sql).fetchall() == [(1, [10, 34]), (2, [2])]
