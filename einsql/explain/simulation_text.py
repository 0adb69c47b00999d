"""The text of a simulation: totals, and a row for each cluster node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from einsql.core.units import data_size, duration
from einsql.explain.cost_text import table
from einsql.explain.operations import SimulatedNode, SimulationReport

MOST_NODES = 8
"""The most nodes with a row each; otherwise statistics and the busiest node are shown."""

_SECONDS = ("computing", "communicating", "waiting")


def simulation_lines(simulation: SimulationReport) -> list[str]:
    """Formats a simulation as lines.

    Returns:
        The end of the run and the fractions of the sites' time, then a row for each node. A large
        cluster has rows for minimum, median and maximum of each column, and the busiest node.
    """
    rows = [[name, *_cells(node)] for name, node in _shown(simulation.per_node)]
    head = ["node", *_SECONDS, "utilised", "links", "memory", "sent", "received"]
    notice = [] if simulation.notice is None else [f"notice     {simulation.notice}"]
    return [*_summary(simulation), *notice, *table([head, *rows], left=1)]


def _summary(simulation: SimulationReport) -> list[str]:
    cluster, nodes = simulation.cluster, simulation.per_node
    total = simulation.seconds
    sites = sum(n.sites for n in nodes)
    parts = (sum(getattr(n, name) * n.sites for n in nodes) / sites for name in _SECONDS)
    shares = (
        f"{part / total if total else 0:.0%} {n}" for part, n in zip(parts, _SECONDS, strict=True)
    )
    return [
        f"simulated  {duration(total)} on {_counted(len(nodes), 'node')} of "
        f"{_counted(cluster.node_sites, 'site')} and {_counted(cluster.links, 'link')}; "
        + ", ".join(shares)
    ]


def _counted(n: int, what: str) -> str:
    return f"{n:,} {what}{'s' * (n != 1)}"


def _shown(nodes: Sequence[SimulatedNode]) -> list[tuple[str, SimulatedNode]]:
    if len(nodes) <= MOST_NODES:
        return [(str(n), node) for n, node in enumerate(nodes)]
    ranks = {"least": 0, "median": len(nodes) // 2, "most": len(nodes) - 1}
    columns = {f.name: sorted(getattr(n, f.name) for n in nodes) for f in fields(SimulatedNode)}
    busy = [node.computing + node.communicating for node in nodes]
    busiest = max(range(len(nodes)), key=busy.__getitem__)
    rows = [
        (name, SimulatedNode(**{c: v[at] for c, v in columns.items()}))
        for name, at in ranks.items()
    ]
    return [*rows, (f"busiest: {busiest}", nodes[busiest])]


def _cells(node: SimulatedNode) -> list[str]:
    return [
        *(duration(getattr(node, name)) for name in _SECONDS),
        f"{node.utilisation:.0%}",
        f"{node.link_utilisation:.0%}",
        *(data_size(getattr(node, name)) for name in ("memory", "bytes_out", "bytes_in")),
    ]
