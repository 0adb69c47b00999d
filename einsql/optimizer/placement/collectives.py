"""Derives the collectives of an exchange, which move tiles to the sites that need them."""

from __future__ import annotations

from itertools import accumulate, groupby, pairwise
from operator import mul

import numpy as np

from einsql.core.boxes import enclosing, extents
from einsql.ir.layout import Layout, Mesh, Placement, Tiles
from einsql.ir.spmd.program import Collective, CollectiveName
from einsql.optimizer.placement.communication import solve

MOST_CHANGED = 5
"""The maximum of mesh axes that change at once, because the solver tries their orders."""


def collectives(have: Tiles, need: Tiles, elements: int, width: int) -> tuple[Collective, ...]:
    """The collectives that move tiles to the sites that need them.

    Args:
        have: The stored tiles of a relation.
        need: The needed tiles.
        elements: The number of elements that move.
        width: Bytes of an element.
    """
    if elements == 0:
        complete = need.volumes.sum() == have.volumes.sum()
        return () if complete else (Collective("slice", (), 0),)
    solved = _solved(have, need, width)
    if sum(c.nbytes for c in solved) == elements * width:
        return solved
    return (Collective(_name(have, need), (), elements * width),)


def _solved(have: Tiles, need: Tiles, width: int) -> tuple[Collective, ...]:
    """The solver's collectives between two layouts of the same keys; empty without layouts."""
    if have.layout is None or need.layout is None or not have.boxes.size:
        return ()
    span = enclosing(have.boxes)
    if (enclosing(need.boxes) != span).any():
        return ()
    common = refined(have.layout, need.layout)
    if common is None or sum(a != b for a, b in zip(*common[1:], strict=True)) > MOST_CHANGED:
        return ()
    moves = solve(*common, extents(span).tolist(), width)
    return tuple(
        Collective(name, tuple(dict.fromkeys(along)), sum(m.nbytes for m in same))
        for (name, along), same in groupby(moves, lambda m: (m.collective, m.along))
    )


def refined(a: Layout, b: Layout) -> tuple[Mesh, Placement, Placement] | None:
    """Two layouts on one mesh, whose axes have the second layout's names.

    Axes are divided until the meshes are equal; None if they do not divide each other.
    """
    ends = sorted({*_strides(a.mesh), *_strides(b.mesh)})
    if any(far % near for near, far in pairwise(ends)):
        return None
    strides = ends[-2::-1]
    axes_of_a, axes_of_b = ([_axis_at(x.mesh, s) for s in strides] for x in (a, b))
    sizes = (far // near for near, far in reversed(list(pairwise(ends))))
    axes = tuple((b.mesh.axes[n][0], size) for n, size in zip(axes_of_b, sizes, strict=True))
    first = tuple(a.placed[n] for n in axes_of_a)
    return Mesh(axes), first, tuple(b.placed[n] for n in axes_of_b)


def _strides(mesh: Mesh) -> list[int]:
    """The stride of each axis, the last axis first, followed by the number of sites."""
    return list(accumulate(reversed(mesh.shape), mul, initial=1))


def _axis_at(mesh: Mesh, stride: int) -> int:
    """The axis of size above 1 with a stride."""
    strides = _strides(mesh)
    return next(
        len(mesh.axes) - 1 - n
        for n, (near, far) in enumerate(pairwise(strides))
        if near <= stride < far
    )


def _name(have: Tiles, need: Tiles) -> CollectiveName:
    """The name of an exchange between tiles without a common mesh."""
    senders, readers = np.unique(have.sites), np.unique(need.sites)
    copies = need.volumes.sum() > have.volumes[: have.once].sum()
    if len(senders) == 1:
        return "broadcast" if copies else "scatter"
    if len(readers) == 1:
        return "gather"
    if _permutes(have, need):
        return "shift"
    if copies and _margins_only(have, need):
        return "halo"
    return "all-gather" if copies else "all-to-all"


def _permutes(have: Tiles, need: Tiles) -> bool:
    """True if every site sends its only tile to one site, as to its neighbour on a ring."""
    alone = all(len(np.unique(t.sites)) == len(t.sites) > 2 for t in (have, need))
    if not alone or have.boxes.shape != need.boxes.shape:
        return False
    own, wanted = (np.unique(t.boxes, axis=0) for t in (have, need))
    return len(own) == len(have.boxes) and np.array_equal(own, wanted)


def _margins_only(have: Tiles, need: Tiles) -> bool:
    """True if every stored tile is needed at its own site, and other sites need only margins."""
    for site, box in zip(have.sites, have.boxes, strict=True):
        inside = (need.boxes[:, :, 0] <= box[:, 0]) & (box[:, 1] <= need.boxes[:, :, 1])
        if set(need.sites[inside.all(axis=1)].tolist()) != {int(site)}:
            return False
    return True
