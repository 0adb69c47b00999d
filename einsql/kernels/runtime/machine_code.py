"""Compiled kernels as object code, and loading them into the process without Numba.

llvmlite's binding links the code in 2 ms, after an import of 30 ms; importing Numba takes 350 ms.
"""

from __future__ import annotations

import ctypes
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.errors import InternalError

if TYPE_CHECKING:
    import hashlib
    import json
else:  # loaded at the first lookup of a kernel, which takes 7 ms
    hashlib, json = LazyModule("hashlib"), LazyModule("json")

binding: Any = LazyModule("llvmlite.binding")  # its parts that load objects are not annotated

_WORD = ctypes.c_int64
_NUMBERS: dict[str, Any] = {
    "int64": ctypes.c_int64,
    "int32": ctypes.c_int32,
    "float64": ctypes.c_double,
    "float32": ctypes.c_float,
}
"""The types of numbers that kernels take."""


@dataclass(frozen=True, slots=True)
class ObjectCode:
    """A compiled kernel.

    Attributes:
        entry: The symbol of the kernel's function.
        parameters: For each parameter the dtype, and the number of axes of an array in C order or
            None for a number.
        returns: The dtype of the result; None if there is no result.
        code: The object file.
    """

    entry: str
    parameters: tuple[tuple[str, int | None], ...]
    returns: str | None
    code: bytes

    def to_bytes(self) -> bytes:
        """The content of a file: a digest of the rest, the header's length, header, code."""
        header = json.dumps((self.entry, self.parameters, self.returns)).encode()
        rest = len(header).to_bytes(4, "little") + header + self.code
        return hashlib.sha256(rest).digest() + rest

    @classmethod
    def from_bytes(cls, content: bytes) -> ObjectCode:
        """Reads a file's content.

        Raises:
            ValueError: The content is damaged.
        """
        digest, rest = content[:32], content[32:]
        if hashlib.sha256(rest).digest() != digest:
            raise ValueError("the digest of a compiled kernel differs")
        end = 4 + int.from_bytes(rest[:4], "little")
        entry, parameters, returns = json.loads(rest[4:end])
        return cls(entry, tuple((p[0], p[1]) for p in parameters), returns, rest[end:])


class Kernel:
    """A kernel's function in memory, where it stays until the process ends.

    Args:
        code: The compiled kernel.

    Attributes:
        address: The address of the machine code. By Numba's calling convention the function takes
            an address for the result and one for an exception, then its arguments, and returns 0
            unless it raised. An array is seven words or more, see `array_words`.
    """

    __slots__ = ("_function", "_parameters", "_returns", "address")

    def __init__(self, code: ObjectCode) -> None:
        engine = _link(code.code)
        _engines.append(engine)  # callers keep addresses
        self.address: int = engine.get_function_address(code.entry)
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
            InternalError: An argument does not fit its parameter, or the function raised.
        """
        words: list[Any] = []
        for (dtype, axes), value in zip(self._parameters, args, strict=True):
            if axes is None:
                words.append(value)
                continue
            if value.dtype != dtype or value.ndim != axes or not value.flags.c_contiguous:
                raise InternalError("an array does not fit a compiled kernel's parameter")
            words += array_words(value)
        returned, exception = _WORD(0), _WORD(0)
        if self._function(ctypes.addressof(returned), ctypes.addressof(exception), *words):
            raise InternalError("a compiled kernel raised an exception")
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
"""The owners of the memory of all kernels."""
_ready = False


def _link(code: bytes) -> Any:
    """Loads an object file; returns the engine that owns its memory."""
    global _ready
    from llvmlite.binding.object_file import ObjectFileRef  # see `binding`

    if not _ready:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        # Code for arrays mentions it. Arrays of callers are not counted, so it is never called.
        never = ctypes.cast(ctypes.pythonapi.Py_FatalError, ctypes.c_void_p).value
        if not binding.address_of_symbol("NRT_MemInfo_call_dtor"):
            binding.add_symbol("NRT_MemInfo_call_dtor", never)
        _ready = True
    machine = binding.Target.from_default_triple().create_target_machine(jit=True)
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), machine)
    engine.add_object_file(ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine
