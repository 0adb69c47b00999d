"""Medians with intervals of order statistics, and the fastest of some contestants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from statistics import median

from benchmarks.evaluation.experiment import EINSQL, is_own
from benchmarks.measure import Estimate, estimate


def coverage(rounds: int) -> float:
    """The probability that the interval of some rounds contains the distribution's median.

    The interval is between two order statistics. It misses the median if at most `below` values
    are on one side of it, and each value is on either side with probability 1/2.
    """
    below = int(estimate([float(n) for n in range(rounds)]).low)
    return 1 - 2 * sum(comb(rounds, n) for n in range(below + 1)) / (1 << rounds)


def ratio(seconds: Sequence[float], of: Sequence[float]) -> Estimate:
    """How many times longer one takes than another, round by round."""
    return estimate([a / b for a, b in zip(seconds, of, strict=True)])


def unpaired_ratio(seconds: Sequence[float], of: Sequence[float]) -> Estimate:
    """The ratio of the medians of two samples that were taken at different times.

    The bounds are the least and the largest ratio of values in the samples' intervals.
    """
    top, bottom = estimate(list(seconds)), estimate(list(of))
    return Estimate(top.value / bottom.value, top.low / bottom.high, top.high / bottom.low)


@dataclass(frozen=True)
class Verdict:
    """The fastest of einsql and other systems.

    Attributes:
        fastest: The system of the least median.
        tied: All whose ratio to it has an interval with 1 in it, itself included.
        ratios: The other systems' time over einsql's.
        own: The time of einsql's variants over einsql's. They take no part in the comparison.
    """

    fastest: str
    tied: tuple[str, ...]
    ratios: Mapping[str, Estimate]
    own: Mapping[str, Estimate]

    @property
    def word(self) -> str:
        """The result for einsql: "won", "tie" or "lost"; "alone" without other systems."""
        if not self.ratios:
            return "alone"
        if EINSQL not in self.tied:
            return "lost"
        return "won" if len(self.tied) == 1 else "tie"


def verdict(seconds: Mapping[str, Sequence[float]]) -> Verdict:
    """The verdict over times in round order; einsql must be among them."""
    to_einsql = {n: ratio(s, seconds[EINSQL]) for n, s in seconds.items() if n != EINSQL}
    own = {n: r for n, r in to_einsql.items() if is_own(n)}
    systems = [n for n in seconds if n not in own]
    fastest = min(systems, key=lambda name: median(seconds[name]))
    best = seconds[fastest]

    def ties(name: str) -> bool:
        apart = ratio(seconds[name], best)
        return name == fastest or apart.low <= 1 <= apart.high

    ratios = {n: r for n, r in to_einsql.items() if n not in own}
    return Verdict(fastest, tuple(filter(ties, systems)), ratios, own)


def least(values: Mapping[str, float]) -> tuple[str, ...]:
    """The names of the least of some computed numbers, equal ones included."""
    low = min(values.values())
    return tuple(name for name, v in values.items() if abs(v - low) <= 1e-9 * abs(low))
