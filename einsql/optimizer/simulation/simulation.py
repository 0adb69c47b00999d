"""Simulates an SPMD program on a described cluster: the start and end of each step.

Every site has a clock. A local step advances the clocks of the sites that run its cells. An
exchange with messages starts at the same time at all sites, because the runtime first
reduces a status over all sites, which waits for the last one. Its messages start together and
share links (`fair_shares`). Each site continues when its own messages have ended.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from einsql.core.machine import Machine, Topology
from einsql.core.mappings import memoized
from einsql.core.records import dataclass
from einsql.errors import NotSupportedError
from einsql.ir.einsum.partial_states import with_state
from einsql.ir.spmd.program import (
    Collective,
    Complete,
    Exchange,
    Load,
    Local,
    Program,
    View,
    state_bytes,
    tuple_bytes,
)
from einsql.optimizer.simulation.fair_shares import durations
from einsql.optimizer.simulation.messages import Merging, Messages, exchanging, merging, together
from einsql.optimizer.simulation.prediction import StepCosts
from einsql.optimizer.simulation.rounds import DIRECT, Algorithms, rounds

MOST_SITES = 4096
"""The maximum of sites: a step may send a message between every pair of sites."""


@dataclass(frozen=True, slots=True, eq=False)
class Simulation:
    """The outcome of a simulation; arrays of sites are float64 (sites,).

    At any time a site computes, communicates or waits, so these three add up to the total.

    Attributes:
        cluster: The simulated cluster.
        seconds: The time at which the last site ends.
        computing: Seconds each site runs cells and merges.
        communicating: Seconds each site takes part in exchanges, after all sites have arrived.
        waiting: Seconds each site waits for other sites, before exchanges and at the end.
        sent: Bytes each site sends to other sites.
        received: Bytes each site receives from other sites.
        out: Bytes each site sends over its node's links.
        into: Bytes each site receives over its node's links.
        memory: The peak of bytes of tiles that each site stores.
        begins: float64 (steps,), the time at which the first site begins each step.
        ends: float64 (steps,), the time at which the last site ends each step.
        computes: float64 (times, 2, sites), start and end of the computations of each site.
        communicates: float64 (times, 2, sites), start and end of the exchanges of each site.
    """

    cluster: Topology
    seconds: float
    computing: np.ndarray
    communicating: np.ndarray
    waiting: np.ndarray
    sent: np.ndarray
    received: np.ndarray
    out: np.ndarray
    into: np.ndarray
    memory: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    computes: np.ndarray
    communicates: np.ndarray

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return -(-len(self.computing) // self.cluster.node_sites)

    def total(self, values: np.ndarray) -> np.ndarray:
        """The sum over the sites of each node, float64 (nodes,)."""
        node = np.arange(len(values)) // self.cluster.node_sites
        return np.asarray(np.bincount(node, values, self.nodes))

    def mean(self, values: np.ndarray) -> np.ndarray:
        """The mean over the sites of each node, float64 (nodes,)."""
        return np.asarray(self.total(values) / self.total(np.ones(len(values))))

    def utilisation(self) -> np.ndarray:
        """The share of the time in which the sites of each node compute, float64 (nodes,)."""
        return self._part(self.mean(self.computing))

    def link_utilisation(self) -> np.ndarray:
        """The used share of the capacity of each node's links, float64 (nodes,).

        It is the share of the direction with more bytes.
        """
        carried = np.maximum(self.total(self.out), self.total(self.into))
        return self._part(carried / (self.cluster.links * self.cluster.network))

    def course(self, spans: np.ndarray, bins: int) -> np.ndarray:
        """The share of every node's time that spans take, for equal intervals of the run.

        Args:
            spans: float64 (times, 2, sites), start and end of each span, as `computes`.
            bins: The number of intervals.

        Returns:
            float64 (nodes, bins), from 0 to 1.
        """
        length = self.seconds / bins
        if length == 0:
            return np.zeros((self.nodes, bins))
        # The seconds of a span before a time are (time - begin), less (time - end) after it.
        before = np.zeros((self.nodes, bins + 1))
        times = np.arange(1, bins + 1) * length
        node = np.broadcast_to(np.arange(spans.shape[2]) // self.cluster.node_sites, spans.shape)
        for sign, side in ((1, 0), (-1, 1)):
            at = np.minimum((spans[:, side] / length).astype(np.int64), bins - 1)
            place = (node[:, side] * bins + at).reshape(-1)
            shape, size = (self.nodes, bins), self.nodes * bins
            count = np.bincount(place, minlength=size).reshape(shape).cumsum(axis=1)
            total = np.bincount(place, spans[:, side].reshape(-1), size).reshape(shape)
            before[:, 1:] += sign * (count * times - total.cumsum(axis=1))
        sites = self.total(np.ones(spans.shape[2]))[:, None]
        return np.asarray(np.clip(np.diff(before, axis=1) / (length * sites), 0.0, 1.0))

    def _part(self, seconds: np.ndarray) -> np.ndarray:
        return np.asarray(seconds / self.seconds) if self.seconds else np.zeros(len(seconds))


def simulate(
    program: Program, machine: Machine, cluster: Topology, algorithms: Algorithms = DIRECT
) -> Simulation:
    """Simulates a program.

    Args:
        program: The steps of every site.
        machine: The rates of a site; the rates of the network come from the cluster.
        cluster: The nodes of the sites, and the network between them.
        algorithms: The algorithms of collectives; collectives without one send direct messages.

    Raises:
        NotSupportedError: There are more than `MOST_SITES` sites.
    """
    if program.sites > MOST_SITES:
        raise NotSupportedError(
            f"{program.sites:,} sites are too many to simulate",
            hint=f"A simulation has at most {MOST_SITES:,} sites; EXPLAIN alone has no such limit.",
        )
    playing = _Playing(program, machine, cluster, algorithms)
    begins, ends = np.zeros(len(program.steps)), np.zeros(len(program.steps))
    for n, step in enumerate(program.steps):
        if not isinstance(step, Load):
            begins[n], ends[n] = playing.step(n, step)
    sent, received, out, into = playing.traffic
    seconds = float(playing.clocks.max())
    return Simulation(
        cluster,
        seconds,
        playing.computing,
        playing.communicating,
        playing.waiting + seconds - playing.clocks,
        sent,
        received,
        out,
        into,
        playing.costs.memory(),
        begins,
        ends,
        np.array(playing.computes).reshape(-1, 2, program.sites),
        np.array(playing.communicates).reshape(-1, 2, program.sites),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Exchanged:
    """Seconds of an exchange at each site after its start, and bytes; all (sites,)."""

    seconds: np.ndarray
    traffic: np.ndarray


class _Playing:
    """One simulated run; equal exchanges, as layers repeat them, are simulated once."""

    def __init__(
        self, program: Program, machine: Machine, cluster: Topology, algorithms: Algorithms
    ) -> None:
        self.program = program
        self.machine = machine
        self.cluster = cluster
        self.algorithms = algorithms
        self.costs = StepCosts(program, machine)
        self._routed = {t.steps[-1]: t.routed for t in program.together if t.routed is not None}
        sites = program.sites
        self.clocks = np.zeros(sites)
        self.computing, self.communicating, self.waiting = (np.zeros(sites) for _ in range(3))
        self.traffic = np.zeros((4, sites))
        """Bytes sent, bytes received, and the bytes of both that cross nodes."""
        self.computes: list[np.ndarray] = []
        self.communicates: list[np.ndarray] = []
        self._node = np.arange(sites) // cluster.node_sites
        self._status = self._status_seconds()
        self._exchanged: dict[Hashable, _Exchanged] = {}
        self._messages: dict[Hashable, Messages] = {}
        self._merging: dict[Hashable, Merging] = {}

    def step(self, n: int, step: Exchange | Local | View | Complete) -> tuple[float, float]:
        """Simulates a step; returns the times of its start and end."""
        before = float(self.clocks.min())
        if isinstance(step, Local):
            self._route(n)
            self._compute(self.costs.local(n, step))
        elif isinstance(step, View) or (isinstance(step, Exchange) and step.nbytes == 0):
            return before, before  # every tile is at hand, so sites do not synchronize
        elif isinstance(step, Exchange):
            self._exchange(step)
        else:
            self._complete(step)
        return before, float(self.clocks.max())

    def _compute(self, seconds: np.ndarray) -> None:
        begin, self.clocks = self.clocks, self.clocks + seconds
        self.computing += seconds
        self.computes.append(np.stack([begin, self.clocks]))

    def _route(self, n: int) -> None:
        """Sends the rows of the group that ends with a step, in both directions at once."""
        if n not in self._routed:
            return
        sends = self._routed[n].sends
        source, target = np.nonzero(sends)
        messages = together(source, target, sends[source, target] * 1.0, self.program.sites)
        pieces = 1 + len(self._routed[n].relations)
        self._send(("rows", n), messages, 1, pieces, ())

    def _exchange(self, step: Exchange) -> None:
        base = self.program.steps[step.sources[0]].tiles
        absent = (step.at_hand[:, 0] < 0).tobytes()
        key = (self.costs.key(base), base.copies, self.costs.key(step.tiles), absent)
        sites, relation = self.program.sites, self.program.relation(step.sources[0])
        messages = memoized(self._messages, key, lambda: exchanging(base, step, sites))
        width, fields = tuple_bytes(relation), len(relation.schema.fields)
        if step.selection is not None:  # every message has its mean share of the elements
            width *= step.nbytes / max(1.0, float(messages.size.sum()) * width)
        self._send(key, messages, width, fields, step.collectives)

    def _complete(self, step: Complete) -> None:
        partial = self.program.steps[step.source].tiles
        parts = step.parts.tobytes(), step.parts.shape
        key = (self.costs.key(partial), self.costs.key(step.tiles), parts)
        merge = memoized(self._merging, key, lambda: merging(partial, step, self.program.sites))
        width = state_bytes(step.node)
        self._compute(merge.before * width / self.machine.memory_bandwidth)
        fields = len(with_state(step.node).outputs)
        for number, (messages, after) in enumerate(merge.rounds):
            self._send((key, number), messages, width, fields, step.collectives)
            self._compute(after * width / self.machine.memory_bandwidth)

    # ---- exchanges

    def _send(
        self,
        key: Hashable,
        messages: Messages,
        width: float,
        fields: int,
        collectives: tuple[Collective, ...],
    ) -> None:
        """Synchronizes all sites and sends elements with a number of bytes and fields."""
        if len(messages.size) == 0:
            return
        names = tuple(c.name for c in collectives)
        key = key, width, fields, names

        def play() -> _Exchanged:
            sent = messages.of(width, fields)
            return self._rounds(rounds(sent, collectives, self.algorithms))

        took = memoized(self._exchanged, key, play)
        begin = self.clocks.max()
        self.waiting += begin - self.clocks
        self.clocks = begin + self._status + took.seconds
        self.communicating += self._status + took.seconds
        self.traffic += took.traffic
        self.communicates.append(np.stack([np.full(self.program.sites, begin), self.clocks]))

    def _rounds(self, sent: Sequence[Messages]) -> _Exchanged:
        """Simulates the rounds in order; a round starts when its participants have arrived."""
        clocks, traffic = np.zeros(self.program.sites), np.zeros((4, self.program.sites))
        for messages in sent:
            seconds, partakes = self._round(messages)
            clocks[partakes] = clocks[partakes].max(initial=0.0) + seconds[partakes]
            crossing = messages.only(self._across(messages))
            ends = messages.sent(), messages.received(), crossing.sent(), crossing.received()
            traffic += np.stack(ends)
        return _Exchanged(clocks, traffic)

    def _round(self, messages: Messages) -> tuple[np.ndarray, np.ndarray]:
        """Seconds until each site's messages have ended, and the sites that have any.

        A site starts and receives its messages one after another, each with its latency. A
        message ends when both of its sites have handled it and all of its bytes have moved.
        """
        c, sites = self.cluster, self.program.sites
        across = self._across(messages)
        latency = np.where(across, c.latency, c.node_latency) * messages.pieces
        ends = (messages.source, messages.target)
        # Links are full duplex, so both directions transfer at once.
        busy = np.maximum(*(np.bincount(end, latency, sites) for end in ends))
        through = np.maximum(busy[messages.source], busy[messages.target])
        for some, ports, links, rate in (
            (across, self._node, float(c.links), c.network),
            (~across, np.arange(sites), 1.0, c.node_network),
        ):
            out, into = (ports[end[some]] for end in ends)
            through[some] += durations(out, into, messages.size[some], links) / rate
        seconds = np.zeros(sites)
        for end in ends:
            np.maximum.at(seconds, end, through)
        return seconds, seconds > 0

    def _across(self, messages: Messages) -> np.ndarray:
        """True for messages that leave their node, bool (messages,)."""
        return np.asarray(self._node[messages.source] != self._node[messages.target])

    def _status_seconds(self) -> float:
        """Seconds to reduce a status over all sites by doubling, inside and between nodes."""
        c, sites = self.cluster, self.program.sites
        nodes = int(self._node[-1]) + 1
        inside = (min(c.node_sites, sites) - 1).bit_length()
        return inside * c.node_latency + (nodes - 1).bit_length() * c.latency
