"""The processor as a device: NumPy arrays, and kernels in Numba's CUDA simulator.

A launch of 256 threads takes a second there, so blocks are tiny. It is for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einsql.kernels.cuda.device import load

Array = np.ndarray


class Simulator:
    """Stands in for a GPU.

    Attributes:
        memory: Bytes that relations may take; tests make it small.
    """

    name = "Numba's CUDA simulator"
    threads = 4
    blocks = 2
    grid = 3
    tile = (2, 2)

    def __init__(self, memory: int = 1 << 30) -> None:
        self.memory = memory

    def full(self, shape: tuple[int, ...], value: Any, dtype: np.dtype) -> Array:
        """As `Device` says."""
        return np.full(shape, value, dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """As `Device` says; filled with bad values, so that tests notice elements never written."""
        return np.full(shape, np.nan if dtype.kind == "f" else 77, dtype)

    def upload(self, array: np.ndarray) -> Array:
        """As `Device` says."""
        return np.array(array, order="C")

    def download(self, array: Array) -> np.ndarray:
        """As `Device` says."""
        return np.array(array, order="C")

    def gemm(self, a: Array, b: Array, dtype: np.dtype, precision: str) -> Array:
        """As `Device` says; factors are never rounded."""
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(a.astype(dtype), b.astype(dtype)))

    def launch(self, source: str, blocks: int, args: Sequence[Any]) -> None:
        """As `Device` says."""
        load(source)[blocks, self.threads](*map(_plain, args))

    def give_back(self) -> None:
        """As `Device` says; NumPy keeps nothing."""

    def wait(self) -> None:
        """As `Device` says."""


def _plain(a: Any) -> Any:
    """An argument as the simulator takes it: contiguous, for it copies, and to be written back."""
    if not isinstance(a, np.ndarray) or (a.flags.c_contiguous and a.flags.writeable):
        return a
    return np.array(a, order="C")
