"""The simulation of a plan: cluster nodes, and their sites over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from einsql.core.machine import Machine, Topology
from einsql.core.units import data_size
from einsql.explain.cost_report import Operation
from einsql.explain.operations import (
    CourseReport,
    OperationReport,
    SimulatedNode,
    SimulatedReport,
    SimulatedSite,
    SimulationReport,
)
from einsql.ir.spmd.program import Program
from einsql.optimizer.simulation.simulation import Simulation, simulate

MOST_COURSES = 32
"""The most nodes whose activity over time is reported."""

BINS = 200
"""The number of time intervals in which activity is reported."""

_SECONDS = ("computing", "communicating", "waiting")


def simulated(
    nodes: Sequence[OperationReport],
    operations: Sequence[Operation],
    placed: Program,
    machine: Machine,
    cluster: Topology,
) -> tuple[list[OperationReport], SimulationReport]:
    """Simulates a plan.

    Args:
        nodes: The operations' reports.
        operations: The operations of the plan.
        placed: The steps of every site.
        machine: The machine of a site.
        cluster: The nodes and their network.

    Returns:
        The reports of the operations with `simulated`, and the simulation.
    """
    simulation = simulate(placed, machine, cluster)
    timed = []
    for node, operation in zip(nodes, operations, strict=True):
        steps = list(operation.steps)
        begins, ends = simulation.begins[steps].min(), simulation.ends[steps].max()
        span = SimulatedReport(begins=float(begins), ends=float(ends))
        timed.append(replace(node, simulated=span))
    return timed, _report(simulation)


def _report(simulation: Simulation) -> SimulationReport:
    seconds = {name: getattr(simulation, name) for name in _SECONDS}
    per_node = {
        "sites": simulation.total(np.ones(len(simulation.memory))).astype(np.int64),
        **{name: simulation.mean(values) for name, values in seconds.items()},
        "utilisation": simulation.utilisation(),
        "link_utilisation": simulation.link_utilisation(),
        "memory": simulation.total(simulation.memory).astype(np.int64),
        "bytes_out": simulation.total(simulation.out).astype(np.int64),
        "bytes_in": simulation.total(simulation.into).astype(np.int64),
    }
    per_site = {
        **seconds,
        "memory": simulation.memory.astype(np.int64),
        "bytes_sent": simulation.sent.astype(np.int64),
        "bytes_received": simulation.received.astype(np.int64),
    }
    return SimulationReport(
        seconds=simulation.seconds,
        notice=_notice(per_node["memory"], simulation.cluster.node_memory),
        cluster=simulation.cluster,
        per_node=[SimulatedNode(**row) for row in _rows(per_node)],
        per_site=[SimulatedSite(**row) for row in _rows(per_site)],
        course=_course(simulation),
    )


def _course(simulation: Simulation) -> CourseReport:
    """Returns the activity of nodes in each interval; a sample of a large cluster's nodes."""
    nodes = np.unique(np.linspace(0, simulation.nodes - 1, MOST_COURSES).astype(np.int64))
    computing, communicating = (
        np.round(simulation.course(spans, BINS)[nodes], 3).tolist()
        for spans in (simulation.computes, simulation.communicates)
    )
    return CourseReport(nodes=nodes.tolist(), computing=computing, communicating=communicating)


def _rows(columns: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def _notice(memory: np.ndarray, most: float | None) -> str | None:
    """Returns a notice of the nodes whose memory is too small, or None."""
    over = 0 if most is None else int((memory > most).sum())
    if most is None or not over:
        return None
    return (
        f"{over:,} of {len(memory):,} nodes hold more than their {data_size(most)}, "
        f"node {int(memory.argmax())} {data_size(int(memory.max()))}"
    )
