"""The meaning of EinSum graphs and of tensor-relational plans in slow, plain NumPy.

Every axis is enumerated, derived ones too: a derived axis is nothing but the condition
`label = definition`. Floats are widened to DOUBLE, so results are what the faster kernels
approximate. Memory is points × expressions; use it for small domains.

A tensor relation is a dict from keys to arrays, and every operation on it the loop that
its definition reads as.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.schema import DType
from einsql.errors import DataError
from einsql.ir.einsum.graph import Call, Const, EinSum, Expr, Label, Node, Value, walk
from einsql.ir.functions import REDUCTIONS, SCALARS, less
from einsql.ir.functions.casts import cast_array, cast_failure
from einsql.ir.tra import plan as tra
from einsql.ir.tra.block_schema import Cuts, KeyTuple, over_keys
from einsql.ir.tra.kernels import VALUE, instantiate

Fields = dict[str, np.ndarray]
"""A relation's fields by name, each with one axis per key of its schema."""


Blocks = dict[KeyTuple, np.ndarray]
"""A tensor relation."""


def wide(dtype: DType) -> DType:
    """The type the reference computes in."""
    return DType.DOUBLE if dtype.is_float else dtype


def evaluate(root: Node, inputs: Mapping[str, Mapping[str, np.ndarray]]) -> Fields:
    """Evaluates a graph.

    Args:
        root: The node whose fields are wanted.
        inputs: Fields of every Input node by its name.

    Returns:
        The root's fields, floats as float64; where a presence or validity flag is
        false the value is arbitrary.

    Raises:
        DataError: A selected element overflows, divides by zero or cannot be cast.
    """
    done: dict[int, Fields] = {}
    for node in walk(root):
        if isinstance(node, EinSum):
            with np.errstate(all="ignore"):
                done[id(node)] = _node(node, [done[id(o.source)] for o in node.operands])
        else:
            done[id(node)] = {
                f.name: loaded(np.asarray(inputs[node.name][f.name]), f.dtype).astype(
                    wide(f.dtype).numpy
                )
                for f in node.schema.fields
            }
    return done[id(root)]


def _node(node: EinSum, operands: list[Fields]) -> Fields:
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

    def value(e: Expr, mask: np.ndarray) -> np.ndarray:
        if isinstance(e, Const):
            return np.asarray(e.value, dtype=wide(e.dtype).numpy)
        if isinstance(e, Label):
            return grid[e.name]
        if isinstance(e, Value):
            return field(e)
        return apply(e, mask)

    def apply(e: Call, mask: np.ndarray) -> np.ndarray:
        if e.fn in ("and", "or", "if"):  # the right-hand sides count only where needed
            first = value(e.args[0], mask)
            then = mask & (first if e.fn != "or" else ~first)
            args = [first, value(e.args[1], then)]
            if e.fn == "if":
                args.append(value(e.args[2], mask & ~first))
        else:
            args = [value(a, mask) for a in e.args]
        types = [wide(a.dtype) for a in e.args]
        if e.fn == "cast":
            failure = cast_failure(e.args[0].dtype, e.dtype)
            result = cast_array(args[0], wide(e.dtype))
        else:
            failure = SCALARS[e.fn].fails.get(types[0])
            result = SCALARS[e.fn].numpy(*args)
        if failure is not None and np.any(failure.numpy(*args) & mask):
            raise DataError(failure.reason)
        made: np.ndarray = cast_array(result, wide(e.dtype))
        return made

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
            result = _only(args[0], exists, gone)
        else:
            result = _reduce(o.reduction, wide(o.dtype), args, mask, gone)
        fields[o.name] = result.transpose(order).astype(wide(o.dtype).numpy)
    return fields


def _only(value: np.ndarray, exists: np.ndarray, gone: tuple[int, ...]) -> np.ndarray:
    """Drops derived axes: at most one point exists along them."""
    if 0 in exists.shape:
        kept = tuple(n for i, n in enumerate(value.shape) if i not in gone)
        return np.zeros(kept, value.dtype)
    for axis in sorted(gone, reverse=True):
        at = np.expand_dims(exists.argmax(axis=axis), axis)
        value = np.take_along_axis(value, at, axis).squeeze(axis)
        exists = np.asarray(exists.any(axis=axis))
    return value


def _reduce(
    name: str, dtype: DType, args: list[np.ndarray], mask: np.ndarray, gone: tuple[int, ...]
) -> np.ndarray:
    reduction = REDUCTIONS[name]
    kept = [n for n in range(mask.ndim) if n not in gone]
    front = [a.transpose([*gone, *kept]) for a in (*args, mask)]
    tail = tuple(mask.shape[n] for n in kept)
    rows = [a.reshape(-1, *tail) if a.size else np.empty((0, *tail), a.dtype) for a in front]
    running = np.full(tail, reduction.identity(dtype), dtype=dtype.numpy)
    if reduction.better is not None:
        return _pick(rows, running, name)
    monoid = SCALARS[reduction.monoid or ""]
    failure = monoid.fails.get(dtype)
    for new, on in zip(rows[0], rows[1], strict=True):
        new = new.astype(dtype.numpy)
        if failure is not None and np.any(failure.numpy(running, new) & on):
            raise DataError(failure.reason)
        running = np.where(on, monoid.numpy(running, new), running)
    return running


