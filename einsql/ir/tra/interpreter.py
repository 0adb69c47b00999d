"""The reference interpreter of tensor-relational plans, in plain NumPy.

A tensor relation is a dict from keys to records, and a record is a dict from fields to arrays.
Every operation is the loop of its definition, and the einsum interpreter runs the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.dag import bottom_up
from einsql.core.mappings import grouped
from einsql.core.schema import Field
from einsql.ir.einsum.cells import cell_node
from einsql.ir.einsum.graph import EinSum, Expr
from einsql.ir.einsum.interpreter import Fields, evaluate_node, wide
from einsql.ir.einsum.partial_states import merged_state, state_fields
from einsql.ir.tra import plan as tra
from einsql.ir.tra.block_schema import BlockSchema, KeyTuple, cut_dims, over_keys
from einsql.ir.tra.kernel_typing import domain_cells, operand_key
from einsql.ir.tra.kernels import Merge, instantiate, reductions
from einsql.ir.tra.typing import assembled, by_axis, without

Blocks = dict[KeyTuple, Fields]
"""A tensor relation."""


def evaluate_blocks(root: tra.Node, inputs: Mapping[str, Mapping[str, np.ndarray]]) -> Blocks:
    """Evaluates a tensor-relational plan.

    Args:
        root: The plan.
        inputs: The fields of the scanned tensors, by name.

    Returns:
        The root's records by key; floats are float64.

    Raises:
        DataError: An element overflows, divides by zero or cannot be cast.
    """
    return bottom_up(root, tra.children, lambda node, sources: _relation(node, sources, inputs))


def _relation(
    node: tra.Node, operands: Sequence[Blocks], inputs: Mapping[str, Mapping[str, np.ndarray]]
) -> Blocks:
    if isinstance(node, tra.Scan):
        arrays = inputs[node.tensor.name]
        record = {
            f.name: loaded(np.asarray(arrays[f.name]), f.dtype).astype(wide(f.dtype).numpy)
            for f in node.schema.fields
        }
        return _cut(record, node.schema)
    if isinstance(node, tra.Join):
        return _join(node, operands) if node.domain is None else _cells(node, operands)
    (source,) = operands
    match node:
        case tra.Aggregate():
            groups = grouped((tuple(k[g] for g in node.group_by), r) for k, r in source.items())
            fields = node.schema.fields
            return {k: _merged(fields, node.merge, records) for k, records in groups.items()}
        case tra.ReKey():
            return {tuple(_at(e, key) for e in node.keys): r for key, r in source.items()}
        case tra.Filter():
            return {key: r for key, r in source.items() if _at(node.condition, key)}
        case tra.Transform():
            return {key: _kernel(node.kernel, [r]) for key, r in source.items()}
        case tra.Tile():
            extents = node.source.schema.dims[node.dim]
            return {
                (*key, n): {
                    name: a.take(range(lo, min(lo + node.size, extents.at(key))), node.dim)
                    for name, a in record.items()
                }
                for key, record in source.items()
                for n, lo in enumerate(range(0, max(1, extents.at(key)), node.size))
            }
        case tra.Stack():
            in_order = sorted(source.items(), key=lambda pair: pair[0][node.key])
            stacks = grouped((without(k, node.key), r) for k, r in in_order)
            return {k: _concatenated(records, node.dim) for k, records in stacks.items()}
        case tra.Repartition():
            schema = node.source.schema
            if by_axis(node.cuts) is not None:
                dims = cut_dims(assembled(schema, "Repartition"))
                schema = BlockSchema(schema.bounds, dims, schema.fields)
            return _cut(_tensor(source, schema), node.schema)


def _cut(record: Fields, schema: BlockSchema) -> Blocks:
    places = ((key, tuple(slice(*i) for i in schema.box(key))) for key in schema.each_key())
    return {key: {n: a[place] for n, a in record.items()} for key, place in places}


def _tensor(blocks: Blocks, schema: BlockSchema) -> Fields:
    """Assembles the tensor of a relation whose arrays have positions."""
    shape = np.max([schema.box(key)[:, 1] for key in schema.each_key()], axis=0)
    record = {f.name: np.zeros(shape, wide(f.dtype).numpy) for f in schema.fields}
    for key, parts in blocks.items():
        place = tuple(slice(*i) for i in schema.box(key))
        for name, array in record.items():
            array[place] = parts[name]
    return record


def _concatenated(records: Sequence[Fields], dim: int) -> Fields:
    return {name: np.concatenate([r[name] for r in records], axis=dim) for name in records[0]}


def _join(node: tra.Join, operands: Sequence[Blocks]) -> Blocks:
    matches: Blocks = {}
    for pairs in product(*(o.items() for o in operands)):
        key: dict[int, int] = {}
        if all(
            key.setdefault(place, k) == k
            for (own_key, _), places in zip(pairs, node.keys, strict=True)
            for place, k in zip(places, own_key, strict=True)
        ):
            records = [record for _, record in pairs]
            matches[tuple(key[n] for n in sorted(key))] = _kernel(node.kernel, records)
    return matches


def _cells(node: tra.Join, operands: Sequence[Blocks]) -> Blocks:
    """The cells of an EinSum, each on the tiles that it reads."""
    assert node.domain is not None
    labels = [label for label, _ in node.domain]
    records: Blocks = {}
    cells = domain_cells(node.kernel, node.domain, node.schema)
    for key, cell in zip(node.schema.each_key(), cells, strict=True):
        keys = [operand_key(key, places) for places in node.keys]
        boxes = [
            source.schema.box(k) + [[axis.lo] for axis in o.source.schema.keys]
            if o.labels
            else np.zeros((0, 2), np.int64)
            for o, source, k in zip(node.kernel.operands, node.sources, keys, strict=True)
        ]
        local = cell_node(node.kernel, labels, cell, boxes, shifted=False)
        records[key] = _run(local, [o[k] for o, k in zip(operands, keys, strict=True)])
    return records


def _kernel(kernel: EinSum, records: Sequence[Fields]) -> Fields:
    shapes = [next(iter(r.values())).shape for r in records]
    return _run(instantiate(kernel, shapes), records)


def _run(kernel: EinSum, records: Sequence[Fields]) -> Fields:
    with np.errstate(all="ignore"):
        return evaluate_node(kernel, list(records))


def _merged(fields: Sequence[Field], merge: Merge, records: Sequence[Fields]) -> Fields:
    names_of = reductions(merge)
    states = [state_fields(f.name, r) for f, r in zip(fields, names_of, strict=True)]
    joint = {name for names in states for name in names[1:]}
    total = dict(records[0])
    for record in records[1:]:
        for f, reduce, names in zip(fields, names_of, states, strict=True):
            if f.name not in joint:
                old, new = (tuple(r[n] for n in names) for r in (total, record))
                with np.errstate(all="ignore"):
                    state = merged_state(reduce, wide(f.dtype), old, new)
                total.update(zip(names, state, strict=True))
    return total


def _at(expr: Expr, key: KeyTuple) -> int:
    return int(over_keys(expr, np.array([key], np.int64).reshape(1, len(key)))[0])
