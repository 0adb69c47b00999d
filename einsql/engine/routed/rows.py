"""The rows of a cell in the order of the blocks that they choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from einsql.core.records import dataclass
from einsql.engine.exchange import Held
from einsql.engine.step import Arrays
from einsql.ir.einsum.evaluation import expression_value
from einsql.ir.einsum.graph import Label, Value
from einsql.ir.spmd.program import Blocks, Local, Program, RowRelation


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """The rows of a cell, in the order of the blocks that they choose.

    Attributes:
        at: For each label of the rows int64 (rows,), the positions in the cell.
        ends: int64 (blocks,), the end of the rows of each block.
    """

    at: tuple[np.ndarray, ...]
    ends: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """int64 (blocks,), the number of rows of each block."""
        return np.diff(self.ends, prepend=0)

    def of(self, block: int) -> slice:
        """The rows of a block."""
        return slice(int(self.ends[block - 1]) if block else 0, int(self.ends[block]))


def chosen_rows(
    program: Program, step: Local, blocks: Blocks, cell: int, tiles_of: Mapping[int, Held]
) -> Rows:
    """Returns the rows of a cell by block. A row whose value is no key may be in any block.

    Args:
        program: The program.
        step: The step whose operand chooses.
        blocks: The blocks.
        cell: The number of the cell.
        tiles_of: The tiles of each step.
    """
    routing = blocks.routing
    define = step.node.axis(routing.label).define
    assert define is not None
    source, tile = step.operands[routing.chooser], int(step.picks[routing.chooser][cell])
    area = program.steps[source].tiles.areas[tile]
    inside = tuple(
        slice(int(lo - start), int(hi - start))
        for (lo, hi), start in zip(row_bounds(step, cell, routing.rows), area[:, 0], strict=True)
    )
    fields = {k: a[inside] for k, a in tiles_of[source][tile].items()}
    shape = next(iter(fields.values())).shape

    def leaf(e: Label | Value) -> np.ndarray:
        assert isinstance(e, Value)
        return fields[e.field]

    with np.errstate(all="ignore"):
        values = expression_value(define, leaf, np.zeros(shape, bool))
    values = np.broadcast_to(values, shape).reshape(-1)
    last = len(blocks.starts) - 1
    block = np.clip(np.searchsorted(blocks.starts, values, side="right") - 1, 0, last)
    order = np.argsort(block, kind="stable")
    ends = np.cumsum(np.bincount(block, minlength=last + 1))
    return Rows(tuple(np.unravel_index(order, shape)), ends)


def packed_rows(
    program: Program,
    relation: RowRelation,
    bounds: np.ndarray,
    cell: int,
    rows: Rows,
    tiles_of: Mapping[int, Held],
) -> Arrays:
    """Returns the rows of a cell of a relation in order; the first axis has the rows.

    Args:
        program: The program.
        relation: The relation.
        bounds: int64 (row labels, 2), the rows of the cell.
        cell: The number of the cell.
        rows: The order of its rows.
        tiles_of: The tiles of each step.
    """
    tile = int(relation.picks[cell])
    area = program.steps[relation.source].tiles.areas[tile]
    own = [(axis, row) for axis, row in enumerate(relation.axes) if row is not None]
    order = [axis for axis, _ in own]
    order += [axis for axis, row in enumerate(relation.axes) if row is None]
    index = tuple(rows.at[row] + (bounds[row, 0] - area[axis, 0]) for axis, row in own)
    return {k: a.transpose(order)[index] for k, a in tiles_of[relation.source][tile].items()}


def row_bounds(step: Local, cell: int, rows: Sequence[str]) -> np.ndarray:
    """The bounds of the rows of a cell, int64 (row labels, 2)."""
    return np.asarray(step.cells[cell, [step.labels.index(x) for x in rows]])
