"""How sites are joined to a cluster: what plans are simulated on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from einsql.machine import Machine

_SITE = Machine()


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of sites, and what joins them; all nodes are alike.

    Sites are numbered node by node, as MPI launchers place ranks unless told otherwise. Any
    node reaches any other over its links, and the switches between carry all they send.

    Attributes:
        node_sites: Sites of a node; the last node has those that are left.
        links: Links that join a node to the network. Each carries both directions at once.
        network: Bytes per second of a link in one direction.
        latency: Seconds a message between nodes takes before its first byte arrives (α).
        node_network: Bytes per second that a site sends, or receives, inside its node.
        node_latency: Seconds a message inside a node takes before its first byte arrives.
        node_memory: Bytes of memory of a node, for all of its sites; None if unknown.
    """

    node_sites: int = 1
    links: int = 1
    network: float = _SITE.network
    latency: float = _SITE.latency
    node_network: float = _SITE.network
    node_latency: float = _SITE.latency
    node_memory: float | None = None

    @property
    def site_network(self) -> float:
        """Bytes per second of a site's share of its node's links, and of one link at most."""
        return self.network * min(1.0, self.links / self.node_sites)

    def nodes(self, sites: int) -> np.ndarray:
        """The node of each of so many sites, int64 (sites,)."""
        return np.arange(sites) // self.node_sites


def cluster_like(machine: Machine) -> Cluster:
    """A cluster of nodes of one site, joined as a machine's sites are."""
    return Cluster(
        network=machine.network,
        latency=machine.latency,
        node_network=machine.network,
        node_latency=machine.latency,
    )
