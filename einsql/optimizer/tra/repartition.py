"""R2: moves broadcasts and shuffles so that fewer bytes cross sites (TRA §4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from einsql.ir.einsum.graph import Label
from einsql.ir.ia.plan import (
    Bcast,
    LocalAggregate,
    LocalFilter,
    LocalJoin,
    LocalMap,
    LocalStack,
    Node,
    Shuffle,
)
from einsql.optimizer.tra.rules import Build, ImplementationRule, bare


def last_move(node: Node) -> Iterator[Build]:
    """R2-1; also drops a shuffle to the placement of the shuffle before it."""
    if not isinstance(node, Bcast | Shuffle):
        return
    source = node.source
    if np.array_equal(source.schema.holders, node.schema.holders):
        yield lambda: source
    if isinstance(source, Bcast | Shuffle):
        yield lambda: replace(node, source=source.source)


def filter_before_move(node: Node) -> Iterator[Build]:
    """R2-2."""
    match node:
        case LocalFilter(source=Bcast() | Shuffle() as move):
            yield lambda: replace(move, source=LocalFilter(move.source, node.condition))


def map_and_move(node: Node) -> Iterator[Build]:
    """R2-3, in both directions: a map may shrink or enlarge the arrays that move.

    A shuffle moves past a map that preserves the values of the shuffle's keys at any position.
    """
    match node:
        case LocalMap(source=Bcast(source=moved)):
            yield lambda: Bcast(replace(node, source=moved))
        case LocalMap(source=Shuffle(source=moved, part_dims=dims)):
            after = _renumbered(dims, {k: n for n, k in _kept(node).items()})
            if after is not None:
                yield lambda: Shuffle(replace(node, source=moved), after)
        case Bcast(source=LocalMap() as inner):
            yield lambda: replace(inner, source=Bcast(inner.source))
        case Shuffle(source=LocalMap() as inner, part_dims=dims):
            before = _renumbered(dims, _kept(inner))
            if before is not None:
                yield lambda: replace(inner, source=Shuffle(inner.source, before))


def _renumbered(keys: tuple[int, ...], numbers: dict[int, int]) -> tuple[int, ...] | None:
    """The new numbers of keys; None if a key has none."""
    return tuple(map(numbers.__getitem__, keys)) if numbers.keys() >= set(keys) else None


def _kept(node: LocalMap) -> dict[int, int]:
    """The map's key dimensions that equal a key dimension of its source."""
    count = len(node.source.schema.blocks.bounds)
    if node.keys is None:
        return {k: k for k in range(count)}
    copied = {n: int(e.name[1:]) for n, e in enumerate(node.keys) if isinstance(e, Label)}
    return {n: k for n, k in copied.items() if k < count}


def drop_shuffle(node: Node) -> Iterator[Build]:
    """R2-4, also for Stack: the type shows whether each group of R has one site."""
    if not isinstance(node, LocalAggregate | LocalStack) or not isinstance(node.source, Shuffle):
        return
    move, groups = node.source, group_keys(node)
    if set(move.part_dims) <= groups and move.source.schema.merge is None:
        yield lambda: replace(node, source=move.source)


def group_keys(node: LocalAggregate | LocalStack) -> set[int]:
    """The operand's key dimensions by which an operation groups."""
    if isinstance(node, LocalAggregate):
        return set(node.group_by)
    return set(range(len(node.source.schema.blocks.bounds))) - {node.key}


def two_phases(node: Node) -> Iterator[Build]:
    """R2-5, also with Bcast for Shuffle: finishing kernels run once, in the last phase."""
    if not isinstance(node, LocalAggregate) or not isinstance(node.source, Bcast | Shuffle):
        return
    move = node.source
    dims = move.part_dims if isinstance(move, Shuffle) else ()
    alone = len(node.group_by) == len(move.source.schema.blocks.bounds)  # nothing to merge
    if alone or not set(dims) <= set(node.group_by):
        return
    first = replace(node, source=move.source, finish=())
    groups = tuple(range(len(node.group_by)))
    moved: Node = Bcast(first)
    if isinstance(move, Shuffle):
        moved = Shuffle(first, tuple(node.group_by.index(k) for k in dims))
    yield lambda: LocalAggregate(moved, groups, node.merge, finish=node.finish)


def join_ways(node: Node) -> Iterator[Build]:
    """R2-6: the moves that bring the arrays of each match to one site.

    If both sides are replicated, each site computes every match, and the type records these
    as copies: a later shuffle or aggregation uses one of them.
    """
    if not isinstance(node, LocalJoin):
        return
    join, lying = node, tuple(map(bare, node.sources))

    def broadcast_but(kept: int) -> Build:
        sources = tuple(s if n == kept else Bcast(s) for n, s in enumerate(lying))
        return lambda: replace(join, sources=sources)

    yield lambda: replace(join, sources=lying)
    for n in range(len(lying)):
        yield broadcast_but(n)
    yield lambda: shuffled_join(join, lying, join.join_keys)


def shuffled_join(join: LocalJoin, sources: tuple[Node, ...], dims: tuple[int, ...]) -> LocalJoin:
    """The join over operands that are shuffled on match keys; every operand has these keys."""
    moved = [
        Shuffle(s, tuple(places.index(k) for k in dims))
        for s, places in zip(sources, join.keys, strict=True)
    ]
    return replace(join, sources=tuple(moved))


def shuffle_before_join(node: Node) -> Iterator[Build]:
    """R2-7: the shuffle is on the join keys; a local join misses no match."""
    if not isinstance(node, Shuffle) or not isinstance(node.source, LocalJoin):
        return
    join, dims = node.source, node.part_dims
    if join.key_map is None and set(dims) == set(join.join_keys):
        yield lambda: shuffled_join(join, join.sources, dims)


REPARTITION: tuple[ImplementationRule, ...] = (
    ImplementationRule("R2-1", "SHUF_p(SHUF_q(R)) = SHUF_p(R); so for BCAST", last_move),
    ImplementationRule("R2-2", "σ_p(BCAST(R)) = BCAST(σ_p(R)); so for SHUF", filter_before_move),
    ImplementationRule(
        "R2-3",
        "BCAST(λ_{k,f}(R)) = λ_{k,f}(BCAST(R)); so for SHUF_p if k keeps the keys p",
        map_and_move,
    ),
    ImplementationRule(
        "R2-4",
        "Σ_G(SHUF_p(R)) = Σ_G(R) if p ⊆ G and each group of R has one site",
        drop_shuffle,
    ),
    ImplementationRule(
        "R2-5", "Σ_G(SHUF_p(R)) = Σ(SHUF_p(Σ_G(R))) if p ⊆ G; so for BCAST", two_phases
    ),
    ImplementationRule(
        "R2-6",
        "BCAST(R) ⋈ S = R ⋈ BCAST(S) = SHUF_J(R) ⋈_J SHUF_J(S), and R ⋈ S if it misses no match",
        join_ways,
    ),
    ImplementationRule(
        "R2-7",
        "SHUF_J(R ⋈_J S) = SHUF_J(R) ⋈_J SHUF_J(S)",
        shuffle_before_join,
    ),
)
