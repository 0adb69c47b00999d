"""Programs whose result is a relation of blocks: one array for each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np

from einsql.core.records import dataclass
from einsql.engine.exchange import Held
from einsql.engine.spmd_executor import SiteProgram
from einsql.engine.step import Arrays, Executor, Measure, Runner, Tick
from einsql.ir.einsum.graph import EinSum
from einsql.ir.einsum.partial_merge import merged
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.spmd.program import Load
from einsql.ir.tra.block_schema import KeyTuple
from einsql.ir.tra.kernels import VALUE
from einsql.kernels.kernel import CompiledNode
from einsql.kernels.registry import compile_node
from einsql.kernels.tiers import Tiered, tier_of
from einsql.optimizer.lowering.program import BlockPlan

Blocks = Mapping[KeyTuple, np.ndarray]
"""One array for each key, in the order of keys."""

Run = Callable[[Mapping[str, Arrays], Tick], tuple[list[Held], Measure]]
"""Runs a program at all sites of this process; see `SiteProgram.run_virtually`."""

BlockExecutor = Executor[Blocks]
"""An executor of a plan over blocks."""


@dataclass(frozen=True, slots=True)
class SiteRun:
    """The result of a run on sites.

    Attributes:
        blocks: The result by key, in the order of keys.
        measure: The measures of every site.
    """

    blocks: Blocks
    measure: Measure

    @property
    def sent(self) -> tuple[int, ...]:
        """Bytes that left each site for another one."""
        return tuple(self.measure.sent)

    @property
    def received(self) -> tuple[int, ...]:
        """Bytes that reached each site from another one."""
        return tuple(self.measure.received)

    @property
    def flops(self) -> tuple[int, ...]:
        """Scalar operations of the kernels that each site ran."""
        return tuple(self.measure.flops)


class BlockProgram(BlockExecutor):
    """A plan over blocks on virtual sites of this process, or on one site."""

    def __init__(self, plan: BlockPlan, jit: str) -> None:
        """Prepares a plan.

        Args:
            plan: The plan.
            jit: The compilation mode of the kernels. With "auto" all sites run on NumPy until all
                kernels are compiled.
        """
        self._plan = plan
        if jit == "auto":
            self._run: Run = Tiered(self._run_at("wait"), lambda: self._run_at("never"))
        else:
            self._run = self._run_at(jit)

    def measured(self, inputs: Mapping[str, Arrays], tick: Tick) -> tuple[Blocks, Measure]:
        """Runs the plan; views of inputs in the result are read-only; see `Executor.measured`."""
        loads = (s.source for s in self._plan.program.steps if isinstance(s, Load))
        arrays = {
            t.name: {f.name: _read_only(inputs[t.name][f.name]) for f in t.schema.fields}
            for t in loads
        }
        (tiles,), measure = self._run(arrays, tick)
        measure.tier = tier_of(self._run)
        return gathered(self._plan, tiles), measure

    def _run_at(self, jit: str) -> Run:
        return SiteProgram(self._plan.program, lambda node: compiled(node, jit)).run_virtually


def gathered(plan: BlockPlan, tiles: Mapping[int, Arrays]) -> dict[KeyTuple, np.ndarray]:
    """Returns one array for each key of a result: any copy, with its parts merged.

    Args:
        plan: The plan.
        tiles: The tiles of the result by number, at least those of `once`.
    """
    parts: dict[KeyTuple, list[Arrays]] = {}
    for n, key in once(plan).items():
        parts.setdefault(key, []).append(tiles[n])
    if plan.merge is None:
        return {key: tile[VALUE] for key, (tile,) in parts.items()}
    node = with_state(plan.merge)
    return {key: merged(node, each)[VALUE] for key, each in parts.items()}


def once(plan: BlockPlan) -> dict[int, KeyTuple]:
    """Returns the number of one copy of each part of a result with its key, in order of keys."""
    tiles = plan.program.steps[plan.program.roots[0]].tiles
    keys = tiles.boxes[:, : tiles.keyed, 0]
    if tiles.keyed == 0:
        return dict.fromkeys(range(len(keys[:1])), ())
    first = np.unique(keys, axis=0, return_index=True)[1]
    return {int(n): tuple(keys[n, : plan.keys].tolist()) for n in first}


@lru_cache(maxsize=4096)
def compiled(node: EinSum, jit: str = "auto") -> CompiledNode[Runner]:
    """Returns the kernel of a template for given shapes, which `sized` returns."""
    return compile_node(node, jit)


def _read_only(array: np.ndarray) -> np.ndarray:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
