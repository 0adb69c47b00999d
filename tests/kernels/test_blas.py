"""GEMM by its address, over matrices as they lie, by NumPy's BLAS and by MKL."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import einsql
from einsql.kernels.runtime import blas, mkl

needs_blas = pytest.mark.skipif(blas.numpys() is None, reason="NumPy shows no C interface of BLAS")

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


@pytest.fixture(params=["numpy", "mkl"])
def named(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The library that computes products."""
    name = str(request.param)
    if name == "mkl" and not mkl.parts():
        pytest.skip("pip install 'einsql[mkl]' brings MKL")
    with chosen(name, monkeypatch):
        yield name


@contextmanager
def chosen(name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(blas.CHOICE, name)
    blas.library.cache_clear()
    try:
        yield
    finally:
        blas.library.cache_clear()  # the environment is restored before it is asked again


@needs_blas
@pytest.mark.usefixtures("named")
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
    found = blas.numpys()
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
    found = blas.numpys()
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


STACKS = (((), ()), ((3,), (3,)), ((3,), (1,)), ((2, 1), (1, 3)))
"""Extents of the stacks of both operands."""


def _turned(a: np.ndarray) -> np.ndarray:
    """The matrices transposed in memory."""
    return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)


def _wide(a: np.ndarray) -> np.ndarray:
    """The matrices within wider ones."""
    return np.concatenate([a, a], axis=-1)[..., : a.shape[-1]]


def _gaps(a: np.ndarray) -> np.ndarray:
    """Something between any two elements, as BLAS reads nothing."""
    return np.stack([a, a], axis=-1)[..., 0]


LIES: tuple[Lay, ...] = (np.ascontiguousarray, _turned, _wide, _gaps)


@pytest.mark.usefixtures("named")
@pytest.mark.parametrize(("left", "right"), STACKS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_multiply_is_matmul(
    left: tuple[int, ...], right: tuple[int, ...], dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = np.random.default_rng(3)
    m, n, k = 12, 9, 20
    monkeypatch.setattr(blas, "BIG", m * n * k)
    for lay_a, lay_b, lay_out in product(LIES, LIES, LIES):
        a = lay_a(chance.integers(-4, 5, (*left, m, k)).astype(dtype))
        b = lay_b(chance.integers(-4, 5, (*right, k, n)).astype(dtype))
        out = lay_out(np.full((*np.broadcast_shapes(left, right), m, n), np.nan, dtype))
        blas.multiply(a, b, out)
        np.testing.assert_array_equal(out, np.matmul(a, b))


def test_statements_use_the_library_and_say_so(named: str) -> None:
    chance = np.random.default_rng(1)
    con = einsql.connect()
    a, b = (chance.integers(-3, 4, s).astype(np.float32) for s in ((700, 500), (500, 600)))
    con.register("a", a, ("i", "j"))
    con.register("b", b, ("j", "k"))
    sql = "SELECT i, k, SUM(a.val * b.val) AS val FROM a JOIN b USING (j) GROUP BY i, k"
    for _ in range(2):
        np.testing.assert_array_equal(con.execute(sql).fetch_numpy(), a @ b)
    said = str(con.explain(sql, analyze=True)).endswith("\n-- BLAS: MKL")
    assert said is (named == "mkl")


def test_mkl_is_for_processors_of_intel(monkeypatch: pytest.MonkeyPatch) -> None:
    for intel in (False, True):
        monkeypatch.setattr(mkl, "is_intel", lambda intel=intel: intel)
        with chosen("auto", monkeypatch):
            found = blas.library()
            assert blas.is_numpys() is not (intel and bool(mkl.parts()))
            assert found is None or found.name == ("NumPy's" if blas.is_numpys() else "MKL")


def test_an_mkl_that_cannot_be_loaded_is_an_error_where_it_is_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(mkl, "is_intel", lambda: True)
    monkeypatch.setattr(mkl, "parts", lambda: [tmp_path / "libmkl_core.so.9"])
    with chosen("auto", monkeypatch):
        assert blas.is_numpys()
    with chosen("mkl", monkeypatch), pytest.raises(einsql.OperationalError, match="EINSQL_BLAS"):
        blas.library()
    monkeypatch.setattr(mkl, "parts", list)
    with chosen("mkl", monkeypatch), pytest.raises(einsql.OperationalError, match="not installed"):
        blas.library()
    with chosen("blis", monkeypatch), pytest.raises(einsql.ProgrammingError, match="auto, numpy"):
        blas.library()


def test_the_newest_mkl_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr("site.getuserbase", lambda: str(tmp_path / "none"))
    assert mkl.parts() == []
    (tmp_path / "lib").mkdir()
    for name in ("libmkl_core.so", "libmkl_core.so.2", "libmkl_core.so.10", "libmkl_rt.so.11"):
        (tmp_path / "lib" / name).touch()
    names = [p.name for p in mkl.parts()]
    assert names == [f"libmkl_{x}.so.10" for x in ("intel_ilp64", "sequential", "core")]


needs_linux = pytest.mark.skipif(
    not hasattr(os, "RTLD_DEEPBIND") or platform.machine() != "x86_64",
    reason="libraries are loaded so on Linux with glibc and x86-64",
)


@needs_linux
def test_libraries_that_are_needed_are_seen_by_their_holder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mkl, "parts", lambda: ["libm.so.6"])
    mkl.load()
    cosine = mkl.load().cos
    cosine.restype, cosine.argtypes = ctypes.c_double, [ctypes.c_double]
    assert cosine(0.0) == 1.0


@needs_linux
@pytest.mark.skipif(not mkl.parts(), reason="pip install 'einsql[mkl]' brings MKL")
def test_no_other_library_sees_the_symbols_of_mkl() -> None:
    text = (
        "import ctypes\n"
        "from einsql.kernels.runtime import mkl\n"
        "assert mkl.load().cblas_sgemm\n"
        "seen = ctypes.CDLL(None)\n"
        "print([hasattr(seen, n) for n in ('cblas_sgemm', 'sgemm_', 'mkl_serv_allocate')])\n"
    )
    made = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert made.stdout == "[False, False, False]\n"
