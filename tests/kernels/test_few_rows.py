"""Products of few rows with a large matrix that is read in place."""

from __future__ import annotations

import numpy as np
import pytest

from einsql.kernels.matmul import few_rows
from einsql.kernels.matmul.layout import Labels
from einsql.kernels.matmul.multiply import Multiplied
from einsql.kernels.runtime import thread_team
from tests.kernels.nodes import no_tick


@pytest.mark.parametrize(("dtype", "threads"), [(np.float32, 1), (np.float32, 2), (np.float64, 2)])
def test_rows_and_terms_of_every_remainder(
    dtype: type, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(few_rows, "LEAST", 1)
    monkeypatch.setattr(few_rows, "SHARE", 2**10)
    monkeypatch.setattr(thread_team, "at_hand", lambda seconds: threads)
    rng = np.random.default_rng(threads)
    for m, n, k in ((2, 4, 33), (3, 36, 64), (7, 20, 520), (16, 12, 1103), (33, 8, 4096)):
        labels = Labels(("m", "k"), ("n", "k"), ("m", "n"), {"m": m, "n": n, "k": k})
        left: np.ndarray = rng.integers(-4, 5, (m, k + 3)).astype(dtype)[:, :k]
        right: np.ndarray = rng.integers(-4, 5, (n, k)).astype(dtype)
        product = Multiplied(labels, np.dtype(dtype))
        for _ in range(2):
            np.testing.assert_array_equal(product(left, right, no_tick), left @ right.T)
        left[0, -1] = np.nan  # the last register reads terms before the remaining ones again
        right[-1, 0] = np.inf
        with np.errstate(invalid="ignore"):
            wanted = np.stack([[np.dot(x, y) for y in right] for x in left])
        np.testing.assert_array_equal(product(left, right, no_tick), wanted)


def test_rows_that_lie_apart_are_copied_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ over h, d of a[h, t, d] · w[o, h, d], as after the heads of an attention."""
    monkeypatch.setattr(few_rows, "LEAST", 1)
    extent = {"h": 4, "t": 6, "d": 16, "o": 40}
    rng = np.random.default_rng(1)
    a, w = (rng.integers(-4, 5, s).astype(np.float32) for s in ((4, 6, 16), (40, 4, 16)))
    product = Multiplied(
        Labels(("h", "t", "d"), ("o", "h", "d"), ("t", "o"), extent), np.dtype(np.float32)
    )
    np.testing.assert_array_equal(product(a, w, no_tick), np.einsum("htd,ohd->to", a, w))
