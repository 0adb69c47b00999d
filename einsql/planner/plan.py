"""Plans: queries that are ready to run, and what they were made for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.core.schema import Schema
from einsql.engine.step import Arrays, GraphExecutor, Measure, Tick
from einsql.optimizer import Optimized
from einsql.planner.dependencies import Dependency
from einsql.sql.parameters.runtime_inputs import NOTHING, Cut, ParameterUse, Shift, shifted, within
from einsql.sql.scope.relation import Relation
from einsql.storage.array_ownership import owner, show
from einsql.storage.fields import Fields, LocalFields, as_fields
from einsql.storage.memory import Memory
from einsql.storage.relation import copied, frozen
from einsql.storage.results.result import Result, ResultColumn

if TYPE_CHECKING:
    from einsql.ir.spmd.program import Program as Placed
    from einsql.optimizer.decomposition import Decomposition
    from einsql.planner import tile_plan
    from einsql.planner.bounds_probe import Probe
    from einsql.planner.context import Context
    from einsql.planner.tile_plan import Part, TilePlan
else:  # loaded for statements with tiles
    tile_plan = LazyModule("einsql.planner.tile_plan")


@dataclass
class Plan:
    """A query that is ready to run.

    Attributes:
        relation: The bound relation before rewriting.
        optimized: The rewritten graph with its trace.
        cut: How each operation is cut over several sites.
        placed: What each of these sites does.
        volatile: True if the plan is for once, for a bound found in the data is hard to find.
        probes: The other bounds that were found in the data; the plan holds while they do.
        parts: What has to be computed first, for the program reads it.
    """

    relation: Relation
    optimized: Optimized
    program: GraphExecutor
    dependencies: tuple[Dependency, ...]
    notices: tuple[str, ...]
    version: int
    volatile: bool
    files: tuple[str, ...] = ()
    cut: Decomposition | None = None
    placed: Placed | None = None
    columns: tuple[ResultColumn, ...] = ()
    description: tuple[tuple[Any, ...], ...] = ()
    parts: tuple[Part, ...] = ()
    probes: tuple[Probe, ...] = ()
    reads: tuple[tuple[str, np.ndarray], ...] = ()
    """Tensors in payload files, and the box of keys that is read of each."""
    memory: Memory | None = None
    use: ParameterUse = NOTHING
    """What it makes of the statement's parameters."""
    ends: tuple[Cut | Shift, ...] = ()  # where parameters begin and end the keys of the result

    def result(self, inputs: Mapping[str, Fields], tick: Tick) -> Result:
        """Runs the plan."""
        return self.finish(self.complete(inputs, tick), tick)

    def finish(self, inputs: Mapping[str, Fields], tick: Tick) -> Result:
        """Runs the plan where its parts are computed already."""
        return self.wrap(self.program.run(inputs, tick)[0], inputs)

    def measure(self, inputs: Mapping[str, Fields], tick: Tick) -> Measure:
        """Runs the plan with its parts; measures it without them."""
        return self.program.measured(self.complete(inputs, tick), tick)[1]

    def complete(self, inputs: Mapping[str, Fields], tick: Tick) -> Mapping[str, Fields]:
        """The inputs with those that parts of the statement give."""
        if self.reads:
            inputs = {**inputs, **{n: inputs[n].verified(box) for n, box in self.reads}}
        if not self.parts:
            return inputs
        return tile_plan.computed(self.parts, inputs, tick)

    def wrap(self, arrays: Arrays, inputs: Mapping[str, Fields]) -> Result:
        """Dresses the root's fields as a result, without what lies beyond bounds of parameters.

        Storage shared with a tensor becomes read-only. Memory of a mapped file is copied, because
        truncating a mapped file raises SIGBUS in its readers.

        Args:
            arrays: What the program returned for the root.
            inputs: The inputs of the run, with those that parts of the statement give.
        """
        aliased = self.program.aliased_inputs
        if type(arrays) is dict and not aliased and not self.ends:  # arrays of its own
            show(arrays.values())
            return Result(self._schema, LocalFields(arrays), self.columns, self._hidden)
        schema = shifted(self._schema, self.ends, inputs)
        fields = as_fields(arrays).rekeyed(schema)
        if fields.is_detached:
            return self._ended(Result(schema, fields, self.columns, self._hidden), inputs)
        shown = {name: inputs[name] for name in aliased if name in inputs}
        shared = owners(shown.values())
        files = (shown[path].local().values() for path in self.files if path in shown)
        mapped = {id(owner(a)) for arrays in files for a in arrays}
        copy = copied if self.memory is None else self.memory.copied
        safe = LocalFields()
        for name, a in fields.items():
            memory = id(owner(a))
            safe[name] = copy(a) if memory in mapped else frozen(a) if memory in shared else a
        show(safe.values())
        return self._ended(Result(schema, safe, self.columns, self._hidden), inputs)

    def _ended(self, made: Result, inputs: Mapping[str, Fields]) -> Result:
        cuts = [e for e in self.ends if isinstance(e, Cut)]
        return made.cropped(within(made.bounds, cuts, inputs)) if cuts else made

    @cached_property
    def _schema(self) -> Schema:
        return self.relation.node.schema

    @cached_property
    def _hidden(self) -> tuple[str, ...]:
        return self.relation.hidden


def owners(inputs: Iterable[Arrays]) -> set[int]:
    """Ids of the owners of memory in this process that inputs show."""
    return {
        id(owner(a))
        for f in inputs
        for a in (f if isinstance(f, dict) else as_fields(f).local()).values()  # most are dicts
    }


def run_plans(
    plans: Iterable[Plan], inputs: Mapping[str, Fields], tick: Tick
) -> list[tuple[Arrays, Mapping[str, Fields]]]:
    """Runs plans one after another.

    Returns:
        The arrays of every root, each with the inputs of its run.
    """
    roots: list[tuple[Arrays, Mapping[str, Fields]]] = []
    for plan in plans:
        known = plan.complete(inputs, tick)
        roots += ((arrays, known) for arrays in plan.program.run(known, tick))
    return roots


def rebind_inputs(plan: Plan | TilePlan, ctx: Context) -> dict[str, Fields] | None:
    """Fields of every input of a plan, or None if one is not what the plan was made for.

    Args:
        plan: The plan.
        ctx: The services, with the current values of parameters.
    """
    if plan.version != ctx.store.version:
        return None
    inputs: dict[str, Fields] = {}
    for d in plan.dependencies:
        fields = d.read(ctx)
        if fields is None:
            return None
        inputs[d.name] = fields
    if plan.use.scalars:
        try:
            plan.use.feed(ctx.parameters, inputs)
        except (ArithmeticError, ValueError):
            return None  # planned for these values, it says what is wrong, or never needs them
    holds = not plan.probes or all(p.holds(inputs, ctx.tick) for p in plan.probes)
    return inputs if holds else None
