"""The reference interpreter of plans of the implementation algebra, in plain NumPy.

A physical relation is a set of (key, array, site). Every operation is the loop of its definition
over the arrays of a site: a local operation fails if its site lacks an array. So a plan runs only
if the sites of its types are right. The einsum interpreter runs the kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from einsql.core.dag import bottom_up
from einsql.core.records import dataclass
from einsql.errors import IntegrityError, InternalError
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.interpreter import Fields
from einsql.ir.ia import plan as ia
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.ia.typing import Tiled
from einsql.ir.ia.typing import emitted as emitted_by
from einsql.ir.tra.block_schema import KeyTuple, cut_dims, match_rows, over_keys
from einsql.ir.tra.interpreter import (
    Blocks,
    assembled_tensor,
    cell_record,
    concatenated,
    cut_record,
    kernel_record,
    key_value,
    merged_records,
    stored_record,
    tiled,
)
from einsql.ir.tra.kernel_typing import operand_key
from einsql.ir.tra.typing import assembled, by_axis, without

Copy = tuple[int, int, int]
"""The position of a key in the order of keys, the number of the part, and that of its copy."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A physical relation.

    Attributes:
        schema: Its type.
        records: The record of each copy of each part that a site stores.
    """

    schema: PhysicalSchema
    records: dict[Copy, Fields]

    def at(self, row: int, part: int, site: int) -> Fields:
        """The record of a key's part at a site; a key without several parts has part 0.

        Raises:
            IntegrityError: The site does not store it.
        """
        holders = self.schema.holders
        part = min(part, holders.shape[1] - 1)
        for copy in np.flatnonzero(holders[row, part] == site).tolist():
            return self.records[row, part, copy]
        raise IntegrityError(f"Site {site} does not store part {part} of key number {row}")

    def blocks(self, part: int) -> Blocks:
        """One copy of a part of every key."""
        keys = [*self.schema.blocks.each_key()]
        return {keys[row]: r for (row, p, c), r in self.records.items() if (p, c) == (part, 0)}


def evaluate_physical(root: ia.Node, inputs: Mapping[str, Mapping[str, np.ndarray]]) -> Blocks:
    """Evaluates a plan of the implementation algebra.

    Args:
        root: The plan.
        inputs: The fields of the scanned tensors, by name.

    Returns:
        The root's records by key, its parts merged; floats are float64.

    Raises:
        DataError: An element overflows, divides by zero or cannot be cast.
        IntegrityError: A site lacks an array that an operation needs there.
        InternalError: Two copies of a record differ.
    """
    stored: Stored = bottom_up(
        root,
        ia.children,
        lambda node, sources: Stored(node.schema, _records(node, sources, inputs)),
    )
    blocks = root.schema.blocks
    parts: dict[KeyTuple, list[Fields]] = {}
    keys = [*blocks.each_key()]
    for (row, part, copy), record in sorted(stored.records.items(), key=lambda pair: pair[0]):
        if copy == 0:
            parts.setdefault(keys[row], []).append(record)
        elif not _equal(record, stored.records[row, part, 0]):
            raise InternalError(f"Copies of the key {keys[row]} differ")
    merge = root.schema.merge
    return {
        key: records[0] if merge is None else merged_records(blocks.fields, merge, records)
        for key, records in parts.items()
    }


def _equal(a: Fields, b: Fields) -> bool:
    return all(np.array_equal(a[n], b[n], equal_nan=a[n].dtype.kind == "f") for n in a)


def _records(
    node: ia.Node,
    sources: Sequence[Stored],
    inputs: Mapping[str, Mapping[str, np.ndarray]],
) -> dict[Copy, Fields]:
    if isinstance(node, ia.Scan):
        record = stored_record(node.schema.blocks.fields, inputs.get(node.tensor.name, {}))
        blocks = [*cut_record(record, node.schema.blocks).values()]
        return {at: blocks[at[0]] for at, _ in _copies(node.schema)}
    if isinstance(node, ia.LocalJoin):
        return _join(node, sources)
    source = sources[0]
    match node:
        case ia.Bcast() | ia.Shuffle():
            return {at: source.records[at[0], at[1], 0] for at, _ in _copies(node.schema)}
        case ia.Repartition():
            return _repartition(node, source, sources[1:])
        case ia.Routed():
            return _whole(node, source)
        case ia.LocalFilter():
            kept = np.flatnonzero(over_keys(node.condition, source.schema.blocks.key_array()))
            return {
                (row, part, copy): source.at(int(kept[row]), part, site)
                for (row, part, copy), site in _copies(node.schema)
            }
        case ia.LocalMap():
            return _map(node, source)
        case ia.LocalAggregate():
            return _aggregate(node, source)
        case ia.LocalStack():
            return _stack(node, source)


def _copies(schema: PhysicalSchema) -> Iterator[tuple[Copy, int]]:
    """Every copy that a relation has, with its site."""
    holders = schema.holders
    for row, part, copy in np.argwhere(holders >= 0).tolist():
        yield (row, part, copy), int(holders[row, part, copy])


def _repartition(
    node: ia.Repartition, source: Stored, others: Sequence[Stored]
) -> dict[Copy, Fields]:
    """The new blocks of the tensor; other relations have parts of the same tensor.

    Raises:
        InternalError: Another relation has other values.
    """
    old = source.schema.blocks
    if by_axis(node.cuts) is not None:
        old = replace(old, dims=cut_dims(assembled(old, "Repartition")))
    parts = range(source.schema.holders.shape[1])
    tensors = [assembled_tensor(source.blocks(p), old) for p in parts]
    for other in others:
        same = [*cut_record(tensors[0], other.schema.blocks).values()]
        if not all(_equal(record, same[row]) for (row, _, _), record in other.records.items()):
            raise InternalError("Two relations of one tensor differ")
    pieces = [[*cut_record(tensor, node.schema.blocks).values()] for tensor in tensors]
    return {at: pieces[at[1]][at[0]] for at, _ in _copies(node.schema)}


def _whole(node: ia.Routed, source: Stored) -> dict[Copy, Fields]:
    """One record of all blocks."""
    tensor = assembled_tensor(source.blocks(0), source.schema.blocks)
    (record,) = cut_record(tensor, node.schema.blocks).values()
    return {at: record for at, _ in _copies(node.schema)}


def _map(node: ia.LocalMap, source: Stored) -> dict[Copy, Fields]:
    keys = source.schema.blocks.key_array()
    emitted = emitted_by(source.schema.blocks, node.emit).key_array()
    new = emitted
    if node.keys is not None:
        columns = [over_keys(e, emitted).astype(np.int64) for e in node.keys]
        new = np.stack(columns, axis=1) if columns else emitted[:, :0]
    order = np.lexsort(new.T[::-1]) if new.shape[1] else np.arange(len(new))
    row_of = {tuple(key): row for row, key in enumerate(keys.tolist())}
    records: dict[Copy, Fields] = {}
    for (row, part, copy), site in _copies(node.schema):
        key = tuple(emitted[order[row]].tolist())
        own = key if node.emit is None else key[:-1]
        record = source.at(row_of[own], part, site)
        if isinstance(node.emit, Tiled):
            extent = source.schema.blocks.dims[node.emit.dim].at(own)
            record = tiled(record, node.emit.dim, node.emit.size, extent)[key[-1]]
        records[row, part, copy] = _chained(node.kernels, record)
    return records


def _chained(kernels: Sequence[EinSum], record: Fields) -> Fields:
    for kernel in kernels:
        record = kernel_record(kernel, [record])
    return record


def _join(node: ia.LocalJoin, sources: Sequence[Stored]) -> dict[Copy, Fields]:
    kernel, *later = node.kernels
    blocks = [s.schema.blocks for s in sources]
    if node.domain is None:
        matches = [tuple(key) for key in match_rows(blocks, node.keys)[0].tolist()]
    else:
        matches = [*np.ndindex(*(len(cut) - 1 for _, cut in node.domain))]
    match_of = {
        key if node.key_map is None else tuple(key_value(e, key) for e in node.key_map): key
        for key in matches
        if key_value(node.where, key)
    }
    row_of = [{key: n for n, key in enumerate(b.each_key())} for b in blocks]
    keys = [*node.schema.blocks.each_key()]
    records: dict[Copy, Fields] = {}
    for (row, part, copy), site in _copies(node.schema):
        key = match_of[keys[row]]
        own = [operand_key(key, places) for places in node.keys]
        taken = [
            source.at(rows[k], part, site)
            for source, rows, k in zip(sources, row_of, own, strict=True)
        ]
        if node.domain is None:
            record = kernel_record(kernel, taken)
        else:
            boxes = [b.box(k) for b, k in zip(blocks, own, strict=True)]
            record = cell_record(kernel, node.domain, key, boxes, taken)
        records[row, part, copy] = _chained(later, record)
    return records


def _aggregate(node: ia.LocalAggregate, source: Stored) -> dict[Copy, Fields]:
    """Merges the members of each group at each point of the mesh."""
    keys, points = [*source.schema.blocks.each_key()], source.schema.points
    members: dict[tuple[KeyTuple, int], list[Fields]] = {}
    for (row, part, copy), record in sorted(source.records.items(), key=lambda pair: pair[0]):
        group = tuple(keys[row][g] for g in node.group_by)
        if key_value(node.where, group):
            point = int(points[row, part, copy])
            members.setdefault((group, point), []).append(_chained(node.inner, record))
    fields = node.inner[-1].schema.fields if node.inner else source.schema.blocks.fields
    groups = [*node.schema.blocks.each_key()]
    records: dict[Copy, Fields] = {}
    for (row, part, copy), _ in _copies(node.schema):
        point = int(node.schema.points[row, part, copy])
        total = merged_records(fields, node.merge, members[groups[row], point])
        records[row, part, copy] = _chained(node.finish, total)
    return records


def _stack(node: ia.LocalStack, source: Stored) -> dict[Copy, Fields]:
    keys = [*source.schema.blocks.each_key()]
    members: dict[KeyTuple, list[int]] = {}
    for row in sorted(range(len(keys)), key=lambda n: keys[n][node.key]):
        members.setdefault(without(keys[row], node.key), []).append(row)
    groups = [*node.schema.blocks.each_key()]
    return {
        (row, part, copy): concatenated(
            [source.at(n, 0, site) for n in members[groups[row]]], node.dim
        )
        for (row, part, copy), site in _copies(node.schema)
    }
