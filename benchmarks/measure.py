"""Interleaved measurements: contestants take turns, and each round gives one ratio.

A neighbour on the machine or a changing clock slows the contestants of one round alike,
so the ratio within a round is far steadier than the times. The order within a round is
shuffled, and turns are set apart by a pause, for the threads of one library may go on
spinning for a while after its turn. The median of the rounds' ratios is reported with an
order-statistic confidence interval, which assumes nothing about how they are distributed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import comb
from random import Random
from statistics import median

Run = Callable[[], object]

CONFIDENCE = 0.95
PAUSE = 5e-3
"""Seconds between turns."""
QUIET = 0.11
"""Seconds between turns after which threads of another library have stopped spinning."""


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
    contestants: Mapping[str, Run],
    *,
    rounds: int,
    seconds: float,
    calls: Mapping[str, int] | None = None,
    pause: float = PAUSE,
    clock: Callable[[], float] = time.perf_counter,
) -> Times:
    """Lets contestants take turns, in another order in each round.

    Args:
        contestants: What to run, by name; what it returns is dropped before the next turn.
        rounds: The least number of rounds.
        seconds: Further rounds are run for so long.
        calls: Calls in one turn, of which the mean counts, by name; one without. Several
            are preceded by one that does not count.
        pause: Seconds between turns.
        clock: Returns seconds; `time.process_time` leaves other programs out.
    """
    names = list(contestants)
    for name in names:  # plans are made, kernels compiled and threads started here
        contestants[name]()
    taken: dict[str, list[float]] = {name: [] for name in names}
    shuffle = Random(0)
    end = time.perf_counter() + seconds
    done = 0
    while done < rounds or time.perf_counter() < end:
        for name in shuffle.sample(names, len(names)):
            time.sleep(pause)
            taken[name].append(_turn(contestants[name], (calls or {}).get(name, 1), clock))
        done += 1
    return Times(taken)


def _turn(run: Run, calls: int, clock: Callable[[], float]) -> float:
    if calls > 1:  # the first one finds cold caches, and is too short for that to be its own
        run()
    start = clock()
    for _ in range(calls):
        run()
    return (clock() - start) / calls


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
