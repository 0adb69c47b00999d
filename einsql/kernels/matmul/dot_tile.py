"""Register tiles of inner products: several rows times several other rows, which are contiguous.

This module is compiled into kernels, so its text is part of their name on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from einsql.kernels.compiler import kernel_types as types
from einsql.kernels.compiler.language import intrinsic
from einsql.kernels.runtime.register_tiles import LINE, WORD, Floats, Rows, tile
from einsql.kernels.runtime.vector_values import pointer, prefetch_line


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
    unroll = max(1, LINE // (many * nbytes))

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        depth_, left_, down_, right_, beside_, ahead_, out_, under_, adds_ = args[4:]
        floats = Floats(builder, types.float64 if nbytes == 8 else types.float32, many)
        rows_at = [floats.at(left_, (down_, WORD(m))) for m in range(high)]
        columns_at = [floats.at(right_, (beside_, WORD(n))) for n in range(wide)]

        def registers(place: Any) -> tuple[list[Any], list[Any]]:
            rows_of, columns_of = (
                [floats.load(floats.at(start, place)) for start in starts]
                for starts in (rows_at, columns_at)
            )
            return rows_of, columns_of

        def read_line(k: Any) -> list[tuple[list[Any], list[Any]]]:
            place = builder.mul(k, WORD(many * nbytes * unroll))
            for column in columns_at:
                prefetch_line(builder, floats.at(column, place, ahead_), 3)
            return [registers(floats.at(place, part * many * nbytes)) for part in range(unroll)]

        def read(k: Any) -> list[tuple[list[Any], list[Any]]]:
            return [registers(builder.mul(k, WORD(many * nbytes)))]

        def read_rest(k: Any) -> list[tuple[list[Any], list[Any]]]:
            """The last register is read in full, without the elements of the one before."""
            place, kept = floats.last(k, depth_)
            rows_of, columns_of = (
                [builder.select(kept, x, floats.zeros) for x in part] for part in registers(place)
            )
            return [(rows_of, columns_of)]

        def combine(m: int, terms: Any, sums: Sequence[Any]) -> Sequence[Any]:
            for rows_of, columns_of in terms:
                sums = [floats.fma(c, rows_of[m], s) for c, s in zip(columns_of, sums, strict=True)]
            return sums

        lines = builder.sdiv(depth_, WORD(many * unroll))
        full = builder.sdiv(depth_, WORD(many))
        end = builder.sdiv(floats.at(depth_, many - 1), WORD(many))
        sums: Rows = [[floats.zeros] * wide] * high
        sums = tile(builder, (WORD(0), lines), sums, read_line, combine)
        sums = tile(builder, (builder.mul(lines, WORD(unroll)), full), sums, read, combine)
        sums = tile(builder, (full, end), sums, read_rest, combine)
        for m, row in enumerate(sums):
            total = _folded(builder, row)
            to = pointer(builder, floats.at(out_, (under_, WORD(m))), total.type)
            none = ir.Constant(total.type, [ir.Constant(floats.element, 0.0)] * wide)
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
