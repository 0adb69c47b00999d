"""Stored tensors as inputs of graphs: the sites that PARTITION BY and REPLICATE OVER give them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from einsql.core.lazy_module import LazyModule
from einsql.core.settings import Settings, mesh_text, points
from einsql.core.sparse.matrix import sparse_of
from einsql.core.sparse.pattern import Pattern
from einsql.core.units import plural
from einsql.ir.einsum.graph import (
    EinSum,
    Input,
    Node,
    Roots,
    filled_operands,
    stored_operands,
    walk,
)
from einsql.storage.fields import Fields

if TYPE_CHECKING:
    from einsql.ir import layout as _layout
    from einsql.ir import partition as _partition
    from einsql.ir.einsum import kept_sums as _kept_sums
    from einsql.ir.einsum.sharded_notation import Axes
    from einsql.ir.layout import Mesh, Tiles
    from einsql.ir.partition import OnMesh
    from einsql.optimizer.placement import layouts
    from einsql.storage.objects import Tensor
else:  # takes 20 ms; only several sites need it
    layouts = LazyModule("einsql.optimizer.placement.layouts")
    _kept_sums = LazyModule("einsql.ir.einsum.kept_sums")
    _partition = LazyModule("einsql.ir.partition")
    _layout = LazyModule("einsql.ir.layout")


NOTICED = 2**24
"""Keys from which there is a notice if a sparse tensor becomes an array: it takes over 80 MB."""


def stored_input(name: str, tensor: Tensor, settings: Settings, sites: int) -> Input:
    """The input of a stored tensor, with the sites where its tiles are or are declared to be.

    Args:
        name: The name of the input.
        tensor: The tensor.
        settings: The settings, which have the mesh.
        sites: The number of sites.
    """
    relation, partition = tensor.relation, tensor.partition
    tiles, sparse = relation.fields.tiles_over(sites), relation.fields.is_sparse
    pattern = pattern_of(relation.fields, sites)
    if partition is not None and isinstance(partition, _partition.Parts):
        parts, order = partition.numbers, partition.order
        return Input(name, relation.schema, parts, order, tiles, sparse, pattern=pattern)
    constant = tiles is not None and tensor.is_constant
    if tiles is None and partition is not None:
        tiles = declared_tiles(tensor, settings, sites)
    return Input(
        name, relation.schema, lies=tiles, sparse=sparse, constant=constant, pattern=pattern
    )


def pattern_of(fields: Fields, sites: int) -> Pattern | None:
    """The positions of sparse fields' elements, for cuts over several sites; else None."""
    few = sparse_of(fields) if sites > 1 else None
    return None if few is None else Pattern(few)


def inputs_of(*roots: Node) -> list[Input]:
    """Returns the inputs of a graph."""
    return [n for n in walk(*roots) if isinstance(n, Input)]


def dense_reads(roots: Roots) -> Iterator[str]:
    """Yields a notice for each large sparse tensor that a graph reads as an array."""
    for node in walk(*roots):
        if not isinstance(node, EinSum):
            continue
        by_elements = {*stored_operands(node), *filled_operands(node)}
        for n, o in enumerate(node.operands):
            source = o.source
            if n in by_elements or not (isinstance(source, Input) and source.sparse):
                continue
            if source.schema.size >= NOTICED:
                shape = " × ".join(f"{extent:,}" for extent in source.schema.shape)
                yield (
                    f"{source.name} is sparse, and becomes an array of {shape} for this statement, "
                    "which computes a key of it or compares two of them"
                )


def parts_input(name: str, tensor: Tensor, settings: Settings) -> Input:
    """The input of the parts of a tensor that is kept unreduced on the mesh of the settings."""
    parts, axes = tensor.relation.fields.summands, _axes_of_parts(tensor)
    assert parts is not None
    tiles, mesh = parts.fields.tiles_over(settings.sites), _layout.Mesh(settings.mesh)
    if tiles is None:
        layout = _layout.Layout(mesh, _layout.placement(mesh, axes))
        tiles = layouts.tiles_of([(k.lo, k.hi) for k in parts.schema.keys], layout)
    return Input(name, parts.schema, lies=tiles)


def sum_of_parts(node: Node, tensor: Tensor, settings: Settings) -> EinSum:
    """The sum over the parts of a tensor that is kept unreduced, at the sites of the parts.

    Args:
        node: The parts.
        tensor: The tensor.
        settings: The settings, which have the mesh.
    """
    return _kept_sums.sum_over_first_key(node, _layout.Mesh(settings.mesh), _axes_of_parts(tensor))


def _axes_of_parts(tensor: Tensor) -> Axes:
    """The mesh axes of the key of the parts, then those of each key of the tensor."""
    parts, partition = tensor.relation.fields.summands, tensor.partition
    assert parts is not None
    assert isinstance(partition, _partition.OnMesh)
    return (parts.axes, *partition.axes)


def declared_tiles(tensor: Tensor, settings: Settings, sites: int) -> Tiles | None:
    """The tiles that a tensor's declaration gives it; None without one in force."""
    partition, keys = tensor.partition, [(k.lo, k.hi) for k in tensor.relation.schema.keys]
    if isinstance(partition, _partition.Parts):
        return layouts.declared(keys, partition.numbers, sites, partition.order)
    if partition is None or sites == 1 or points(settings.mesh) != sites:
        return None
    mesh = _layout.Mesh(settings.mesh)
    if missing_axes(partition, mesh):
        return None
    return layouts.tiles_of(keys, partition.layout(mesh))


def missing_axes(partition: OnMesh, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a partition names and a mesh lacks."""
    return tuple(name for name in partition.named if name not in dict(mesh.axes))


def idle_reason(tensor: Tensor, settings: Settings) -> str:
    """The reason why a declaration over mesh axes has no force at several sites; "" if it has."""
    partition = tensor.partition
    if settings.sites == 1 or not isinstance(partition, _partition.OnMesh):
        return ""
    clauses = partition.clauses([k.name for k in tensor.relation.schema.keys])
    prefix = f"{clauses} of {tensor.name} has no effect: "
    if not settings.mesh:
        return f"{prefix}SET mesh gives the sites no axes"
    if not settings.mesh_in_force:
        mesh = mesh_text(settings.mesh)
        return f"{prefix}the mesh {mesh} is without force at {plural(settings.sites, 'site')}"
    missing = missing_axes(partition, _layout.Mesh(settings.mesh))
    return f'{prefix}the mesh has no axis "{missing[0]}"' if missing else ""


def boxes_read(roots: Roots, names: Collection[str]) -> tuple[tuple[str, np.ndarray], ...]:
    """The box of each named input that a graph reads: int64 (keys, 2).

    Args:
        roots: The graph.
        names: The names of the inputs.
    """
    boxes: dict[str, np.ndarray] = {}
    for node in walk(*roots):
        if isinstance(node, Input):
            if node in roots and node.name in names:
                boxes[node.name] = _box([(k.lo, k.hi) for k in node.schema.keys])
            continue
        axes = {a.label: (a.lo, a.hi) for a in node.axes}
        for operand in node.operands:
            source = operand.source
            if isinstance(source, Input) and source.name in names:
                box = _box([axes[label] for label in operand.labels])
                known = boxes.get(source.name, box)
                boxes[source.name] = np.stack(
                    [np.minimum(known[:, 0], box[:, 0]), np.maximum(known[:, 1], box[:, 1])], 1
                )
    return tuple(boxes.items())


def _box(bounds: Sequence[tuple[int, int]]) -> np.ndarray:
    return np.array(bounds, np.int64).reshape(-1, 2)
