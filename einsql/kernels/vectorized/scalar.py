"""Scalar expressions over whole arrays, in the declared types.

An expression becomes a closure once per node and runs on each block of the domain. Arrays have
one axis per enumerated label. The extent is 1 if the value does not depend on the label, which
avoids redundant computation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from einsql.core.records import dataclass
from einsql.errors import DataError
from einsql.ir.einsum.graph import Call, Const, Expr, Label, Value
from einsql.ir.functions import SCALARS, Failure
from einsql.ir.functions.casts import cast_array
from einsql.ir.functions.python_functions import at_selected
from einsql.kernels.scalars import failure_within

Mask = np.ndarray | None
"""The selected points, broadcastable to the block; None for all points."""


class Block:
    """The labels and operand values at the points of one block."""

    def label(self, name: str) -> np.ndarray:
        """The int64 values of a label, broadcastable to the block."""
        raise NotImplementedError

    def value(self, operand: int, field: str) -> np.ndarray:
        """The values of an operand's field, broadcastable to the block."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Compiled:
    """An expression as a function of a block and the selected points."""

    run: Callable[[Block, Mask], np.ndarray]
    fails: bool


def both(a: Mask, b: Mask) -> Mask:
    """Conjunction of two selections."""
    if a is None:
        return b
    return a if b is None else a & b


def compile_expr(expr: Expr, bounds: Mapping[str, tuple[int, int]]) -> Compiled:
    """Compiles an expression.

    Args:
        expr: A well-typed expression.
        bounds: The bounds `[lo, hi)` of every label, to prove that integers do not overflow.

    Returns:
        A function whose results have the carrier of the expression's type and a shape that is
        broadcastable to the block. It raises DataError only for selected points. The right side of
        AND and OR and the branches of CASE select only the points where they decide the result.
    """
    if isinstance(expr, Const):
        literal = np.asarray(expr.value, expr.dtype.carrier)
        literal.flags.writeable = False
        return Compiled(lambda block, mask: literal, False)
    if isinstance(expr, Label):
        name = expr.name
        return Compiled(lambda block, mask: block.label(name), False)
    if isinstance(expr, Value):
        operand, field = expr.operand, expr.field
        return Compiled(lambda block, mask: block.value(operand, field), False)
    assert isinstance(expr, Call)
    args = [compile_expr(a, bounds) for a in expr.args]
    if expr.fn in ("and", "or", "if") and any(a.fails for a in args[1:]):
        return _lazy(expr, args)
    return _eager(expr, args, bounds)


def over_arrays(expr: Expr) -> Callable[..., np.ndarray]:
    """An expression over the values of operands without keys, as a function of arrays.

    Args:
        expr: An expression without labels.

    Returns:
        A function of arrays of one shape, one for each operand; it raises DataError if the
        expression fails at an element.
    """
    compiled = compile_expr(expr, {})

    def run(*args: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.broadcast_to(compiled.run(_Arguments(args), None), args[0].shape)

    return run


class _Arguments(Block):
    """Arrays as the values of operands."""

    def __init__(self, args: Sequence[np.ndarray]) -> None:
        self._args = args

    def value(self, operand: int, field: str) -> np.ndarray:
        return self._args[operand]


def _eager(expr: Call, args: list[Compiled], bounds: Mapping[str, tuple[int, int]]) -> Compiled:
    target, dtype = expr.dtype, expr.dtype.carrier
    if expr.fn in SCALARS and SCALARS[expr.fn].opaque:
        return _opaque(expr, args)
    failure = failure_within(expr, bounds)
    function = partial(cast_array, target=target) if expr.fn == "cast" else SCALARS[expr.fn].numpy
    parts = [a.run for a in args]

    def run(block: Block, mask: Mask) -> np.ndarray:
        values = [part(block, mask) for part in parts]
        if failure is not None:
            refuse(failure, mask, *values)
        result = np.asarray(function(*values))
        return result if result.dtype == dtype else cast_array(result, target)

    return Compiled(run, failure is not None or any(a.fails for a in args))


def _opaque(expr: Call, args: list[Compiled]) -> Compiled:
    """A Python function of the user, which gets selected points only."""
    function = SCALARS[expr.fn]
    parts = [a.run for a in args]
    return Compiled(
        lambda block, mask: at_selected(function, [part(block, mask) for part in parts], mask), True
    )


def _lazy(expr: Call, args: list[Compiled]) -> Compiled:
    function = SCALARS[expr.fn].numpy
    first, second = args[0].run, args[1].run
    third = args[2].run if expr.fn == "if" else None
    otherwise = expr.fn == "or"

    def run(block: Block, mask: Mask) -> np.ndarray:
        holds = first(block, mask)
        values = [holds, second(block, both(mask, ~holds if otherwise else holds))]
        if third is not None:
            values.append(third(block, both(mask, ~holds)))
        return np.asarray(function(*values))

    return Compiled(run, True)


def refuse(failure: Failure, mask: Mask, *args: np.ndarray) -> None:
    """Raises DataError if a function fails at a selected point."""
    bad = failure.numpy(*args)
    if np.any(bad if mask is None else bad & mask):
        raise DataError(failure.reason)
