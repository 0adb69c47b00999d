"""Which ranks there were when tiles were made, and which of them are still there."""

from __future__ import annotations

from collections.abc import Mapping


class Group:
    """The ranks of a cluster at one time.

    Attributes:
        now: The present number of each of them, -1 if it has ended.
        reason: The rank that ended first, in words; empty if all are alive.
    """

    __slots__ = ("__weakref__", "now", "reason")

    def __init__(self, ranks: int) -> None:
        self.now = list(range(ranks))
        self.reason = ""

    def renumber(self, numbers: Mapping[int, int], reason: str) -> None:
        """Notes that some ranks have ended and others have new numbers.

        Args:
            numbers: The new number of each that is left, by its present one.
            reason: The ranks that ended, in words.
        """
        self.now = [numbers.get(n, -1) for n in self.now]
        self.reason = self.reason or reason


class Lease:
    """Tiles or a program at the ranks; they may forget them once this is collected.

    Attributes:
        number: Its handle.
        group: The ranks that have it.
    """

    __slots__ = ("__weakref__", "group", "number")

    def __init__(self, number: int, group: Group) -> None:
        self.number = number
        self.group = group
