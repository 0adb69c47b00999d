"""The operations of a site on its own blocks in a plan of the implementation algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import numpy as np

from einsql.ir.einsum.flops import flops
from einsql.ir.einsum.graph import EinSum
from einsql.ir.ia.placement import Held
from einsql.ir.ia.plan import (
    LocalAggregate,
    LocalFilter,
    LocalJoin,
    LocalMap,
    LocalStack,
    Node,
    Scan,
)
from einsql.ir.ia.typing import Tiled, holds, renamed
from einsql.ir.tra.block_schema import KeyTuple, matches
from einsql.ir.tra.kernels import instantiate
from einsql.ir.tra.typing import without
from einsql.storage.block_relation import RunKernel, merged, place_of, tiled

Part = tuple[KeyTuple, int]
"""An array of a physical relation: its key, and its number among the parts of the key."""
AtSite = dict[Part, np.ndarray]
"""The blocks of a relation at one site."""
Pairs = Iterable[tuple[Part, np.ndarray]]


Read = Callable[[Scan, KeyTuple], np.ndarray]
"""Returns a block of a scanned tensor; called only at the sites of the block."""


def local_pairs(
    node: Node, wanted: Held, site: int, operands: Sequence[AtSite], read: Read, run: RunKernel
) -> Iterator[tuple[Part, np.ndarray]]:
    """Yields an operation's results on a site's arrays; a join or map yields only selected keys."""
    if isinstance(node, Scan):
        for key, n in node.schema.at(site):
            yield (key, n), read(node, key)
    elif isinstance(node, LocalFilter):
        keys = [key for key, _ in operands[0]]
        kept = holds(node.condition, keys)
        yield from (pair for pair, on in zip(operands[0].items(), kept, strict=True) if on)
    elif isinstance(node, LocalMap):
        yield from _map(node, wanted, operands[0], run)
    elif isinstance(node, LocalJoin):
        yield from _join(node, wanted, operands, run)
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
    new = renamed([key for (key, _), _ in emitted], node.keys)
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
    node: LocalJoin, wanted: Held, operands: Sequence[AtSite], run: RunKernel
) -> Iterator[tuple[Part, np.ndarray]]:
    joined = matches([[key for key, _ in o] for o in operands], node.keys)
    kept = holds(node.where, [key for key, _ in joined])
    joined = [match for match, on in zip(joined, kept, strict=True) if on]
    new = renamed([key for key, _ in joined], node.key_map)
    for key, (_, own) in zip(new, joined, strict=True):
        if key in wanted:
            arrays = [o[k, 0] for o, k in zip(operands, own, strict=True)]
            yield (key, 0), _chain(node.kernels, arrays, run)


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
    for (key, _), array in pairs:
        group = tuple(key[g] for g in node.group_by)
        if group not in node.schema.held:
            continue  # not among the selected keys
        new = _chain(node.inner, [array], run)
        known = groups.get(group)
        groups[group] = new if known is None else merged(node.reduce, known, new, run)
    for group, total in groups.items():
        parts = node.schema.held[group]
        n = next(n for n, copies in enumerate(parts) if site in copies)
        yield (group, n), _chain(node.finish, [total], run)


def _stack(node: LocalStack, site: int, blocks: AtSite) -> Iterator[tuple[Part, np.ndarray]]:
    groups: dict[KeyTuple, list[np.ndarray]] = {}
    for (key, _), array in sorted(blocks.items(), key=lambda pair: pair[0]):
        groups.setdefault(without(key, node.key), []).append(array)
    for group, arrays in groups.items():
        if site in node.schema.held[group][0]:  # other sites have some of the group only
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
        block = np.asarray(inputs[scan.tensor.name])[place_of(key, scan.cuts)]
        block.flags.writeable = False
        return block

    return read
