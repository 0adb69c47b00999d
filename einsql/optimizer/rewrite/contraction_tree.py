"""Improves a contraction path by exact orders of parts of its tree.

A part is a join with the subtrees below it down to a few leaves. The cheapest order of these
leaves is found by dynamic programming over their subsets, and replaces the part (J. Gray and
S. Kourtis, Hyper-optimized tensor network contraction, 2021: subtree reconfiguration).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf

Path = list[tuple[int, ...]]
"""The parts to join in each step. A step removes its parts, and adds their join at the end."""

WRITTEN = 64
"""Points of a product by BLAS in the time of an element of its result: 50 to 70 points and about
one element each take a nanosecond (experiment `networks`)."""
GENERATED = 8
"""The same number for other operations, which generated loops compute."""
COPIED = 100
"""Points of a product by BLAS in the time of an element that is copied in another order
(`matmul.pieces.COPIES`)."""
FEW = 16
"""Parts up to which more leaves are searched at once."""
LEAVES, MANY_LEAVES = 8, 6
"""Leaves of a part of a tree of few parts and of many. Time grows as three to their number; 60
parts take 50 ms with six leaves. Eight improve no larger network of the experiment `networks` by
more than 1 %."""
ROUNDS = 6
"""Visits of each join; most trees stop changing after three."""
SHARE = 1 / 256
"""Share of the cost of the tree below which a part is not searched."""


def improved(
    path: Path,
    parts: Sequence[Collection[str]],
    keys: Sequence[str],
    extents: Mapping[str, int],
    written: int,
) -> Path:
    """Returns a path that costs no more than another, in points, results and copies.

    Args:
        path: A path of pairs; another path is returned unchanged.
        parts: The labels of each part, in the order of its memory if it is known.
        keys: The labels of the result.
        extents: The extent of each label.
        written: The points in the time of an element of a result.
    """
    if len(path) < 2 or any(len(step) != 2 for step in path):
        return path
    tree = _Tree(path, parts, keys, extents, written)
    for _ in range(ROUNDS):
        if not tree.visit():
            break
    return tree.path() if tree.is_changed else path


class _Tree:
    """A tree of joins; parts of the node have the first numbers, then joins.

    Args:
        path: A path of pairs.
        parts: The labels of each part, in the order of its memory if it is known.
        keys: The labels of the result.
        extents: The extent of each label.
        written: The points in the time of an element of a result.

    Attributes:
        is_changed: Whether the tree differs from the path.
    """

    def __init__(
        self,
        path: Path,
        parts: Sequence[Collection[str]],
        keys: Sequence[str],
        extents: Mapping[str, int],
        written: int,
    ) -> None:
        bits = {x: 1 << n for n, x in enumerate(extents)}
        self.is_changed = False
        self._count = len(parts)
        self._leaves = LEAVES if len(parts) <= FEW else MANY_LEAVES
        self._long = sum(bits[x] for x, extent in extents.items() if extent > 1)
        self._sides: dict[int, tuple[int, int]] = {}
        self._labels = {n: sum(bits[x] for x in part) for n, part in enumerate(parts)}
        self._ends = {
            n: _ends([bits[x] for x in part if extents[x] > 1])
            for n, part in enumerate(parts)
            if isinstance(part, tuple)
        }
        self._extents = tuple(extents.values())
        self._written = written
        self._sizes: dict[int, float] = {}
        self._searched: dict[int, list[int]] = {}
        needed = sum(bits[x] for x in keys)
        present = list(range(len(parts)))
        for step in path:
            left, right = (present[n] for n in step)
            present = [number for n, number in enumerate(present) if n not in step]
            outside = needed
            for number in present:
                outside |= self._labels[number]
            self._root = len(self._labels)
            self._sides[self._root] = left, right
            self._labels[self._root] = (self._labels[left] | self._labels[right]) & outside
            present.append(self._root)
        self._next = len(self._labels)

    def visit(self) -> bool:
        """Searches the part at each join, the root first; returns whether one has changed."""
        total = sum(map(self._cost, self._sides))
        changed, stack = False, [self._root]
        while stack:
            root = stack.pop()
            leaves, cost = self._part(root)
            if len(leaves) > 2 and cost >= total * SHARE and self._searched.get(root) != leaves:
                changed = self._replace(root, leaves, cost) or changed
                self._searched[root] = self._part(root)[0]
            stack += [side for side in self._sides[root] if side in self._sides]
        return changed

    def path(self) -> Path:
        """The steps, sides first."""
        order, stack = [], [self._root]
        while stack:
            join = stack.pop()
            order.append(join)
            stack += [side for side in self._sides[join] if side in self._sides]
        present, path = list(range(self._count)), Path()
        for join in reversed(order):
            step = tuple(sorted(map(present.index, self._sides[join])))
            present = [number for n, number in enumerate(present) if n not in step]
            present.append(join)
            path.append(step)
        return path

    def _cost(self, join: int) -> float:
        left, right = self._sides[join]
        points = self._size(self._labels[left] | self._labels[right])
        copied = sum(self._copied(side, self._labels[join]) for side in self._sides[join])
        return points + copied + self._written * self._size(self._labels[join])

    def _copied(self, side: int, kept: int) -> float:
        """The cost of the copy of a part whose summed labels are in the midst of others."""
        ends, labels = self._ends.get(side), self._labels[side]
        if ends is None or (labels & ~kept) & self._long in ends:
            return 0.0
        return COPIED * self._size(labels)

    def _size(self, labels: int) -> float:
        """The number of points of a set of labels."""
        size = self._sizes.get(labels)
        if size is None:
            size = 1.0
            for n, extent in enumerate(self._extents):
                if labels >> n & 1:
                    size *= extent
            self._sizes[labels] = size
        return size

    def _part(self, root: int) -> tuple[list[int], float]:
        """The leaves of the part at a join, whose most expensive joins it has, and its cost."""
        leaves, cost = list(self._sides[root]), self._cost(root)
        while len(leaves) < self._leaves:
            joins = [leaf for leaf in leaves if leaf in self._sides]
            if not joins:
                break
            join = max(joins, key=self._cost)
            leaves.remove(join)
            leaves += self._sides[join]
            cost += self._cost(join)
        return leaves, cost

    def _replace(self, root: int, leaves: Sequence[int], cost: float) -> bool:
        """Replaces the part at a join by the cheapest one; returns False if it is the cheapest."""
        split = self._cheapest(root, leaves, cost * (1 - 1e-9))
        if split is None:
            return False
        stack = list(self._sides[root])
        while stack:
            old = stack.pop()
            if old not in leaves:
                stack += self._sides.pop(old)
        numbers = {1 << n: leaf for n, leaf in enumerate(leaves)}
        for subset, (left, labels) in split:
            is_root = subset == (1 << len(leaves)) - 1
            number = root if is_root else self._next
            self._next += not is_root
            self._sides[number] = numbers[left], numbers[subset ^ left]
            self._labels[number] = labels
            numbers[subset] = number
        self.is_changed = True
        return True

    def _cheapest(
        self, root: int, leaves: Sequence[int], bound: float
    ) -> list[tuple[int, tuple[int, int]]] | None:
        """The cheapest joins of leaves, by dynamic programming over subsets of leaves.

        Args:
            root: The join whose result all leaves have.
            leaves: The leaves.
            bound: The cost that a result must be below.

        Returns:
            For each join, sides first, the bits of its leaves, those of its left side and the
            labels of its result; None if no order costs less than the bound.
        """
        size, every = self._size, (1 << len(leaves)) - 1
        unions = [0] * (every + 1)
        for n, leaf in enumerate(leaves):
            for subset in range(1 << n, 2 << n):
                unions[subset] = unions[subset ^ 1 << n] | self._labels[leaf]
        kept = [unions[s] & (self._labels[root] | unions[every ^ s]) for s in range(every + 1)]
        raw = {1 << n: leaf for n, leaf in enumerate(leaves) if leaf in self._ends}
        cheapest, left_of = [inf] * (every + 1), [0] * (every + 1)
        for n, leaf in enumerate(leaves):
            cheapest[1 << n], kept[1 << n] = 0.0, self._labels[leaf]
        for subset in range(3, every + 1):
            if not subset & (subset - 1):
                continue
            least = bound - self._written * size(kept[subset])
            best = least
            left = rest = subset & (subset - 1)  # without the lowest leaf, which is on the right
            while left:
                right = subset ^ left
                cost = cheapest[left] + cheapest[right]
                if cost < best:
                    cost += size(kept[left] | kept[right])
                    for side in (left, right):
                        if side in raw and cost < best:
                            cost += self._copied(raw[side], kept[subset])
                    if cost < best:
                        best, left_of[subset] = cost, left
                left = (left - 1) & rest
            if best < least:
                cheapest[subset] = best + bound - least
        if cheapest[every] >= bound:
            return None
        order, stack = [], [every]
        while stack:
            subset = stack.pop()
            left = left_of[subset]
            if left:
                order.append((subset, (left, kept[subset])))
                stack += [left, subset ^ left]
        return order[::-1]


def _ends(bits: Sequence[int]) -> frozenset[int]:
    """The sets of labels at the start or at the end of an order."""
    starts = [sum(bits[:n]) for n in range(len(bits) + 1)]
    return frozenset((*starts, *(starts[-1] - start for start in starts)))
