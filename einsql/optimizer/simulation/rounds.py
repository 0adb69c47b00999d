"""Algorithms of collectives: the rounds of a collective, and the messages of each round.

A table maps the name of a collective to its algorithm. An algorithm takes the direct messages
of a step, from source to target. It returns rounds that deliver the same content, with at most
one message between two sites in each, or the direct messages if it does not support them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from einsql.ir.spmd.program import Collective, CollectiveName
from einsql.optimizer.simulation.messages import Messages, together

Algorithm = Callable[[Messages], list[Messages]]
"""From a collective's direct messages to those of each round."""

Algorithms = Mapping[CollectiveName, Algorithm]

DIRECT: Algorithms = {}
"""A collective without an entry takes one round of direct messages, as in the runtime."""


def rounds(
    messages: Messages, collectives: Sequence[Collective], algorithms: Algorithms
) -> list[Messages]:
    """The messages of each round of a step, which does a single collective or is direct."""
    names = [c.name for c in collectives if c.nbytes]
    if len(names) != 1 or names[0] not in algorithms:
        return [messages]
    return algorithms[names[0]](messages)


def tree(messages: Messages) -> list[Messages]:
    """A binomial tree: sites with the content pass it on, ⌈log₂ g⌉ rounds among g sites.

    It supports messages of one size from each source (a broadcast).
    """
    if not _one_size(messages.source, messages.size):
        return [messages]
    by_round: list[tuple[list[np.ndarray], ...]] = []
    for source in np.unique(messages.source):
        sent = messages.source == source
        members = np.concatenate([[source], messages.target[sent]])
        reached = 1
        for n in range(int(len(members) - 1).bit_length()):
            if n == len(by_round):
                by_round.append(([], [], []))
            some = members[reached : 2 * reached]
            sizes = np.full(len(some), messages.size[sent][0])
            for column, values in zip(
                by_round[n], (members[: len(some)], some, sizes), strict=True
            ):
                column.append(values)
            reached *= 2
    columns = (map(np.concatenate, pieces) for pieces in by_round)
    return [together(source, target, size, messages.sites) for source, target, size in columns]


def ring(messages: Messages) -> list[Messages]:
    """A ring: every site sends its last received piece to the next, g - 1 rounds among g sites.

    It supports groups of sites that each send the same to all others (an all-gather).
    """
    sites = messages.sites
    if not _one_size(messages.source, messages.size):
        return [messages]
    piece = np.zeros(sites)
    piece[messages.source] = messages.size
    group = np.arange(sites)  # of each site the first that it speaks with
    np.minimum.at(group, messages.target, messages.source)
    members = np.argsort(group, kind="stable")
    _, first, count = np.unique(group[members], return_index=True, return_counts=True)
    first, count = np.repeat(first, count), np.repeat(count, count)
    place = np.arange(sites) - first
    talks = count > 1
    if (
        len(messages.source) != (count - 1).sum()
        or (group[messages.source] != group[messages.target]).any()
    ):
        return [messages]
    ring_rounds = []
    for n in range(int(count.max()) - 1):
        now = talks & (n < count - 1)
        owners = members[first + (place - n) % count]  # whose piece each member has got last
        after = members[first + (place + 1) % count]
        ring_rounds.append(together(members[now], after[now], piece[owners[now]], sites))
    return ring_rounds


def mirrored(algorithm: Algorithm) -> Algorithm:
    """The algorithm in reverse, for reductions, which merge content on its way."""

    def run(messages: Messages) -> list[Messages]:
        return [_turned(one_round) for one_round in reversed(algorithm(_turned(messages)))]

    return run


def _turned(messages: Messages) -> Messages:
    return replace(messages, source=messages.target, target=messages.source)


def _one_size(group: np.ndarray, size: np.ndarray) -> bool:
    """True if the messages of each group are of one size."""
    order = np.argsort(group, kind="stable")
    same = group[order][1:] == group[order][:-1]
    return bool((size[order][1:] == size[order][:-1])[same].all())


TREES_AND_RINGS: Algorithms = {
    "broadcast": tree,
    "reduce": mirrored(tree),
    "all-gather": ring,
    "reduce-scatter": mirrored(ring),
}
"""The algorithms of MPI libraries for large messages."""
