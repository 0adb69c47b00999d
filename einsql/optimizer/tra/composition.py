"""R1: composes kernels of local operations, to compute and store less (TRA §4.2)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from einsql.ir.einsum.graph import Expr, Label, conj, labels_of
from einsql.ir.einsum.graph_rewriting import relabel
from einsql.ir.ia.kernel_laws import distributes
from einsql.ir.ia.plan import Kernels, LocalAggregate, LocalFilter, LocalJoin, LocalMap, Node
from einsql.optimizer.tra.laws import before, chained, is_view, substituted
from einsql.optimizer.tra.rules import Build, ImplementationRule


def merge_filters(node: Node) -> Iterator[Build]:
    """R1-1."""
    match node:
        case LocalFilter(source=LocalFilter() as inner):
            yield lambda: LocalFilter(inner.source, conj(inner.condition, node.condition))


def merge_maps(node: Node) -> Iterator[Build]:
    """R1-2: the outer map emits once, or the inner one does not change arrays."""
    match node:
        case LocalMap(source=LocalMap() as inner, emit=None):
            kernels = chained(inner.kernels, node.kernels)
            yield lambda: LocalMap(inner.source, _composed(node, inner), kernels, inner.emit)
        case LocalMap(source=LocalMap(kernels=(), emit=None) as inner):
            yield lambda: LocalMap(inner.source, _composed(node, inner), node.kernels, node.emit)


def _composed(outer: LocalMap, inner: LocalMap) -> tuple[Expr, ...] | None:
    """The outer map's key functions over the inner map's source keys."""
    if inner.keys is None:
        return outer.keys
    inner_keys = inner.keys
    if outer.emit is not None:  # the emission count follows the inner map's keys
        inner_keys = (*inner_keys, Label(f"k{len(inner.source.schema.blocks.bounds)}"))
    if outer.keys is None:
        return inner_keys
    return tuple(substituted(e, inner_keys) for e in outer.keys)


def filter_first(node: Node) -> Iterator[Build]:
    """R1-3."""
    match node:
        case LocalFilter(source=LocalMap(keys=None, emit=None) as inner):
            yield lambda: replace(inner, source=LocalFilter(inner.source, node.condition))


def map_into_aggregation(node: Node) -> Iterator[Build]:
    """R1-4: the map runs at the end of the fold, or before it if it distributes over ⊕."""
    match node:
        case LocalMap(source=LocalAggregate() as inner, keys=None, emit=None):
            yield lambda: replace(inner, finish=chained(inner.finish, node.kernels))
            if not inner.finish and all(distributes(k, inner.merge) for k in node.kernels):
                yield lambda: replace(inner, inner=chained(inner.inner, node.kernels))


def filter_into_aggregation(node: Node) -> Iterator[Build]:
    """R1-5: the condition reads the grouping keys, the only keys above Σ."""
    match node:
        case LocalFilter(source=LocalAggregate() as inner):
            yield lambda: replace(inner, where=conj(inner.where, node.condition))


def filter_into_join(node: Node) -> Iterator[Build]:
    """R1-6: a condition on join keys becomes a condition on matches or on both operands."""
    if not isinstance(node, LocalFilter) or not isinstance(node.source, LocalJoin):
        return
    join = node.source
    condition = substituted(node.condition, join.key_map)
    read = {int(name[1:]) for name in labels_of(condition)}
    if read <= set(join.join_keys):
        yield lambda: replace(join, where=conj(join.where, condition))

    def filtered(source: Node, places: tuple[int, ...]) -> Node:
        own = {f"k{p}": f"k{n}" for n, p in enumerate(places)}
        return LocalFilter(source, relabel(condition, own)) if read <= set(places) else source

    if any(read <= set(places) for places in join.keys):
        yield lambda: replace(join, sources=tuple(map(filtered, join.sources, join.keys)))


def map_into_join(node: Node) -> Iterator[Build]:
    """R1-7: arrayMap moves into the composed projOp; keyMap reads join keys only."""
    if not isinstance(node, LocalMap) or not isinstance(node.source, LocalJoin):
        return
    join = node.source
    if node.emit is not None:
        return
    if node.keys is None or (join.key_map is None and _reads(node.keys) <= set(join.join_keys)):
        keys = join.key_map if node.keys is None else node.keys
        yield lambda: replace(join, kernels=chained(join.kernels, node.kernels), key_map=keys)
    pushed = _pushed(join, node.kernels)
    if pushed is not None and node.keys is None:
        yield lambda: replace(
            join,
            sources=tuple(LocalMap(s, kernels=node.kernels) for s in join.sources),
            kernels=pushed,
        )


def _reads(keys: tuple[Expr, ...]) -> set[int]:
    return {int(name[1:]) for e in keys for name in labels_of(e)}


def _pushed(join: LocalJoin, maps: Kernels) -> Kernels | None:
    """The join's kernel for operands that the maps, all of them views, were applied to."""
    if len(join.kernels) != 1 or not all(is_view(k) for k in maps):
        return None
    kernel = join.kernels[0]
    for view in maps:
        composed = before(kernel, view)
        if composed is None:
            return None
        kernel = composed
    return (kernel,)


COMPOSITION: tuple[ImplementationRule, ...] = (
    ImplementationRule("R1-1", "σ_p(σ_q(R)) = σ_{q∧p}(R)", merge_filters),
    ImplementationRule("R1-2", "λ_{k,f}(λ_{l,g}(R)) = λ_{k∘l,f∘g}(R)", merge_maps),
    ImplementationRule("R1-3", "σ_p(λ_{id,f}(R)) = λ_{id,f}(σ_p(R))", filter_first),
    ImplementationRule(
        "R1-4",
        "λ_{id,f}(Σ_{G,⊕}(R)) = Σ_{G,f∘⊕}(R), f once at the end of the fold; "
        "= Σ_{G,⊕∘f}(R) if f distributes over ⊕",
        map_into_aggregation,
    ),
    ImplementationRule("R1-5", "σ_p(Σ_{G,⊕}(R)) = Σ_{p(G),⊕}(R)", filter_into_aggregation),
    ImplementationRule(
        "R1-6",
        "σ_p(R ⋈_J S) = R ⋈_{p(J)} S if p reads J only; = σ_p(R) ⋈_J S if p reads keys of R only",
        filter_into_join,
    ),
    ImplementationRule(
        "R1-7",
        "λ_{k,f}(R ⋈_{J,⊗} S) = R ⋈_{k(J),f∘⊗} S if k reads J only and is injective; "
        "= λ_f(R) ⋈_{J,⊗} λ_f(S) if k = id and f distributes over ⊗",
        map_into_join,
    ),
)
