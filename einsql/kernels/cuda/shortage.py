"""Recognition of errors that mean a lack of memory, for all libraries.

CuPy raises MemoryError for its arrays. Other allocations fail with other types of errors:
cuBLAS's handles and workspaces, the driver's modules and stacks, pinned memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

NAMES = (
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
)
"""Names that cuBLAS, the driver and the runtime give it in messages of CuPy and numba-cuda."""


def is_shortage(error: BaseException) -> bool:
    """True if an error says that memory is lacking, on the device or pinned."""
    return isinstance(error, MemoryError) or any(name in str(error) for name in NAMES)


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
