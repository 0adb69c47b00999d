"""The register tile of a product one of whose operands is read by a table of addresses.

This module is compiled into kernels, so its text is part of their name on disk.
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
    kind: Any,
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
        kind: 0 for FLOAT, 1 for DOUBLE; like the next three a literal.
        rows: Rows of the tile.
        lanes: Elements of a register.
        width: Registers of a row.
        at: Address of the rows' addresses, int64 each.
        steps: Address of the distances, in bytes, from a row's address to its terms.
        depth: How many terms there are.
        panel: Address of the packed panel, `[depth, width · lanes]`.
        out: Address of the sums, `[rows, width · lanes]`.
    """
    literal = [types.IntegerLiteral] * 4
    if not all(isinstance(a, t) for a, t in zip((kind, rows, lanes, width), literal, strict=True)):
        return None
    high, across, many = rows.literal_value, width.literal_value, lanes.literal_value
    scalar = ir.DoubleType() if kind.literal_value else ir.FloatType()
    size = 8 if kind.literal_value else 4
    vector = ir.VectorType(scalar, many)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, _, _, _, at_, steps_, depth_, panel_, out_ = args
        start = [
            builder.load(_pointer(builder, _ahead(builder, at_, 8 * m), _INDEX))
            for m in range(high)
        ]
        with builder.goto_entry_block():
            sums = [builder.alloca(vector) for _ in range(high * across)]
        for s in sums:
            builder.store(ir.Constant(vector, [ir.Constant(scalar, 0.0)] * many), s)
        name = f"llvm.fmuladd.v{many}f{8 * size}"
        fma = builder.module.globals.get(name) or ir.Function(
            builder.module, ir.FunctionType(vector, [vector] * 3), name
        )
        with cgutils.for_range(builder, depth_, intp=_INDEX) as loop:
            step = builder.load(
                _pointer(builder, builder.add(steps_, builder.shl(loop.index, _INDEX(3))), _INDEX)
            )
            line = builder.add(panel_, builder.mul(loop.index, _INDEX(across * many * size)))
            right = [_load(builder, line, v * many * size, vector, size) for v in range(across)]
            for m in range(high):
                one = builder.load(_pointer(builder, builder.add(start[m], step), scalar))
                left = _spread(builder, one, vector)
                for v in range(across):
                    s = sums[m * across + v]
                    builder.store(builder.call(fma, [left, right[v], builder.load(s)]), s)
        for n, s in enumerate(sums):
            store = _pointer(builder, _ahead(builder, out_, n * many * size), vector)
            builder.store(builder.load(s), store, align=size)
        return context.get_dummy_value()

    i64 = types.int64
    return types.none(kind, rows, lanes, width, i64, i64, i64, i64, i64), generate


def _ahead(builder: Any, address: Any, by: int) -> Any:
    return builder.add(address, _INDEX(by))


def _pointer(builder: Any, address: Any, to: Any) -> Any:
    return builder.inttoptr(address, to.as_pointer())


def _load(builder: Any, address: Any, by: int, vector: Any, align: int) -> Any:
    return builder.load(_pointer(builder, _ahead(builder, address, by), vector), align=align)


def _spread(builder: Any, one: Any, vector: Any) -> Any:
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), one, ir.IntType(32)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), None)
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), mask)
