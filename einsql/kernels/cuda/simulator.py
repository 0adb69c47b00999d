"""The CPU as a device: NumPy arrays, and kernels in Numba's CUDA simulator.

A launch of 256 threads takes a second, so blocks are tiny. The simulator is for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from einsql.kernels.cuda.device import load

Array = np.ndarray


class Simulator:
    """A simulated GPU.

    Attributes:
        memory: Greatest bytes of relations; tests reduce it.
    """

    name = "Numba's CUDA simulator"
    threads = 4
    blocks = 2
    grid = 3
    tile = (2, 2)

    def __init__(self, memory: int = 1 << 30) -> None:
        self.memory = memory

    def full(self, shape: tuple[int, ...], value: Any, dtype: np.dtype) -> Array:
        """Implements `Device`."""
        return np.full(shape, value, dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Implements `Device`; bad initial values reveal elements that are never written."""
        return np.full(shape, np.nan if dtype.kind == "f" else 77, dtype)

    def upload(self, array: np.ndarray) -> Array:
        """Implements `Device`."""
        return np.array(array, order="C")

    def download(self, array: Array) -> np.ndarray:
        """Implements `Device`."""
        return np.array(array, order="C")

    def gemm(self, a: Array, b: Array, dtype: np.dtype, precision: str) -> Array:
        """Implements `Device`; factors are never rounded."""
        with np.errstate(all="ignore"):
            return np.asarray(np.matmul(a.astype(dtype), b.astype(dtype)))

    def launch(self, source: str, blocks: int, args: Sequence[Any]) -> None:
        """Implements `Device`."""
        load(source)[blocks, self.threads](*map(_plain, args))

    def give_back(self) -> None:
        """Implements `Device`; NumPy caches no memory."""

    def wait(self) -> None:
        """Implements `Device`."""


def _plain(a: Any) -> Any:
    """A contiguous copy of an argument for the simulator, which is written back."""
    if not isinstance(a, np.ndarray) or (a.flags.c_contiguous and a.flags.writeable):
        return a
    return np.array(a, order="C")
