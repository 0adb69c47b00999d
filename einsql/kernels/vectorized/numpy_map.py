"""One arithmetic operation on floats: a single NumPy call, without fusion."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from einsql.core.buffer_pool import empty
from einsql.core.source_writer import FieldSource, Page
from einsql.ir.einsum.graph import TRUE, Call, Const, EinSum, Expr, Value
from einsql.kernels.kernel import Arrays, Runner, Tick, ignoring
from einsql.kernels.vectorized.views import is_plain, spread, write_view

LARGEST = 1 << 24
"""Points up to which one thread is as fast as several, and shorter than a progress interval."""

_STREAMED = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}
"""Functions that are limited by memory bandwidth."""

Read = Callable[[Sequence[Arrays]], np.ndarray]


def compile_map(node: EinSum) -> Runner | None:
    """Matches element-wise nodes that are one sum, difference, product or quotient."""
    if len(node.outputs) != 1 or not node.is_elementwise or node.guard != TRUE:
        return None
    (output,) = node.outputs
    call = output.args[0]
    if isinstance(call, Call) and call.fn == "nearest":  # NumPy rounds to the stored type
        (call,) = call.args
    if (
        not isinstance(call, Call)
        or call.fn not in _STREAMED
        or not call.dtype.is_float
        or any(a.dtype is not call.dtype for a in call.args)
        or not all(is_plain(node, a) for a in call.args)
        or not any(isinstance(a, Value) for a in call.args)
        or any(a.define is not None for a in node.axes)
        or node.points > LARGEST
    ):
        return None
    name, function = output.name, _STREAMED[call.fn]
    shape, dtype = node.schema.shape, output.dtype.numpy
    first, second = (_read(node, a) for a in call.args)

    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        out = empty(shape, dtype)
        return {name: function(first(operands), second(operands), out=out)}

    def write(page: Page, operands: Sequence[FieldSource]) -> dict[str, str]:
        args = [_written(node, a, page, operands) for a in call.args]
        out = page.line(f"{page.held(empty, 'f')}({shape!r}, {page.held(dtype)})")
        page.lines.append(f"{page.held(function, 'f')}({', '.join(args)}, {out})")
        return {name: out}

    return ignoring(run, write)


def _written(node: EinSum, expr: Expr, page: Page, operands: Sequence[FieldSource]) -> str:
    """Writes an argument; NumPy broadcasts it over the keys that it lacks."""
    if not isinstance(expr, Value):
        assert isinstance(expr, Const)
        return page.held(expr.dtype.numpy.type(expr.value))
    view = spread(node, node.operands[expr.operand], node.schema.shape)
    return write_view(page, view, operands[expr.operand].array(expr.field), repeats=False)


def _read(node: EinSum, expr: Expr) -> Read:
    """Returns a reader of an argument, as an array over all keys or as a scalar."""
    if not isinstance(expr, Value):
        assert isinstance(expr, Const)
        literal = expr.dtype.numpy.type(expr.value)
        return lambda operands: literal
    operand, field = expr.operand, expr.field
    view = spread(node, node.operands[operand], node.schema.shape)
    if view is None:
        return lambda operands: operands[operand][field]
    return lambda operands: view(operands[operand][field])
