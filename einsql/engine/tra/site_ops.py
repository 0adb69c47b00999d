"""The operations of a site on its own blocks in a plan of the implementation algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from types import EllipsisType

import numpy as np

from einsql.core.mappings import grouped
from einsql.ir.einsum.flops import flops
from einsql.ir.einsum.graph import TRUE, EinSum, Expr
from einsql.ir.ia.physical_schema import PhysicalSchema
from einsql.ir.ia.plan import (
    LocalAggregate,
    LocalFilter,
    LocalJoin,
    LocalMap,
    LocalStack,
    Node,
    Scan,
)
from einsql.ir.ia.typing import Tiled
from einsql.ir.tra.block_schema import KeyTuple, over_keys
from einsql.ir.tra.kernels import instantiate
from einsql.ir.tra.typing import without
from einsql.storage.block_relation import RunKernel, merged, tiled

Part = tuple[KeyTuple, int]
"""An array of a physical relation: its key, and its number among the parts of the key."""
AtSite = dict[Part, np.ndarray]
"""The blocks of a relation at one site."""
Pairs = Iterable[tuple[Part, np.ndarray]]
Held = Mapping[KeyTuple, tuple[tuple[int, ...], ...]]
"""For every key the sites with a copy of each of its parts."""


@lru_cache(maxsize=256)
def held(schema: PhysicalSchema) -> Held:
    """Returns the sites of every array of a relation."""
    return {
        key: tuple(tuple(copies) for copies in parts if copies[0] >= 0)
        for key, parts in zip(schema.blocks.each_key(), schema.holders.tolist(), strict=True)
    }


def arrays_at(schema: PhysicalSchema, site: int) -> list[Part]:
    """Returns the keys of the arrays at a site, with the numbers of their parts."""
    keys = list(schema.blocks.each_key())
    return [(keys[row], n) for row, n in schema.at(site).tolist()]


def _holds(condition: Expr, keys: Sequence[KeyTuple]) -> list[bool]:
    """Returns for each key whether it satisfies a condition."""
    if condition == TRUE or not keys:
        return [True] * len(keys)
    array = np.array(keys, np.int64).reshape(len(keys), len(keys[0]))
    return list(map(bool, over_keys(condition, array).tolist()))


def _renamed(keys: Sequence[KeyTuple], to: tuple[Expr, ...] | None) -> list[KeyTuple]:
    """Returns new keys by functions of the old keys; None keeps the keys."""
    if to is None or not keys:
        return list(keys)
    array = np.array(keys, np.int64).reshape(len(keys), len(keys[0]))
    columns = [over_keys(e, array).tolist() for e in to]
    return list(zip(*columns, strict=True)) if columns else [()] * len(keys)


Read = Callable[[Scan, KeyTuple], np.ndarray]
"""Returns a block of a scanned tensor; called only at the sites of the block."""


def local_pairs(
    node: Node, wanted: Held, site: int, operands: Sequence[AtSite], read: Read, run: RunKernel
) -> Iterator[tuple[Part, np.ndarray]]:
    """Yields an operation's results on a site's arrays; a join or map yields only selected keys."""
    if isinstance(node, Scan):
        for key, n in arrays_at(node.schema, site):
            yield (key, n), read(node, key)
    elif isinstance(node, LocalFilter):
        keys = [key for key, _ in operands[0]]
        kept = _holds(node.condition, keys)
        yield from (pair for pair, on in zip(operands[0].items(), kept, strict=True) if on)
    elif isinstance(node, LocalMap):
        yield from _map(node, wanted, operands[0], run)
    elif isinstance(node, LocalJoin):
        yield from _join(node, wanted, site, operands, run)
    elif isinstance(node, LocalAggregate):
        yield from aggregated(node, site, operands[0].items(), run)
    else:
        assert isinstance(node, LocalStack)
        yield from _stack(node, site, operands[0])


def _map(
    node: LocalMap, wanted: Held, blocks: AtSite, run: RunKernel
) -> Iterator[tuple[Part, np.ndarray]]:
    emitted = [
        (part, a) for part, array in blocks.items() for part, a in _emitted(node, part, array)
    ]
    new = _renamed([key for (key, _), _ in emitted], node.keys)
    for key, ((_, n), array) in zip(new, emitted, strict=True):
        if key in wanted:
            yield (key, n), _chain(node.kernels, [array], run)


def _emitted(node: LocalMap, part: Part, array: np.ndarray) -> Iterator[tuple[Part, np.ndarray]]:
    key, n = part
    if node.emit is None:
        yield part, array
    elif isinstance(node.emit, Tiled):
        for m, tile in enumerate(tiled(array, node.emit.dim, node.emit.size)):
            yield ((*key, m), n), tile
    else:
        for m in range(node.emit.count):
            yield ((*key, m), n), array


def _join(
    node: LocalJoin, wanted: Held, site: int, operands: Sequence[AtSite], run: RunKernel
) -> Iterator[tuple[Part, np.ndarray]]:
    # A site has at most one part of each key that a join reads.
    parts: list[dict[KeyTuple, int]] = [dict(o.keys()) for o in operands]
    joined = _matches(parts, node.keys)
    kept = _holds(node.where, [key for key, _ in joined])
    joined = [match for match, on in zip(joined, kept, strict=True) if on]
    new = _renamed([key for key, _ in joined], node.key_map)
    for key, (_, own) in zip(new, joined, strict=True):
        if key in wanted:
            arrays = [o[k, p[k]] for o, p, k in zip(operands, parts, own, strict=True)]
            yield (key, _part(wanted[key], site)), _chain(node.kernels, arrays, run)


def _matches(
    operands: Sequence[Iterable[KeyTuple]], places: Sequence[tuple[int, ...]]
) -> list[tuple[KeyTuple, tuple[KeyTuple, ...]]]:
    """Computes the natural join of keys.

    Args:
        operands: The keys of each operand.
        places: For each key dimension of each operand the result's key dimension.

    Returns:
        The result's keys in order, each with the joined keys of the operands.
    """
    joined: list[tuple[KeyTuple, tuple[KeyTuple, ...]]] = [((), ())]
    width = 0
    for keys, own in zip(operands, places, strict=True):
        common = [n for n, p in enumerate(own) if p < width]
        fresh = [n for n, p in enumerate(own) if p >= width]
        index = grouped((tuple(key[n] for n in common), key) for key in keys)
        joined = [
            ((*old, *(key[n] for n in fresh)), (*parts, key))
            for old, parts in joined
            for key in index.get(tuple(old[own[n]] for n in common), ())
        ]
        width += len(fresh)
    return sorted(joined)


def _part(parts: Sequence[Sequence[int]], site: int) -> int:
    """Returns the number of the part that a site has."""
    return next(n for n, copies in enumerate(parts) if site in copies)


def aggregated(
    node: LocalAggregate, site: int, pairs: Pairs, run: RunKernel
) -> Iterator[tuple[Part, np.ndarray]]:
    """Merges pairs group by group on arrival.

    Args:
        node: The aggregation.
        site: The number of the site.
        pairs: The blocks of the site, stored or computed.
        run: Runs kernels.
    """
    groups: dict[KeyTuple, np.ndarray] = {}
    wanted = held(node.schema)
    for (key, _), array in pairs:
        group = tuple(key[g] for g in node.group_by)
        if group not in wanted:
            continue  # not among the selected keys
        new = _chain(node.inner, [array], run)
        known = groups.get(group)
        groups[group] = new if known is None else merged(node.reduce, known, new, run)
    for group, total in groups.items():
        yield (group, _part(wanted[group], site)), _chain(node.finish, [total], run)


def _stack(node: LocalStack, site: int, blocks: AtSite) -> Iterator[tuple[Part, np.ndarray]]:
    groups: dict[KeyTuple, list[np.ndarray]] = {}
    for (key, _), array in sorted(blocks.items(), key=lambda pair: pair[0]):
        groups.setdefault(without(key, node.key), []).append(array)
    wanted = held(node.schema)
    for group, arrays in groups.items():
        if site in wanted[group][0]:  # other sites have some of the group only
            yield (group, 0), np.concatenate(arrays, axis=node.dim)


def _chain(kernels: Sequence[EinSum], arrays: Sequence[np.ndarray], run: RunKernel) -> np.ndarray:
    for kernel in kernels:
        arrays = [run(kernel, arrays)]
    return arrays[0]


def counting(run: RunKernel, operations: list[int], site: int) -> RunKernel:
    """Wraps a function that runs kernels, and adds the scalar operations to those of a site."""

    def counted(kernel: EinSum, arrays: Sequence[np.ndarray]) -> np.ndarray:
        operations[site] += _operations(kernel, tuple(a.shape for a in arrays))
        return run(kernel, arrays)

    return counted


@lru_cache(maxsize=4096)
def _operations(kernel: EinSum, shapes: tuple[tuple[int, ...], ...]) -> int:
    return flops(instantiate(kernel, shapes))


def reading(inputs: Mapping[str, np.ndarray]) -> Read:
    """Returns a function that reads blocks as read-only views of complete arrays."""

    def read(scan: Scan, key: KeyTuple) -> np.ndarray:
        intervals = scan.schema.blocks.box(key).tolist()
        # With the Ellipsis, an array of rank 0 stays an array.
        place: tuple[slice | EllipsisType, ...] = (*(slice(lo, hi) for lo, hi in intervals), ...)
        block = np.asarray(inputs[scan.tensor.name])[place]
        block.flags.writeable = False
        return block

    return read
