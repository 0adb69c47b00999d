"""A plan over blocks that runs on ranks; its blocks stay on the ranks until they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from einsql.core.schema import Schema
from einsql.engine.block_program import BlockExecutor, gathered, once
from einsql.engine.ranks.call import Tick
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.groups import Lease
from einsql.engine.ranks.messages import Command, Fetch
from einsql.engine.ranks.program import Keep, RankFields, RankProgram
from einsql.engine.step import Arrays, Measure
from einsql.errors import OperationalError
from einsql.ir.layout import ranks_of
from einsql.ir.tra.block_schema import Cuts, KeyTuple
from einsql.ir.tra.kernels import VALUE
from einsql.optimizer.lowering.program import BlockPlan
from einsql.storage.block_relation import PlacedBlocks
from einsql.storage.fields import Fields


class RankBlocks(PlacedBlocks):
    """Blocks of a relation on ranks. The first read fetches all blocks."""

    def __init__(self, cluster: Cluster, lease: Lease, plan: BlockPlan) -> None:
        """Describes blocks on ranks.

        Args:
            cluster: The ranks.
            lease: The lease that keeps the blocks on the ranks.
            plan: The plan whose result they are.
        """
        self._cluster = cluster
        self._lease = lease
        self._plan = plan
        self._tiles = plan.program.steps[plan.program.roots[0]].tiles
        self._numbers = once(plan)
        self._keys = tuple(dict.fromkeys(self._numbers.values()))
        self._known: dict[KeyTuple, np.ndarray] | None = None

    def __getitem__(self, key: KeyTuple) -> np.ndarray:
        if self._known is None:
            self._known = self._fetched()
        return self._known[key]

    def __iter__(self) -> Iterator[KeyTuple]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def tensor(self, schema: Schema, cuts: Cuts) -> Fields | None:
        """Returns the blocks as one tensor on the ranks; None if partial blocks must be merged."""
        tiles = self._tiles
        if self._plan.merge is not None or tiles.once != len(self._keys):
            return None
        starts = [
            np.array(c)[k] for c, k in zip(cuts, tiles.boxes[:, : tiles.keyed, 0].T, strict=True)
        ]
        boxes = tiles.areas + np.array(starts, np.int64).T[..., None]
        (field,) = schema.fields
        placed, sites = replace(tiles, boxes=boxes, keyed=0), self._plan.program.sites
        return RankFields(self._cluster, self._lease, schema, placed, sites, {field.name: VALUE})

    def _fetched(self) -> dict[KeyTuple, np.ndarray]:
        """Fetches one copy of every array; merges partial blocks under one key.

        Raises:
            OperationalError: A rank with some of the blocks has ended.
        """
        now = np.array(self._lease.group.now)
        ranks = now[ranks_of(self._tiles.sites, self._plan.program.sites, len(now))].tolist()
        wanted: dict[int, list[int]] = {}
        for n in self._numbers:
            wanted.setdefault(ranks[n], []).append(n)
        if -1 in wanted:
            raise OperationalError(
                f"The result was lost with {self._lease.group.reason}",
                hint="Run its statement again.",
            )
        commands: dict[int, Command] = {
            rank: Fetch(self._lease.number, (VALUE,), [(n, (...,)) for n in numbers])
            for rank, numbers in wanted.items()
        }
        tiles: dict[int, Arrays] = {}
        for numbers, arrays in zip(wanted.values(), self._cluster.call(commands), strict=True):
            tiles |= {n: {VALUE: a} for n, a in zip(numbers, arrays, strict=True)}
        return gathered(self._plan, tiles)


class RankBlockProgram(BlockExecutor):
    """A plan over blocks and the ranks that run it; the result stays on the ranks."""

    def __init__(self, cluster: Cluster, plan: BlockPlan, jit: str, keep: Keep) -> None:
        """Prepares the plan; the first run ships it to the ranks.

        Args:
            cluster: The ranks.
            plan: The plan.
            jit: The compilation mode of the kernels.
            keep: Callback for each input whose tiles the ranks cache.
        """
        self._cluster = cluster
        self._plan = plan
        self._program = RankProgram(cluster, plan.program, jit, keep)

    def measured(self, inputs: Mapping[str, Arrays], tick: Tick) -> tuple[RankBlocks, Measure]:
        """Runs the plan; see `Executor.measured`.

        Raises:
            Error: As `Cluster.call`.
        """
        (lease,), measure = self._program.run_on_ranks(inputs, tick)
        return RankBlocks(self._cluster, lease, self._plan), measure
