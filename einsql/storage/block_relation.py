"""Runs a tensor-relational plan on one site; arrays are freed after their last use."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import EllipsisType

import numpy as np

from einsql.core.schema import DType, Schema
from einsql.ir.einsum.graph import EinSum
from einsql.ir.tra.block_schema import BlockSchema, Cuts, KeyTuple, sizes
from einsql.ir.tra.kernels import Tile as TileForm
from einsql.ir.tra.kernels import merging
from einsql.ir.tra.plan import (
    Aggregate,
    Filter,
    Join,
    Node,
    ReKey,
    Repartition,
    Scan,
    Stack,
    Tile,
    Transform,
    children,
    walk,
)
from einsql.ir.tra.typing import assembled, renamed, tiles_of, without
from einsql.storage.fields import Fields

Blocks = dict[KeyTuple, np.ndarray]


class PlacedBlocks(Mapping[KeyTuple, np.ndarray]):
    """Blocks on remote sites; reading one fetches them all."""

    @abstractmethod
    def tensor(self, schema: Schema, cuts: Cuts) -> Fields | None:
        """The tensor assembled from the blocks without a fetch; None if they must be gathered.

        Args:
            schema: The tensor's keys and single field; key i is cut along axis i.
            cuts: The starts of the blocks along each axis.
        """


Pairs = Iterable[tuple[KeyTuple, np.ndarray]]
RunKernel = Callable[[EinSum, Sequence[np.ndarray]], np.ndarray]
"""Runs a kernel's template on arrays of any shapes; provided by the session."""


def run_blocks(root: Node, inputs: Mapping[str, np.ndarray], run: RunKernel) -> Blocks:
    """Evaluates a plan.

    Args:
        root: The root node of the plan.
        inputs: The array of every scanned tensor by its name.
        run: Runs kernels.

    Returns:
        The root's arrays by key, in the order of keys; views of inputs are read-only.

    Raises:
        DataError: An element overflows, divides by zero or cannot be cast.
    """
    nodes = walk(root)
    left = Counter(id(c) for node in nodes for c in children(node))
    fused = _fused(nodes, left)
    blocks_of: dict[int, Blocks] = {}
    for node in nodes:
        if id(node) in fused:
            continue
        merges = isinstance(node, Aggregate) and id(node.source) in fused
        last = node.source if merges and isinstance(node, Aggregate) else node
        producer = last
        while isinstance(producer, Filter) and id(producer.source) in fused:
            producer = producer.source
        sources = children(producer)
        operands = [blocks_of[id(c)] for c in sources]
        blocks: Pairs = _pairs(producer, last.schema, operands, inputs, run)
        if merges and isinstance(node, Aggregate):
            blocks = _aggregated(node, blocks, run)
        blocks_of[id(node)] = dict(blocks)
        for c in sources:
            left[id(c)] -= 1
            if left[id(c)] == 0:
                del blocks_of[id(c)]
    return dict(sorted(blocks_of[id(root)].items()))


def _fused(nodes: Sequence[Node], readers: Mapping[int, int]) -> set[int]:
    """Nodes that are evaluated within their only reader, an aggregation or a filter.

    Their pairs are merged or passed on one by one and never stored. Pairs that a filter drops
    are not computed, and so cannot fail.
    """
    inlined: set[int] = set()
    for node in nodes:
        if isinstance(node, Aggregate | Filter) and readers[id(node.source)] == 1:
            source = node.source
            passes = isinstance(source, Filter) and id(source.source) in inlined
            if passes or isinstance(source, Join | Transform):
                inlined.add(id(source))
    return inlined


