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
from einsql.ir.einsum.cells import cell_node, sized
from einsql.ir.einsum.evaluation import wide
from einsql.ir.einsum.graph import EinSum, Expr
from einsql.ir.einsum.interpreter import Fields, evaluate_node
from einsql.ir.einsum.partial_states import merged_state, state_fields
from einsql.ir.tra import plan as tra
from einsql.ir.tra.block_schema import BlockSchema, Domain, KeyTuple, cut_dims, over_keys
from einsql.ir.tra.kernel_typing import operand_key
from einsql.ir.tra.kernels import Merge, reductions
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
        return cut_record(stored_record(node.schema.fields, inputs[node.tensor.name]), node.schema)
    if isinstance(node, tra.Join):
        return _join(node, operands) if node.domain is None else _cells(node, operands)
    (source,) = operands
    match node:
        case tra.Aggregate():
            groups = grouped((tuple(k[g] for g in node.group_by), r) for k, r in source.items())
            fields = node.schema.fields
            return {k: merged_records(fields, node.merge, records) for k, records in groups.items()}
        case tra.ReKey():
            return {tuple(key_value(e, key) for e in node.keys): r for key, r in source.items()}
        case tra.Filter():
            return {key: r for key, r in source.items() if key_value(node.condition, key)}
        case tra.Transform():
            return {key: kernel_record(node.kernel, [r]) for key, r in source.items()}
        case tra.Tile():
            extents = node.source.schema.dims[node.dim]
            return {
                (*key, n): tile
                for key, record in source.items()
                for n, tile in enumerate(tiled(record, node.dim, node.size, extents.at(key)))
            }
        case tra.Stack():
            in_order = sorted(source.items(), key=lambda pair: pair[0][node.key])
            stacks = grouped((without(k, node.key), r) for k, r in in_order)
            return {k: concatenated(records, node.dim) for k, records in stacks.items()}
        case tra.Repartition():
            schema = node.source.schema
            if by_axis(node.cuts) is not None:
                dims = cut_dims(assembled(schema, "Repartition"))
                schema = BlockSchema(schema.bounds, dims, schema.fields)
            return cut_record(assembled_tensor(source, schema), node.schema)


def stored_record(fields: Sequence[Field], arrays: Mapping[str, np.ndarray]) -> Fields:
    """The record of a stored tensor; floats are float64."""
    return {
        f.name: loaded(np.asarray(arrays[f.name]), f.dtype).astype(wide(f.dtype).numpy)
        for f in fields
    }


def tiled(record: Fields, dim: int, size: int, extent: int) -> list[Fields]:
    """A record in tiles of a size along an axis; the last one may be smaller."""
    spans = [range(lo, min(lo + size, extent)) for lo in range(0, max(1, extent), size)]
    return [{name: a.take(span, dim) for name, a in record.items()} for span in spans]


def cut_record(record: Fields, schema: BlockSchema) -> Blocks:
    """The blocks of a tensor."""
    places = ((key, tuple(slice(*i) for i in schema.box(key))) for key in schema.each_key())
    return {key: {n: a[place] for n, a in record.items()} for key, place in places}


def assembled_tensor(blocks: Blocks, schema: BlockSchema) -> Fields:
    """Assembles the tensor of a relation whose arrays have positions."""
    shape = np.max([schema.box(key)[:, 1] for key in schema.each_key()], axis=0)
    record = {f.name: np.zeros(shape, wide(f.dtype).numpy) for f in schema.fields}
    for key, parts in blocks.items():
        place = tuple(slice(*i) for i in schema.box(key))
        for name, array in record.items():
            array[place] = parts[name]
    return record


def concatenated(records: Sequence[Fields], dim: int) -> Fields:
    """The records side by side along an axis."""
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
            matches[tuple(key[n] for n in sorted(key))] = kernel_record(node.kernel, records)
    return matches


def _cells(node: tra.Join, operands: Sequence[Blocks]) -> Blocks:
    """The cells of an EinSum, each on the tiles that it reads."""
    records: Blocks = {}
    for key in node.schema.each_key():
        keys = [operand_key(key, places) for places in node.keys]
        boxes = [s.schema.box(k) for s, k in zip(node.sources, keys, strict=True)]
        taken = [o[k] for o, k in zip(operands, keys, strict=True)]
        assert node.domain is not None
        records[key] = cell_record(node.kernel, node.domain, key, boxes, taken)
    return records


def cell_record(
    kernel: EinSum,
    domain: Domain,
    key: KeyTuple,
    boxes: Sequence[np.ndarray],
    records: Sequence[Fields],
) -> Fields:
    """The record of one cell of an EinSum.

    Args:
        kernel: The EinSum.
        domain: The cut labels with their boundaries.
        key: The number of the interval of each of them.
        boxes: The positions of each operand's tile, int64 (axes, 2).
        records: The tiles.
    """
    cut = [
        (boundaries[k], boundaries[k + 1]) for (_, boundaries), k in zip(domain, key, strict=True)
    ]
    labels = [label for label, _ in domain]
    lows = np.array([kernel.axis(label).lo for label in labels], np.int64).reshape(-1, 1)
    cell = np.array(cut, np.int64).reshape(-1, 2) + lows
    places = []
    for o, box in zip(kernel.operands, boxes, strict=True):
        first = np.array([k.lo for k in o.source.schema.keys], np.int64).reshape(-1, 1)
        places.append(box + first)
    return _run(cell_node(kernel, labels, cell, places, shifted=False), records)


def kernel_record(kernel: EinSum, records: Sequence[Fields]) -> Fields:
    """The record that a template computes from tiles."""
    shapes = tuple(next(iter(r.values())).shape for r in records)
    return _run(sized(kernel, shapes), records)


def _run(kernel: EinSum, records: Sequence[Fields]) -> Fields:
    with np.errstate(all="ignore"):
        return evaluate_node(kernel, list(records))


def merged_records(fields: Sequence[Field], merge: Merge, records: Sequence[Fields]) -> Fields:
    """Merges records by ⊕; the state of a reduction is merged once."""
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


def key_value(expr: Expr, key: KeyTuple) -> int:
    """The value of a function of a key."""
    return int(over_keys(expr, np.array([key], np.int64).reshape(1, len(key)))[0])
