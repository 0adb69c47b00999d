"""The simulation part of EXPLAIN's report: nodes, and their sites over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from einsql.core.units import data_size, duration
from einsql.explain.cost_report import Operation

if TYPE_CHECKING:
    from einsql.optimizer.simulation.simulation import Simulation

Report = dict[str, Any]

MOST_NODES = 8
"""Beyond this many nodes the text shows minimum, median, maximum and the busiest node."""

MOST_COURSES = 32
"""The most nodes whose activity over time is reported."""

BINS = 200
"""The number of time intervals in which activity is reported."""

_SECONDS = ("computing", "communicating", "waiting")


def with_simulation(
    report: Report, operations: Sequence[Operation], simulation: Simulation
) -> Report:
    """Adds a simulation to a report.

    Args:
        report: What `report.as_json` gives.
        operations: The plan's operations, as in the report.
        simulation: A run of the plan.

    Returns:
        The report with `simulation`: when the last site is done (`seconds`), the `cluster`,
        and what every node and every site does. A node's seconds are the mean over its
        sites, everything else of it the sum. Operations get `simulated`, when the first
        site begins and the last ends its steps.
    """
    nodes = []
    for entry, operation in zip(report["nodes"], operations, strict=True):
        steps = list(operation.steps)
        begins, ends = simulation.begins[steps].min(), simulation.ends[steps].max()
        nodes.append({**entry, "simulated": {"begins": float(begins), "ends": float(ends)}})
    return {**report, "nodes": nodes, "simulation": _as_json(simulation)}


def _as_json(simulation: Simulation) -> Report:
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
    notice = _notice(per_node["memory"], simulation.cluster.node_memory)
    return {
        "seconds": simulation.seconds,
        **({"notice": notice} if notice else {}),
        "cluster": asdict(simulation.cluster),
        "per_node": _rows(per_node),
        "per_site": _rows(per_site),
        "course": _course(simulation),
    }


def _course(simulation: Simulation) -> Report:
    """Returns the activity of nodes in each interval; of very many nodes a sample."""
    nodes = np.unique(np.linspace(0, simulation.nodes - 1, MOST_COURSES).astype(np.int64))
    parts = {"computing": simulation.computes, "communicating": simulation.communicates}
    courses = {name: simulation.course(spans, BINS)[nodes] for name, spans in parts.items()}
    return {"nodes": nodes.tolist(), **{k: np.round(v, 3).tolist() for k, v in courses.items()}}


def _rows(columns: dict[str, np.ndarray]) -> list[Report]:
    values = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in values]


def _notice(memory: np.ndarray, most: float | None) -> str:
    """What does not fit."""
    over = 0 if most is None else int((memory > most).sum())
    if most is None or not over:
        return ""
    return (
        f"{over:,} of {len(memory):,} nodes hold more than their {data_size(most)}, "
        f"node {int(memory.argmax())} {data_size(int(memory.max()))}"
    )


# ---- text


def as_text(simulation: Report) -> list[str]:
    """Formats a simulation as lines.

    Args:
        simulation: The report's part of that name.

    Returns:
        When the run ends and what the sites do until then; then a row for each node, or if
        there are many, what is least, median and most of each column, and the busiest node.
    """
    nodes = simulation["per_node"]
    rows = [[name, *_cells(node)] for name, node in _shown(nodes)]
    head = ["node", *_SECONDS, "utilised", "links", "memory", "sent", "received"]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    table = (
        "  ".join([f"{row[0]:{widths[0]}}", *(f"{c:>{w}}" for c, w in rest)]).rstrip()
        for row, rest in ((r, zip(r[1:], widths[1:], strict=True)) for r in (head, *rows))
    )
    notice = [f"notice     {simulation['notice']}"] if "notice" in simulation else []
    return [*_summary(simulation), *notice, *table]


def _summary(simulation: Report) -> list[str]:
    cluster, nodes = simulation["cluster"], simulation["per_node"]
    total = simulation["seconds"]
    sites = sum(n["sites"] for n in nodes)
    parts = (sum(n[name] * n["sites"] for n in nodes) / sites for name in _SECONDS)
    shares = (
        f"{part / total if total else 0:.0%} {n}" for part, n in zip(parts, _SECONDS, strict=True)
    )
    return [
        f"simulated  {duration(total)} on {_counted(len(nodes), 'node')} of "
        f"{_counted(cluster['node_sites'], 'site')} and {_counted(cluster['links'], 'link')}; "
        + ", ".join(shares)
    ]


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _shown(nodes: Sequence[Report]) -> list[tuple[str, Report]]:
    """Names and values of the rows."""
    if len(nodes) <= MOST_NODES:
        return [(str(n), node) for n, node in enumerate(nodes)]
    ranks = {"least": 0, "median": len(nodes) // 2, "most": len(nodes) - 1}
    columns = {name: sorted(node[name] for node in nodes) for name in nodes[0]}
    busy = [node["computing"] + node["communicating"] for node in nodes]
    busiest = max(range(len(nodes)), key=busy.__getitem__)
    rows = [(name, {c: v[at] for c, v in columns.items()}) for name, at in ranks.items()]
    return [*rows, (f"busiest: {busiest}", nodes[busiest])]


def _cells(node: Report) -> list[str]:
    return [
        *(duration(node[name]) for name in _SECONDS),
        f"{node['utilisation']:.0%}",
        f"{node['link_utilisation']:.0%}",
        *(data_size(node[name]) for name in ("memory", "bytes_out", "bytes_in")),
    ]
