"""The operations of a placed plan: their cuts, placements and costs, predicted and measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from einsql.core.records import dataclass
from einsql.engine.step import Measure
from einsql.explain.operations import (
    CollectiveReport,
    FloatsReport,
    Kind,
    Measured,
    OperationReport,
    Placements,
    ReadReport,
)
from einsql.explain.report import SiteReport
from einsql.explain.sharded_notation import sharded_notation
from einsql.ir.einsum.density import density
from einsql.ir.einsum.graph import EinSum, Input
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.einsum.printer import format_node
from einsql.ir.einsum.reasons import why_masked
from einsql.ir.layout import Mesh
from einsql.ir.spmd.program import (
    COPIES,
    Collective,
    Complete,
    Exchange,
    Load,
    Local,
    Program,
    tuple_bytes,
)
from einsql.kernels.vectorized import views
from einsql.optimizer.decomposition import Cut, Decomposition
from einsql.optimizer.placement.traffic import completing
from einsql.optimizer.simulation.prediction import Prediction, cell_flops
from einsql.optimizer.simulation.tra_cost import tra_costs

MOST_CELLS = 64
"""The most cells of an operation whose sites are reported."""


ESTIMATED = "bytes of rows are estimated: all values of {} are chosen equally often"
"""Why the bytes of an operation are not those of a run."""
EXPECTED = "bytes of a sparse result are estimated: {:.2g} of its keys have an element"
"""The same for results whose number of elements is found by the run."""


@dataclass(frozen=True, slots=True)
class Operation:
    """The steps of one operation in a placed program.

    Attributes:
        cut: The cut of the operation.
        local: The step that runs the operation.
        number: The number of the step `local`.
        before: The steps that load operands, or send them for this operation first.
        after: The merge of partial results and their all-reduce, if any.
    """

    cut: Cut
    local: Local
    number: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def steps(self) -> tuple[int, ...]:
        """All steps, in the order of the program."""
        return (*self.before, self.number, *self.after)


def operations_of(cut: Decomposition, placed: Program, names: Mapping[int, str]) -> list[Operation]:
    """Returns the operations of a plan, producers first.

    Args:
        cut: The cuts of the operations.
        placed: The steps of every site.
        names: The name of each node of the graph, by id.
    """
    after: dict[int, list[int]] = {}
    merged: dict[int, int] = {}
    for n, step in enumerate(placed.steps):
        if isinstance(step, Complete):
            merged[n] = step.source
            after[step.source] = [n]
        elif isinstance(step, Exchange) and step.completes:
            after[merged[step.sources[0]]].append(n)
    seen = {n for steps in after.values() for n in steps}
    operations = []
    locals_ = ((n, step) for n, step in enumerate(placed.steps) if isinstance(step, Local))
    by_name = {names[id(step.node)]: (n, step) for n, step in locals_}
    for one in cut.cuts:
        n, local = by_name[one.name]
        brought = (s for s in dict.fromkeys(local.operands) if s not in seen)
        before = tuple(s for s in brought if isinstance(placed.steps[s], Load | Exchange))
        seen.update(before)
        operations.append(Operation(one, local, n, before, tuple(after.get(n, ()))))
    return operations


def operation_reports(
    operations: Sequence[Operation],
    placed: Program,
    predicted: Prediction,
    names: Mapping[int, str],
    measure: Measure | None,
    mesh: Mesh | None = None,
) -> list[OperationReport]:
    """Returns the report of each operation, without groups, kernels and simulation.

    Args:
        operations: The operations of the plan.
        placed: The steps of every site.
        predicted: The predicted seconds and bytes of the steps.
        names: The name of each node of the graph, by id.
        measure: The measure of a run, for EXPLAIN ANALYZE.
        mesh: The mesh of the sites, for the sharded index notation.
    """
    costs = tra_costs(placed)
    moved = {t.steps[-1]: t.routed for t in placed.together if t.routed is not None}
    reports = []
    for operation in operations:
        cut, local, node = operation.cut, operation.local, operation.local.node
        collectives = _collectives(operation, placed)
        rows = moved.get(operation.number)
        if rows is not None:
            along = (rows.blocks.routing.label,)
            collectives.append(Collective("all-to-all", along, rows.nbytes))
        names_read = tuple(names[id(o.source)] for o in node.operands)
        measured, mask = None, None if views.matches(node) else why_masked(node)
        if measure is not None:
            steps = [measure.steps[s] for s in operation.steps]
            measured = Measured(
                seconds=sum(s.seconds for s in steps),
                bytes_sent=sum(s.sent for s in steps),
                tier=measure.tier,
            )
        reports.append(
            OperationReport(
                id=cut.name,
                op=_kind(node),
                labels={a.label: a.extent for a in node.axes if a.define is None},
                viable=cut.viable,
                partition=cut.parts | dict(cut.blocks),
                hint=dict(node.hint),
                copies=cut.copies,
                placements=_placements(local),
                floats=FloatsReport(
                    join=cut.join, aggregate=cut.aggregate, repartition=cut.repartition
                ),
                collective=" + ".join(c.name for c in collectives if c.name != "slice") or "none",
                collectives=[
                    CollectiveReport(collective=c.name, along=c.along, bytes_sent=c.nbytes)
                    for c in collectives
                ],
                bytes_sent=sum(s.nbytes for s in _moving(operation.steps, placed))
                + (0 if rows is None else rows.nbytes),
                tra_cost=sum(costs[n] for n in operation.steps),
                flops=_flops(local, placed),
                seconds=sum(predicted.seconds[s] for s in operation.steps),
                memory=predicted.cells[operation.number],
                measured=measured,
                text=format_node(node, names[id(node)], names_read),
                notation=None
                if mesh is None
                else sharded_notation(
                    local, operation.before, _moving(operation.after, placed), placed, mesh
                ),
                keys=node.keys,
                reads=_reads(operation, placed, names_read),
                bytes=round(node.schema.size * tuple_bytes(node)),
                cells=local.sites.tolist() if len(local.sites) <= MOST_CELLS else None,
                reasons=[
                    *([] if mask is None else [mask.text(names)]),
                    *([] if rows is None else [ESTIMATED.format(rows.blocks.routing.label)]),
                    *(_sparse_moves(operation, placed)),
                ],
            )
        )
    return reports


def _moving(steps: Sequence[int], placed: Program) -> list[Exchange | Complete]:
    return [s for s in (placed.steps[n] for n in steps) if isinstance(s, Exchange | Complete)]


def _collectives(operation: Operation, placed: Program) -> list[Collective]:
    """Returns the collectives; a merge with the exchange that follows it is one all-reduce."""
    before, after = (_moving(steps, placed) for steps in (operation.before, operation.after))
    collectives = [c for s in before for c in s.collectives]
    if len(after) == 2:
        merge = after[0]
        along = merge.collectives[0].along
        return [*collectives, Collective("all-reduce", along, merge.nbytes + after[1].nbytes)]
    return collectives + [c for s in after for c in s.collectives]


def _reads(operation: Operation, placed: Program, names: Sequence[str]) -> list[ReadReport]:
    reads = []
    brought_here = set(operation.before)
    local = operation.local
    for operand, step, name in zip(local.node.operands, local.operands, names, strict=True):
        brought = placed.steps[step]
        collective, nbytes = "none", 0
        if isinstance(brought, Exchange):
            collective = " + ".join(c.name for c in brought.collectives) or "none"
            nbytes = brought.nbytes
            if nbytes and step not in brought_here:
                collective, nbytes = "shared", 0
        brought_here.discard(step)
        reads.append(
            ReadReport(
                id=name,
                stored=isinstance(operand.source, Input),
                labels=operand.labels,
                collective=collective,
                bytes_sent=nbytes,
            )
        )
    return reads


def _placements(local: Local) -> Placements:
    """Returns the placements along the axes of the site grid.

    Repeated cells read the same tiles. They compute the same result, or the terms of a sum that
    a map preserves.
    """
    node = local.node
    copied = "Partial(SUM)" if local.partial and node.is_elementwise else "Replicate"
    reductions = dict.fromkeys(str(o.reduction).upper() for o in node.outputs if o.reduction)

    def placed(label: str, labels: Sequence[str], otherwise: str) -> str:
        if label == COPIES:
            return copied
        return f"Shard({label})" if label in labels else otherwise

    def operand(number: int, labels: Sequence[str]) -> list[str]:
        if local.blocks is None or number not in local.blocks.routing.experts:
            return [placed(x, labels, "Replicate") for x in grid]
        return [f"Shard({local.blocks.routing.label})"] * len(grid)

    grid = [label for label, _ in local.grid]
    partial = f"Partial({', '.join(reductions)})"
    return Placements(
        grid=local.grid,
        operands=[operand(n, o.labels) for n, o in enumerate(node.operands)],
        result=[placed(x, node.keys, partial) for x in grid],
    )


def _sparse_moves(operation: Operation, placed: Program) -> Iterator[str]:
    """Yields the remark on moves of sparse results, whose number of elements is not known."""
    for n in operation.steps:
        step, relation = placed.steps[n], placed.relation(n)
        moves = isinstance(step, Exchange | Complete) and step.nbytes > 0
        if moves and relation.sparse and isinstance(relation, EinSum):
            yield EXPECTED.format(density(relation))
            return


def _kind(node: EinSum) -> Kind:
    if node.is_elementwise or not node.reduced:
        return "map"
    return "contraction" if len(node.operands) > 1 else "reduction"


def _flops(local: Local, placed: Program) -> int:
    """The operations of a step, of which copies count once."""
    flops = cell_flops(local, placed)
    return int(flops[: len(flops) // local.tiles.copies].sum())


def site_reports(
    operations: Sequence[Operation],
    placed: Program,
    predicted: Prediction,
    measure: Measure | None,
) -> list[SiteReport]:
    """Returns the work of each site; with a measure all fields but `memory` are measured."""
    memory = predicted.memory.tolist()
    if measure is not None:
        ran = zip(
            memory,
            measure.memory,
            measure.flops,
            measure.sent,
            measure.received,
            measure.seconds,
            strict=True,
        )
        return [
            SiteReport(
                flops=f, memory=m, memory_measured=peak, bytes_sent=s, bytes_received=r, seconds=t
            )
            for m, peak, f, s, r, t in ran
        ]
    total = [0] * placed.sites
    for operation in operations:
        local = operation.local
        flops = cell_flops(local, placed)
        for site, work in zip(local.sites.tolist(), flops.tolist(), strict=True):
            total[site] += work
    for step in placed.steps:
        if isinstance(step, Complete):  # a site merges each tile that it receives with its own
            moved = completing(placed.steps[step.source].tiles, step, placed.sites)
            fields = len(with_state(step.node).outputs)
            for site, elements in enumerate(moved.received.astype(int).tolist()):
                total[site] += elements * fields
    columns = zip(total, memory, predicted.sent.tolist(), predicted.received.tolist(), strict=True)
    return [
        SiteReport(flops=f, memory=int(m), bytes_sent=int(s), bytes_received=int(r))
        for f, m, s, r in columns
    ]
