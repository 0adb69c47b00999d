"""Generated loops run as the Python text that they are, some hundred points in a millisecond.

Compiling takes half a second a kernel, so this is how many of them are tried.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from einsql.ir.functions import less


class _Numbers:
    """What lies from an address on."""

    def __init__(self, address: Any, kind: Any, part: int = 0) -> None:
        self.numbers = ctypes.cast(int(address), ctypes.POINTER(np.ctypeslib.as_ctypes_type(kind)))

    def __getitem__(self, index: Any) -> Any:
        return self.numbers[int(index)]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.numbers[int(index)] = int(value) if isinstance(value, np.bool_) else value


def _quotient(a: Any, b: Any) -> int:
    size = abs(int(a)) // abs(int(b))
    return size if (a < 0) == (b < 0) else -size


def _remainder(a: Any, b: Any) -> int:
    return int(a) - _quotient(a, b) * int(b)


_rooms: dict[int, Any] = {}


def _borrow(count: int) -> int:
    room = ctypes.create_string_buffer(int(count))
    _rooms[ctypes.addressof(room)] = room
    return ctypes.addressof(room)


FUNCTIONS: dict[str, Any] = {
    "np": np, "math": math, "operand": _Numbers, "result": _Numbers,
    "at": _Numbers, "borrow": _borrow, "give_back": _rooms.pop,
    "real": lambda bits: struct.unpack("d", struct.pack("q", bits))[0],
    "idiv": _quotient, "idiv_32": _quotient, "remainder": _remainder, "remainder_32": _remainder,
    "eq": lambda a, b: a == b, "less": lambda a, b: bool(less(a, b)),
    "plus": lambda a, b: a + b, "rounded_off": lambda a, b, y: (a - (y - (y - a))) + (b - (y - a)),
    "maximum": max, "highest": max, "minimum": min, "lowest": min,
    "number": lambda a: a,
}  # fmt: skip
"""What the text calls, for numbers that are not NaN."""


def _undecorated(*_: object, **__: object) -> Callable[[Any], Any]:
    return lambda function: function


def load(source: str, tick: object = None) -> Callable[..., int]:
    """As `cache.load`, but what comes is not compiled."""
    _, decorator, text = source.partition("@njit(")
    known: dict[str, Any] = {**FUNCTIONS, "njit": _undecorated}
    exec(decorator + text, known)
    kernel: Callable[..., int] = known["kernel"]
    return kernel
