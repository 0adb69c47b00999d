"""Interleaved measurements: contestants take turns, and each round gives one ratio.

A neighbour on the machine or a changing clock slows the contestants of one round alike,
so the ratio within a round is far steadier than the times. The median of the rounds'
ratios is reported with an order-statistic confidence interval, which assumes nothing
about how they are distributed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import comb
from statistics import median

Run = Callable[[], object]

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Estimate:
    """A median with the bounds of its 95 % confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Times:
    """Seconds of every contestant in every round, in round order."""

    seconds: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        """The median time of a contestant, in seconds."""
        return median(self.seconds[name])

    def ratio(self, name: str, to: str) -> Estimate:
        """How many times longer `name` takes than `to`, round by round."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=True)
        return estimate([a / b for a, b in pairs])

    def difference(self, name: str, to: str) -> Estimate:
        """How much longer `name` takes than `to`, in seconds, round by round."""
        pairs = zip(self.seconds[name], self.seconds[to], strict=True)
        return estimate([a - b for a, b in pairs])


def measure(
    contestants: Mapping[str, Run], *, rounds: int, seconds: float, inner: int = 1
) -> Times:
    """Lets contestants take turns; each round begins with another one.

    Args:
        contestants: What to run, by name; what it returns is dropped before the next turn.
        rounds: The least number of rounds.
        seconds: Further rounds are run for so long.
        inner: Calls in one turn, whose mean counts; for calls of microseconds.
    """
    names = list(contestants)
    for name in names:  # plans are made, kernels compiled and threads started here
        contestants[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    end = time.perf_counter() + seconds
    done = 0
    while done < rounds or time.perf_counter() < end:
        shift = done % len(names)
        for name in names[shift:] + names[:shift]:
            taken[name].append(_turn(contestants[name], inner))
        done += 1
    return Times(taken)


def _turn(run: Run, inner: int) -> float:
    calls = range(inner)
    start = time.perf_counter()
    for _ in calls:
        run()
    return (time.perf_counter() - start) / inner


def estimate(sample: list[float]) -> Estimate:
    """The median of a sample and its confidence interval between two order statistics.

    The whole range where the sample is too small for the confidence asked for.
    """
    ordered, n = sorted(sample), len(sample)
    cut = 0  # how many values may be left out at each end
    tail = 1 / 2**n
    while cut < n // 2 and 2 * (tail + comb(n, cut + 1) / 2**n) <= 1 - CONFIDENCE:
        cut += 1
        tail += comb(n, cut) / 2**n
    return Estimate(median(ordered), ordered[cut], ordered[n - 1 - cut])
