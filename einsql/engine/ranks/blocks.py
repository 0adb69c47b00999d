"""A block plan that runs on ranks; its result blocks stay on the ranks until they are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce

import numpy as np

from einsql.core.schema import Schema
from einsql.engine.ranks.call import Tick
from einsql.engine.ranks.driver import Cluster
from einsql.engine.ranks.groups import Lease
from einsql.engine.ranks.messages import Command, Fetch, ShipBlocks
from einsql.engine.ranks.program import Keep, RankExecutable, RankFields
from einsql.engine.step import Arrays, Measure
from einsql.engine.tra.block_kernels import kernel_runner
from einsql.engine.tra.block_program import BlockExecutor, loads_of, numbered, tiles_of
from einsql.errors import OperationalError
from einsql.ir.ia.plan import Node, walk
from einsql.ir.ia.typing import PhysicalSchema
from einsql.ir.layout import ranks_of
from einsql.ir.spmd.program import Program
from einsql.ir.tra.block_schema import Cuts, KeyTuple
from einsql.ir.tra.kernels import VALUE
from einsql.storage.block_relation import Blocks, PlacedBlocks, RunKernel, merged
from einsql.storage.fields import Fields


class RankBlocks(PlacedBlocks):
    """Blocks of a relation on ranks. The first read fetches all blocks."""

    def __init__(
        self, cluster: Cluster, lease: Lease, schema: PhysicalSchema, run: RunKernel
    ) -> None:
        """Describes blocks on ranks.

        Args:
            cluster: The ranks.
            lease: The lease that keeps the blocks on the ranks.
            schema: The keys of the blocks and their sites.
            run: Runs the kernel that merges partial blocks.
        """
        self._cluster = cluster
        self._lease = lease
        self._schema = schema
        self._run = run
        self._known: Blocks | None = None

    def __getitem__(self, key: KeyTuple) -> np.ndarray:
        if self._known is None:
            self._known = self._fetched()
        return self._known[key]

    def __iter__(self) -> Iterator[KeyTuple]:
        return iter(sorted(self._schema.held))

    def __len__(self) -> int:
        return len(self._schema.held)

    def tensor(self, schema: Schema, cuts: Cuts) -> Fields | None:
        """Returns the blocks as one tensor on the ranks; None if partial blocks must be merged."""
        placements = self._schema.held.values()
        if any(len(parts) > 1 for parts in placements) or len({len(c) for (c,) in placements}) != 1:
            return None
        (field,) = schema.fields
        tiles, names = tiles_of(self._schema, cuts), {field.name: VALUE}
        return RankFields(self._cluster, self._lease, schema, tiles, self._schema.sites, names)

    def _fetched(self) -> Blocks:
        """Fetches one copy of every array; merges partial blocks under one key by ⊕.

        Raises:
            OperationalError: A rank with some of the blocks has ended.
        """
        cluster, schema = self._cluster, self._schema
        now = np.array(self._lease.group.now)
        ranks = now[ranks_of(np.arange(schema.sites), schema.sites, len(now))].tolist()
        wanted: dict[int, list[int]] = {}
        for n, (_, site) in (first := _once(schema)).items():
            wanted.setdefault(ranks[site], []).append(n)
        if -1 in wanted:
            raise OperationalError(
                f"The result was lost with {self._lease.group.reason}",
                hint="Run its statement again.",
            )
        commands: dict[int, Command] = {
            rank: Fetch(self._lease.number, (VALUE,), [(n, (...,)) for n in numbers])
            for rank, numbers in wanted.items()
        }
        parts_of: dict[KeyTuple, list[np.ndarray]] = {}
        arrays: dict[int, np.ndarray] = {}
        for numbers, fetched in zip(wanted.values(), cluster.call(commands), strict=True):
            arrays |= zip(numbers, fetched, strict=True)
        for n, (key, _) in first.items():
            parts_of.setdefault(key, []).append(arrays[n])
        return {
            key: reduce(lambda a, b: merged(schema.merge or "", a, b, self._run), parts)
            for key, parts in sorted(parts_of.items())
        }


def _once(schema: PhysicalSchema) -> dict[int, tuple[KeyTuple, int]]:
    """Returns the number of one copy of each array, with its key and site."""
    copies: dict[tuple[KeyTuple, int], tuple[int, int]] = {}
    for n, (key, part, site) in enumerate(numbered(schema)):
        copies.setdefault((key, part), (n, site))
    return {n: (key, site) for (key, _), (n, site) in copies.items()}


class RankBlockProgram(RankExecutable, BlockExecutor):
    """A block plan and the ranks that run it; the result stays on the ranks."""

    def __init__(
        self,
        cluster: Cluster,
        root: Node,
        generated: Mapping[str, np.ndarray],
        jit: str,
        keep: Keep,
    ) -> None:
        """Prepares the plan; the first run ships it to the ranks.

        Args:
            cluster: The ranks.
            root: The root relation of the plan.
            generated: Arrays of scanned tensors that are generated, not stored.
            jit: The compilation mode of the kernels.
            keep: Callback for each input whose tiles the ranks cache.
        """
        super().__init__(cluster, Program(root.schema.sites, loads_of(root), (0,)), jit, keep)
        self._root = root
        self._generated = {name: {VALUE: array} for name, array in generated.items()}

    def measured(self, inputs: Mapping[str, Arrays], tick: Tick) -> tuple[RankBlocks, Measure]:
        """Runs the plan; see `Executor.measured`.

        Raises:
            Error: As `Cluster.call`.
        """
        prepared = self._prepared({**inputs, **self._generated}, tick, measured=True)
        (lease,), measure = prepared.results, self._ran(prepared, tick)
        run = kernel_runner(self._jit, tick)
        return RankBlocks(self._cluster, lease, self._root.schema, run), measure

    def _ship(self, plan: int) -> Command:
        return ShipBlocks(plan, tuple(walk(self._root)), self._jit)
