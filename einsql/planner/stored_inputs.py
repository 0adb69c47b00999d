"""Stored tensors as inputs of graphs: the sites that PARTITION BY and REPLICATE OVER give them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule
from einsql.core.settings import Settings, mesh_text, points
from einsql.ir.einsum.graph import Input
from einsql.ir.layout import Mesh
from einsql.ir.partition import OnMesh, Parts

if TYPE_CHECKING:
    from einsql.ir.layout import Tiles
    from einsql.optimizer.placement import layouts
    from einsql.storage.objects import Tensor
else:  # takes 20 ms; only several sites need it
    layouts = LazyModule("einsql.optimizer.placement.layouts")


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
    if isinstance(partition, Parts):
        return Input(name, relation.schema, partition.numbers, partition.order, tiles, sparse)
    if tiles is None and partition is not None:
        tiles = declared_tiles(tensor, settings, sites)
    return Input(name, relation.schema, lies=tiles, sparse=sparse)


def declared_tiles(tensor: Tensor, settings: Settings, sites: int) -> Tiles | None:
    """The tiles that a tensor's declaration gives it; None without one in force."""
    partition, keys = tensor.partition, [(k.lo, k.hi) for k in tensor.relation.schema.keys]
    if isinstance(partition, Parts):
        return layouts.declared(keys, partition.numbers, sites, partition.order)
    if partition is None or sites == 1 or points(settings.mesh) != sites:
        return None
    mesh = Mesh(settings.mesh)
    if missing_axes(partition, mesh):
        return None
    return layouts.tiles_of(keys, partition.layout(mesh))


def missing_axes(partition: OnMesh, mesh: Mesh) -> tuple[str, ...]:
    """The axes that a partition names and a mesh lacks."""
    return tuple(name for name in partition.named if name not in dict(mesh.axes))


def idle_reason(tensor: Tensor, settings: Settings) -> str:
    """The reason why a declaration over mesh axes has no force at several sites; "" if it has."""
    partition = tensor.partition
    if not isinstance(partition, OnMesh) or settings.sites == 1:
        return ""
    clauses = partition.clauses([k.name for k in tensor.relation.schema.keys])
    prefix = f"{clauses} of {tensor.name} has no effect: "
    if not settings.mesh:
        return f"{prefix}SET mesh gives the sites no axes"
    if not settings.mesh_in_force:
        mesh = mesh_text(settings.mesh)
        return f"{prefix}the mesh {mesh} is without force at {settings.sites:,} sites"
    missing = missing_axes(partition, Mesh(settings.mesh))
    return f'{prefix}the mesh has no axis "{missing[0]}"' if missing else ""
