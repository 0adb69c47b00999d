"""Small and narrow products by register tiles, over matrices as they lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import einsql
from einsql.kernels.compiler.cpu_features import Machine
from einsql.kernels.matmul import multiply, unpacked_tiles
from einsql.kernels.matmul.contraction import CONTRACTION, UNCOMPILED
from einsql.kernels.matmul.unpacked_tiles import UnpackedTiles, tile_for
from einsql.kernels.runtime import thread_pool
from tests.kernels.compiling import cache_directory
from tests.kernels.nodes import no_tick

__all__ = ["cache_directory"]  # its fixture serves every test here

Lay = Callable[[np.ndarray], np.ndarray]


def _apart(a: np.ndarray) -> np.ndarray:
    """The matrices within larger ones, in the opposite order of the stack."""
    wide = np.full((*a.shape[:-2], a.shape[-2] + 1, a.shape[-1] + 3), np.nan, a.dtype)
    wide[::-1, :-1, :-3] = a
    return wide[::-1, :-1, :-3]


def _turned(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a.swapaxes(-1, -2)).swapaxes(-1, -2)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "shape", [(5, 1, 2, 1), (3, 4, 4, 4), (3, 13, 5, 7), (2, 31, 19, 3), (1, 100, 65, 16)]
)
@pytest.mark.parametrize("lay", [np.ascontiguousarray, _apart])
def test_matrices_of_every_form(
    shape: tuple[int, int, int, int], dtype: type, lay: Lay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacked_tiles, "LEAST", 1)
    monkeypatch.setattr(thread_pool, "threads", lambda: 2)
    s, m, n, k = shape
    rng = np.random.default_rng(n)
    right = lay(rng.integers(-4, 5, (s, k, n)).astype(dtype))
    for turn in (np.asarray, _turned):
        left = turn(lay(rng.integers(-4, 5, (s, m, k)).astype(dtype)))
        for part in (left, left[:1]):  # one matrix for all of the stack as well
            room: np.ndarray = np.full((s, m + 2, n + 5), 77, dtype)
            out = room[:, 1:-1, 2:-3]
            UnpackedTiles(part, right, out)(part, right, out, no_tick)
            np.testing.assert_array_equal(out, part @ right)
            out[...] = 77
            assert (room == 77).all()  # nothing is written beside the result
            far = np.asfortranarray(right)  # columns are packed where they are far apart
            UnpackedTiles(part, far, out)(part, far, out, no_tick)
            np.testing.assert_array_equal(out, part @ right)
            out[...] = 77


def test_what_is_no_number_stays_where_it_is() -> None:
    left, right = np.ones((2, 9, 6), np.float32), np.ones((2, 6, 9), np.float32)
    left[0, 2, 3], right[1, 4, 5], left[1, 8, 0] = np.nan, np.inf, -np.inf
    right[1, 0, 5] = -0.0
    out: np.ndarray = np.full((2, 9, 9), np.nan, np.float32)
    with np.errstate(invalid="ignore"):
        UnpackedTiles(left, right, out)(left, right, out, no_tick)
        np.testing.assert_array_equal(out, left @ right)
    zero, one = np.full((1, 4, 4), -0.0), np.ones((1, 4, 4))
    out = np.full((1, 4, 4), np.nan)
    UnpackedTiles(zero, one, out)(zero, one, out, no_tick)
    assert not np.signbit(out).any()


def test_tiles_fill_registers_that_there_are() -> None:
    for registers in ((64, 32), (32, 16), (16, 32)):
        processor = Machine(*registers, fma=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(unpacked_tiles, "machine", lambda processor=processor: processor)
            for m in range(1, 70):
                for n in range(1, 70):
                    for size in (4, 8):
                        t = tile_for(m, n, size)
                        assert t.rows <= m
                        assert t.lanes <= n
                        assert t.rows * t.width + t.width + 1 <= registers[1]


SPECS = [
    ("bij,bjk->bik", (70, 6, 5, 7)),
    ("bji,bjk->bik", (70, 6, 5, 7)),
    ("ibj,bjk->ibk", (6, 70, 5, 7)),
    ("abij,abjk->abik", (8, 9, 6, 5, 7)),
    ("bij,bkj->bik", (70, 6, 5, 7)),
    ("ij,jk->ik", (500, 30, 3)),
    ("ij,kj->ik", (500, 30, 3)),
    ("ij,jk->ki", (500, 30, 3)),
    ("ij,jk->ik", (70, 5, 90)),
    ("ji,jk->ik", (20_000, 24, 23)),
    ("ij,kj->ik", (26, 2**14, 20)),
    ("ij,jk->ik", (200, 1100, 3)),
]


@pytest.mark.parametrize(("spec", "extents"), SPECS)
def test_products_that_it_serves(
    spec: str, extents: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiply, "COMPILED", 1)
    made: list[UnpackedTiles] = []
    first = UnpackedTiles.__init__

    def noted(self: UnpackedTiles, *arrays: np.ndarray) -> None:
        made.append(self)
        first(self, *arrays)

    monkeypatch.setattr(UnpackedTiles, "__init__", noted)
    terms = spec.split("->")[0].split(",")
    size = dict(zip(dict.fromkeys("".join(terms)), extents, strict=True))
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        a, b = (rng.integers(-4, 5, [size[x] for x in t]) for t in terms)
        pairs: list[tuple[Any, Any]] = [(a.astype(dtype), b.astype(dtype))]
        pairs.append((pairs[0][0][::-1], pairs[0][1]))
        for x, y in pairs:
            np.testing.assert_array_equal(einsql.einsum(spec, x, y), np.einsum(spec, x, y))
    assert made or spec == "ij,jk->ki"  # whose columns are the long operand's rows


@pytest.mark.parametrize("spec", ["ij,jk->ik", "ji,jk->ik", "ij,kj->ki"])
@pytest.mark.parametrize("extents", [(40, 9000, 300), (300, 16_384, 200), (16, 70_000, 140)])
def test_products_whose_sums_are_cut(spec: str, extents: tuple[int, ...]) -> None:
    """Too many columns for tiles: threads add pieces of the sum."""
    size = dict(zip("ijk", extents, strict=True))
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 5, [size[x] for x in t]) for t in spec.split("->")[0].split(","))
    expected = np.einsum(spec, a.astype(float), b.astype(float), optimize=True)  # exact
    for dtype in (np.float32, np.float64):
        product = einsql.einsum(spec, a.astype(dtype), b.astype(dtype))
        np.testing.assert_array_equal(product, expected)


def test_without_compiling_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiply, "COMPILED", 1)
    monkeypatch.setattr(unpacked_tiles, "UnpackedTiles", None)
    con = einsql.connect()
    con.execute("SET jit = 'never'")
    a = np.ones((70, 6, 6), np.float32)
    np.testing.assert_array_equal(con.einsum("bij,bjk->bik", [a, a]), a @ a)
    assert UNCOMPILED.name == CONTRACTION.name
