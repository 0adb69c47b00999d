"""Plans: queries that are ready to run, and their dependencies."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.engine.step import Arrays, GraphExecutor, Measure, Tick
from einsql.kernels.runtime import compile_cache
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
    from einsql.optimizer.site_optimizer import SitePlan
    from einsql.planner import tile_plan
    from einsql.planner.bounds_probe import Probe
    from einsql.planner.context import Context
    from einsql.planner.tile_plan import Part, TilePlan
    from einsql.planner.value_ranges import RangeCondition

    Condition: TypeAlias = Probe | RangeCondition
else:  # imported for statements with tiles only
    tile_plan = LazyModule("einsql.planner.tile_plan")


Reads = tuple[tuple[str, np.ndarray], ...]
"""Tensors in files, and the box of keys that is read of each tensor: int64 (keys, 2)."""


@dataclass
class Plan:
    """A query that is ready to run.

    Attributes:
        schema: The schema of the result.
        hidden: The keys of the result without a column.
        optimized: The rewritten graph with its trace.
        site_plan: The cuts, the program and the applied rules for several sites.
        volatile: Whether the plan runs only once, as computing a bound from the data is costly.
        probes: Other bounds and ranges of values that were computed from the data; the plan is
            valid while they hold.
        parts: The parts of the statement whose results the program reads.
    """

    schema: Schema
    hidden: tuple[str, ...]
    optimized: Optimized
    program: GraphExecutor
    dependencies: tuple[Dependency, ...]
    notices: tuple[str, ...]
    version: int
    volatile: bool
    files: tuple[str, ...] = ()
    site_plan: SitePlan | None = None
    columns: tuple[ResultColumn, ...] = ()
    description: tuple[tuple[Any, ...], ...] = ()
    parts: tuple[Part, ...] = ()
    probes: tuple[Condition, ...] = ()
    reads: Reads = ()
    """Tensors to verify before a run; steps of the program verify other tensors in files."""
    memory: Memory | None = None
    use: ParameterUse = NOTHING
    """The use of the statement's parameters."""
    ends: tuple[Cut | Shift, ...] = ()  # bounds of the result's keys that depend on parameters
    template: PlanTemplate | None = None
    """The template of plans for inputs of other extents."""

    @property
    def cut(self) -> Decomposition | None:
        """The cuts of the operations; None on one site."""
        return None if self.site_plan is None else self.site_plan.cut

    @property
    def placed(self) -> Placed | None:
        """The program of the sites; None on one site."""
        return None if self.site_plan is None else self.site_plan.program

    def result(self, inputs: Mapping[str, Fields], tick: Tick) -> Result:
        """Runs the plan."""
        return self.finish(self.complete(inputs, tick), tick)

    def finish(self, inputs: Mapping[str, Fields], tick: Tick) -> Result:
        """Runs the plan after its parts have been computed."""
        return self.wrap(self.program.run(inputs, tick)[0], inputs)

    def measure(self, inputs: Mapping[str, Fields], tick: Tick) -> Measure:
        """Runs the plan with its parts; measures it without them."""
        start, waited = time.perf_counter(), compile_cache.waited()
        measure = self.program.measured(self.complete(inputs, tick), tick)[1]
        measure.wall = time.perf_counter() - start
        measure.compiling = compile_cache.waited() - waited
        return measure

    def complete(self, inputs: Mapping[str, Fields], tick: Tick) -> Mapping[str, Fields]:
        """Returns the inputs together with the results of the parts.

        Parts run first: they may read other boxes than the program does.
        """
        if self.parts:
            inputs = tile_plan.computed(self.parts, inputs, tick)
        if self.reads:
            inputs = {**inputs, **{n: inputs[n].verified(box) for n, box in self.reads}}
        return inputs

    def wrap(self, arrays: Arrays, inputs: Mapping[str, Fields]) -> Result:
        """Wraps the root's fields as a result, cropped to the bounds that parameters set.

        Storage shared with a tensor becomes read-only. Memory of a mapped file is copied, because
        truncating a mapped file raises SIGBUS in its readers.

        Args:
            arrays: The fields of the root.
            inputs: The inputs of the run, with the results of the parts.
        """
        aliased = self.program.aliased_inputs
        if type(arrays) is dict and not aliased and not self.ends:  # no shared memory
            show(arrays.values())
            return Result(self.schema, LocalFields(arrays), self.columns, self.hidden)
        schema = shifted(self.schema, self.ends, inputs)
        fields = as_fields(arrays).rekeyed(schema)
        if fields.is_sparse:
            fields = fields.constant()
        if fields.is_detached:
            return self._ended(Result(schema, fields, self.columns, self.hidden), inputs)
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
        return self._ended(Result(schema, safe, self.columns, self.hidden), inputs)

    def _ended(self, made: Result, inputs: Mapping[str, Fields]) -> Result:
        cuts = [e for e in self.ends if isinstance(e, Cut)]
        return made.cropped(within(made.bounds, cuts, inputs)) if cuts else made


def unverified(reads: Reads, program: GraphExecutor) -> Reads:
    """Returns the boxes that the steps of a program do not verify."""
    return tuple((name, box) for name, box in reads if name not in program.verifies)


def result_columns(relation: Relation) -> tuple[ResultColumn, ...]:
    """Returns the columns of a relation's result."""
    return tuple(ResultColumn(c.name, c.dtype, c.key, c.field, c.over) for c in relation.columns)


def described(columns: Iterable[ResultColumn]) -> tuple[tuple[Any, ...], ...]:
    """Returns PEP 249's description of a result with some columns."""
    return tuple((c.name, c.type_name, None, None, None, None, None) for c in columns)


def owners(inputs: Iterable[Arrays]) -> set[int]:
    """Returns the ids of the owners of the local memory of inputs."""
    return {
        id(owner(a))
        for f in inputs
        for a in (f if isinstance(f, dict) else as_fields(f).local()).values()  # most are dicts
    }


class PlanTemplate(Protocol):
    """A template of a query's plans for inputs of other extents; see `planner.templates`."""

    def prepare(self, ctx: Context, /) -> Plan | None:
        """Returns the plan for the present inputs; None if a condition does not hold."""


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


def inputs_fit(plan: Plan | TilePlan, ctx: Context) -> bool | None:
    """Whether a plan's inputs have the schemas for which it was made; None if unknown."""
    known: bool | None = True
    for d in plan.dependencies:
        fits = d.fits(ctx)
        if fits is False:
            return False
        if fits is None:
            known = None
    return known


def rebind_inputs(plan: Plan | TilePlan, ctx: Context) -> dict[str, Fields] | None:
    """Returns the fields of every input of a plan, or None if the plan is no longer valid.

    Args:
        plan: The plan.
        ctx: The services, with the current values of parameters.
    """
    if plan.version != ctx.store.names:
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
            return None  # planning for these values reports the error, or does not need them
    holds = not plan.probes or all(p.holds(inputs, ctx.tick) for p in plan.probes)
    return inputs if holds else None
