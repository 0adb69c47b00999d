"""Compiled kernels as functions of the process."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.errors import InternalError
from einsql.kernels.compiler.object_code import ObjectCode
from einsql.kernels.runtime import elf_loader

binding: Any = LazyModule("llvmlite.binding")  # its parts that load objects are not annotated

_WORD = ctypes.c_int64
_NUMBERS: dict[str, Any] = {
    "int64": ctypes.c_int64,
    "int32": ctypes.c_int32,
    "float64": ctypes.c_double,
    "float32": ctypes.c_float,
}
"""The types of numbers that kernels take."""


class Kernel:
    """A kernel's function in memory, where it stays until the process ends.

    Args:
        code: The compiled kernel.

    Attributes:
        address: The address of the machine code. The function takes an address for the result and
            another one, then its arguments, and returns 0. An array is seven words or more, see
            `array_words`.
    """

    __slots__ = ("_function", "_parameters", "_returns", "address")

    def __init__(self, code: ObjectCode) -> None:
        self.address = elf_loader.load(code.code, code.entry) or _linked(code)
        if not self.address:
            raise InternalError("a compiled kernel has no function")
        self._parameters = tuple((np.dtype(dtype), axes) for dtype, axes in code.parameters)
        self._returns = None if code.returns is None else np.dtype(code.returns)
        kinds: list[Any] = [ctypes.c_int32, _WORD, _WORD]
        for dtype, axes in code.parameters:
            kinds += [_NUMBERS[dtype]] if axes is None else [_WORD] * (5 + 2 * axes)
        # A call through it releases Python's lock.
        self._function = ctypes.CFUNCTYPE(*kinds)(self.address)

    def __call__(self, *args: Any) -> Any:
        """Calls the function.

        Args:
            args: Numbers, and arrays in C order with the parameters' dtypes and axes.

        Raises:
            InternalError: An argument does not fit its parameter.
        """
        words: list[Any] = []
        for (dtype, axes), value in zip(self._parameters, args, strict=True):
            if axes is None:
                words.append(value)
                continue
            if value.dtype != dtype or value.ndim != axes or not value.flags.c_contiguous:
                raise InternalError("an array does not fit a compiled kernel's parameter")
            words += array_words(value)
        returned = _WORD(0)
        place = ctypes.addressof(returned)
        self._function(place, place, *words)
        if self._returns is None:
            return None
        return bool(returned.value & 1) if self._returns.kind == "b" else returned.value


def array_words(array: np.ndarray) -> tuple[int, ...]:
    """Returns the arguments for an array; the caller keeps a reference to the array."""
    return (0, 0, array.size, array.itemsize, address(array), *array.shape, *array.strides)


def _by_interface(array: np.ndarray) -> int:
    start: int = array.__array_interface__["data"][0]
    return start


def _by_place(array: np.ndarray) -> int:
    """Returns the first word of an array after an object's header; the interface takes 2 µs."""
    start: int = _POINTER(id(array) + object.__basicsize__).value or 0
    return start


_POINTER = ctypes.c_void_p.from_address
_ARRAY = np.empty(8)
address = _by_interface
"""The function that returns the address of an array; it is faster than `ndarray.ctypes`."""
if sys.implementation.name == "cpython" and _by_place(_ARRAY) == _by_interface(_ARRAY):
    address = _by_place


_engines: list[Any] = []
"""The owners of the memory of kernels that LLVM has loaded."""
_ready = False


def _linked(code: ObjectCode) -> int:
    """Loads an object file by LLVM, in 2 ms after the import; returns its function's address."""
    global _ready
    from llvmlite.binding.object_file import ObjectFileRef  # see `binding`

    if not _ready:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        _ready = True
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(ObjectFileRef.from_data(code.code))
    engine.finalize_object()
    _engines.append(engine)  # callers keep addresses
    return int(engine.get_function_address(code.entry))
