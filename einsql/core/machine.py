"""Rates of a site and of the network between sites, from which costs in seconds follow."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from einsql.core.records import dataclass

RANK_LATENCY = 1.5e-4
"""Default latency in seconds of a message between MPI ranks. Python code on both sides
synchronizes, slices and assembles. `CALIBRATE` measured 0.13 to 0.17 ms on two cores."""

MOST_OF_MEMORY = 0.8
"""The default fraction of a machine's memory for one program."""

_ENOUGH = 2**63
"""Bytes; a control group without a limit reports this number or a larger one."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The arithmetic of a point of a domain.

    Attributes:
        cheap: The number of operations that take about as long as an addition.
        calls: The number of function calls that take about as long as EXP.
    """

    cheap: int
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates and latencies of a site; all sites have the same.

    Attributes:
        flops_float: Scalar operations per second of FLOAT contractions.
        flops_double: Scalar operations per second of DOUBLE and BIGINT contractions.
        map_float: Scalar operations per second of everything else, in FLOAT.
        map_double: Scalar operations per second of everything else, in DOUBLE and BIGINT.
        exp_float: Calls per second of EXP and other functions that take as long, in FLOAT.
        exp_double: Calls per second of these functions in DOUBLE and BIGINT.
        memory_bandwidth: Bytes per second that a kernel reads and writes, for arrays larger than
            the caches.
        call_overhead: Seconds from a kernel call to the start of its work.
        latency: Seconds until the first byte of a message between sites arrives (α).
        network: Bytes per second that a site sends or receives (1/β).
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
        """A machine with a rate of FLOAT contractions; the other rates keep their ratios to it."""
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
    """A cluster: equal nodes of sites, and the network between the nodes.

    Sites are numbered node by node, as MPI launchers place ranks by default. Any node reaches
    any other over its links, and the switches between them are never a bottleneck.

    Attributes:
        node_sites: The number of sites of a node; the last node has the remainder.
        links: The number of links from a node to the network. A link is full duplex.
        network: Bytes per second of a link in one direction.
        latency: Seconds until the first byte of a message between nodes arrives (α).
        node_network: Bytes per second that a site sends or receives inside its node.
        node_latency: Seconds until the first byte of a message inside a node arrives.
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
    """A cluster of nodes with one site each and a machine's network."""
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
        limits.append(2**33)  # the system does not report its memory
    for path in _limits():
        with suppress(OSError, ValueError):  # the file does not exist, or contains "max"
            limits.append(int(Path(path).read_text(encoding="ascii")))
    return min(n for n in limits if n > 0)


def _limits() -> list[str]:
    """Paths of the memory limits of this process's control group and of the enclosing groups."""
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
