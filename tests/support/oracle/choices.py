"""Random choices as a list of small integers, so a failing case can be made smaller."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Choices:
    """A source of choices that remembers them; 0 is always the simplest one.

    Args:
        rng: Where new choices come from, or None to answer 0 past the end of `replay`.
        replay: Choices to repeat first; one that is too large for its question is cut.
    """

    def __init__(self, rng: random.Random | None, replay: Sequence[int] = ()) -> None:
        self.made: list[int] = []
        self._rng = rng
        self._replay = replay

    def below(self, n: int) -> int:
        """A number in `[0, n)`."""
        at = len(self.made)
        if at < len(self._replay):
            value = min(self._replay[at], n - 1)
        else:
            value = self._rng.randrange(n) if self._rng is not None else 0
        self.made.append(value)
        return value

    def between(self, lo: int, hi: int) -> int:
        """A number in `[lo, hi]`."""
        return lo + self.below(hi - lo + 1)

    def chance(self, percent: int) -> bool:
        """True in `percent` of a hundred cases; the simplest answer is False."""
        return self.below(100) >= 100 - percent

    def pick(self, items: Sequence[T]) -> T:
        """One of the items; the first is the simplest."""
        return items[self.below(len(items))]

    def weighted(self, items: Sequence[tuple[int, T]]) -> T:
        """One of the items by weight; the first is the simplest."""
        at = self.below(sum(w for w, _ in items))
        for weight, item in items:
            if at < weight:
                return item
            at -= weight
        raise AssertionError("weights are exhausted")

    def some(self, items: Sequence[T], least: int = 0) -> list[T]:
        """A subset in the given order, with at least `least` members."""
        left = list(items)
        taken: list[T] = []
        for n, item in enumerate(left):
            must = least - len(taken) >= len(left) - n
            if must or self.chance(50):
                taken.append(item)
        return taken


def shrink(
    made: Sequence[int], fails: Callable[[list[int]], bool], seconds: float = 30.0
) -> list[int]:
    """A shorter, smaller list of choices on which `fails` still holds.

    Spans are deleted and zeroed, long ones first; then single choices are lowered.
    """
    best = list(made)
    deadline = time.monotonic() + seconds

    def better(candidate: list[int]) -> bool:
        nonlocal best
        if candidate == best or time.monotonic() > deadline or not fails(candidate):
            return False
        best = candidate
        return True

    progress = True
    while progress and time.monotonic() < deadline:
        progress = False
        for span in (64, 16, 8, 4, 2, 1):
            at = 0
            while at < len(best) and time.monotonic() < deadline:
                stop = at + span
                if better(best[:at] + best[stop:]):
                    progress = True
                    continue
                if any(best[at:stop]) and better(
                    best[:at] + [0] * len(best[at:stop]) + best[stop:]
                ):
                    progress = True
                at = stop
        for at in range(len(best)):
            value = best[at] if at < len(best) else 0
            for lower in (value // 2, value - 1):
                if 0 <= lower < value and better([*best[:at], lower, *best[at + 1 :]]):
                    progress = True
                    break
    return best
