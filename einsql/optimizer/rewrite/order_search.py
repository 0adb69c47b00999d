"""Contraction orders other than the shortest one, for a choice together with cuts.

Several sites may run another order faster than the one with the fewest operations, because the
results in between are smaller or are cut like their readers. Each graph has variants: in a
variant one join of several tensors has another order. Orders of few tensors are enumerated,
without steps that join tensors of no common label. For more tensors they are the orders that
differ from the shortest one in a single step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod

from einsql.ir.einsum.graph import EinSum
from einsql.optimizer.rewrite.contraction_order import shortest_path
from einsql.optimizer.rewrite.contraction_tree import Path

FEW = 5
"""The maximum of tensors whose orders are enumerated."""
MOST = 16
"""The maximum of orders of one join, those with the fewest operations."""

Tree = frozenset["Tree"] | int
"""An order without the sequence of independent steps: a tensor, or the pair that a step joins."""


class Orders:
    """Chooses the order of each join of a graph, and counts the orders there are.

    Args:
        ranks: For each join, in the sequence in which they are split, the number of its order;
            0 is the shortest one, as for joins without a number.

    Attributes:
        counts: The number of orders of each join that has been split.
    """

    def __init__(self, ranks: Sequence[int] = ()) -> None:
        self._ranks = ranks
        self.counts: list[int] = []

    def __call__(self, parts: tuple[frozenset[str], ...], node: EinSum) -> Path:
        """The order of the next join; see `contraction_order.Choose`."""
        orders = orders_of(parts, node)
        at = len(self.counts)
        self.counts.append(len(orders))
        return orders[self._ranks[at] if at < len(self._ranks) else 0]


def orders_of(parts: tuple[frozenset[str], ...], node: EinSum) -> list[Path]:
    """The orders of a join: the shortest one, then the others by their operations.

    Args:
        parts: The labels of each tensor.
        node: The join of all tensors.
    """
    shortest = shortest_path(parts, node)
    if any(len(step) != 2 for step in shortest):
        return [shortest]
    own = _tree(shortest, len(parts))
    trees = set(_trees(parts)) if len(parts) <= FEW else set(_neighbours(own))
    sizes = {a.label: max(1, a.extent) for a in node.axes}
    keys = frozenset(node.keys)

    def operations(tree: Tree) -> tuple[int, str]:
        return _operations(tree, parts, keys, sizes), _text(tree)

    others = sorted(trees - {own}, key=operations)[: MOST - 1]
    return [shortest, *(_path(tree, len(parts)) for tree in others)]


def _trees(parts: Sequence[frozenset[str]]) -> Iterator[Tree]:
    """Every order whose steps join tensors with a common label, as far as there are such steps."""

    def joined(state: tuple[tuple[Tree, frozenset[str]], ...]) -> Iterator[Tree]:
        if len(state) == 1:
            yield state[0][0]
            return
        pairs = list(combinations(range(len(state)), 2))
        connected = [(a, b) for a, b in pairs if state[a][1] & state[b][1]]
        for a, b in connected or pairs:
            rest = tuple(x for n, x in enumerate(state) if n not in (a, b))
            labels = state[a][1] | state[b][1]
            yield from joined((*rest, (frozenset((state[a][0], state[b][0])), labels)))

    yield from joined(tuple(enumerate(parts)))


def _neighbours(tree: Tree) -> Iterator[Tree]:
    """The trees in which one step joins one of its parts with a part of the other first."""
    if isinstance(tree, int):
        return
    for one in tree:
        (other,) = tree - {one}
        for new in _neighbours(one):
            yield frozenset((new, other))
        if not isinstance(one, int):
            for inner in one:
                (rest,) = one - {inner}
                yield frozenset((rest, frozenset((inner, other))))


def _operations(
    tree: Tree, parts: Sequence[frozenset[str]], keys: frozenset[str], sizes: dict[str, int]
) -> int:
    """The number of points of all steps of an order."""
    total = 0

    def labels(tree: Tree) -> tuple[frozenset[str], frozenset[int]]:
        nonlocal total
        if isinstance(tree, int):
            return parts[tree], frozenset((tree,))
        pairs = [labels(part) for part in tree]
        every = frozenset().union(*(own for own, _ in pairs))
        members = frozenset().union(*(numbers for _, numbers in pairs))
        total += prod(sizes[x] for x in every)
        outside = (parts[n] for n in range(len(parts)) if n not in members)
        return every & keys.union(*outside), members

    labels(tree)
    return total


def _tree(path: Path, count: int) -> Tree:
    trees: list[Tree] = list(range(count))
    for step in path:
        joined = frozenset(trees[n] for n in step)
        trees = [tree for n, tree in enumerate(trees) if n not in step]
        trees.append(joined)
    return trees[-1]


def _path(tree: Tree, count: int) -> Path:
    """The steps of an order, inner ones first."""
    present: list[Tree] = list(range(count))
    path: Path = []

    def join(tree: Tree) -> None:
        if isinstance(tree, int):
            return
        for part in sorted(tree, key=_text):
            join(part)
        step = tuple(sorted(present.index(part) for part in tree))
        for n in reversed(step):
            del present[n]
        present.append(tree)
        path.append(step)

    join(tree)
    return path


def _text(tree: Tree) -> str:
    """A text by which trees are sorted."""
    return str(tree) if isinstance(tree, int) else f"({' '.join(sorted(map(_text, tree)))})"
