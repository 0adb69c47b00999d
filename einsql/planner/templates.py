"""Templates: rewritten graphs over unknown extents, from which plans are made.

A query that may run again is bound and rewritten over unknowns. Its plans, the first one included,
are made of that graph with numbers in the place of the unknowns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from einsql.core.records import dataclass
from einsql.core.schema import Schema
from einsql.core.settings import Settings
from einsql.core.unknowns import Recorder
from einsql.errors import Error
from einsql.ir.einsum.graph import Roots, walk
from einsql.optimizer import Optimized, Step
from einsql.planner.compile import compiled
from einsql.planner.dependencies import Dependency, ScopeDependency, TensorDependency
from einsql.planner.plan import Plan, Reads, described, unverified
from einsql.sql.parameters.runtime_inputs import Cut, ParameterUse, Shift

if TYPE_CHECKING:
    from einsql.planner.context import Context
    from einsql.planner.plan import Condition
    from einsql.storage.memory import Memory
    from einsql.storage.results.result import ResultColumn


class NeedsNumbersError(Exception):
    """A statement cannot be bound over unknowns."""


@dataclass(frozen=True, slots=True)
class QueryGraph:
    """A query's graph before kernels are chosen, over unknown or known extents.

    Attributes:
        schema: The schema of the result.
        roots: The rewritten graph.
        conditions: The facts about the data on which the graph relies.
        use: The use of parameters.
    """

    schema: Schema
    roots: Roots
    conditions: tuple[Condition, ...]
    use: ParameterUse


Make = Callable[[QueryGraph, tuple[Dependency, ...]], Plan]
"""Returns the plan of a graph over numbers for some inputs."""


@dataclass(frozen=True, slots=True)
class Template:
    """A graph over unknown extents, and the conditions under which it is valid.

    Attributes:
        recorder: The conditions and the graph.
        place: The place of the graph among the objects of the recorder.
        dependencies: The inputs, with the schemas of the first plan.
        version: The version of the session's names at the time of planning.
        fixed: The values of parameters that the graph depends on, as `ParameterUse.key`.
        make: Makes a plan of the graph.
    """

    recorder: Recorder
    place: int
    dependencies: tuple[Dependency, ...]
    version: int
    fixed: object
    make: Make

    def prepare(self, ctx: Context) -> Plan | None:
        """Returns the plan for the present inputs; None if a condition does not hold."""
        if self.version != ctx.store.names:
            return None
        dependencies: list[Dependency] = []
        for known in self.dependencies:
            schema = _present(known, ctx)
            if schema is None:
                return None
            dependencies.append(replace(known, schema=schema))
        objects = self.recorder.run(_extents(dependencies))
        if objects is None:
            return None
        graph: QueryGraph = objects[self.place]
        if graph.use.key(ctx.parameters) != self.fixed:
            return None
        try:
            return self.make(graph, tuple(dependencies))
        except (Error, RecursionError):
            return None  # planning anew reports the error, or has more room


def first_plan(
    recorder: Recorder,
    graph: QueryGraph,
    dependencies: tuple[Dependency, ...],
    values: Sequence[object],
    reads: Callable[[Roots], Reads],
    make: Make,
) -> Plan:
    """Returns the plan of a graph over unknowns for their present values, with its template.

    Nothing is recorded from now on.

    Args:
        recorder: The recorder of the unknowns.
        graph: The graph over unknowns.
        dependencies: The inputs.
        values: The values of the parameters.
        reads: Returns the boxes that a graph over numbers reads of payload files.
        make: Makes the plan of a graph over numbers.
    """
    known, place = recorder.build(graph, walk(*graph.roots))  # the recursion stays flat
    recorder.close()
    plan = make(known, dependencies)
    boxes = reads(known.roots)
    plan.reads = unverified(boxes, plan.program)
    fixed = known.use.key(values)
    if not boxes and fixed is not None and place >= 0:
        plan.template = Template(recorder, place, dependencies, plan.version, fixed, make)
    return plan


def plan_of(
    graph: QueryGraph,
    dependencies: tuple[Dependency, ...],
    *,
    hidden: tuple[str, ...],
    columns: tuple[ResultColumn, ...],
    trace: tuple[Step, ...],
    notices: tuple[str, ...],
    version: int,
    ends: tuple[Cut | Shift, ...],
    settings: Settings,
    memory: Memory | None,
    tiled: Set[str],
) -> Plan:
    """Returns the plan of a graph over numbers for the CPU of one site.

    Raises:
        Error: See `check_domains`.
    """
    root, *more = graph.roots
    return Plan(
        graph.schema,
        hidden,
        Optimized(graph.roots, trace),
        compiled(root, settings, memory, more, tiled),
        dependencies,
        notices,
        version,
        volatile=False,
        columns=columns,
        description=described(columns),
        probes=graph.conditions,
        memory=memory,
        use=graph.use,
        ends=ends,
    )


def is_reusable(dependency: Dependency) -> bool:
    """Whether a template may read an input: its schema is known without reading data."""
    return type(dependency) in (TensorDependency, ScopeDependency)


def _extents(dependencies: Sequence[Dependency]) -> list[int]:
    return [k.hi for d in dependencies for k in d.schema.keys]


def _present(dependency: Dependency, ctx: Context) -> Schema | None:
    """The present schema of an input, if it differs in upper bounds at most."""
    assert isinstance(dependency, TensorDependency | ScopeDependency)
    schema = dependency.present(ctx)
    known = dependency.schema
    if schema is None or schema.fields != known.fields:
        return None
    same = [(k.name, k.lo) for k in schema.keys] == [(k.name, k.lo) for k in known.keys]
    return schema if same else None
