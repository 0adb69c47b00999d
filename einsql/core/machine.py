"""Rates of a site and of the network between sites, from which costs in seconds follow."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

RANK_LATENCY = 1.5e-4
"""Default latency in seconds of a message between MPI ranks. Python code on both sides
synchronizes, slices and assembles. `CALIBRATE` measured 0.13 to 0.17 ms on two cores."""

MOST_OF_MEMORY = 0.8
"""The default part of a machine's memory that one program may take."""

_ENOUGH = 2**63
"""A control group without a limit reports this many bytes or more."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The arithmetic of a point of a domain.

    Attributes:
        cheap: Operations that take about as long as an addition.
        calls: Calls of functions that take as long as EXP.
    """

    cheap: int
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates and latencies of a site; all sites are alike.

    Attributes:
        flops_float: Scalar operations per second of FLOAT contractions.
        flops_double: The same in DOUBLE and BIGINT, whose values take 8 bytes.
        map_float: Scalar operations per second of everything else, in FLOAT.
        map_double: The same in DOUBLE and BIGINT.
        exp_float: Calls per second of EXP and other functions that take as long, in FLOAT.
        exp_double: The same in DOUBLE and BIGINT.
        memory_bandwidth: Bytes per second a kernel reads and writes, of arrays that fit no
            cache.
        call_overhead: Seconds a kernel call takes before its work starts.
        latency: Seconds a message between sites takes before its first byte arrives (α).
        network: Bytes per second that a site sends, or receives (1/β).
    """

    flops_float: float = 5e10
    flops_double: float = 2.5e10
    map_float: float = 2e9
    map_double: float = 1e9
    exp_float: float = 1e8
    exp_double: float = 5e7
    memory_bandwidth: float = 1e10
    call_overhead: float = 2e-5
    latency: float = 2e-5
    network: float = 1e10

    def arithmetic(self, effort: Effort, *, contraction: bool, double: bool) -> float:
        """Seconds of a point's arithmetic, without reading and writing its values."""
        if contraction:
            rate = self.flops_double if double else self.flops_float
        else:
            rate = self.map_double if double else self.map_float
        return effort.cheap / rate + effort.calls / (self.exp_double if double else self.exp_float)

    def with_flops(self, flops: float) -> Machine:
        """A machine whose FLOAT contractions run at a rate; its other rates keep their ratios."""
        by = flops / self.flops_float
        return replace(
            self,
            flops_float=flops,
            flops_double=self.flops_double * by,
            map_float=self.map_float * by,
            map_double=self.map_double * by,
            exp_float=self.exp_float * by,
            exp_double=self.exp_double * by,
        )


_SITE = Machine()


@dataclass(frozen=True, slots=True)
class Topology:
    """A cluster: nodes of sites and the network between them; all nodes are alike.

    Sites are numbered node by node, as MPI launchers place ranks by default. Any node reaches
    any other over its links, and the switches between them are never a bottleneck.

    Attributes:
        node_sites: Sites of a node; the last node has the rest.
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


def topology_like(machine: Machine) -> Topology:
    """A cluster of nodes of one site, joined as a machine's sites are."""
    return Topology(
        network=machine.network,
        latency=machine.latency,
        node_network=machine.network,
        node_latency=machine.latency,
    )


@cache
def memory() -> int:
    """Bytes of memory of this machine, or of the control group that this process is in."""
    limits = [_ENOUGH]
    try:
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        limits.append(2**33)  # a system that does not tell
    for path in _limits():
        with suppress(OSError, ValueError):  # there is none, or it says "max"
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(n for n in limits if n > 0)


def _limits() -> list[str]:
    """Files that hold limits of this process's control group and of those around it."""
    paths = ["/sys/fs/cgroup/memory/memory.limit_in_bytes"]
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for hierarchy, controllers, group in (x.split(":", 2) for x in lines if x.count(":") >= 2):
        group = group.rstrip("/")
        unified = hierarchy == "0"
        if unified or "memory" in controllers.split(","):
            root = "/sys/fs/cgroup" if unified else "/sys/fs/cgroup/memory"
            name = "memory.max" if unified else "memory.limit_in_bytes"
            while group:
                paths.append(f"{root}{group}/{name}")
                group = group.rpartition("/")[0]
            paths.append(f"{root}/{name}")
    return paths
