"""The reference interpreter of EinSum graphs, in plain NumPy.

Every axis is enumerated, including derived axes: a derived axis is the condition
`label = definition`. Floats are widened to DOUBLE, so the faster kernels approximate these
results. It takes memory for points × expressions, so domains must be small.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.ir.einsum.evaluation import expression_value, wide
from einsql.ir.einsum.graph import EinSum, Expr, Label, Node, Value, walk
from einsql.ir.einsum.states import merged_fields, state_of
from einsql.ir.functions import REDUCTIONS, SCALARS, Reduction, less

Fields = dict[str, np.ndarray]
"""A relation's fields by name, each with one axis per key of its schema."""


def evaluate(root: Node, inputs: Mapping[str, Mapping[str, np.ndarray]]) -> Fields:
    """Evaluates a graph.

    Args:
        root: The root of the graph.
        inputs: The fields of every Input node, by its name.

    Returns:
        The root's fields; floats are float64. Values with a false presence or validity flag
        are arbitrary.

    Raises:
        DataError: A selected element overflows, divides by zero or cannot be cast.
    """
    done: dict[int, Fields] = {}
    for node in walk(root):
        if isinstance(node, EinSum):
            with np.errstate(all="ignore"):
                done[id(node)] = evaluate_node(node, [done[id(o.source)] for o in node.operands])
        else:
            done[id(node)] = {
                f.name: loaded(np.asarray(inputs[node.name][f.name]), f.dtype).astype(
                    wide(f.dtype).numpy
                )
                for f in node.schema.fields
            }
    return done[id(root)]


def evaluate_node(node: EinSum, operands: list[Fields]) -> Fields:
    """Evaluates one EinSum.

    Args:
        node: The EinSum.
        operands: The fields of each operand; floats are float64.

    Raises:
        DataError: A selected element overflows, divides by zero or cannot be cast.
    """
    shape = tuple(a.extent for a in node.axes)
    grid: dict[str, np.ndarray] = {}
    for n, a in enumerate(node.axes):
        values = np.arange(a.lo, a.hi, dtype=np.int64)
        grid[a.label] = values.reshape([-1 if m == n else 1 for m in range(len(shape))])

    def field(v: Value) -> np.ndarray:
        operand = node.operands[v.operand]
        keys = operand.source.schema.keys
        index = tuple(grid[lab] - k.lo for lab, k in zip(operand.labels, keys, strict=True))
        return np.asarray(operands[v.operand][v.field][index])

    def leaf(e: Label | Value) -> np.ndarray:
        return grid[e.name] if isinstance(e, Label) else field(e)

    def value(e: Expr, mask: np.ndarray) -> np.ndarray:
        return expression_value(e, leaf, mask)

    exists = np.ones(shape, dtype=bool)
    for a in node.axes:
        if a.define is not None:
            exists &= value(a.define, exists) == grid[a.label]
    exists &= value(node.guard, exists)
    kept = [n for n, a in enumerate(node.axes) if a.label in node.keys]
    order = [[node.axes[n].label for n in kept].index(k) for k in node.keys]
    gone = tuple(n for n in range(len(shape)) if n not in kept)

    fields: Fields = {}
    for o in node.outputs:
        mask = exists & value(o.where, exists)
        args = [np.broadcast_to(value(a, mask), shape) for a in o.args]
        if o.reduction is None:
            column = _only(args[0], exists, gone)
        else:
            column = reduce_axes(o.reduction, wide(o.dtype), args, mask, gone)
        fields[o.name] = column.transpose(order).astype(wide(o.dtype).numpy)
    return fields


def _only(value: np.ndarray, exists: np.ndarray, gone: tuple[int, ...]) -> np.ndarray:
    """Drops derived axes, along which at most one point exists."""
    if 0 in exists.shape:
        kept = tuple(n for i, n in enumerate(value.shape) if i not in gone)
        return np.zeros(kept, value.dtype)
    for axis in sorted(gone, reverse=True):
        at = np.expand_dims(exists.argmax(axis=axis), axis)
        value = np.take_along_axis(value, at, axis).squeeze(axis)
        exists = np.asarray(exists.any(axis=axis))
    return value


def reduce_axes(
    name: str, dtype: DType, args: list[np.ndarray], mask: np.ndarray, gone: tuple[int, ...]
) -> np.ndarray:
    """Reduces arrays over some of their axes, element by element.

    Args:
        name: The reduction.
        dtype: The type in which it computes.
        args: The reduction's arguments, arrays of one shape.
        mask: True for the reduced elements.
        gone: The reduced axes.

    Raises:
        DataError: An intermediate overflows.
    """
    reduction = REDUCTIONS[name]
    kept = [n for n in range(mask.ndim) if n not in gone]
    front = [a.transpose([*gone, *kept]) for a in (*args, mask)]
    tail = tuple(mask.shape[n] for n in kept)
    rows = [a.reshape(-1, *tail) if a.size else np.empty((0, *tail), a.dtype) for a in front]
    if reduction.fields:
        return _reduced_state(name, rows, tail)
    running = np.full(tail, reduction.identity(dtype), dtype=dtype.numpy)
    if reduction.better is not None:
        return _pick(rows, running, name)
    if reduction.holistic is not None:
        return _of_groups(rows, running, reduction)
    monoid = SCALARS[reduction.monoid or ""]
    failure = monoid.fails.get(dtype)
    for new, on in zip(rows[0], rows[1], strict=True):
        new = new.astype(dtype.numpy)
        if failure is not None and np.any(failure.numpy(running, new) & on):
            raise DataError(failure.reason)
        running = np.where(on, monoid.numpy(running, new), running)
    return running


def _of_groups(rows: list[np.ndarray], running: np.ndarray, reduction: Reduction) -> np.ndarray:
    assert reduction.holistic is not None
    *terms, mask = rows
    values, *constants = terms
    for at in np.ndindex(running.shape):
        selected = mask[:, *at]
        if not selected.any():
            continue
        if reduction.places:
            arguments, ordered, places = (t[:, *at][selected] for t in terms)
            running[at] = reduction.holistic(arguments, ordered, int(places[0]))
        else:
            group = np.sort(values[:, *at][selected])
            running[at] = reduction.holistic(group, *(c.flat[0] for c in constants))
    return running


def _pick(rows: list[np.ndarray], running: np.ndarray, name: str) -> np.ndarray:
    best = np.zeros(running.shape, dtype=rows[1].dtype)
    seen = np.zeros(running.shape, dtype=bool)
    for arg, new, on in zip(*rows, strict=True):
        wins = less(new, best) if name == "arg_min" else less(best, new)
        ties = ~less(new, best) & ~less(best, new) & (arg < running)
        take = on & (~seen | wins | ties)
        running = np.where(take, arg, running)
        best = np.where(take, new, best)
        seen |= on
    return running


def _reduced_state(name: str, rows: list[np.ndarray], tail: tuple[int, ...]) -> np.ndarray:
    """Merges the states of the selected rows, one after another in order."""
    state = state_of(name)
    running = tuple(np.full(tail, f.start, wide(f.dtype).numpy) for f in state.fields)
    for *new, on in zip(*rows, strict=True):
        merged = merged_fields(state, running, new, on, widened=True)
        running = tuple(np.where(on, m, r) for m, r in zip(merged, running, strict=True))
    return running[REDUCTIONS[name].place]
