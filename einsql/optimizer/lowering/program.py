"""The SPMD program of a plan of the implementation algebra.

Filters, renamed keys and duplicates only number tiles anew. Moves, cuts and concatenations become
exchanges, kernels become local steps, and merges become completions. A merge of arrays that were
just moved is one completion, which merges while it moves, unless it would send less than the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from einsql.core.records import dataclass
from einsql.core.schema import Field, Key, Schema
from einsql.errors import InternalError
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Input, Operand, Output, Value
from einsql.ir.einsum.partial_states import state_fields
from einsql.ir.functions import REDUCTIONS
from einsql.ir.ia import plan as ia
from einsql.ir.ia.typing import Tiled, emitted
from einsql.ir.layout import Tiles
from einsql.ir.spmd.program import (
    Collective,
    CollectiveName,
    Complete,
    Exchange,
    Load,
    Local,
    Program,
    Step,
    View,
    relation_of,
)
from einsql.ir.tra.block_schema import Cuts, cut_dims, over_keys
from einsql.ir.tra.kernels import VALUE, Merge, reductions
from einsql.ir.tra.typing import assembled
from einsql.optimizer.lowering.prune import pruned
from einsql.optimizer.lowering.tiles import (
    Copies,
    Relation,
    boxes,
    from_zero,
    in_rows,
    numbered,
    rows_of,
)


@dataclass(frozen=True, slots=True, eq=False)
class BlockPlan:
    """The program of a plan over blocks.

    Attributes:
        program: The program; the tiles of its result have their keys in front.
        keys: The number of key dimensions of the result. If it is partial, the number of the part
            is one more key.
        merge: The node that merges the parts of the result under one key; None if it has no parts.
        steps: For each node of the plan, producers first, the numbers of its steps. Filters and
            renamings have none, and a merge that moves its parts has the step of the move.
    """

    program: Program
    keys: int
    merge: EinSum | None
    steps: tuple[tuple[int, ...], ...]


def lowered(root: ia.Node) -> BlockPlan:
    """The SPMD program of a plan of the implementation algebra."""
    lowering = _Lowering(root)
    ends = [0]
    for node in ia.walk(root):
        lowering.add(node)
        ends.append(len(lowering.steps))
    relation = lowering.relations[id(root)]
    step = lowering.viewed(relation)
    ends[-1] = len(lowering.steps)
    program, numbers = pruned(Program(root.schema.sites, tuple(lowering.steps), (step,)))
    kept = (numbers[first:last] for first, last in pairwise(ends))
    steps = tuple(tuple(own[own >= 0].tolist()) for own in kept)
    merge = None
    if root.schema.merge is not None:
        merge = lowering.merging(relation.step, root.schema.merge)
    return BlockPlan(program, relation.keys.shape[1], merge, steps)


class _Lowering:
    """The steps so far.

    Attributes:
        steps: The steps.
        relations: The relation of each node, by the node's identity.
    """

    def __init__(self, root: ia.Node) -> None:
        self.steps: list[Step] = []
        self.relations: dict[int, Relation] = {}
        self._readers = Counter(id(c) for node in ia.walk(root) for c in ia.children(node))

    def add(self, node: ia.Node) -> None:
        """Adds the steps of a node, whose operands have been added."""
        self.relations[id(node)] = self._lowered(node)

    def _lowered(self, node: ia.Node) -> Relation:
        match node:
            case ia.Scan():
                return self._scan(node)
            case ia.LocalJoin():
                return self._join(node)
        source = self.relations[id(node.source)]
        match node:
            case ia.Bcast() | ia.Shuffle():
                return self._moved(node, source)
            case ia.Repartition():
                return self._recut(node, source)
            case ia.LocalFilter():
                return source.select(np.flatnonzero(over_keys(node.condition, source.keys)))
            case ia.LocalMap():
                return self._map(node, source)
            case ia.LocalAggregate():
                return self._aggregate(node, source)
            case ia.LocalStack():
                return self._stack(node, source)
            case ia.Routed():
                raise InternalError("A plan over tiles has no such operation")

    def _step(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def viewed(self, relation: Relation) -> int:
        """The step whose tiles are those of a relation, under its keys."""
        copies = Copies.of(relation.holders)
        areas = self.steps[relation.step].tiles.areas[copies.of_relation(relation)]
        return self._view(
            relation.step, copies.of_relation(relation), copies.tiles(relation.keys, areas)
        )

    def _view(self, source: int, picks: np.ndarray, tiles: Tiles) -> int:
        """The step that has the picked tiles of another one as other tiles; it may be the same."""
        if np.array_equal(picks, np.arange(len(picks))) and self.steps[source].tiles.equals(tiles):
            return source
        return self._step(View(source, picks, tiles))

    # ---- scans and moves

    def _scan(self, node: ia.Scan) -> Relation:
        keys, holders = node.schema.blocks.key_array(), node.schema.holders
        copies, tensor = Copies.of(holders), node.tensor
        areas = node.schema.blocks.boxes()[copies.rows]
        lows = np.array([k.lo for k in tensor.schema.keys], np.int64).reshape(-1, 1)
        load = self._step(Load(tensor, Tiles(copies.sites, areas + lows, copies.repeated)))
        (field,) = tensor.schema.fields
        named = Input(tensor.name, Schema(tensor.schema.keys, (Field(VALUE, field.dtype),)))
        tiles = copies.tiles(keys, from_zero(areas))
        step = self._step(View(load, np.arange(len(areas)), tiles, named))
        return Relation(step, keys, holders, copies.numbers)

    def _moved(self, node: ia.Bcast | ia.Shuffle, source: Relation) -> Relation:
        """Tiles that are at their sites stay; the others come from one of their copies."""
        holders = node.schema.holders
        stays = source.staying(holders)
        if ((stays.numbers >= 0) == (holders >= 0)).all():
            return stays
        copies = Copies.of(holders)
        own = copies.of_relation(stays)
        first = self.viewed(source.senders())
        sources = tuple(dict.fromkeys((first, source.step)))
        parts = source.numbers[copies.rows, copies.parts, 0]
        tiles = copies.tiles(source.keys, self.steps[source.step].tiles.areas[parts])
        name: CollectiveName = "all-gather" if isinstance(node, ia.Bcast) else "all-to-all"
        moves = (Collective(name, (), self._bytes(source.step, tiles.volumes[own < 0])),)
        step = self._step(Exchange(sources, _at_hand(own, len(sources) - 1), tiles, moves))
        return Relation(step, source.keys, holders, copies.numbers)

    def _recut(self, node: ia.Repartition, source: Relation) -> Relation:
        """Blocks are cut from one at their site, or assembled from all that they intersect."""
        old, senders = assembled(node.source.schema.blocks, "Repartition"), source.senders()
        have = Copies.of(senders.holders)
        tiles = Tiles(have.sites, _boxes(old, source.keys)[have.rows], have.repeated)
        first = self._view(source.step, have.of_relation(senders), tiles)
        keys, holders = node.schema.blocks.key_array(), node.schema.holders
        copies = Copies.of(holders)
        areas = node.schema.blocks.boxes()[copies.rows]
        row = rows_of(source.keys, _containers(old, areas))
        here = senders.holders[row, 0] == copies.sites[:, None]
        inside = have.numbers[row, 0, here.argmax(axis=1)]
        inside = np.where((row >= 0) & here.any(axis=1), inside, -1)
        tiles = Tiles(copies.sites, areas, copies.repeated)
        moves = (Collective("all-to-all", (), ia.sends(node)),)
        step = self._step(Exchange((first,), _at_hand(inside, 0), tiles, moves))
        step = self._view(step, np.arange(len(areas)), copies.tiles(keys, from_zero(areas)))
        return Relation(step, keys, holders, copies.numbers)

    # ---- local operations

    def _map(self, node: ia.LocalMap, source: Relation) -> Relation:
        if node.emit is not None:
            keys = emitted(node.source.schema.blocks, node.emit).key_array()
            rows = np.cumsum(keys[:, -1] == 0) - 1
            every = source.select(rows)
            source = Relation(source.step, keys, every.holders, every.numbers)
            if isinstance(node.emit, Tiled):
                source = self._cut(source, node.emit)
        return self._applied(node.kernels, source).renamed(node.keys)

    def _cut(self, source: Relation, emit: Tiled) -> Relation:
        """The last key is the number of the tile that is cut from each array."""
        copies = Copies.of(source.holders)
        picks = copies.of_relation(source)
        areas = self.steps[source.step].tiles.areas[picks].copy()
        start = source.keys[copies.rows, -1] * emit.size
        areas[:, emit.dim, 1] = np.minimum(start + emit.size, areas[:, emit.dim, 1])
        areas[:, emit.dim, 0] = start
        tiles = Tiles(copies.sites, numbered(areas), keyed=1)
        step = self._step(Exchange((source.step,), _at_hand(picks, 0), tiles, ()))
        tiles = copies.tiles(source.keys, from_zero(areas))
        step = self._view(step, np.arange(len(picks)), tiles)
        return Relation(step, source.keys, source.holders, copies.numbers)

    def _applied(self, kernels: Sequence[EinSum], source: Relation) -> Relation:
        """The relation after kernels of one array each."""
        if not kernels:
            return source
        copies = Copies.of(source.holders)
        step = self._chain(
            kernels, [(source.step, copies.of_relation(source))], source.keys, copies
        )
        return Relation(step, source.keys, source.holders, copies.numbers)

    def _chain(
        self,
        kernels: Iterable[EinSum],
        operands: list[tuple[int, np.ndarray]],
        keys: np.ndarray,
        copies: Copies,
    ) -> int:
        """The last of the local steps that run kernels one after another.

        Args:
            kernels: The first one takes all operands, each later one the previous result.
            operands: Steps, and the tile of each copy of the result.
            keys: The keys of the result.
            copies: The copies of the result.
        """
        step, count = -1, len(copies.rows)
        for kernel in kernels:
            areas = [self.steps[s].tiles.areas[picks] for s, picks in operands]
            step = self._step(
                Local(
                    node=kernel,
                    labels=(),
                    grid=(),
                    sites=copies.sites,
                    cells=np.zeros((count, 0, 2), np.int64),
                    operands=tuple(s for s, _ in operands),
                    picks=tuple(picks for _, picks in operands),
                    tiles=copies.tiles(keys, _result_areas(kernel, areas, count)),
                    partial=False,
                    is_template=True,
                )
            )
            operands = [(step, np.arange(count))]
        return step

    def _join(self, node: ia.LocalJoin) -> Relation:
        matched = node if node.key_map is None else replace(node, key_map=None)
        keys, holders = matched.schema.blocks.key_array(), matched.schema.holders
        copies = Copies.of(holders)
        operands = []
        for child, places in zip(node.sources, node.keys, strict=True):
            source = self.relations[id(child)]
            rows = rows_of(source.keys, keys[:, list(places)])
            operands.append((source.step, source.at(rows[copies.rows], copies.sites)))
        step = self._chain(node.kernels, operands, keys, copies)
        return Relation(step, keys, holders, copies.numbers).renamed(node.key_map)

    def _stack(self, node: ia.LocalStack, source: Relation) -> Relation:
        """Every result tile is assembled from views of its members at its site."""
        keys, holders = node.schema.blocks.key_array(), node.schema.holders
        copies = Copies.of(holders)
        group = rows_of(keys, np.delete(source.keys, node.key, axis=1))
        order = np.lexsort((source.keys[:, node.key], group))
        members = in_rows(order, group[order], len(keys))[copies.rows]
        tile, place = np.nonzero(members >= 0)
        picks = source.at(members[tile, place], copies.sites[tile])
        areas = self.steps[source.step].tiles.areas[picks]
        sizes = np.zeros(members.shape, np.int64)
        sizes[tile, place] = areas[:, node.dim, 1]
        ends = np.cumsum(sizes, axis=1)
        stacked = areas.copy()
        stacked[:, node.dim] += (ends - sizes)[tile, place][:, None]
        view = self._view(
            source.step, picks, Tiles(copies.sites[tile], boxes(tile[:, None], stacked), keyed=1)
        )
        areas_of_members = areas[np.searchsorted(tile, np.arange(len(members)))]
        areas_of_members[:, node.dim, 1] = ends[:, -1]
        tiles = Tiles(copies.sites, numbered(areas_of_members), keyed=1)
        step = self._step(Exchange((view,), np.full((len(members), 2), -1), tiles, ()))
        return Relation(step, keys, holders, copies.numbers)

    # ---- merges

    def _aggregate(self, node: ia.LocalAggregate, source: Relation) -> Relation:
        keys, holders = node.schema.blocks.key_array(), node.schema.holders
        copies = Copies.of(holders)
        group = rows_of(keys, source.keys[:, list(node.group_by)])
        parts = self._moving_parts(node, group, copies) or self._local_parts(
            self._applied(node.inner, source.select(np.flatnonzero(group >= 0))),
            group[group >= 0],
            copies,
        )
        step, members, moves = parts
        if members.shape[1] == 1 and not moves:
            numbers = np.where(copies.numbers >= 0, members[copies.numbers, 0], -1)
        else:
            tiles = copies.tiles(keys, self.steps[step].tiles.areas[members[:, 0]])
            partial = node.schema.merge is not None
            merge = self.merging(step, node.merge)
            step = self._step(Complete(step, merge, tiles, members, moves, partial))
            numbers = copies.numbers
        return self._applied(node.finish, Relation(step, keys, holders, numbers))

    def merging(self, step: int, merge: Merge) -> EinSum:
        """The node that merges records of a step element by element, in their own types."""
        fields = relation_of(self.steps, step).schema.fields
        return _merging(reductions(merge), self.steps[step].tiles.areas.shape[1], fields)

    def _local_parts(
        self, source: Relation, group: np.ndarray, copies: Copies
    ) -> tuple[int, np.ndarray, tuple[Collective, ...]]:
        """The parts of a merge at each site: a step, and its tiles for each tile of the result.

        Args:
            source: The operand.
            group: int64 (keys,), the position of the group of each key of the operand.
            copies: The copies of the result.
        """
        have = Copies.of(source.holders)
        tile = copies.at(group[have.rows], have.sites)
        order = np.lexsort((have.parts, have.rows, tile))
        members = in_rows(have.of_relation(source)[order], tile[order], len(copies.rows))
        return source.step, members, ()

    def _moving_parts(
        self, node: ia.LocalAggregate, group: np.ndarray, copies: Copies
    ) -> tuple[int, np.ndarray, tuple[Collective, ...]] | None:
        """The parts of a merge that moves them, in place of the exchange before it.

        A completion sends one array from a site to a tile. So None if the plan sends several, or
        none, and if the moved arrays have other readers.

        Args:
            node: The aggregation.
            group: int64 (keys,), the position of the group of each key of the operand, or -1.
            copies: The copies of the result.
        """
        move = node.source
        if not isinstance(move, ia.Bcast | ia.Shuffle) or node.inner or (group < 0).any():
            return None
        source = self.relations[id(move.source)]
        target = Copies.of(move.schema.holders)
        own = target.of_relation(source.staying(move.schema.holders))
        tile = copies.at(group[target.rows], target.sites)
        count = (source.holders >= 0).sum(axis=2)[target.rows, target.parts]
        copy = target.rows, target.parts, target.sites % np.maximum(1, count)
        picks, senders = np.where(own < 0, source.numbers[copy], own), source.holders[copy]
        sent = np.stack([tile, senders], axis=1)[own < 0]
        if not len(sent) or len(np.unique(sent, axis=0)) < len(sent):
            return None
        if self._readers[id(move)] > 1:
            return None
        order = np.lexsort((target.parts, target.rows, tile))
        members = in_rows(picks[order], tile[order], len(copies.rows))
        nbytes = self._bytes(source.step, self.steps[source.step].tiles.volumes[picks[own < 0]])
        moves = (Collective("reduce", (), nbytes),)
        first = self.steps[source.step]
        if (
            isinstance(first, Complete)
            and not first.collectives
            and first.node is self.merging(source.step, node.merge)
            and self._readers[id(move.source)] == 1
        ):  # sites merge their parts before they send them
            nested = np.where(members[..., None] >= 0, first.parts[members], -1)
            return first.source, nested.reshape(len(members), -1), moves
        return source.step, members, moves

    def _bytes(self, step: int, elements: np.ndarray) -> int:
        fields = relation_of(self.steps, step).schema.fields
        return int(elements.sum()) * sum(f.dtype.numpy.itemsize for f in fields)


@lru_cache(maxsize=512)
def _merging(merge: tuple[str, ...], rank: int, fields: tuple[Field, ...]) -> EinSum:
    labels = tuple(f"d{n}" for n in range(rank))
    read = {f.name: Value(0, f.name, f.dtype) for f in fields}
    outputs = (
        Output(f.name, _contribution(f.name, reduce, read), f.dtype, reduce)
        for f, reduce in zip(fields, merge, strict=True)
    )
    keys = tuple(Key(x, 0, 1) for x in labels)
    records = Operand(Input("x0", Schema(keys, fields)), labels)
    axes = tuple(Axis(x, 0, 1) for x in labels)
    return EinSum(axes, (records,), TRUE, labels, tuple(outputs))


def _contribution(name: str, reduce: str, read: Mapping[str, Value]) -> tuple[Value, ...]:
    """The fields of a record that a reduction takes as its arguments."""
    return tuple(read[x] for x in state_fields(name, reduce)[: REDUCTIONS[reduce].arity])


def _result_areas(kernel: EinSum, operands: Sequence[np.ndarray], count: int) -> np.ndarray:
    """The areas of a kernel's results, int64 (cells, axes, 2).

    Args:
        kernel: The kernel.
        operands: For each operand the areas of its tiles, int64 (cells, axes, 2).
        count: The number of cells.
    """
    extents: dict[str, np.ndarray] = {}
    for o, areas in zip(kernel.operands, operands, strict=True):
        for n, label in enumerate(o.labels):
            extents.setdefault(label, areas[:, n, 1])
    results = np.zeros((count, len(kernel.keys), 2), np.int64)
    for n, key in enumerate(kernel.keys):
        results[:, n, 1] = extents[key] if key in extents else kernel.axis(key).extent
    return results


def _at_hand(numbers: np.ndarray, source: int) -> np.ndarray:
    """The `at_hand` of an exchange: tiles of a source, or -1."""
    return np.stack([np.where(numbers >= 0, source, -1), numbers], axis=1)


def _boxes(cuts: Cuts, keys: np.ndarray) -> np.ndarray:
    """The positions of blocks in their tensor, int64 (blocks, axes, 2); key i cuts axis i."""
    axes = [dim.intervals(keys) for dim in cut_dims(cuts)]
    return np.stack(axes, axis=1) if axes else np.zeros((len(keys), 0, 2), np.int64)


def _containers(cuts: Cuts, areas: np.ndarray) -> np.ndarray:
    """The key of the block that contains each area, int64 (areas, axes); -1 where none does."""
    keys = np.full(areas.shape[:2], -1, np.int64)
    for axis, cut in enumerate(map(np.array, cuts)):
        lo, hi = areas[:, axis, 0], areas[:, axis, 1]
        at = np.clip(np.searchsorted(cut, lo, side="right") - 1, 0, len(cut) - 2)
        keys[:, axis] = np.where((cut[at] <= lo) & (hi <= cut[at + 1]), at, -1)
    return keys
