"""The specific rules: distributed products of matrices and other contractions (TRA §4.2).

A contraction is a local aggregation of a local join that sums over the join keys. X and Y are
its operands without their broadcasts and shuffles. The keys i occur only in X, the keys k only
in Y, and the keys j in both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from einsql.core.records import dataclass
from einsql.ir.ia.plan import Bcast, LocalAggregate, LocalJoin, LocalMap, Node, Shuffle
from einsql.ir.ia.typing import Duplicate
from einsql.ir.tra.block_schema import key_label
from einsql.optimizer.tra.repartition import shuffled_join
from einsql.optimizer.tra.rules import Build, ImplementationRule, bare


@dataclass(frozen=True, slots=True)
class _Contraction:
    """The operations of a contraction, and its operands without their moves."""

    sum: LocalAggregate
    join: LocalJoin
    operands: tuple[Node, Node]

    def over(self, join: Node, *moves: tuple[int, ...]) -> Node:
        """The contraction's sum over another join, with shuffles between them."""
        for dims in moves:
            join = Shuffle(join, dims)
        return replace(self.sum, source=join)


def _contraction(node: Node) -> _Contraction | None:
    if not isinstance(node, LocalAggregate):
        return None
    join = bare(node.source)
    if not isinstance(join, LocalJoin) or len(join.sources) != 2 or join.key_map is not None:
        return None
    if not join.join_keys:
        return None
    if set(node.group_by) != set(range(join.width)) - set(join.join_keys):
        return None
    left, right = map(bare, join.sources)
    return _Contraction(node, join, (left, right))


def _builds(ways: Callable[[_Contraction], Iterator[Build]], node: Node) -> Iterator[Build]:
    """The alternatives of a node that is a contraction."""
    contraction = _contraction(node)
    return iter(()) if contraction is None else ways(contraction)


def broadcast(c: _Contraction) -> Iterator[Build]:
    """BMM."""
    x, y = c.operands
    yield lambda: c.over(replace(c.join, sources=(Bcast(x), y)), c.sum.group_by)
    yield lambda: c.over(replace(c.join, sources=(x, Bcast(y))), c.sum.group_by)


def cross_product(c: _Contraction) -> Iterator[Build]:
    """CPMM."""
    yield lambda: c.over(shuffled_join(c.join, c.operands, c.join.join_keys), c.sum.group_by)


def replicated(c: _Contraction) -> Iterator[Build]:
    """RMM, as printed: all arrays of one (i, k) are sent to one site."""
    yield lambda: c.over(_on_all_keys(c, c.sum.group_by))


def three_dimensional(c: _Contraction) -> Iterator[Build]:
    """3D: each (i, j, k) is joined at a separate site, then each (i, k) is summed at one site."""
    every = tuple(range(c.join.width))
    yield lambda: c.over(_on_all_keys(c, every), c.sum.group_by)


def _on_all_keys(c: _Contraction, dims: tuple[int, ...]) -> LocalJoin:
    """The join of both operands, duplicated along their missing keys and shuffled."""
    every = tuple(range(c.join.width))
    bounds: dict[int, int] = {}
    for source, places in zip(c.operands, c.join.keys, strict=True):
        bounds |= zip(places, source.schema.blocks.bounds, strict=True)
    sources: list[Node] = []
    for source, places in zip(c.operands, c.join.keys, strict=True):
        lacking = [k for k in every if k not in places]
        order = [*places, *lacking]
        for k in lacking:
            source = LocalMap(source, emit=Duplicate(bounds[k]))
        if order != list(every):
            keys = tuple(key_label(order.index(k)) for k in every)
            if lacking and isinstance(source, LocalMap):
                source = replace(source, keys=keys)
            else:
                source = LocalMap(source, keys)
        sources.append(Shuffle(source, dims))
    return replace(c.join, sources=tuple(sources), keys=(every, every))


PRODUCTS: tuple[ImplementationRule, ...] = (
    ImplementationRule(
        "BMM",
        "X·Y = Σ_{i,k}(SHUF_{i,k}(BCAST(X) ⋈ Y)), or with BCAST(Y)",
        partial(_builds, broadcast),
    ),
    ImplementationRule(
        "CPMM", "X·Y = Σ_{i,k}(SHUF_{i,k}(SHUF_j(X) ⋈ SHUF_j(Y)))", partial(_builds, cross_product)
    ),
    ImplementationRule(
        "RMM",
        "X·Y = Σ_{i,k}(SHUF_{i,k}(X × k) ⋈_{i,j,k} SHUF_{i,k}(i × Y))",
        partial(_builds, replicated),
    ),
    ImplementationRule(
        "3D",
        "X·Y = Σ_{i,k}(SHUF_{i,k}(SHUF_{i,j,k}(X × k) ⋈_{i,j,k} SHUF_{i,j,k}(i × Y)))",
        partial(_builds, three_dimensional),
    ),
)
