"""The choice of nodes that run together: they pass larger results than they read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.records import dataclass
from einsql.ir.einsum.graph import EinSum, Node, Operand
from einsql.ir.einsum.reasons import Reason
from einsql.kernels.groups.grouping import Grouping
from einsql.kernels.groups.members import is_product
from einsql.kernels.kernel import Compile
from einsql.kernels.vectorized import views

if TYPE_CHECKING:
    from einsql.kernels.groups import group as _group
    from einsql.kernels.groups import plan as _plan
    from einsql.kernels.groups.plan import Plan
else:  # loaded when nodes are fused
    _group = LazyModule("einsql.kernels.groups.group")
    _plan = LazyModule("einsql.kernels.groups.plan")

NOT_FUSED = "not fused"
"""The effect of the reasons that the search records."""
MOST = 12
"""Greatest number of nodes of a group; larger kernels take too long to compile."""
DEEPEST = 256
"""Multiplications per value from which passing it in memory is cheap.

A product of a block reads the complete other side, which BLAS reads once for all blocks. The
feed-forward layer of a transformer, 512 to 1376 and back, took a quarter longer as a group.
"""
DEEPEST_MAP = 16
"""The same limit if only maps or only products precede a product: a value is stored and read once.

With 32 and more, a storing pass followed by BLAS took 0.6 to 0.9 of the time. A product of matrices
followed by another one took 0.2 of it by BLAS (experiment `networks`).
"""
DEEPEST_ONE = 64
"""The same limit if there is one product with an element-wise consumer.

