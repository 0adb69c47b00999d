"""The kernel of an output: its EinSum over operands that are tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    Axis,
    EinSum,
    Expr,
    Label,
    Operand,
    Output,
    Value,
    bigint,
    call,
    cast,
    conj,
    rewrite,
)
from einsql.ir.einsum.intervals import bounds_of, interval
from einsql.ir.tra.kernels import VALUE, operand

FAR = 2**62
"""A definition with a smaller absolute value can be shifted without overflow."""


def kernel(
    node: EinSum, output: Output, reads: Sequence[tuple[int, str]], indexed: Sequence[str]
) -> EinSum:
    """The template that computes an output on tiles.

    Args:
        node: The EinSum.
        output: One of its outputs.
        reads: Operand and field of each tile.
        indexed: Labels that are cut; a further tile each has their values.

    Labels count from 0 in a tile. The value of a label that is not cut is that count plus
    the lower bound of the label; definitions of labels are shifted likewise.
    """
    tiles = {read: n for n, read in enumerate(reads)}
    indexes = {x: len(reads) + n for n, x in enumerate(indexed)}
    lows = {a.label: a.lo for a in node.axes}

    def visit(e: Expr) -> Expr:
        if isinstance(e, Value):
            return Value(tiles[e.operand, e.field], VALUE, e.dtype)
        if not isinstance(e, Label):
            return e
        if e.name in indexes:
            return Value(indexes[e.name], VALUE, DType.BIGINT)
        return _plus(e, lows[e.name])

    axes = []
    for a in node.axes:
        define = None if a.define is None else rewrite(a.define, visit)
        if define is not None and a.define is not None and a.lo != 0:
            span = interval(a.define, bounds_of(node))
            moves = span is not None and span[0] > -FAR and span[1] < FAR
            define = _plus(define, -a.lo) if moves else _moved(define, a)
        axes.append(Axis(a.label, 0, a.extent, define))
    read = [(node.operands[n], field) for n, field in reads]
    operands = [
        _tile(node, n, o.labels, o.source.schema.dtype(field)) for n, (o, field) in enumerate(read)
    ]
    operands += [_tile(node, indexes[x], (x,), DType.BIGINT) for x in indexed]
    local = replace(
        output,
        name=VALUE,
        args=tuple(rewrite(a, visit) for a in output.args),
        where=rewrite(output.where, visit),
    )
    guard = rewrite(node.guard, visit)
    if not operands:
        operands = [_tile(node, 0, (), DType.BOOLEAN)]
    return EinSum(tuple(axes), tuple(operands), guard, node.keys, (local,))


def _moved(define: Expr, axis: Axis) -> Expr:
    """The definition less its axis's start; -1, which is no position, outside its bounds."""
    wide = cast(define, DType.BIGINT)
    above = call("le", DType.BOOLEAN, bigint(axis.lo), wide)
    within = conj(above, call("lt", DType.BOOLEAN, wide, bigint(axis.hi)))
    return call("if", DType.BIGINT, within, _plus(wide, -axis.lo), bigint(-1))


def _plus(e: Expr, offset: int) -> Expr:
    if offset == 0:
        return e
    return call("add", DType.BIGINT, cast(e, DType.BIGINT), bigint(offset))


def _tile(node: EinSum, number: int, labels: tuple[str, ...], dtype: DType) -> Operand:
    return operand(number, labels, dtype, [node.axis(x).extent for x in labels])
