"""The register tile of products that are read where they lie, and of rows that are added.

What is here is compiled into kernels, so its text is part of their name on disk.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_INDEX = ir.IntType(64)


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
            beyond it begin there, and compute what another one does too.
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
        with builder.goto_entry_block():
            sums = [builder.alloca(vector) for _ in range(high * across)]
        for s in sums:
            builder.store(ir.Constant(vector, [ir.Constant(scalar, 0.0)] * many), s)
        name = f"llvm.fmuladd.v{many}f{8 * nbytes}"
        fma = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(vector, [vector] * 3), name
        )
        with cgutils.for_range(builder, depth_, intp=_INDEX) as loop:
            step = builder.mul(loop.index, along_)
            line = builder.mul(loop.index, below_)
            terms = [
                builder.load(_pointer(builder, builder.add(c, line), vector), align=nbytes)
                for c in columns_at
            ]
            for m in range(high):
                one = builder.load(_pointer(builder, builder.add(rows_at[m], step), scalar))
                spread = _spread(builder, one, vector)
                for v in range(across):
                    s = sums[m * across + v]
                    builder.store(builder.call(fma, [spread, terms[v], builder.load(s)]), s)
        for m in range(high):
            row = builder.add(out_, builder.mul(under_, _INDEX(m)))
            for v in range(across):
                to = _pointer(builder, builder.add(row, places[v]), vector)
                builder.store(builder.load(sums[m * across + v]), to, align=nbytes)
        return context.get_dummy_value()

    i64 = types.int64
    return types.none(size, rows, lanes, width, *[i64] * 10), generate


@intrinsic
def add_rows(
    _: Any, size: Any, lanes: Any, rows: Any, first: Any, down: Any, sums: Any
) -> Any:  # fmt: skip
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
                _pointer(builder, builder.add(first_, builder.mul(down_, _INDEX(m))), vector),
                align=nbytes,
            )
            for m in range(high)
        ]
        terms = [t if nbytes == 8 else builder.fpext(t, wide) for t in terms]
        while len(terms) > 1:
            terms = [builder.fadd(a, b) for a, b in zip(terms[::2], terms[1::2], strict=True)]
        to = _pointer(builder, sums_, wide)
        builder.store(builder.fadd(builder.load(to, align=8), terms[0]), to, align=8)
        return context.get_dummy_value()

    i64 = types.int64
    return types.none(size, lanes, rows, i64, i64, i64), generate


def _pointer(builder: Any, address: Any, to: Any) -> Any:
    return builder.inttoptr(address, to.as_pointer())


def _spread(builder: Any, one: Any, vector: Any) -> Any:
    """A vector of copies of a scalar."""
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), one, ir.IntType(32)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), mask)
