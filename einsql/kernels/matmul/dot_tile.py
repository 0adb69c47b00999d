"""Register tiles of inner products: several rows times several other rows, which are contiguous.

This module is compiled into kernels, so its text is part of their name on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.language import intrinsic
from einsql.kernels.compiler.llvm_code import for_range
from einsql.kernels.runtime.vector_values import declared, pointer, prefetch_line, spread

_WORD = ir.IntType(64)
_LINE = 64
"""Bytes of a line of memory."""


@intrinsic
def dot_tile(
    _: Any,
    size: Any,
    rows: Any,
    lanes: Any,
    columns: Any,
    depth: Any,
    left: Any,
    down: Any,
    right: Any,
    beside: Any,
    ahead: Any,
    out: Any,
    under: Any,
    adds: Any,
) -> Any:
    """Multiplies each of some rows with each of some columns; all distances are in bytes.

    Args:
        size: Bytes of an element, 4 for FLOAT and 8 for DOUBLE; like the next three a literal.
        rows: How many rows.
        lanes: Elements of a register, a power of two.
        columns: How many columns, a power of two up to `lanes`.
        depth: How many terms there are, at least one register's.
        left: Address of the first row, whose terms are contiguous.
        down: From a row to the next.
        right: Address of the first column, whose terms are contiguous.
        beside: From a column to the next.
        ahead: From an element of a column to the address that is prefetched.
        out: Address of the first row's products, which are contiguous.
        under: From a row of products to the next.
        adds: Whether the products are added to those in memory, which may be undefined otherwise.
    """
    literal = (size, rows, lanes, columns)
    if not all(isinstance(a, types.IntegerLiteral) for a in literal):
        return None
    nbytes, high, many, wide = (a.literal_value for a in literal)
    scalar = ir.DoubleType() if nbytes == 8 else ir.FloatType()
    vector = ir.VectorType(scalar, many)
    zeros = ir.Constant(vector, [ir.Constant(scalar, 0.0)] * many)
    unroll = max(1, _LINE // (many * nbytes))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        depth_, left_, down_, right_, beside_, ahead_, out_, under_, adds_ = args[4:]
        rows_at = [builder.add(left_, builder.mul(down_, _WORD(m))) for m in range(high)]
        columns_at = [builder.add(right_, builder.mul(beside_, _WORD(n))) for n in range(wide)]
        with builder.goto_entry_block():
            sums = [[builder.alloca(vector) for _ in range(wide)] for _ in range(high)]
        for s in (s for row in sums for s in row):
            builder.store(zeros, s)
        fma = declared(builder, f"llvm.fmuladd.v{many}f{8 * nbytes}", vector, [vector] * 3)

        def read(address: Any, at: Any) -> Any:
            place = pointer(builder, builder.add(address, at), vector)
            return builder.load(place, align=nbytes)

        def add(at: Any, kept: Any = None) -> None:
            """Adds the products of a register's terms, of those lanes alone that are kept."""
            terms = [read(row, at) for row in rows_at]
            for n, column in enumerate(columns_at):
                other = read(column, at)
                if kept is not None:
                    other = builder.select(kept, other, zeros)
                for m, term in enumerate(terms):
                    if kept is not None:
                        term = builder.select(kept, term, zeros)
                    total = sums[m][n]
                    builder.store(builder.call(fma, [other, term, builder.load(total)]), total)

        step = many * nbytes
        blocks = builder.sdiv(depth_, _WORD(many * unroll))
        with for_range(builder, blocks) as block:
            at = builder.mul(block, _WORD(step * unroll))
            for column in columns_at:
                prefetch_line(builder, builder.add(builder.add(column, at), ahead_), 3)
            for part in range(unroll):
                add(builder.add(at, _WORD(part * step)))
        first = builder.mul(blocks, _WORD(unroll))
        last = builder.sdiv(depth_, _WORD(many))
        with for_range(builder, builder.sub(last, first)) as register:
            add(builder.mul(builder.add(first, register), _WORD(step)))
        rest = builder.sub(depth_, builder.mul(last, _WORD(many)))
        with builder.if_then(builder.icmp_signed(">", rest, _WORD(0))):
            # The last register is read in full, without the elements of the one before.
            numbers = ir.Constant(ir.VectorType(_WORD, many), [_WORD(n) for n in range(many)])
            skipped = spread(builder, builder.sub(_WORD(many), rest), numbers.type)
            at = builder.mul(builder.sub(depth_, _WORD(many)), _WORD(nbytes))
            add(at, builder.icmp_signed(">=", numbers, skipped))
        for m, row in enumerate(sums):
            total = _folded(builder, [builder.load(s) for s in row])
            place = builder.add(out_, builder.mul(under_, _WORD(m)))
            to = pointer(builder, place, total.type)
            none = ir.Constant(total.type, [ir.Constant(scalar, 0.0)] * wide)
            before = builder.select(adds_, builder.load(to, align=nbytes), none)
            builder.store(builder.fadd(before, total), to, align=nbytes)
        return context.get_dummy_value()

    return types.void(*literal, *[types.int64] * 8, types.boolean), generate


def _folded(builder: Any, vectors: Sequence[Any]) -> Any:
    """The sum of the lanes of each vector, as one vector with an element for each."""
    wanted = len(vectors)
    while len(vectors) > 1:
        pairs = zip(vectors[::2], vectors[1::2], strict=True)
        vectors = [_neighbours(builder, *pair) for pair in pairs]
    (total,) = vectors
    while total.type.count > wanted:
        total = _neighbours(builder, total, None)
    return total


def _neighbours(builder: Any, a: Any, b: Any) -> Any:
    """The sums of neighbouring lanes of a vector, and behind them those of another, if any."""
    count = a.type.count * (1 if b is None else 2)
    word = ir.IntType(32)

    def every_second(first: int) -> Any:
        places = [word(n) for n in range(first, count, 2)]
        mask = ir.Constant(ir.VectorType(word, len(places)), places)
        other = ir.Constant(a.type, ir.Undefined) if b is None else b
        return builder.shuffle_vector(a, other, mask)

    return builder.fadd(every_second(0), every_second(1))
