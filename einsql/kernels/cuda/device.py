"""The protocol of a device: memory, copies, matrix products, launches.

There are two devices: a GPU by CuPy and numba-cuda, and a simulator on the processor by NumPy and
Numba's CUDA simulator. All code above this protocol runs on either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

Array = Any
"""An array on a device: CuPy's, or NumPy's in the simulator. Both slice, transpose, sum."""

WAY_OUT = (
    "SET device = 'cpu', or pip install 'einsql[cuda]' where an NVIDIA GPU and its driver are."
)

_SHORTAGES = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
)
"""Names that cuBLAS, the driver and the runtime use in messages of CuPy and
numba-cuda for a lack of memory. CuPy raises MemoryError for arrays alone: not for handles and
workspaces of cuBLAS, modules and stacks of the driver, and pinned memory."""

T = TypeVar("T")


class Device(Protocol):
    """A device with memory of its own."""

    @property
    def name(self) -> str:
        """Its name, for messages."""

    @property
    def memory(self) -> int:
        """Bytes that relations may take on it."""

    @property
    def threads(self) -> int:
        """Threads of a block, a power of two."""

    @property
    def blocks(self) -> int:
        """Blocks that keep it busy; more of them wait."""

    @property
    def grid(self) -> int:
        """Blocks of one launch at most."""

    @property
    def tile(self) -> tuple[int, int]:
        """Outputs of one thread of a tiled kernel, rows and columns."""

    def full(self, shape: tuple[int, ...], value: Any, dtype: np.dtype) -> Array:
        """A new array in C order with one value everywhere."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """A new array in C order, not initialised."""

    def upload(self, array: np.ndarray) -> Array:
        """A copy on the device, in C order."""

    def download(self, array: Array) -> np.ndarray:
        """A copy in the memory of the processor."""

    def gemm(self, a: Array, b: Array, dtype: np.dtype, precision: str) -> Array:
        """A stack of matrix products.

        Args:
            a: (batch, m, k), of any strides, FLOAT, DOUBLE or HALF.
            b: (batch, k, n), of the same type.
            dtype: Of the result and of sums: theirs, or FLOAT for HALF.
            precision: 'float32', or 'tf32' where factors of FLOAT may be rounded to 11 bits.

        Returns:
            A new array (batch, m, n) in C order.
        """

    def launch(self, source: str, blocks: int, args: Sequence[Any]) -> None:
        """Runs `kernel` of a generated module over blocks of `threads` threads."""

    def give_back(self) -> None:
        """Returns memory to the driver that is kept for arrays to come, for others lack it."""

    def wait(self) -> None:
        """Waits until everything is done that was begun."""


def simulated() -> bool:
    """True if Numba's simulator replaces a GPU in this process."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


@lru_cache(maxsize=1024)
def load(source: str) -> Any:
    """The dispatcher `kernel` of a generated module; it compiles on its first launch."""
    module: dict[str, Any] = {"__name__": "einsql_cuda_kernel"}
    exec(compile(source, "<einsql CUDA kernel>", "exec"), module)
    return module["kernel"]


def is_shortage(error: BaseException) -> bool:
    """True if an error says that memory is lacking, on the device or pinned."""
    return isinstance(error, MemoryError) or any(name in str(error) for name in _SHORTAGES)


def with_room(work: Callable[[], T], give_back: Callable[[], None]) -> T:
    """Runs `work`, a second time if the first one lacks memory other than that of arrays.

    Args:
        work: The function; it leaves nothing behind where it fails.
        give_back: Frees cached memory for other allocations. Allocations of arrays, which raise
            MemoryError, have done that themselves.
    """
    try:
        return work()
    except Exception as error:
        if isinstance(error, MemoryError) or not is_shortage(error):
            raise
    give_back()  # only here, where the error no longer holds the arrays of the first try
    return work()
