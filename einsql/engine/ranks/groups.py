"""Groups of ranks: the ranks at the creation of tiles, and the present number of each."""

from __future__ import annotations

from collections.abc import Mapping


class Group:
    """The ranks of a cluster at one time.

    Attributes:
        now: The present number of each rank, -1 if it has ended.
        reason: Text that names the rank that ended first; empty if all are alive.
    """

    __slots__ = ("__weakref__", "now", "reason")

    def __init__(self, ranks: int) -> None:
        self.now = list(range(ranks))
        self.reason = ""

    def renumber(self, numbers: Mapping[int, int], reason: str) -> None:
        """Records that some ranks have ended and the others have new numbers.

        Args:
            numbers: The new number of each remaining rank, by its present number.
            reason: Text that names the ranks that ended.
        """
        self.now = [numbers.get(n, -1) for n in self.now]
        self.reason = self.reason or reason


class Lease:
    """A reference to tiles or a program on ranks, which may release them after its collection.

    Attributes:
        number: The handle on the ranks.
        group: The ranks that have the tiles or the program.
    """

    __slots__ = ("__weakref__", "group", "number")

    def __init__(self, number: int, group: Group) -> None:
        self.number = number
        self.group = group
