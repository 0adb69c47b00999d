"""An NVIDIA GPU: memory and matrix products by CuPy, kernels by numba-cuda.

All operations use one stream, so that only copies to the host wait.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import cupy
import cupyx
import numba.cuda
import numpy as np
from cupy.cuda import device as cupy_device
from cupy.cuda import runtime
from cupy_backends.cuda.libs import cublas

from einsql.errors import OperationalError
from einsql.kernels.cuda.device import WAY_OUT, Array, is_shortage, load
from einsql.kernels.cuda.stacks import WIDEST, Stack, parts, stack_of

numba_cuda: Any = numba.cuda  # untyped package
SHARE = 0.85
"""Fraction of the initially free memory for relations; libraries and padding need the rest."""

TAKEN = "End what else uses the GPU, choose another by CUDA_VISIBLE_DEVICES, or SET device = 'cpu'."

_TYPES = {"e": runtime.CUDA_R_16F, "f": runtime.CUDA_R_32F, "d": runtime.CUDA_R_64F}
_COMPUTE = {"f": cublas.CUBLAS_COMPUTE_32F, "d": cublas.CUBLAS_COMPUTE_64F}
_OPERATIONS = {False: cublas.CUBLAS_OP_N, True: cublas.CUBLAS_OP_T}


class Gpu:
    """The GPU that CUDA numbers 0; CUDA_VISIBLE_DEVICES chooses among several.

    Raises:
        OperationalError: There is no GPU, or its driver is missing.
    """

    threads = 256
    tile = (8, 8)

    def __init__(self) -> None:
        try:
            properties = runtime.getDeviceProperties(0) if runtime.getDeviceCount() else None
            # The first call that allocates device memory.
            free = runtime.memGetInfo()[0] if properties is not None else 0
        except runtime.CUDARuntimeError as error:
            if is_shortage(error):
                raise OperationalError(
                    "device = 'cuda' finds a GPU whose memory others have taken", hint=TAKEN
                ) from error
            raise OperationalError(
                f"device = 'cuda' finds no GPU: {error}", hint=WAY_OUT
            ) from error
        if properties is None:
            raise OperationalError("device = 'cuda' finds no GPU", hint=WAY_OUT)
        self.name = properties["name"].decode()
        self.blocks = 8 * int(properties["multiProcessorCount"])
        self.grid = 16 * self.blocks
        self.memory = int(free * SHARE)
        for name in ("numba.core.config", "numba.cuda.core.config"):
            _quiet(name)

    def full(self, shape: tuple[int, ...], value: Any, dtype: np.dtype) -> Array:
        """Implements `Device`."""
        return cupy.full(shape, value, dtype)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Array:
        """Implements `Device`."""
        return cupy.empty(shape, dtype)

    def upload(self, array: np.ndarray) -> Array:
        """Implements `Device`; CuPy copies through pinned memory."""
        return cupy.array(array, order="C")

    def download(self, array: Array) -> np.ndarray:
        """Implements `Device`; copies to pinned memory if there is enough."""
        array = cupy.ascontiguousarray(array).reshape(array.shape)
        host: np.ndarray
        try:
            host = cupyx.empty_pinned(array.shape, array.dtype)
        except runtime.CUDARuntimeError as error:
            if not is_shortage(error):
                raise
            host = np.empty(array.shape, array.dtype)  # slower pageable memory
        array.get(out=host)
        return host

    def gemm(self, a: Array, b: Array, dtype: np.dtype, precision: str) -> Array:
        """Implements `Device`. cuBLAS is column-major, so it computes bᵀ·aᵀ."""
        (batch, m, k), n = a.shape, b.shape[2]
        if max(batch, m, n, k) > WIDEST:
            total = cupy.zeros((batch, m, n), dtype)
            for z, y, x, w in parts((batch, m, n, k)):
                total[z, y, x] += self.gemm(a[z, y, w], b[z, w, x], dtype, precision)
            return total
        result = cupy.empty((batch, m, n), dtype)
        (left, of_a), (right, of_b) = _stack(a), _stack(b)
        compute = _COMPUTE[dtype.char]
        if precision == "tf32" and a.dtype == np.float32:
            compute = cublas.CUBLAS_COMPUTE_32F_FAST_TF32
        one, zero = np.ones((), dtype), np.zeros((), dtype)
        cublas.gemmStridedBatchedEx(
            cupy_device.get_cublas_handle(),
            _OPERATIONS[of_b.turned], _OPERATIONS[of_a.turned], n, m, k, one.ctypes.data,
            right.data.ptr, _TYPES[b.dtype.char], of_b.step, of_b.next,
            left.data.ptr, _TYPES[a.dtype.char], of_a.step, of_a.next, zero.ctypes.data,
            result.data.ptr, _TYPES[dtype.char], n, m * n,
            batch, compute, cublas.CUBLAS_GEMM_DEFAULT,
        )  # fmt: skip
        return result

    def launch(self, source: str, blocks: int, args: Sequence[Any]) -> None:
        """Implements `Device`; both libraries use the same stream, so that neither waits."""
        arguments = [
            numba_cuda.as_cuda_array(a, sync=False) if isinstance(a, cupy.ndarray) else a
            for a in args
        ]
        load(source)[blocks, self.threads](*arguments)

    def give_back(self) -> None:
        """Implements `Device`."""
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.get_default_pinned_memory_pool().free_all_blocks()

    def wait(self) -> None:
        """Implements `Device`."""
        runtime.deviceSynchronize()


def _stack(array: Array) -> tuple[Array, Stack]:
    """An array in a layout for cuBLAS, copied if necessary."""
    stack = stack_of(array.shape, tuple(s // array.itemsize for s in array.strides))
    if stack is None:
        array = cupy.ascontiguousarray(array)
        _, rows, columns = array.shape
        stack = Stack(False, columns, rows * columns)
    return array, stack


def _quiet(name: str) -> None:
    """Disables numba-cuda's warnings about small grids, which are expected here."""
    try:
        config = importlib.import_module(name)
    except ImportError:  # the module's name depends on the version
        return
    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # type: ignore[attr-defined]  # a module's variable
