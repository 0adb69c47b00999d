"""The meaning of tensor-relational plans in slow, plain NumPy.

A tensor relation is a dict from keys to arrays. Every operation is the loop that its
definition reads as, and the einsum interpreter runs the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from einsql.core.dag import bottom_up
from einsql.core.mappings import grouped
from einsql.core.schema import DType
from einsql.ir.einsum.graph import EinSum, Expr
from einsql.ir.einsum.interpreter import evaluate_node, reduce_axes, wide
from einsql.ir.tra import plan as tra
from einsql.ir.tra.block_schema import Cuts, KeyTuple, over_keys
from einsql.ir.tra.kernels import VALUE, instantiate
from einsql.ir.tra.typing import without

Blocks = dict[KeyTuple, np.ndarray]
"""A tensor relation."""


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
    tensors = {**tra.generated(root), **inputs}
    return bottom_up(root, tra.children, lambda node, sources: _relation(node, sources, tensors))


def _relation(
    node: tra.Node, operands: Sequence[Blocks], inputs: Mapping[str, np.ndarray]
) -> Blocks:
    if isinstance(node, tra.Scan):
        array = inputs[node.tensor.name]
        return _cut(np.asarray(array).astype(wide(node.schema.dtype).numpy), node.cuts)
    if isinstance(node, tra.Join):
        return _join(node, operands)
    (source,) = operands
    match node:
        case tra.Aggregate():
            groups = grouped((tuple(k[g] for g in node.group_by), a) for k, a in source.items())
            dtype = wide(node.schema.dtype)
            return {k: _merged(node.reduce, dtype, arrays) for k, arrays in groups.items()}
        case tra.ReKey():
            return {tuple(_at(e, key) for e in node.keys): a for key, a in source.items()}
        case tra.Filter():
            return {key: a for key, a in source.items() if _at(node.condition, key)}
        case tra.Transform():
            return {key: _kernel(node.kernel, [a]) for key, a in source.items()}
        case tra.Tile():
            return {
                (*key, n): part
                for key, a in source.items()
                for n, part in enumerate(
                    np.split(a, range(node.size, a.shape[node.dim], node.size), axis=node.dim)
                )
            }
        case tra.Stack():
            in_order = sorted(source.items(), key=lambda pair: pair[0][node.key])
            stacks = grouped((without(k, node.key), a) for k, a in in_order)
            return {k: np.concatenate(arrays, axis=node.dim) for k, arrays in stacks.items()}
        case tra.Repartition():
            return _cut(_tensor(source, len(node.cuts)), node.cuts)


def _cut(array: np.ndarray, cuts: Cuts) -> Blocks:
    return {
        key: array[tuple(slice(c[k], c[k + 1]) for c, k in zip(cuts, key, strict=True))]
        for key in product(*(range(len(c) - 1) for c in cuts))
    }


def _tensor(blocks: Blocks, rank: int) -> np.ndarray:
    """The array whose axis i is cut by key i, put together axis by axis."""
    for axis in reversed(range(rank)):
        lines = grouped((key[:axis], block) for key, block in sorted(blocks.items()))
        blocks = {key: np.concatenate(line, axis) for key, line in lines.items()}
    return blocks[()]


def _join(node: tra.Join, operands: Sequence[Blocks]) -> Blocks:
    matches: Blocks = {}
    for pairs in product(*(o.items() for o in operands)):
        key: dict[int, int] = {}
        if all(
            key.setdefault(place, k) == k
            for (own_key, _), places in zip(pairs, node.keys, strict=True)
            for place, k in zip(places, own_key, strict=True)
        ):
            arrays = [array for _, array in pairs]
            matches[tuple(key[n] for n in sorted(key))] = _kernel(node.kernel, arrays)
    return matches


def _kernel(kernel: EinSum, arrays: Sequence[np.ndarray]) -> np.ndarray:
    node = instantiate(kernel, [a.shape for a in arrays])
    with np.errstate(all="ignore"):
        return evaluate_node(node, [{VALUE: a} for a in arrays])[VALUE]


def _merged(reduce: str, dtype: DType, arrays: Sequence[np.ndarray]) -> np.ndarray:
    stacked = np.stack(arrays)
    with np.errstate(all="ignore"):
        return reduce_axes(reduce, dtype, [stacked], np.ones(stacked.shape, bool), (0,))


def _at(expr: Expr, key: KeyTuple) -> int:
    return int(over_keys(expr, np.array([key], np.int64).reshape(1, len(key)))[0])