def _pairs(
    node: Node,
    wanted: BlockSchema,
    operands: Sequence[Blocks],
    inputs: Mapping[str, np.ndarray],
    run: RunKernel,
) -> Iterator[tuple[KeyTuple, np.ndarray]]:
    """Generates the pairs of a relation; of a join or transform, only those of `wanted`."""
    if isinstance(node, Scan):
        array = np.asarray(inputs[node.tensor.name]).view()
        array.flags.writeable = False
        yield from _cut(array, node.schema)
    elif isinstance(node, Join):
        for key in wanted.each_key():
            arrays = [
                blocks[tuple(key[p] for p in places)]
                for blocks, places in zip(operands, node.keys, strict=True)
            ]
            yield key, run(node.kernel, arrays)
    elif isinstance(node, Transform):
        for key in wanted.each_key():
            yield key, run(node.kernel, [operands[0][key]])
    elif isinstance(node, ReKey):
        source = node.source.schema
        new = map(tuple, renamed(source, node.keys).tolist())
        for old, key in zip(source.each_key(), new, strict=True):
            yield key, operands[0][old]
    elif isinstance(node, Filter):
        for key in node.schema.each_key():
            yield key, operands[0][key]
    elif isinstance(node, Tile):
        for key, array in operands[0].items():
            for n, part in enumerate(tiled(array, node.dim, node.size)):
                yield (*key, n), part
    elif isinstance(node, Stack):
        yield from _stack(node, operands[0])
    elif isinstance(node, Repartition):
        yield from _cut(assemble(node.source, operands[0]), node.schema)
    else:
        yield from _aggregated(node, operands[0].items(), run)


def _aggregated(node: Aggregate, pairs: Pairs, run: RunKernel) -> Pairs:
    groups: Blocks = {}
    for key, array in pairs:
        group = tuple(key[g] for g in node.group_by)
        known = groups.get(group)
        groups[group] = array if known is None else merged(node.reduce, known, array, run)
    return groups.items()


def merged(reduce: str, a: np.ndarray, b: np.ndarray, run: RunKernel) -> np.ndarray:
    """A ⊕ b of two arrays of one shape and type."""
    dtype = DType.held(a.dtype)
    assert dtype is not None
    return run(merging(reduce, TileForm(a.ndim, dtype)), [a, b])


def tiled(array: np.ndarray, dim: int, size: int) -> Iterator[np.ndarray]:
    """Views of an array's tiles of `size` along an axis; the last one may be smaller."""
    for n in range(tiles_of(array.shape[dim], size)):
        yield array[(slice(None),) * dim + (slice(n * size, (n + 1) * size),)]


def _stack(node: Stack, blocks: Blocks) -> Iterator[tuple[KeyTuple, np.ndarray]]:
    groups: dict[KeyTuple, list[np.ndarray]] = {}
    for key in node.source.schema.each_key():
        groups.setdefault(without(key, node.key), []).append(blocks[key])
    for key, arrays in groups.items():
        yield key, np.concatenate(arrays, axis=node.dim)


def _cut(array: np.ndarray, schema: BlockSchema) -> Iterator[tuple[KeyTuple, np.ndarray]]:
    for key in schema.each_key():
        intervals = (slice(*d.interval(key)) for d in schema.dims)
        # With the Ellipsis, an array of rank 0 stays an array.
        place: tuple[slice | EllipsisType, ...] = (*intervals, ...)
        yield key, array[place]


def place_of(key: KeyTuple, cuts: Cuts) -> tuple[slice | EllipsisType, ...]:
    """The slices of a block in its array."""
    # With the Ellipsis, an array of rank 0 stays an array.
    return (*(slice(c[k], c[k + 1]) for k, c in zip(key, cuts, strict=True)), ...)


def assemble(node: Node, blocks: Mapping[KeyTuple, np.ndarray]) -> np.ndarray:
    """Assembles the tensor of a relation whose key i cuts axis i, as a new array.

    Raises:
        IntegrityError: Keys are missing.
        ProgrammingError: The keys do not cut the axes.
    """
    cuts = assembled(node.schema, "A result handed out as one array")
    tensor = np.empty([sum(sizes(c)) for c in cuts], node.schema.dtype.numpy)
    for key, array in blocks.items():
        tensor[place_of(key, cuts)] = array
    return tensor
