"""Rewrites sums of products with maps inside as sums of plain products over these maps.

The forward pass may compute Σ f(x) · w in one node. Its derivative is a product of matrices
only if f(x) is an operand: differentiating by that operand comes before differentiating f.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from einsql.ir.autodiff.domains import node as node_over
from einsql.ir.einsum.graph import (
    TRUE,
    Call,
    Const,
    EinSum,
    Expr,
    Operand,
    Output,
    Value,
    conj,
    labels_of,
)
from einsql.ir.einsum.graph import operands_of as reads
from einsql.ir.einsum.intervals import bounds_of, can_raise

FACTOR = "factor"
"""The one field of maps made here."""


def factored(node: EinSum) -> tuple[list[EinSum], EinSum] | None:
    """Moves the maps in a node's product into nodes of their own.

    Returns:
        The maps, and the node over them with the same keys and outputs; None if there are
        no maps, or the node over them would be no product.
    """
    if any(a.define is not None for a in node.axes) or len(node.operands) < 2:
        return None
    maps: list[EinSum] = []
    operands = list(node.operands)
    outputs = []
    for o in node.outputs:
        argument = _over_maps(node, o, maps, operands) if o.reduction == "sum" else None
        outputs.append(o if argument is None else replace(o, args=(argument,)))
    if not maps:
        return None
    return maps, replace(node, operands=tuple(operands), outputs=tuple(outputs))


def _over_maps(node: EinSum, o: Output, maps: list[EinSum], operands: list[Operand]) -> Expr | None:
    """The argument of an output with values of maps for its factors."""
    factors = list(factors_of(o.args[0]))
    inner = [f for f in factors if not is_plain(f)]
    if not o.dtype.is_float or not inner or len({n for f in factors for n in reads(f)}) < 2:
        return None
    domain = {a.label for a in node.axes}
    for f in inner:
        read = {x for n in reads(f) for x in node.operands[n].labels}
        if len(reads(f)) != 1 or not labels_of(f) <= read or read == domain:
            return None
    values: dict[int, Expr] = {}
    guarded = [_guarded(node, o, f, *reads(f)) for f in inner]
    if None in guarded:
        return None
    for f, value in zip(inner, guarded, strict=True):
        (number,) = reads(f)
        labels = tuple(dict.fromkeys(node.operands[number].labels))
        axes = tuple(node.axis(x) for x in labels)
        assert value is not None
        factor_map = node_over(
            axes, node.operands, TRUE, labels, [Output(FACTOR, (value,), f.dtype)]
        )
        maps.append(factor_map)
        operands.append(Operand(factor_map, labels))
        values[id(f)] = Value(len(operands) - 1, FACTOR, f.dtype)
    return _with(o.args[0], values)


def _guarded(node: EinSum, o: Output, f: Expr, number: int) -> Expr | None:
    """The factor, guarded so that it raises at no point that the node skips; None if unsafe."""
    if not can_raise(f, bounds_of(node)):
        return f
    counts = conj(node.guard, o.where)
    if not (reads(counts) <= {number} and labels_of(counts) <= set(node.operands[number].labels)):
        return None
    return f if counts == TRUE else Call("if", (counts, f, Const(0.0, f.dtype)), f.dtype)


def factors_of(expr: Expr) -> Iterator[Expr]:
    """The factors of a product, signs left out."""
    if isinstance(expr, Call) and expr.fn in ("mul", "neg"):
        for a in expr.args:
            yield from factors_of(a)
    else:
        yield expr


def is_contraction(expr: Expr, operands: Sequence[Operand]) -> bool:
    """True for the summand of a matrix product: plain factors, two with labels of their own."""
    factors = list(factors_of(expr))
    labels = [set(operands[n].labels) for n in sorted(reads(expr))]
    return all(map(is_plain, factors)) and any(a - b and b - a for a in labels for b in labels)


def is_plain(factor: Expr) -> bool:
    """True for constants and values, cast or not."""
    while isinstance(factor, Call) and factor.fn == "cast":
        (factor,) = factor.args
    return isinstance(factor, Const | Value)


def _with(expr: Expr, values: dict[int, Expr]) -> Expr:
    if id(expr) in values:
        return values[id(expr)]
    if isinstance(expr, Call) and expr.fn in ("mul", "neg"):
        return Call(expr.fn, tuple(_with(a, values) for a in expr.args), expr.dtype)
    return expr
