"""GEMM by its address, over matrices as they lie."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from einsql.kernels import blas

needs_blas = pytest.mark.skipif(blas.library() is None, reason="NumPy shows no C interface of BLAS")

Lay = Callable[[np.ndarray], np.ndarray]


def _apart(a: np.ndarray) -> np.ndarray:
    """The matrix within a wider one."""
    wide = np.full((a.shape[0], a.shape[1] + 3), np.nan, a.dtype)
    wide[:, : a.shape[1]] = a
    return wide[:, : a.shape[1]]


LAYOUTS: tuple[Lay, ...] = (
    np.ascontiguousarray,
    np.asfortranarray,
    _apart,
    lambda a: _apart(a.T).T,
)


@needs_blas
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 5), (3, 1, 5), (3, 4, 1), (1, 1, 1)])
def test_gemm_reads_every_layout_and_adds(shape: tuple[int, int, int], dtype: type) -> None:
    m, n, k = shape
    chance = np.random.default_rng(m + n + k)
    for lay_a, lay_b, lay_out, beta in product(LAYOUTS, LAYOUTS, LAYOUTS[::2], (0.0, 1.0)):
        a = lay_a(chance.integers(-4, 5, (m, k)).astype(dtype))
        b = lay_b(chance.integers(-4, 5, (k, n)).astype(dtype))
        out = lay_out(np.full((m, n), 7.0 if beta else np.nan, dtype))
        blas.gemm(a, b, out, 0.5, beta)
        np.testing.assert_array_equal(out, 0.5 * (a @ b) + 7.0 * beta)


def test_a_matrix_without_contiguous_rows_or_columns_needs_a_copy() -> None:
    whole = np.zeros((6, 8), np.float32)
    assert blas.stepped(whole)[1] == 8
    assert blas.stepped(whole.T)[1] == 8
    assert blas.stepped(whole[:, ::2])[1] == 0
    assert blas.stepped(whole[::-1])[1] == 0
    assert blas.stepped(np.broadcast_to(whole[0], (6, 8)))[1] == 0


@needs_blas
def test_the_number_of_threads_comes_back() -> None:
    found = blas.library()
    assert found is not None
    if found.get_threads is None:
        pytest.skip("this BLAS does not tell how many threads it has")
    before = found.get_threads()

    def stopped() -> None:
        with blas.OneThread(), blas.OneThread():
            assert found.get_threads is not None
            assert found.get_threads() == 1
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        stopped()
    assert found.get_threads() == before


@needs_blas
def test_a_statement_restores_the_number_at_its_end_whatever_others_do() -> None:
    found = blas.library()
    assert found is not None
    if found.get_threads is None:
        pytest.skip("this BLAS does not tell how many threads it has")
    before = found.get_threads()
    begun, over = threading.Event(), threading.Event()

    def long() -> None:
        with blas.Statement():
            begun.set()
            over.wait(30)

    other = threading.Thread(target=long)
    other.start()
    begun.wait(30)
    try:
        with blas.Statement():
            for _ in range(2):
                with blas.OneThread():
                    assert found.get_threads() == 1
                assert found.get_threads() == 1
            blas.all_threads()
            assert found.get_threads() == before
            with blas.OneThread():
                blas.all_threads()
                assert found.get_threads() == 1
        assert found.get_threads() == before
    finally:
        over.set()
        other.join()
