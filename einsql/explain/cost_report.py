"""Cuts, placements and costs of a plan: the main part of EXPLAIN's report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from einsql.core.boxes import volumes
from einsql.core.machine import Machine
from einsql.engine.step import Measure
from einsql.ir.einsum.flops import flops, flops_at_point
from einsql.ir.einsum.graph import EinSum
from einsql.ir.spmd.program import COPIES, Collective, Complete, Exchange, Local, Program
from einsql.optimizer.decomposition import Cut, Decomposition
from einsql.optimizer.simulation.prediction import Prediction, predict
from einsql.optimizer.simulation.tra_cost import tra_costs

Kind = Literal["contraction", "reduction", "map"]
"""A contraction reduces over several operands, a reduction over one; a map does not reduce."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a placed plan.

    Attributes:
        node: The operation.
        cut: The cut of its labels, with EinDecomp's cost in floats.
        op: The kind of operation.
        grid: The site grid: each cut label with its number of parts, slowest axis first.
        operands: The placement of each operand, one entry per grid axis.
        result: The placement of the result of the cells.
        collectives: The exchanges between sites before and after it.
        nbytes: Bytes that the collectives send.
        tra_cost: Floats that they move by the count of the tensor-relational algebra.
        steps: The steps of the program that belong to it, `local` among them.
        local: The step that runs it.
    """

    node: EinSum
    cut: Cut
    op: Kind
    grid: tuple[tuple[str, int], ...]
    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    collectives: tuple[Collective, ...]
    nbytes: int
    tra_cost: float
    steps: tuple[int, ...]
    local: int

    @property
    def collective(self) -> str:
        """The names of the collectives that send bytes."""
        return " + ".join(c.name for c in self.collectives if c.name != "slice") or "none"


def nodes_of(cut: Decomposition, placed: Program) -> list[Operation]:
    """The operations of a plan, producers first."""
    locals_ = [n for n, s in enumerate(placed.steps) if isinstance(s, Local)]
    after = _completions(placed)
    seen = {n for steps in after.values() for n in steps}
    costs = tra_costs(placed)
    return [_node(c, placed, n, after, seen, costs) for c, n in zip(cut.cuts, locals_, strict=True)]


def _completions(program: Program) -> dict[int, list[int]]:
    """Returns for each operation the steps of its merge and of its all-reduce."""
    after: dict[int, list[int]] = {}
    merged: dict[int, int] = {}
    for n, s in enumerate(program.steps):
        if isinstance(s, Complete):
            merged[n] = s.source
            after[s.source] = [n]
        elif isinstance(s, Exchange) and s.completes:
            after[merged[s.sources[0]]].append(n)
    return after


def _node(
    cut: Cut,
    program: Program,
    at: int,
    after: dict[int, list[int]],
    seen: set[int],
    costs: list[float],
) -> Operation:
    local = program.steps[at]
    assert isinstance(local, Local)
    node = local.node
    before = [n for n in dict.fromkeys(local.operands) if n not in seen]
    seen.update(before)
    completing = after.get(at, [])
    steps = [*before, at, *completing]
    moving = [s for s in (program.steps[n] for n in steps) if isinstance(s, Exchange | Complete)]
    done = [c for s in moving for c in s.collectives]
    if len(completing) == 2:
        merge = program.steps[completing[0]]
        assert isinstance(merge, Complete)
        ends = sum(s.nbytes for s in moving[-2:])
        done = [c for s in moving[:-2] for c in s.collectives]
        done.append(Collective("all-reduce", merge.collectives[0].along, ends))
    labels = [label for label, _ in local.grid]
    return Operation(
        node=node,
        cut=cut,
        op=kind(node),
        grid=local.grid,
        operands=tuple(tuple(_placed(x, o.labels, local) for x in labels) for o in node.operands),
        result=tuple(_made(x, local) for x in labels),
        collectives=tuple(done),
        nbytes=sum(s.nbytes for s in moving),
        tra_cost=sum(costs[n] for n in steps),
        steps=tuple(steps),
        local=at,
    )


def _made(label: str, local: Local) -> str:
    if label == COPIES:
        return _copied(local)
    node = local.node
    return f"Shard({label})" if label in node.keys else f"Partial({_reductions(node)})"


def _placed(label: str, labels: tuple[str, ...], local: Local) -> str:
    if label == COPIES:
        return _copied(local)
    return f"Shard({label})" if label in labels else "Replicate"


def _copied(local: Local) -> str:
    """What repeated cells read and make: the same, or terms of a sum that a map keeps."""
    return "Partial(SUM)" if local.partial and local.node.is_elementwise else "Replicate"


def _reductions(node: EinSum) -> str:
    return ", ".join(dict.fromkeys(str(o.reduction).upper() for o in node.outputs if o.reduction))


def kind(node: EinSum) -> Kind:
    """Returns the kind of an operation."""
    if node.is_elementwise or not node.reduced:
        return "map"
    return "contraction" if len(node.operands) > 1 else "reduction"


def as_json(
    cut: Decomposition, placed: Program, cost: str, machine: Machine, measure: Measure | None
) -> dict[str, Any]:
    """A plan as nested lists and dicts of plain values.

    Args:
        cut: How the operations are cut.
        placed: What each site does.
        cost: The setting of that name.
        machine: What seconds are predicted for.
        measure: What a run took, for EXPLAIN ANALYZE.

    Returns:
        strategy, cost, sites, total, nodes and per_site, and with a measure `ranks`, the
        processes that shared the work. `floats` are EinDecomp's, in
        elements, and tra_cost is the TRA paper's count of them; bytes are those sent
        between different sites; `memory` is what a cell takes, or what a site holds at
        once, in bytes. Everything is planned but what stands under `measured`, and what
        per_site tells of flops, traffic and seconds with a measure.
    """
    operations = nodes_of(cut, placed)
    predicted = predict(placed, machine)
    report: dict[str, Any] = {
        "strategy": cut.strategy,
        **({"notice": cut.notice} if cut.notice else {}),
        "cost": cost,
        "sites": cut.sites,
        "total": {
            "floats_moved": cut.floats,
            "bytes_sent": placed.bytes_sent,
            "tra_cost": sum(n.tra_cost for n in operations),
            "flops": sum(flops(n.node) for n in operations),
            "seconds": sum(predicted.seconds),
            "memory": int(predicted.memory.max()),
        },
        "nodes": _with_groups(
            [_node_json(n, predicted, measure) for n in operations], operations, placed
        ),
        "per_site": [
            {"flops": f, "memory": int(m), "bytes_sent": int(s), "bytes_received": int(r)}
            for f, m, s, r in zip(
                site_flops(operations, placed),
                predicted.memory,
                predicted.sent,
                predicted.received,
                strict=True,
            )
        ],
    }
    if measure is not None:
        report["ranks"] = measure.ranks
        ran = zip(measure.flops, measure.sent, measure.received, measure.seconds, strict=True)
        for site, (f, s, r, t) in zip(report["per_site"], ran, strict=True):
            site |= {"flops": f, "bytes_sent": s, "bytes_received": r, "seconds": t}
    return report


def _with_groups(
    nodes: list[dict[str, Any]], operations: Sequence[Operation], placed: Program
) -> list[dict[str, Any]]:
    """The operations with those that they run together with."""
    at = {n.local: number for number, n in enumerate(operations)}
    for t in placed.together:
        members = [at[n] for n in t.steps]
        group = {"nodes": [nodes[m]["id"] for m in members]}
        for m in members:
            nodes[m]["group"] = group
    return nodes


def _node_json(n: Operation, predicted: Prediction, measure: Measure | None) -> dict[str, Any]:
    axes = n.node.axes
    entry: dict[str, Any] = {
        "id": n.cut.name,
        "op": n.op,
        "labels": {a.label: a.extent for a in axes if a.define is None},
        "viable": n.cut.viable,
        "partition": n.cut.parts,
        "hint": dict(n.node.hint),
        "copies": n.cut.copies,
        "placements": {
            "grid": [list(axis) for axis in n.grid],
            "operands": [list(o) for o in n.operands],
            "result": list(n.result),
        },
        "floats": {
            "join": n.cut.join,
            "aggregate": n.cut.aggregate,
            "repartition": n.cut.repartition,
        },
        "collective": n.collective,
        "collectives": [
            {"collective": c.name, "along": list(c.along), "bytes_sent": c.nbytes}
            for c in n.collectives
        ],
        "bytes_sent": n.nbytes,
        "tra_cost": n.tra_cost,
        "flops": flops(n.node),
        "seconds": sum(predicted.seconds[s] for s in n.steps),
        "memory": predicted.cells[n.local],
    }
    if measure is not None:
        steps = [measure.steps[s] for s in n.steps]
        entry["measured"] = {
            "seconds": sum(s.seconds for s in steps),
            "bytes_sent": sum(s.sent for s in steps),
        }
    return entry


def site_flops(nodes: list[Operation], placed: Program) -> list[int]:
    """Scalar operations of each site."""
    total = [0] * placed.sites
    for n in nodes:
        local = placed.steps[n.local]
        assert isinstance(local, Local)
        each = flops_at_point(n.node)
        for site, points in zip(local.sites, volumes(local.cells), strict=True):
            total[int(site)] += int(points) * each
    return total
