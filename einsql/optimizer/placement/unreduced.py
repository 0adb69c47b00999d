"""Sums that are kept unreduced: Σₙ xₙ = Σₚ Σ_{n in part p} xₙ, without the sum over the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from einsql.core.records import dataclass
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Input, Node, Operand
from einsql.ir.einsum.graph_rewriting import fresh
from einsql.ir.einsum.kept_sums import PART, cut_axes, divided, keeps_parts, pending_label
from einsql.ir.einsum.sharded_notation import grid_of
from einsql.ir.layout import Layout, Mesh, Shard
from einsql.optimizer.placement.deferred_reduction import is_linear_in_sums


def pending_axes(
    node: Node, mesh: Mesh
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]] | None:
    """The mesh axes along which the requested grids leave a value partial.

    Args:
        node: A sum, or a map that is linear in sums.
        mesh: The mesh of the sites.

    Returns:
        The axes, and for each key of the node the mesh axes that cut it. None if nothing is
        partial, or the sums of a map are cut differently.
    """
    if isinstance(node, Input):
        return None
    label = pending_label(node, mesh)
    if label is not None:
        cut = cut_axes(node, mesh)
        return cut[label], {key: cut[key] for key in node.keys}
    if not is_linear_in_sums(node):
        return None
    pending = []
    for o in node.operands:
        source = pending_axes(o.source, mesh)
        if source is None:
            return None
        keys = zip(o.source.schema.keys, o.labels, strict=True)
        pending.append((source[0], {label: source[1][key.name] for key, label in keys}))
    return pending[0] if all(other == pending[0] for other in pending) else None


@dataclass(frozen=True, slots=True)
class Unreduced:
    """Rewrites sums, and maps that are linear in sums, so that they keep their parts.

    Attributes:
        mesh: The mesh of the sites.
        over: The mesh axes along which each site has one part.
    """

    mesh: Mesh
    over: tuple[str, ...]

    @property
    def number(self) -> int:
        """The number of parts."""
        return prod(size for name, size in self.mesh.axes if name in self.over)

    def node(self, node: Node, axes: Mapping[str, Sequence[str]]) -> EinSum | None:
        """The node with a first key of the parts, whose sum over this key is the node.

        Args:
            node: The node.
            axes: The mesh axes that shard keys of the node.

        Returns:
            The node on the grid of the mesh; None if it is neither a sum nor linear in sums.
        """
        if isinstance(node, Input) or node.guard != TRUE:
            return None
        split = self._linear(node, axes) if is_linear_in_sums(node) else self._sum(node)
        if split is None:
            return None
        shards = [self.over, *(axes.get(key, ()) for key in node.keys)]
        return replace(split, hint=(), grid=grid_of(self.mesh, split.keys, shards))

    def _linear(self, node: EinSum, axes: Mapping[str, Sequence[str]]) -> EinSum | None:
        part = fresh(PART, (a.label for a in node.axes))
        operands = []
        for o in node.operands:
            keys = o.source.schema.keys
            own = {k.name: axes.get(x, ()) for k, x in zip(keys, o.labels, strict=True)}
            source = self.node(o.source, own)
            if source is None:
                return None
            operands.append(Operand(source, (part, *o.labels)))
        domain = (Axis(part, 0, self.number), *node.axes)
        return replace(node, axes=domain, operands=tuple(operands), keys=(part, *node.keys))

    def _sum(self, node: EinSum) -> EinSum | None:
        if not keeps_parts(node):
            return None
        split = [a for a in node.axes if a.label in node.reduced and a.define is None]
        if not split:
            return None
        label = pending_label(node, self.mesh)
        if label is None or set(cut_axes(node, self.mesh)[label]) != set(self.over):
            label = max(split, key=lambda a: (self._is_sharded(node, a.label), a.extent)).label
        return divided(node, label, self.number)

    def _is_sharded(self, node: EinSum, label: str) -> bool:
        """True if an operand's sites are fixed with the label along one of the axes."""
        for o in node.operands:
            layout = self._layout(o.source)
            if layout is None:
                continue
            entries = zip(self.mesh.axes, layout.placed, strict=True)
            shards = (e.axis for (n, _), e in entries if n in self.over and isinstance(e, Shard))
            if any(o.labels[key] == label for key in shards):
                return True
        return False

    def _layout(self, source: Node) -> Layout | None:
        lies = source.lies if isinstance(source, Input) else None
        layout = None if lies is None else lies.layout
        return layout if layout is not None and layout.mesh == self.mesh else None
