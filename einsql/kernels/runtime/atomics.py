"""Words of memory that several threads share, and calls by address, for compiled kernels.

The text of this module is compiled into kernels.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.language import intrinsic

WORD = ir.IntType(64)
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ()), "aarch64": ("llvm.aarch64.hint", (1,))}
"""The intrinsic by which a thread signals the processor that it waits, and its argument."""
ARGUMENTS = 24
"""Words that a compiled function is given, of which it takes as many as it has."""
_ROW_MAJOR = 101  # how CBLAS names C order


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


_INT = ir.IntType(32)


@intrinsic
def call(_: Any, function: Any, args_at: Any, result_at: Any) -> Any:
    """Calls a compiled function of integers and arrays, by its address.

    The call passes `ARGUMENTS` words from an address on, more than the function takes: an array is
    seven words (0, 0, its length, its item size, its address, its length, its step). The result is
    stored at another address. Returns 0. It reserves no memory on the stack, because it is called
    in a loop over pieces, whose memory would be freed at the end of the loop.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        status, place = ir.IntType(32), WORD.as_pointer()
        kind = ir.FunctionType(status, [place, place, *[WORD] * ARGUMENTS])
        function_pointer = builder.inttoptr(args[0], kind.as_pointer())
        base = pointer(builder, args[1])
        words = [builder.load(builder.gep(base, [ir.Constant(WORD, n)])) for n in range(ARGUMENTS)]
        result = pointer(builder, args[2])
        left = builder.call(function_pointer, [result, result, *words])
        return builder.sext(left, WORD)

    return types.int64(function, args_at, result_at), generate


@intrinsic
def give_way(_: Any, function: Any) -> Any:
    """Calls a function without arguments at an address, which lets other threads run."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_INT, [])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(function), generate


def _blas(kinds: str) -> Any:
    """An intrinsic that calls a function of CBLAS over matrices in C order.

    Args:
        kinds: The kinds of its arguments after the order: `f` for a transposition, `i` for an
            extent or a step, `p` for an address, and `1` or `0` for that factor.
    """
    values_given = [k for k in kinds if k not in "01"]

    def typed(_: Any, function: Any, size: Any, wide: Any, *numbers: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            number = ir.FloatType() if size.literal_value == 4 else ir.DoubleType()
            count = WORD if wide.literal_value else _INT
            values = iter(args[3:])
            arguments = [ir.Constant(_INT, _ROW_MAJOR)]
            for kind in kinds:
                if kind in "01":
                    arguments.append(ir.Constant(number, float(kind)))
                elif kind == "p":
                    arguments.append(pointer(builder, next(values)))
                else:
                    full_type = _INT if kind == "f" else count
                    value = next(values)
                    arguments.append(
                        value if full_type == WORD else builder.trunc(value, full_type)
                    )
            kind = ir.FunctionType(ir.VoidType(), [v.type for v in arguments])
            builder.call(builder.inttoptr(args[0], kind.as_pointer()), arguments)
            return context.get_dummy_value()

        return types.void(function, size, wide, *numbers), generate

    names = [f"x{n}" for n in range(len(values_given))]
    space = {"typed": typed}
    head = f"_, function, size, wide, {', '.join(names)}"
    exec(f"def caller({head}): return typed({head})", space)  # so that arguments are counted
    return intrinsic(prefer_literal=True)(space["caller"])


gemm = _blas("ffiii1pipi0pi")
"""C = A B: transpositions of A and B, extents M, N, K, then address and step of A, B, C."""
gemv = _blas("fii1pipi0pi")
"""y = A x: transposition of A, its extents in memory, then address and step of A, x, y."""
