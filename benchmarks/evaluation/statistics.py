"""Intervals by bootstrap, and who is fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.evaluation.experiment import EINSQL
from benchmarks.measure import CONFIDENCE, Estimate

RESAMPLES = 2000
SEED = 1


def bootstrap(sample: Sequence[float]) -> Estimate:
    """The median of a sample, with the percentile interval of its resamples' medians."""
    values = np.asarray(sample, np.float64)
    chance = np.random.default_rng(SEED)
    medians = np.median(chance.choice(values, (RESAMPLES, len(values))), axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(median(sample), float(low), float(high))


def ratio(seconds: Sequence[float], of: Sequence[float]) -> Estimate:
    """How many times longer one takes than another, round by round."""
    return bootstrap([a / b for a, b in zip(seconds, of, strict=True)])


@dataclass(frozen=True)
class Verdict:
    """Who is fastest.

    Attributes:
        fastest: The contestant of the least median.
        tied: All whose ratio to it has an interval with 1 in it, itself included.
        ratios: The others' time over einsql's.
    """

    fastest: str
    tied: tuple[str, ...]
    ratios: Mapping[str, Estimate]

    @property
    def word(self) -> str:
        """What this is for einsql: "won", "tie" or "lost"; "alone" without others."""
        if not self.ratios:
            return "alone"
        if EINSQL not in self.tied:
            return "lost"
        return "won" if len(self.tied) == 1 else "tie"


def verdict(seconds: Mapping[str, Sequence[float]]) -> Verdict:
    """The verdict over times in round order; einsql must be among them."""
    fastest = min(seconds, key=lambda name: median(seconds[name]))
    best = seconds[fastest]

    def ties(name: str) -> bool:
        apart = ratio(seconds[name], best)
        return name == fastest or apart.low <= 1 <= apart.high

    ratios = {n: ratio(s, seconds[EINSQL]) for n, s in seconds.items() if n != EINSQL}
    return Verdict(fastest, tuple(filter(ties, seconds)), ratios)


def least(values: Mapping[str, float]) -> tuple[str, ...]:
    """The names of the least of some computed numbers, equal ones included."""
    low = min(values.values())
    return tuple(name for name, v in values.items() if abs(v - low) <= 1e-9 * abs(low))
