"""Groups of ranks: the ranks at the creation of tiles, and the present number of each."""

from __future__ import annotations

import weakref
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


class _Watch(weakref.ref[Lease]):
    """A weak reference to a lease that knows its number."""

    __slots__ = ("number",)
    number: int


class Leases:
    """The leases of one kind, and the numbers of those that have been collected.

    A collected lease calls no Python code, only `list.append`: an exception of a signal handler
    that runs there, such as KeyboardInterrupt, would be lost.
    """

    def __init__(self) -> None:
        self._watches: dict[int, _Watch] = {}
        self._ended: list[weakref.ref[Lease]] = []

    def new(self, number: int, group: Group) -> Lease:
        """Returns a new lease."""
        lease = Lease(number, group)
        watch = self._watches[number] = _Watch(lease, self._ended.append)
        watch.number = number
        return lease

    def unused(self) -> tuple[int, ...]:
        """Returns the numbers of the leases that were collected since the last call."""
        ended = self._ended[:]
        del self._ended[: len(ended)]
        numbers = tuple(w.number for w in ended if isinstance(w, _Watch))
        for number in numbers:
            del self._watches[number]
        return numbers