With 10 a group took 0.8 of the time, with 64 0.95 and with 256 1.05.
"""


def groups_of(
    nodes: Sequence[Node],
    roots: Sequence[Node],
    heavy: Sequence[EinSum],
    least: int,
    compile_node: Compile,
    plain: Compile | None,
) -> Grouping:
    """Returns the groups of nodes that run faster together.

    Args:
        nodes: A graph, producers first.
        roots: The roots of the graph.
        heavy: The nodes that may be fused with others.
        least: Elements from which an intermediate result is large.
        compile_node: Compiles a single node, for groups that fall back to single nodes.
        plain: See `einsql.kernels.groups.find_groups`.
    """
    search = _Search(nodes, roots, least)
    groups = [_group.Group(plan, compile_node, plain) for plan in search.plans(heavy)]
    return Grouping(groups, {id(nodes[at]): why for at, why in search.refused.items()})


@dataclass(slots=True)
class _Found:
    """The numbers of nodes, and their plan if there are at least two."""

    numbers: frozenset[int]
    plan: Plan | None


class _Search:
    """Fuses each node in turn with the groups that it reads."""

    def __init__(self, nodes: Sequence[Node], roots: Sequence[Node], least: int) -> None:
        self.nodes = nodes
        self.least = least
        self.number = {id(n): at for at, n in enumerate(nodes)}
        self.roots = {self.number[id(r)] for r in roots}
        self.readers: list[set[int]] = [set() for _ in nodes]
        self.sources: list[tuple[int, ...]] = []
        self.shallow: list[set[int]] = []  # the sources whose values a node may read within a group
        self.of: dict[int, _Found] = {}
        self.refused: dict[int, Reason] = {}
        self.reached: list[int] = []  # bits of each node's dependencies and of itself
        for at, n in enumerate(nodes):
            reached, operands = 1 << at, n.operands if isinstance(n, EinSum) else ()
            self.sources.append(tuple({self.number[id(o.source)] for o in operands}))
            self.shallow.append(_shallow(n, self.number) if isinstance(n, EinSum) else set())
            for source in self.sources[at]:
                self.readers[source].add(at)
                reached |= self.reached[source]
            self.reached.append(reached)

    def plans(self, heavy: Sequence[EinSum]) -> list[Plan]:
        """The plans of the groups among the heavy nodes."""
        for node in heavy:
            at = self.number[id(node)]
            if not views.matches(node):
                group = self._joined(at, self._near(at)) or _Found(frozenset((at,)), None)
                self.of |= dict.fromkeys(group.numbers, group)
        groups = {id(f): f.plan for f in self.of.values()}
        return [plan for plan in groups.values() if plan is not None]

    def _near(self, at: int) -> list[_Found]:
        """The groups that a node reads and with which it may be fused."""
        seen = self._behind(at, self.sources)
        near = {id(f): f for f in (self.of.get(n) for n in sorted(seen)) if f is not None}
        return list(near.values())

    def _behind(self, at: int, sources: Sequence[Iterable[int]]) -> set[int]:
        """A node and the producers that a group with it may contain."""
        seen, front = {at}, {at}
        for _ in range(MOST - 1):
            front = {s for n in front for s in sources[n]} - seen
            seen |= front
        return seen

    def _reads(self, at: int, numbers: frozenset[int]) -> bool:
        return any(self.reached[at] >> n & 1 for n in numbers)

    def _joined(self, at: int, near: list[_Found]) -> _Found | None:
        """The first valid union of the node with the groups that it reads.

        If there is none, records the reason: that of the node's own operands, or of the first try.
        """
        why: Reason | None = None
        for parts in self._tries(at, near):
            numbers = self._closed(at, parts)
            plan = self._plan(numbers, parts) if isinstance(numbers, frozenset) else numbers
            if isinstance(numbers, frozenset) and isinstance(plan, _plan.Plan):
                return _Found(numbers, plan)
            why = why or (plan if isinstance(plan, Reason) else None)
        why = (self._too_deep(at) if near else None) or why
        if why is not None:
            self.refused[at] = why
        return None

    def _too_deep(self, at: int) -> Reason | None:
        """The reason of a node to which no group may pass the values that it reads."""
        node = self.nodes[at]
        assert isinstance(node, EinSum)
        for o in node.operands:
            if isinstance(o.source, EinSum) and self.number[id(o.source)] not in self.shallow[at]:
                return _deep(node, o, DEEPEST)
        return None

    def _tries(self, at: int, near: list[_Found]) -> Iterator[list[_Found]]:
        """The sets of groups to fuse with a node within `MOST`, the most promising first."""
        most = MOST - 1 - sum(len(f.numbers) for f in near)
        if len(near) > 1 and most >= 0:
            yield near
        if len(near) > 2 and most >= -1:  # a mask, for example, does not have every row
            for f in near:
                if self._is_first(f, near):
                    yield [g for g in near if g is not f]
        handed = self._behind(at, self.shallow)
        for f in sorted(near, key=lambda f: -max(f.numbers)):
            if not handed.isdisjoint(f.numbers):
                yield [f]

    def _is_first(self, single: _Found, near: Sequence[_Found]) -> bool:
        """True for a single node that reads none of the other groups."""
        if single.plan is not None:
            return False
        (at,) = single.numbers
        return not any(self._reads(at, f.numbers) for f in near if f is not single)

    def _closed(self, at: int, parts: Sequence[_Found]) -> frozenset[int] | Reason:
        """A node and groups with all intermediate nodes.

        Returns:
            A reason if there are too many nodes, or if they contain only a part of another group.
        """
        closed = {at}.union(*(f.numbers for f in parts))
        inside, stack = sum(1 << n for n in closed), list(closed)
        while stack and len(closed) <= MOST:
            for n in self.sources[stack.pop()]:
                if n not in closed and self.reached[n] & inside:
                    closed.add(n)
                    stack.append(n)
        if len(closed) > MOST:
            return Reason(NOT_FUSED, (f"the group would have more than {MOST} operations",))
        chosen = {id(f) for f in parts}
        for n in sorted(closed - {at}):
            other = self.of.get(n)
            if other is not None and id(other) not in chosen:
                return Reason(NOT_FUSED, (self.nodes[n], " between them runs in another step"))
        return frozenset(closed)

    def _plan(self, numbers: frozenset[int], parts: Sequence[_Found]) -> Plan | Reason | None:
        """The plan of a group, or why there is none; None if fusing would save nothing."""
        order = sorted(numbers)
        chosen = [n for n in (self.nodes[at] for at in order) if isinstance(n, EinSum)]
        if len(chosen) < len(order) or not self._pays(order):
            return None
        sums = [bool(n.reduced) for n in chosen]
        if not any(sums[:-1]) or all(map(is_product, chosen)):
            most = DEEPEST_MAP
        else:
            most = DEEPEST_ONE if sum(sums) == 1 else DEEPEST
        inside = {id(n) for n in chosen}
        computed = {id(self.nodes[at]) for f in parts if f.plan is not None for at in f.numbers}
        edges = (
            (n, o)
            for n in chosen
            for o in n.operands
            # A map of a product that a group computes anyway only saves passing its values.
            if id(o.source) in inside and (n.reduced or id(o.source) not in computed)
        )
        deep = next((edge for edge in edges if _depth(*edge) > most), None)
        if deep is not None:
            return _deep(*deep, most)
        visible = [at in self.roots or not self.readers[at] <= numbers for at in order]
        plan = _plan.make_plan(chosen, visible)
        return Reason(NOT_FUSED, (plan,)) if isinstance(plan, str) else plan

    def _pays(self, order: Sequence[int]) -> bool:
        """True if the last node reads a large operand that the group computes or reads."""
        last = self.nodes[order[-1]]
        assert isinstance(last, EinSum)
        inside = set(order)
        through = {id(self.nodes[n]) for n in inside}
        for n in order[:-1]:
            node = self.nodes[n]
            assert isinstance(node, EinSum)
            through |= {id(o.source) for o in node.operands}
        return any(id(o.source) in through and _size(o.source) >= self.least for o in last.operands)


def _deep(node: EinSum, operand: Operand, most: int) -> Reason:
    """The reason for a value that takes too many multiplications to be passed in a group."""
    depth = f"{_depth(node, operand):,} multiplications for each value of "
    return Reason(NOT_FUSED, (depth, operand.source, f" (limit {most})"))


def _shallow(node: EinSum, number: Mapping[int, int]) -> set[int]:
    """The numbers of the nodes whose values a group may pass to a node."""
    return {
        number[id(o.source)]
        for o in node.operands
        if isinstance(o.source, EinSum) and _depth(node, o) <= DEEPEST
    }


def _depth(node: EinSum, operand: Operand) -> int:
    """The number of multiplications that compute or use each passed value."""
    source = operand.source
    uses = 1
    if is_product(node):
        uses = prod(node.axis(k).extent for k in node.keys if k not in operand.labels)
    makes = 1
    if isinstance(source, EinSum) and is_product(source):
        makes = prod(source.axis(x).extent for x in source.reduced)
    return max(uses, makes)


def _size(node: Node) -> int:
    return prod(k.extent for k in node.schema.keys)