def _pick(rows: list[np.ndarray], running: np.ndarray, name: str) -> np.ndarray:
    best = np.zeros(running.shape, dtype=rows[1].dtype)
    found = np.zeros(running.shape, dtype=bool)
    for arg, new, on in zip(*rows, strict=True):
        wins = less(new, best) if name == "arg_min" else less(best, new)
        ties = ~less(new, best) & ~less(best, new) & (arg < running)
        take = on & (~found | wins | ties)
        running = np.where(take, arg, running)
        best = np.where(take, new, best)
        found |= on
    return running


def evaluate_blocks(root: tra.Node, inputs: Mapping[str, np.ndarray]) -> Blocks:
    """Evaluates a tensor-relational plan.

    Args:
        root: The relation that is wanted.
        inputs: The array of every scanned tensor by its name.

    Returns:
        The root's arrays by key, floats as float64.

    Raises:
        DataError: An element overflows, divides by zero or cannot be cast.
    """
    inputs = {**tra.generated(root), **inputs}
    done: dict[int, Blocks] = {}
    for node in tra.walk(root):
        done[id(node)] = _relation(node, [done[id(c)] for c in tra.children(node)], inputs)
    return done[id(root)]


def _relation(
    node: tra.Node, operands: Sequence[Blocks], inputs: Mapping[str, np.ndarray]
) -> Blocks:
    if isinstance(node, tra.Scan):
        array = inputs[node.tensor.name]
        return _cut(np.asarray(array).astype(wide(node.schema.dtype).numpy), node.cuts)
    if isinstance(node, tra.Join):
        return _join(node, operands)
    (source,) = operands
    if isinstance(node, tra.Aggregate):
        groups: dict[KeyTuple, list[np.ndarray]] = {}
        for key, array in source.items():
            groups.setdefault(tuple(key[g] for g in node.group_by), []).append(array)
        dtype = wide(node.schema.dtype)
        return {k: _merged(node.reduce, dtype, arrays) for k, arrays in groups.items()}
    if isinstance(node, tra.ReKey):
        return {tuple(_at(e, key) for e in node.keys): a for key, a in source.items()}
    if isinstance(node, tra.Filter):
        return {key: a for key, a in source.items() if _at(node.condition, key)}
    if isinstance(node, tra.Transform):
        return {key: _kernel(node.kernel, [a]) for key, a in source.items()}
    if isinstance(node, tra.Tile):
        return {
            (*key, n): part
            for key, a in source.items()
            for n, part in enumerate(
                np.split(a, range(node.size, a.shape[node.dim], node.size), axis=node.dim)
            )
        }
    if isinstance(node, tra.Stack):
        stacks: dict[KeyTuple, list[np.ndarray]] = {}
        for key, array in sorted(source.items(), key=lambda pair: pair[0][node.key]):
            stacks.setdefault((*key[: node.key], *key[node.key + 1 :]), []).append(array)
        return {k: np.concatenate(arrays, axis=node.dim) for k, arrays in stacks.items()}
    return _cut(_tensor(source, len(node.cuts)), node.cuts)


def _cut(array: np.ndarray, cuts: Cuts) -> Blocks:
    return {
        key: array[tuple(slice(c[k], c[k + 1]) for c, k in zip(cuts, key, strict=True))]
        for key in product(*(range(len(c) - 1) for c in cuts))
    }


def _tensor(blocks: Blocks, rank: int) -> np.ndarray:
    """The array whose axis i is cut by key i, put together axis by axis."""
    for axis in reversed(range(rank)):
        lines: dict[KeyTuple, list[np.ndarray]] = {}
        for key, block in sorted(blocks.items()):
            lines.setdefault(key[:axis], []).append(block)
        blocks = {key: np.concatenate(line, axis) for key, line in lines.items()}
    return blocks[()]


def _join(node: tra.Join, operands: Sequence[Blocks]) -> Blocks:
    found: Blocks = {}
    for pairs in product(*(o.items() for o in operands)):
        key: dict[int, int] = {}
        if all(
            key.setdefault(place, k) == k
            for (given, _), places in zip(pairs, node.keys, strict=True)
            for place, k in zip(places, given, strict=True)
        ):
            arrays = [array for _, array in pairs]
            found[tuple(key[n] for n in sorted(key))] = _kernel(node.kernel, arrays)
    return found


def _kernel(kernel: EinSum, arrays: Sequence[np.ndarray]) -> np.ndarray:
    node = instantiate(kernel, [a.shape for a in arrays])
    with np.errstate(all="ignore"):
        return _node(node, [{VALUE: a} for a in arrays])[VALUE]


def _merged(reduce: str, dtype: DType, arrays: Sequence[np.ndarray]) -> np.ndarray:
    stacked = np.stack(arrays)
    with np.errstate(all="ignore"):
        return _reduce(reduce, dtype, [stacked], np.ones(stacked.shape, bool), (0,))


def _at(expr: Expr, key: KeyTuple) -> int:
    return int(over_keys(expr, np.array([key], np.int64).reshape(1, len(key)))[0])
