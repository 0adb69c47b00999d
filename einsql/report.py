"""What a plan decides and costs, as a value that EXPLAIN prints and tools read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from einsql.einsum import EinSum
from einsql.engine.sites import SiteMeasure
from einsql.machine import Machine
from einsql.optimizer.decomposition import Cut, Decomposition
from einsql.optimizer.prediction import Prediction, predict
from einsql.optimizer.work import flops
from einsql.supersteps import Complete, Exchange, Local, Program


@dataclass(frozen=True, slots=True)
class Node:
    """One operation of a placed plan.

    Attributes:
        node: The operation.
        cut: How it is cut, with EinDecomp's floats.
        op: "contraction", "reduction" or "map".
        grid: Its site grid, the labels that are cut with their parts, slowest first.
        operands: The placement of each operand, one entry per grid axis.
        result: The placement of what the cells make.
        collectives: What happens between sites before and after it.
        nbytes: Bytes these send.
        steps: The steps of the program that belong to it, `local` among them.
    """

    node: EinSum
    cut: Cut
    op: str
    grid: tuple[tuple[str, int], ...]
    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    collectives: tuple[str, ...]
    nbytes: int
    steps: tuple[int, ...]
    local: int


def nodes_of(cut: Decomposition, placed: Program) -> list[Node]:
    """The operations of a plan, producers first."""
    seen: set[int] = set()
    locals_ = [n for n, s in enumerate(placed.steps) if isinstance(s, Local)]
    return [_node(c, placed, n, seen) for c, n in zip(cut.cuts, locals_, strict=True)]


def _node(cut: Cut, program: Program, at: int, seen: set[int]) -> Node:
    local = program.steps[at]
    assert isinstance(local, Local)
    node = local.node
    steps = []
    for n in dict.fromkeys(local.operands):
        if n not in seen:
            seen.add(n)
            steps.append(n)
    steps.append(at)
    steps += [n for n, s in enumerate(program.steps) if isinstance(s, Complete) and s.source == at]
    moving = [s for s in (program.steps[n] for n in steps) if isinstance(s, Exchange | Complete)]
    labels = [label for label, _ in local.grid]
    return Node(
        node,
        cut,
        kind(node),
        local.grid,
        tuple(tuple(_placed(x, o.labels) for x in labels) for o in node.operands),
        tuple(f"Shard({x})" if x in node.keys else f"Partial({_reductions(node)})" for x in labels),
        tuple(s.collective for s in moving if s.collective not in ("none", "slice")),
        sum(s.nbytes for s in moving),
        tuple(steps),
        at,
    )


def _placed(label: str, labels: tuple[str, ...]) -> str:
    return f"Shard({label})" if label in labels else "Replicate"


def _reductions(node: EinSum) -> str:
    return ", ".join(dict.fromkeys(str(o.reduction).upper() for o in node.outputs if o.reduction))


def kind(node: EinSum) -> str:
    """What an operation is: "contraction", "reduction" or "map"."""
    if node.is_elementwise or not node.reduced:
        return "map"
    return "contraction" if len(node.operands) > 1 else "reduction"


def as_json(
    cut: Decomposition, placed: Program, cost: str, machine: Machine, measure: SiteMeasure | None
) -> dict[str, Any]:
    """A plan as nested lists and dicts of plain values.

    Args:
        cut: How the operations are cut.
        placed: What each site does.
        cost: The setting of that name.
        machine: What seconds are predicted for.
        measure: What a run took, for EXPLAIN ANALYZE.

    Returns:
        strategy, cost, sites, total, nodes and per_site. `floats` are EinDecomp's, in
        elements; bytes are those sent between different sites; `memory` is what a cell
        takes, or what a site holds at once, in bytes. Everything is planned but what stands
        under `measured`, and what per_site tells of traffic and seconds with a measure.
    """
    found = nodes_of(cut, placed)
    predicted = predict(placed, machine)
    report: dict[str, Any] = {
        "strategy": cut.strategy,
        "cost": cost,
        "sites": cut.sites,
        "total": {
            "floats_moved": cut.floats,
            "bytes_sent": placed.bytes_sent,
            "flops": sum(flops(n.node) for n in found),
            "seconds": sum(predicted.seconds),
            "memory": int(predicted.memory.max()),
        },
        "nodes": [_node_json(n, predicted, measure) for n in found],
        "per_site": [
            {"flops": f, "memory": int(m), "bytes_sent": int(s), "bytes_received": int(r)}
            for f, m, s, r in zip(
                site_flops(found, placed),
                predicted.memory,
                predicted.sent,
                predicted.received,
                strict=True,
            )
        ],
    }
    if measure is not None:
        for site, s, r, t in zip(
            report["per_site"], measure.sent, measure.received, measure.seconds, strict=True
        ):
            site |= {"bytes_sent": s, "bytes_received": r, "seconds": t}
    return report


def _node_json(n: Node, predicted: Prediction, measure: SiteMeasure | None) -> dict[str, Any]:
    axes = n.node.axes
    made: dict[str, Any] = {
        "id": n.cut.name,
        "op": n.op,
        "labels": {a.label: a.extent for a in axes if a.define is None},
        "viable": n.cut.viable,
        "partition": n.cut.parts,
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
        "collective": " + ".join(n.collectives) or "none",
        "bytes_sent": n.nbytes,
        "flops": flops(n.node),
        "seconds": sum(predicted.seconds[s] for s in n.steps),
        "memory": predicted.cells[n.local],
    }
    if measure is not None:
        steps = [measure.steps[s] for s in n.steps]
        made["measured"] = {
            "seconds": sum(s.seconds for s in steps),
            "bytes_sent": sum(s.nbytes for s in steps),
        }
    return made


def site_flops(nodes: list[Node], placed: Program) -> list[int]:
    """Scalar operations of each site."""
    total = [0] * placed.sites
    for n in nodes:
        local = placed.steps[n.local]
        assert isinstance(local, Local)
        each = flops(n.node) // max(1, n.node.points)
        extents = (local.cells[:, :, 1] - local.cells[:, :, 0]).prod(axis=1)
        for site, points in zip(local.sites, extents, strict=True):
            total[int(site)] += int(points) * each
    return total


def as_text(
    cut: Decomposition, placed: Program, machine: Machine, measure: SiteMeasure | None
) -> list[str]:
    """A plan as lines: cut, placement, traffic and cost of every operation."""
    predicted = predict(placed, machine)
    lines = [
        f"-- {cut.sites} sites, strategy {cut.strategy}: "
        f"{cut.floats:,.0f} floats, {placed.bytes_sent:,} bytes sent, "
        f"{sum(predicted.seconds) * 1e3:,.3f} ms predicted"
    ]
    for n in nodes_of(cut, placed):
        grid = " ".join(f"{x}:{parts}" for x, parts in n.grid) or "whole"
        operands = ", ".join(_short(o) for o in n.operands)
        text = f"{n.cut.name}  {n.op}  [{grid}]  {operands} -> {_short(n.result)}"
        text += f"  {' + '.join(n.collectives) or 'none'}"
        text += f"  {n.cut.floats:,.0f} floats  {n.nbytes:,} bytes"
        text += f"  {sum(predicted.seconds[s] for s in n.steps) * 1e3:,.3f} ms"
        if measure is not None:
            steps = [measure.steps[s] for s in n.steps]
            text += f"  {sum(s.seconds for s in steps) * 1e3:.3f} ms and"
            text += f" {sum(s.nbytes for s in steps):,} bytes measured"
        lines.append(text)
    return lines


def _short(placements: tuple[str, ...]) -> str:
    return f"({', '.join(placements)})"
