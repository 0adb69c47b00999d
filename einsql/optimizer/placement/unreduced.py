"""Sums that are kept unreduced: Σₙ xₙ = Σₚ Σ_{n in part p} xₙ, without the sum over the parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from einsql.core.schema import DType
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Input,
    Label,
    Node,
    Operand,
    bigint,
    call,
    fresh,
)
from einsql.ir.einsum.sharded_notation import grid_of
from einsql.ir.layout import Layout, Mesh, Shard
from einsql.optimizer.placement.deferred_reduction import is_linear_in_sums
from einsql.optimizer.rewrite.node_properties import in_order

_KEPT = (DType.FLOAT, DType.DOUBLE)
"""The types of sums that are kept; others are stored in a type other than the one they add in."""
PART = "part"
"""The wanted name of the key that numbers the parts."""


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
        if any(o.reduction != "sum" or o.dtype not in _KEPT for o in node.outputs):
            return None
        split = [a for a in node.axes if a.label in node.reduced and a.define is None]
        if not split:
            return None
        axis = max(split, key=lambda a: (self._is_sharded(node, a.label), a.extent))
        labels = [a.label for a in node.axes]
        if axis.extent == self.number and axis.lo == 0:
            return replace(node, keys=(axis.label, *node.keys))
        part = fresh(PART, labels)
        place = fresh("place", [*labels, part])
        length = max(1, -(-axis.extent // self.number))
        first = call("mul", DType.BIGINT, Label(part), bigint(length))
        position = call("add", DType.BIGINT, first, Label(place))
        if axis.lo:
            position = call("add", DType.BIGINT, position, bigint(axis.lo))
        domain = [Axis(part, 0, self.number), Axis(place, 0, length)]
        domain += [replace(a, define=position) if a is axis else a for a in node.axes]
        return in_order(replace(node, axes=tuple(domain), keys=(part, *node.keys)))

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
