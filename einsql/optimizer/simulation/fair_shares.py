"""Durations of messages that start together and share links, with max-min fair rates.

Every message uses two ports, one out and one in. At any time rates are max-min fair: no message
can speed up unless a message with no higher rate slows down (progressive filling). When messages
end, the remaining ones share the freed capacity.

Ports with the same messages, of the same sizes, to equivalent ports have the same rates. So
each class of ports is computed once (the coarsest equitable partition of the graph of
messages). This is exact. It makes plans over a thousand sites as cheap as plans over a few,
because their exchanges are regular.
"""

from __future__ import annotations

import numpy as np

MOST_CLASSES = 2**21
"""The maximum of the product of message classes and distinct end times."""

FEWEST_ENDINGS = 32
"""The minimum of distinct end times, for any number of classes."""

MOST_ROUNDS = 64
"""The maximum of filling rounds; then every message gets the smaller share of its ports."""

_EXACT = 1 - 1e-12
"""The ratio above which two shares count as equal."""


def durations(out: np.ndarray, into: np.ndarray, size: np.ndarray, capacity: float) -> np.ndarray:
    """The end time of each message, if all start at 0.

    If message classes times end times exceed `MOST_CLASSES`, neighbouring end times are
    merged into the latest of them. Messages may then end late, but never early.

    Args:
        out: int64 (messages,), the outgoing port of each message.
        into: int64 (messages,), the incoming port, numbered independently of `out`.
        size: float64 (messages,), positive sizes.
        capacity: The rate of every port; a message has a rate of at most 1.

    Returns:
        float64 (messages,).
    """
    if len(size) == 0:
        return np.zeros(0)
    _, out = np.unique(out, return_inverse=True)
    _, into = np.unique(into, return_inverse=True)
    sizes, number = np.unique(size, return_inverse=True)
    colour_out, colour_in = _alike(out.reshape(-1), into.reshape(-1), number.reshape(-1))
    outs, ins = np.bincount(colour_out), np.bincount(colour_in)
    # Messages of one class have equal sizes and use ports of one class.
    key = (colour_out[out] * len(ins) + colour_in[into]) * len(sizes) + number
    kinds, kind, counts = np.unique(key, return_inverse=True, return_counts=True)
    kinds, which = np.divmod(kinds, len(sizes))
    a, b = np.divmod(kinds, len(ins))
    ends = _ends(sizes[which], a, counts / outs[a], b, counts / ins[b], capacity)
    return ends[kind.reshape(-1)]


# ---- classes of ports


def _alike(out: np.ndarray, into: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The class of each outgoing port and of each incoming port.

    Classes are split until the ports of a class have equal messages to each class. The
    messages of ports are compared by sums of 64-bit hashes.
    """
    colours = [np.zeros(int(p.max()) + 1, np.uint64) for p in (out, into)]
    sizes = _mixed(size.astype(np.uint64))
    previous = (0, 0)
    while True:
        seen = [sizes + _mixed(colours[1])[into], sizes + _mixed(colours[0])[out]]
        for n, port in enumerate((out, into)):
            sums = _mixed(colours[n])
            np.add.at(sums, port, _mixed(seen[n]))
            colours[n] = np.unique(sums, return_inverse=True)[1].reshape(-1).astype(np.uint64)
        count = (int(colours[0].max()) + 1, int(colours[1].max()) + 1)
        if count == previous:
            return colours[0].astype(np.int64), colours[1].astype(np.int64)
        previous = count


def _mixed(values: np.ndarray) -> np.ndarray:
    """A hash of each value: the last steps of splitmix64."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(values ^ (values >> np.uint64(31)))


# ---- progress over time


def _ends(
    size: np.ndarray,
    out: np.ndarray,
    per_out: np.ndarray,
    into: np.ndarray,
    per_in: np.ndarray,
    capacity: float,
) -> np.ndarray:
    """The end times of the messages of each class.

    Args:
        size: The size of a message of each class.
        out: The class of the outgoing ports of each class of messages.
        per_out: The number of messages of the class at each of these outgoing ports.
        into: The class of the incoming ports of each class of messages.
        per_in: The number of messages of the class at each of these incoming ports.
        capacity: The rate of every port.
    """
    left, ends = size.copy(), np.zeros(len(size))
    under_way, now = np.arange(len(size)), 0.0
    at_once = -(-len(size) // max(FEWEST_ENDINGS, MOST_CLASSES // len(size)))
    while len(under_way):
        n = under_way
        rate = _fair(out[n], per_out[n], into[n], per_in[n], capacity)
        needs = left[under_way] / rate
        first = min(at_once, len(needs)) - 1
        step = np.partition(needs, first)[first]
        left[under_way] -= step * rate
        now += step
        ended = needs * _EXACT <= step
        ends[under_way[ended]] = now
        under_way = under_way[~ended]
    return ends


def _fair(
    out: np.ndarray, per_out: np.ndarray, into: np.ndarray, per_in: np.ndarray, capacity: float
) -> np.ndarray:
    """Max-min fair rates of the messages of each class; arguments as in `_ends`.

    A port is a bottleneck if none of its messages has a smaller share at another port. The
    shares of its messages are final. Other messages share the remaining capacity.
    """
    rate = np.ones(len(out))
    free = np.arange(len(out))
    rooms = [np.full(int(port.max()) + 1, capacity) for port in (out, into)]
    for _ in range(MOST_ROUNDS):
        ports, weights = (out[free], into[free]), (per_out[free], per_in[free])
        shares = []
        for room, port, weight in zip(rooms, ports, weights, strict=True):
            load = np.bincount(port, weight, len(room))
            shares.append(np.divide(room, load, out=np.ones(len(room)), where=load > 0))
        share = np.minimum(np.minimum(shares[0][ports[0]], shares[1][ports[1]]), 1.0)
        fixed = share >= _EXACT
        for each, port in zip(shares, ports, strict=True):
            least = np.full(len(each), np.inf)
            np.minimum.at(least, port, share)
            fixed |= (least >= each * _EXACT)[port]
        rate[free] = share
        if fixed.all():
            break
        for room, port, weight in zip(rooms, ports, weights, strict=True):
            room -= np.bincount(port[fixed], (weight * share)[fixed], len(room))
            np.maximum(room, 0.0, out=room)
        free = free[~fixed]
    return rate
