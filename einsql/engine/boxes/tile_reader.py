"""Runs a node that reads stored tensors: its tiles are verified when they are read.

Tiles in which the node's condition is false at every point are skipped, by their statistics.
"""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np

from einsql.core.bfloat16 import loaded
from einsql.core.boxes import adjoined, common
from einsql.core.schema import PRESENT
from einsql.engine.boxes.box_run import BoxRun
from einsql.engine.boxes.node_slicing import Box
from einsql.ir.einsum.graph import EinSum, Input, Label, Node, Value
from einsql.ir.einsum.tile_conditions import (
    Leaf,
    TileRanges,
    condition_of,
    excluding_operands,
    may_hold,
    reads_presence,
)
from einsql.kernels.kernel import Arrays, Compile, Runner, Tick
from einsql.storage.fields import StoredTiles, as_fields


class TileReader:
    """The runner of a node with operands in stored tiles.

    Attributes:
        boxes: The node over boxes.
        read: The number of tiles of the operand with the condition that the last run has read.
        skipped: The number of its other tiles in the bounds of the node.
    """

    def __init__(
        self, node: EinSum, tiled: Sequence[int], runner: Runner, compile_node: Compile
    ) -> None:
        """Analyses the node.

        Args:
            node: The node.
            tiled: The operands in files.
            runner: The runner of the node on complete operands.
            compile_node: Compiles the node over boxes.
        """
        self.boxes = BoxRun(node, compile_node)
        self.read = self.skipped = 0
        self._node = node
        self._runner = runner
        self._tiled = tiled
        self._excluding = [n for n in excluding_operands(node) if n in tiled]
        self._condition = condition_of(node)
        self._places = [
            np.array([(a.lo, a.hi) for a in map(node.axis, o.labels)], np.int64).reshape(-1, 2)
            for o in node.operands
        ]

    def __call__(self, operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        """Runs it over the tiles in which the condition may hold."""
        chosen = self.chosen(operands)
        if chosen is None:
            verified = list(operands)
            for n in self._tiled:
                verified[n] = as_fields(operands[n]).verified(self._places[n])
            return self._runner(verified, tick)
        return self.boxes.run(self.boxes.parts(chosen, {}), operands, np.zeros, tick)

    def chosen(self, operands: Sequence[Arrays]) -> list[Box] | None:
        """The boxes of the tiles in which the condition may hold; None for all tiles."""
        self.read = self.skipped = 0
        best: tuple[int, np.ndarray] | None = None
        for n in self._excluding:
            tiles = as_fields(operands[n]).tiles_in(self._places[n])
            if tiles is None:
                continue
            holds = may_hold(self._condition, self._leaf(n, tiles, operands))
            kept = tiles.boxes[np.broadcast_to(holds, len(tiles.boxes))]
            if len(tiles.boxes) - len(kept) >= self.skipped:
                self.read, self.skipped = len(kept), len(tiles.boxes) - len(kept)
                best = n, common(kept, self._places[n])
        if best is None or not self.skipped:
            return None
        boxes = self._joined(*best)
        is_computed = any(self._node.axis(k).define is not None for k in self._node.keys)
        if is_computed and len(boxes) * self._node.schema.size > self._node.points:
            # Each box has a result over all values of a computed key.
            self.read, self.skipped = self.read + self.skipped, 0
            return None
        return boxes

    def _joined(self, number: int, boxes: np.ndarray) -> list[Box]:
        """The boxes of tiles of an operand, joined as far as parts of the result allow."""
        labels, keys = self._node.operands[number].labels, set(self._node.keys)
        cut = [n for n in range(len(labels)) if (boxes[:, n] != self._places[number][n]).any()]
        axes = list(reversed(range(len(labels))))
        if len({labels[n] in keys for n in cut}) > 1:  # else boxes could overlap in the result
            axes = [n for n in axes if labels[n] not in keys]
        everything = self.boxes.everything
        joined = adjoined(boxes, axes)
        joined = joined[np.lexsort(joined[:, ::-1, 0].T)] if len(labels) else joined
        return [
            everything | dict(zip(labels, map(tuple, box), strict=True)) for box in joined.tolist()
        ]

    def _leaf(self, number: int, tiles: StoredTiles, operands: Sequence[Arrays]) -> Leaf:
        """The ranges of values in the tiles of an operand, and of scalars."""
        node = self._node
        labels = node.operands[number].labels
        is_present = reads_presence(node, number)

        def leaf(e: Value | Label) -> TileRanges | None:
            if isinstance(e, Label):
                if e.name in labels:
                    box = tiles.boxes[:, labels.index(e.name)]
                    return TileRanges(box[:, 0], box[:, 1] - 1, np.array(False))
                axis = node.axis(e.name)
                return TileRanges(np.array(axis.lo), np.array(axis.hi - 1), np.array(False))
            if e.operand == number:
                return tiles.ranges[e.field] if is_present or e.field == PRESENT else None
            if node.operands[e.operand].labels:
                return None
            return TileRanges.of(loaded(np.asarray(operands[e.operand][e.field]), e.dtype))

        return leaf


def reader_of(
    node: EinSum, runner: Runner, compile_node: Compile, tiled: Set[str], in_pieces: bool
) -> TileReader | None:
    """The runner of a node that reads tiles as it needs them; None if it needs none or all.

    Args:
        node: The node.
        runner: Its runner on complete operands.
        compile_node: Compiles the node over boxes.
        tiled: The names of the inputs in files.
        in_pieces: Whether the node may run in pieces, within a memory limit.
    """
    read = [n for n, o in enumerate(node.operands) if _is_tiled(o.source, tiled)]
    if not read or not (in_pieces or set(read).intersection(excluding_operands(node))):
        return None
    return TileReader(node, read, runner, compile_node)


def _is_tiled(source: Node, tiled: Set[str]) -> bool:
    return isinstance(source, Input) and source.name in tiled and not source.sparse
