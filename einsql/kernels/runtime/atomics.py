"""Words of memory that several threads share, for compiled kernels.

Importing this module imports Numba. Its text is compiled into kernels.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

WORD = ir.IntType(64)
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}
"""The intrinsic that tells a processor that a thread is waiting, and its argument."""


def pointer(builder: Any, address: Any) -> Any:
    """An address as a pointer to words."""
    return builder.inttoptr(address, WORD.as_pointer())


@intrinsic
def load(_: Any, address: Any) -> Any:
    """Loads the word at an address, with acquire order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load_atomic(pointer(builder, args[0]), "acquire", 8)

    return types.int64(address), generate


@intrinsic
def store(_: Any, address: Any, value: Any) -> Any:
    """Stores a word, with release order."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], pointer(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(address, value), generate


def _combined(operation: str) -> Any:
    def typed(_: Any, address: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = pointer(builder, args[0])
            return builder.atomic_rmw(operation, place, args[1], "seq_cst")

        return types.int64(address, value), generate

    return intrinsic(typed)


add = _combined("add")
"""Adds to the word at an address; returns the old value."""
unite = _combined("or")
"""Sets bits of the word at an address; returns the old value."""


@intrinsic
def replace(_: Any, address: Any, old: Any, new: Any) -> Any:
    """Stores a word where another one is; whether it was."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(builder, args[0])
        exchanged = builder.cmpxchg(place, args[1], args[2], "seq_cst", "seq_cst")
        return builder.extract_value(exchanged, 1)

    return types.boolean(address, old, new), generate


@intrinsic
def pause(_: Any) -> Any:
    """Waits for some tens of cycles, as a thread does that looks at a word again and again."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name, numbers = _PAUSES.get(builder.module.triple.partition("-")[0], ("", ()))
        if name:
            values = [ir.Constant(ir.IntType(32), n) for n in numbers]
            function = ir.FunctionType(ir.VoidType(), [v.type for v in values])
            builder.call(builder.module.declare_intrinsic(name, (), function), values)
        return context.get_dummy_value()

    return types.void(), generate
