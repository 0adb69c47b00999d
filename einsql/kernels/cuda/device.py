"""The protocol of a device: memory, copies, matrix products, launches.

There are two devices: a GPU by CuPy and numba-cuda, and a simulator on the CPU by NumPy and
Numba's CUDA simulator. All code above this protocol runs on either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import numpy as np

Array = Any
"""An array on a device: a CuPy array, or a NumPy array in the simulator."""

WAY_OUT = (
    "SET device = 'cpu', or pip install 'einsql[cuda]' where an NVIDIA GPU and its driver are."
)

_SHORTAGES = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
)
"""Names for a lack of memory in messages of cuBLAS, the driver and the runtime. CuPy raises
MemoryError only for arrays, not for handles and workspaces of cuBLAS, modules and stacks of the
driver, and pinned memory."""

T = TypeVar("T")


class Device(Protocol):
    """A device with separate memory."""

    @property
    def name(self) -> str:
        """The device's name, for messages."""

    @property
    def memory(self) -> int:
        """Greatest bytes of relations on the device."""

    @property
    def threads(self) -> int:
        """The number of threads of a block, a power of two."""

    @property
    def blocks(self) -> int:
        """The number of blocks that run concurrently."""

    @property
    def grid(self) -> int:
        """The greatest number of blocks of one launch."""

    @property
    def tile(self) -> tuple[int, int]:
        """The rows and columns of outputs per thread of a tiled kernel."""

    def full(self, shape: tuple[int, ...], value: Any, dtype: np.dtype) -> Array:
        """Allocates an array in C order, filled with one value."""

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Allocates an uninitialised array in C order."""

    def upload(self, array: np.ndarray) -> Array:
        """Copies an array to the device, in C order."""

    def download(self, array: Array) -> np.ndarray:
        """Copies an array to host memory."""

    def gemm(self, a: Array, b: Array, dtype: np.dtype, precision: str) -> Array:
        """Multiplies stacks of matrices.

        Args:
            a: (batch, m, k), of any strides, FLOAT, DOUBLE or HALF.
            b: (batch, k, n), of the same type.
            dtype: The type of the result and of sums: the operands' type, or FLOAT for HALF.
            precision: 'float32', or 'tf32' if FLOAT factors may be rounded to 11 bits.

        Returns:
            A new array (batch, m, n) in C order.
        """

    def launch(self, source: str, blocks: int, args: Sequence[Any]) -> None:
        """Launches `kernel` of a generated module over blocks of `threads` threads."""

    def give_back(self) -> None:
        """Returns cached memory to the driver, for other allocations."""

    def wait(self) -> None:
        """Waits for all pending operations."""


def simulated() -> bool:
    """True if Numba's simulator replaces a GPU in this process."""
    return os.environ.get("NUMBA_ENABLE_CUDASIM", "0") not in ("", "0")


@lru_cache(maxsize=1024)
def load(source: str) -> Any:
    """Loads the dispatcher `kernel` of a generated module; it compiles on its first launch."""
    module: dict[str, Any] = {"__name__": "einsql_cuda_kernel"}
    exec(compile(source, "<einsql CUDA kernel>", "exec"), module)
    return module["kernel"]


def is_shortage(error: BaseException) -> bool:
    """True if an error reports a lack of device memory or pinned memory."""
    return isinstance(error, MemoryError) or any(name in str(error) for name in _SHORTAGES)


def with_room(work: Callable[[], T], give_back: Callable[[], None]) -> T:
    """Runs `work`, and again after a lack of memory for other objects than arrays.

    Args:
        work: The function; it has no effects if it fails.
        give_back: Frees cached memory for other allocations. Allocations of arrays, which raise
            MemoryError, already free it.
    """
    try:
        return work()
    except Exception as error:
        if isinstance(error, MemoryError) or not is_shortage(error):
            raise
    give_back()  # outside `except`, as the error references the first arrays
    return work()
