"""Register code of products read in place: tiles, windows, rows times a vector, rows added.

This module is compiled into kernels, so its text is part of their name on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from einsql.kernels.runtime import kernel_types as types
from einsql.kernels.runtime.language import intrinsic
from einsql.kernels.runtime.llvm_code import for_range
from einsql.kernels.runtime.vector_values import declared, pointer, prefetch_line, spread

_INDEX = ir.IntType(64)
_LINE = 64
"""Bytes of a line of memory."""


def _multiplied(
    builder: Any,
    vector: Any,
    width: int,
    rows: Sequence[Any],
    depth: Any,
    step: Callable[[Any], Any],
    columns: Callable[[Any], Sequence[Any]],
) -> list[list[Any]]:
    """Sums the products of the elements of rows with vectors of columns, in registers.

    Args:
        builder: Appends to the code.
        vector: The type of a register.
        width: Registers of a row.
        rows: Addresses of the rows.
        depth: How many terms there are.
        step: The distance in bytes from a row to its element of a term.
        columns: Addresses of the vectors of a term.

    Returns:
        A place in memory for each row and vector, which LLVM keeps in a register.
    """
    size = 8 if isinstance(vector.element, ir.DoubleType) else 4
    zeros = ir.Constant(vector, [ir.Constant(vector.element, 0.0)] * vector.count)
    with builder.goto_entry_block():
        sums = [[builder.alloca(vector) for _ in range(width)] for _ in rows]
    for s in (s for row in sums for s in row):
        builder.store(zeros, s)
    name = f"llvm.fmuladd.v{vector.count}f{8 * size}"
    fma = declared(builder, name, vector, [vector] * 3)
    with for_range(builder, depth) as term:
        along = step(term)
        places = columns(term)
        terms = [builder.load(pointer(builder, c, vector), align=size) for c in places]
        for row, start in zip(sums, rows, strict=True):
            one = builder.load(pointer(builder, builder.add(start, along), vector.element))
            copies = spread(builder, one, vector)
            for s, term in zip(row, terms, strict=True):
                builder.store(builder.call(fma, [copies, term, builder.load(s)]), s)
    return sums


@intrinsic
def tile(
    _: Any,
    size: Any,
    rows: Any,
    lanes: Any,
    width: Any,
    left: Any,
    down: Any,
    along: Any,
    right: Any,
    below: Any,
    depth: Any,
    column: Any,
    last: Any,
    out: Any,
    under: Any,
) -> Any:
    """Multiplies some rows with some columns; all distances are in bytes.

    Args:
        size: Bytes of an element, 4 for FLOAT and 8 for DOUBLE; like the next three a literal.
        rows: Rows of the tile.
        lanes: Elements of a register.
        width: Registers of a row.
        left: Address of the rows' first element.
        down: From a row to the next.
        along: From a term to the next in a row.
        right: Address of the columns' first term; columns are contiguous.
        below: From a term to the next in a column.
        depth: How many terms there are.
        column: From the first column to the tile's first.
        last: From the first column to the last that a register may begin at. Registers
            beyond it begin there, and compute the same columns as another one.
        out: Address of the rows of the result, whose columns are contiguous.
        under: From a row of the result to the next.
    """
    literal = (size, rows, lanes, width)
    if not all(isinstance(a, types.IntegerLiteral) for a in literal):
        return None
    nbytes, high, many, across = (a.literal_value for a in literal)
    scalar = ir.DoubleType() if nbytes == 8 else ir.FloatType()
    vector = ir.VectorType(scalar, many)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left_, down_, along_, right_, below_, depth_, column_, last_, out_, under_ = args[4:]
        places = []
        for v in range(across):
            place = builder.add(column_, _INDEX(v * many * nbytes))
            beyond = builder.icmp_signed(">", place, last_)
            places.append(builder.select(beyond, last_, place))
        rows_at = [builder.add(left_, builder.mul(down_, _INDEX(m))) for m in range(high)]
        columns_at = [builder.add(right_, place) for place in places]
        sums = _multiplied(
            builder,
            vector,
            across,
            rows_at,
            depth_,
            lambda k: builder.mul(k, along_),
            lambda k: [builder.add(c, builder.mul(k, below_)) for c in columns_at],
        )
        for m in range(high):
            row = builder.add(out_, builder.mul(under_, _INDEX(m)))
            for v in range(across):
                to = pointer(builder, builder.add(row, places[v]), vector)
                builder.store(builder.load(sums[m][v]), to, align=nbytes)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(size, rows, lanes, width, *[i64] * 10), generate


@intrinsic
def window_tile(
    _: Any,
    size: Any,
    rows: Any,
    lanes: Any,
    width: Any,
    at: Any,
    steps: Any,
    depth: Any,
    panel: Any,
    out: Any,
) -> Any:
    """Sums the products of some rows with a packed panel to a tile.

    Args:
        size: Bytes of an element, 4 for FLOAT and 8 for DOUBLE; like the next three a literal.
        rows: Rows of the tile.
        lanes: Elements of a register.
        width: Registers of a row.
        at: Address of the rows' addresses, int64 each.
        steps: Address of the distances, in bytes, from a row's address to its terms.
        depth: How many terms there are.
        panel: Address of the packed panel, `[depth, width · lanes]`.
        out: Address of the sums, `[rows, width · lanes]`.
    """
    literal = (size, rows, lanes, width)
    if not all(isinstance(a, types.IntegerLiteral) for a in literal):
        return None
    nbytes, high, many, across = (a.literal_value for a in literal)
    vector = ir.VectorType(ir.DoubleType() if nbytes == 8 else ir.FloatType(), many)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        at_, steps_, depth_, panel_, out_ = args[4:]

        def word(base: Any, index: Any) -> Any:
            place = builder.add(base, builder.shl(index, _INDEX(3)))
            return builder.load(pointer(builder, place, _INDEX))

        def columns(k: Any) -> list[Any]:
            line = builder.add(panel_, builder.mul(k, _INDEX(across * many * nbytes)))
            return [builder.add(line, _INDEX(v * many * nbytes)) for v in range(across)]

        rows_at = [word(at_, _INDEX(m)) for m in range(high)]
        sums = _multiplied(
            builder, vector, across, rows_at, depth_, lambda k: word(steps_, k), columns
        )
        for n, s in enumerate(s for row in sums for s in row):
            to = pointer(builder, builder.add(out_, _INDEX(n * many * nbytes)), vector)
            builder.store(builder.load(s), to, align=nbytes)
        return context.get_dummy_value()

    return types.void(size, rows, lanes, width, *[types.int64] * 5), generate


@intrinsic
def dots(
    _: Any,
    size: Any,
    rows: Any,
    lanes: Any,
    width: Any,
    left: Any,
    down: Any,
    right: Any,
    depth: Any,
    ahead: Any,
    adds: Any,
    out: Any,
    under: Any,
) -> Any:
    """Multiplies some rows with a vector; all distances are in bytes.

    Args:
        size: Bytes of an element, 4 for FLOAT and 8 for DOUBLE; like the next three a literal.
        rows: How many rows.
        lanes: Elements of a register, a power of two.
        width: Registers of running sums of a row, a power of two.
        left: Address of the first row, whose elements are contiguous.
        down: From a row to the next.
        right: Address of the vector, which is contiguous.
        depth: How many terms there are, at least one register's.
        ahead: Distance from an element to the address that is prefetched.
        adds: Whether the sums are added to the result.
        out: Address of the first row's sum.
        under: From a sum to the next.
    """
    literal = (size, rows, lanes, width)
    if not all(isinstance(a, types.IntegerLiteral) for a in literal):
        return None
    nbytes, high, many, across = (a.literal_value for a in literal)
    scalar = ir.DoubleType() if nbytes == 8 else ir.FloatType()
    vector = ir.VectorType(scalar, many)
    zeros = ir.Constant(vector, [ir.Constant(scalar, 0.0)] * many)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        left_, down_, right_, depth_, ahead_, adds_, out_, under_ = args[4:]
        rows_at = [builder.add(left_, builder.mul(down_, _INDEX(m))) for m in range(high)]
        with builder.goto_entry_block():
            sums = [[builder.alloca(vector) for _ in range(across)] for _ in range(high)]
        for s in (s for row in sums for s in row):
            builder.store(zeros, s)
        fma = declared(builder, f"llvm.fmuladd.v{many}f{8 * nbytes}", vector, [vector] * 3)

        def read(at: Any) -> Any:
            return builder.load(pointer(builder, at, vector), align=nbytes)

        def add(at: Any, register: int, kept: Any = None) -> None:
            """Adds a register's products, of those lanes alone that are kept."""
            term = read(builder.add(right_, at))
            for row, begin in zip(sums, rows_at, strict=True):
                other = read(builder.add(begin, at))
                if kept is not None:
                    other = builder.select(kept, other, zeros)
                both = other, builder.select(kept, term, zeros) if kept is not None else term
                total = row[register]
                builder.store(builder.call(fma, [*both, builder.load(total)]), total)

        step = many * nbytes
        blocks = builder.sdiv(depth_, _INDEX(many * across))
        with for_range(builder, blocks) as block:
            at = builder.mul(block, _INDEX(step * across))
            for register in range(across):
                add(builder.add(at, _INDEX(register * step)), register)
            for begin in rows_at:
                soon = builder.add(builder.add(begin, at), ahead_)
                for line in range(0, step * across, _LINE):
                    prefetch_line(builder, builder.add(soon, _INDEX(line)), 2)
        first = builder.mul(blocks, _INDEX(across))
        last = builder.sdiv(depth_, _INDEX(many))
        with for_range(builder, builder.sub(last, first)) as register:
            add(builder.mul(builder.add(first, register), _INDEX(step)), 0)
        rest = builder.sub(depth_, builder.mul(last, _INDEX(many)))
        with builder.if_then(builder.icmp_signed(">", rest, _INDEX(0))):
            # The last register is read in full, without the elements of the one before.
            places = ir.Constant(ir.VectorType(_INDEX, many), [_INDEX(n) for n in range(many)])
            from_ = spread(builder, builder.sub(_INDEX(many), rest), places.type)
            at = builder.mul(builder.sub(depth_, _INDEX(many)), _INDEX(nbytes))
            add(at, 0, builder.icmp_signed(">=", places, from_))
        reduce = f"llvm.vector.reduce.fadd.v{many}f{8 * nbytes}"
        reduced = declared(builder, reduce, scalar, [scalar, vector])
        for m, row in enumerate(sums):
            parts = [builder.load(s) for s in row]
            while len(parts) > 1:
                parts = [builder.fadd(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
            place = pointer(builder, builder.add(out_, builder.mul(under_, _INDEX(m))), scalar)
            none = ir.Constant(scalar, 0.0)
            before = builder.select(adds_, builder.load(place, align=nbytes), none)
            total = builder.call(reduced, [none, parts[0]], fastmath=("reassoc",))
            builder.store(builder.fadd(before, total), place, align=nbytes)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(*literal, *[i64] * 5, types.boolean, i64, i64), generate


@intrinsic
def add_rows(_: Any, size: Any, lanes: Any, rows: Any, first: Any, down: Any, sums: Any) -> Any:
    """Adds neighbouring elements of some rows to each other, and to running sums in DOUBLE.

    Args:
        size: Bytes of an element, 4 for FLOAT and 8 for DOUBLE; like the next two a literal.
        lanes: How many elements.
        rows: How many rows, a power of two; they are added in pairs, in DOUBLE.
        first: Address of the first row's.
        down: From a row to the next, in bytes.
        sums: Address of the sums.
    """
    if not all(isinstance(a, types.IntegerLiteral) for a in (size, lanes, rows)):
        return None
    nbytes, many, high = (a.literal_value for a in (size, lanes, rows))
    vector = ir.VectorType(ir.DoubleType() if nbytes == 8 else ir.FloatType(), many)
    wide = ir.VectorType(ir.DoubleType(), many)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        first_, down_, sums_ = args[3:]
        terms = [
            builder.load(
                pointer(builder, builder.add(first_, builder.mul(down_, _INDEX(m))), vector),
                align=nbytes,
            )
            for m in range(high)
        ]
        terms = [t if nbytes == 8 else builder.fpext(t, wide) for t in terms]
        while len(terms) > 1:
            terms = [builder.fadd(a, b) for a, b in zip(terms[::2], terms[1::2], strict=True)]
        to = pointer(builder, sums_, wide)
        builder.store(builder.fadd(builder.load(to, align=8), terms[0]), to, align=8)
        return context.get_dummy_value()

    i64 = types.int64
    return types.void(size, lanes, rows, i64, i64, i64), generate
