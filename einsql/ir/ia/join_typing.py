"""The result type of a local join: operands whose laws agree, so that it misses no match."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einsql.core.records import cached_property
from einsql.core.tables import Table
from einsql.errors import IntegrityError
from einsql.ir.einsum.graph import TRUE, EinSum, Expr
from einsql.ir.einsum.structure import structure
from einsql.ir.ia.kernel_laws import distributes, is_linear
from einsql.ir.ia.physical_schema import Parts, PhysicalSchema
from einsql.ir.ia.placement import Group, recognized, replicates, sharing
from einsql.ir.ia.typing import Law, chained, merged, renamed
from einsql.ir.layout import Layout, Mesh, Partial, Replicate, Scattered, Shard, Single
from einsql.ir.remembered import recalled, remembered
from einsql.ir.tra import kernel_typing
from einsql.ir.tra.block_schema import Domain, codes, every_key, match_rows, over_keys, shown

Places = tuple[tuple[int, ...], ...]
"""For each key dimension of each operand the key dimension of the match."""


@remembered
def joined(
    sources: tuple[PhysicalSchema, ...],
    places: Places,
    kernels: tuple[EinSum, ...],
    where: Expr,
    keys: tuple[Expr, ...] | None,
    domain: Domain | None = None,
) -> PhysicalSchema:
    """⋈ᴸ: applies kernels to every match; the arrays of each match share a site.

    Along each mesh axis, all operands are replicated; or some have equal coordinates for every
    match, and the others are replicated; or all are partial, and the kernels are linear.

    Args:
        sources: The operands.
        places: For each key dimension of each operand the result's key dimension.
        kernels: The first takes the arrays of a match, each later one the previous result.
        where: A condition on the keys of a match; other matches are skipped.
        keys: The new keys; None keeps the match's keys.
        domain: The domain of the first kernel; None if it is a template.

    Raises:
        IntegrityError: The join would miss matches, an operand has parts that the kernels may
            not read, or two new keys are equal.
        ProgrammingError: Joined keys differ in their bounds, or a kernel does not fit.
    """
    blocks_of = [s.blocks for s in sources]
    matches = _Matches(sources, places, where, domain)
    _check_parts(sources, kernels)
    mesh = _mesh(sources)
    laws = [_law(matches, [_placed(s, mesh) for s in sources], n) for n in range(len(mesh.shape))]
    only = None if where == TRUE else Table.of(matches.keys)
    if domain is None:
        blocks = kernel_typing.join_schema(blocks_of, places, kernels[0], only)
    else:
        blocks = kernel_typing.domain_schema(blocks_of, places, kernels[0], domain, only)
    layout = recognized(mesh, laws, lambda: matches.keys)
    parts = _parts(matches)
    result = PhysicalSchema(chained(blocks, kernels[1:]), layout, sources[0].sites, parts)
    return result if keys is None else renamed(result, keys)


def cells_joined(
    sources: Sequence[PhysicalSchema],
    places: Places,
    kernel: EinSum,
    domain: Domain,
    layout: Layout,
) -> PhysicalSchema:
    """⋈ᴸ of a complete EinSum whose cells have given sites.

    Args:
        sources: The operands; each has the arrays of a cell at the cell's site.
        places: For each key dimension of each operand the key dimension of the cell.
        kernel: The EinSum.
        domain: The domain of the kernel.
        layout: The sites of the cells. A mesh axis shards a key of the cells, or repeats them.
            If it is partial, all operands are partial along it.

    Raises:
        IntegrityError: An operand lacks an array at the site of a cell that reads it.
        ProgrammingError: The kernel, the domain or an operand do not fit.
    """
    cuts = kernel_typing.placed_domain(kernel, domain)
    linear = any(s.parts is not None for s in sources) and is_linear(kernel)
    key = ("cells", tuple(sources), tuple(places), structure(kernel), linear, cuts, layout)
    return recalled(key, lambda: _cells_joined(sources, places, kernel, domain, layout))


def _cells_joined(
    sources: Sequence[PhysicalSchema],
    places: Places,
    kernel: EinSum,
    domain: Domain,
    layout: Layout,
) -> PhysicalSchema:
    _check_parts(sources, (kernel,))
    mesh = layout.mesh
    for source, own in zip(sources, places, strict=True):
        copied = replicates(source.layout.placed)
        if copied and np.isin(mesh.points, source.layout.mesh.points).all():
            continue
        if (source.layout.mesh.shape, source.layout.mesh.sites) != (mesh.shape, mesh.sites):
            raise _missing("An operand is distributed over another grid than the cells.")
        for entry, wanted in zip(source.layout.placed, layout.placed, strict=True):
            read = replace(entry, axis=own[entry.axis]) if isinstance(entry, Shard) else entry
            if read != wanted and not (isinstance(wanted, Shard) and entry == Replicate()):
                raise _missing(f"Cells at {wanted} read arrays at {read}.")
    blocks = kernel_typing.domain_schema([s.blocks for s in sources], places, kernel, domain)
    parts = next((s.parts for s in sources if s.parts is not None), None)
    return PhysicalSchema(blocks, layout, sources[0].sites, parts)


class _Matches:
    """The selected matches of a join, computed when they are first read.

    Attributes:
        sources: The operands.
        places: For each key dimension of each operand the key dimension of the match.
    """

    def __init__(
        self,
        sources: Sequence[PhysicalSchema],
        places: Places,
        where: Expr,
        domain: Domain | None,
    ) -> None:
        if domain is None:
            kernel_typing.join_bounds([s.blocks for s in sources], places)
        self.sources = sources
        self._domain = domain
        self.places = places
        self._where = where

    @cached_property
    def _selected(self) -> tuple[np.ndarray, np.ndarray]:
        keys, rows = self._all()
        if self._where == TRUE:
            return keys, rows
        kept = over_keys(self._where, keys)
        return keys[kept], rows[kept]

    def _all(self) -> tuple[np.ndarray, np.ndarray]:
        if self._domain is None:
            return match_rows([s.blocks for s in self.sources], self.places)
        keys = every_key(tuple(len(cut) - 1 for _, cut in self._domain))
        rows = np.empty((len(keys), len(self.sources)), np.int64)
        for n, (source, places) in enumerate(zip(self.sources, self.places, strict=True)):
            # A join with a domain takes no relation that lacks keys.
            (rows[:, n],) = codes(source.blocks.bounds, keys[:, list(places)])
        return keys, rows

    @property
    def keys(self) -> np.ndarray:
        """The keys of the matches in order, int64 (matches, key dimensions)."""
        return self._selected[0]

    @property
    def rows(self) -> np.ndarray:
        """The positions of the joined keys in the operands, int64 (matches, operands)."""
        return self._selected[1]


def _check_parts(sources: Sequence[PhysicalSchema], kernels: Sequence[EinSum]) -> None:
    """Rejects operands with parts, unless the kernels may run on the parts at each site.

    Raises:
        IntegrityError: The kernels need merged arrays.
    """
    if all(s.parts is None for s in sources):
        return
    first, *later = kernels
    partial = all(
        s.merge == "sum" and any(isinstance(e, Partial) for e in s.layout.placed) for s in sources
    )
    if not (partial and is_linear(first) and all(distributes(k, "sum") for k in later)):
        for source in sources:
            merged(source, "A local join")


def _mesh(sources: Sequence[PhysicalSchema]) -> Mesh:
    """The mesh of a join.

    Raises:
        IntegrityError: Two operands are distributed over different meshes, or a replicated
            operand lacks a site of the others.
    """
    meshes = [s.layout.mesh for s in sources if not replicates(s.layout.placed)]
    if not meshes:
        meshes = [min((s.layout.mesh for s in sources), key=lambda m: len(m.points))]
    mesh = meshes[0]
    for source in sources:
        other, copied = source.layout.mesh, replicates(source.layout.placed)
        if copied and not np.isin(mesh.points, other.points).all():
            raise _missing("A replicated operand has no copy at some sites of another operand.")
        if not copied and (other.shape, other.sites) != (mesh.shape, mesh.sites):
            grids = " and ".join("x".join(map(str, m.shape)) for m in (mesh, other))
            raise _missing(f"Two operands are distributed over different grids, {grids}.")
    return mesh


def _placed(source: PhysicalSchema, mesh: Mesh) -> Layout:
    """The operand's layout on the mesh of the join."""
    if replicates(source.layout.placed):
        return Layout(mesh, (Replicate(),) * len(mesh.shape))
    return source.layout


def _law(matches: _Matches, layouts: Sequence[Layout], axis: int) -> Law:
    """The law of the matches along a mesh axis.

    Raises:
        IntegrityError: Arrays of a match have different coordinates.
    """
    entries = [layout.placed[axis] for layout in layouts]
    cut = [n for n, e in enumerate(entries) if not isinstance(e, Replicate)]
    if not cut:
        return Replicate()
    if any(isinstance(e, Partial) for e in entries):
        if len(set(entries)) > 1:
            raise _missing("Operands are partial along different axes of the grid.")
        return entries[0]
    if any(isinstance(e, Single) for e in entries):
        if any(isinstance(entries[n], Shard | Scattered) for n in cut):
            raise _missing("An operand is at the first sites of an axis of the grid only.")
        return Single()
    laws = {_law_of_matches(layouts[n], axis, matches.places[n]) for n in cut}
    (first, *others) = cut
    if None in laws or len(laws) > 1:
        at = _coordinates(matches, first, axis)
        for n in others:
            apart = np.flatnonzero(_coordinates(matches, n, axis) != at)
            if len(apart):
                key = shown(matches.keys[apart[0]].tolist())
                raise _missing(f"No site has both arrays of the match {key}.")
    law = _law_of_matches(layouts[first], axis, matches.places[first])
    if law is None or _claims(layouts, matches.places, law):
        return _coordinates(matches, first, axis)
    return law[0]


def _law_of_matches(layout: Layout, axis: int, places: Sequence[int]) -> tuple[Shard, Group] | None:
    """A Shard over the keys of matches with the mesh axes that share its key; None for a table."""
    entry = layout.placed[axis]
    if not isinstance(entry, Shard):
        return None
    return replace(entry, axis=places[entry.axis]), sharing(layout, axis)


def _claims(
    layouts: Sequence[Layout],
    places: Places,
    law: tuple[Shard, Group],
) -> bool:
    """True if another operand shards the law's key along another mesh axis.

    Two such entries together would be the digits of one number, which they are not.
    """
    entry, group = law
    own = {n for n, _ in group}
    return any(
        isinstance(e, Shard) and operand[e.axis] == entry.axis and n not in own
        for layout, operand in zip(layouts, places, strict=True)
        for n, e in enumerate(layout.placed)
    )


def _coordinates(matches: _Matches, operand: int, axis: int) -> np.ndarray:
    """The coordinate of an operand's array of each match along a mesh axis, int64 (matches,)."""
    at = matches.sources[operand].coordinates(axis)
    return np.asarray(at[matches.rows[:, operand]])


def _parts(matches: _Matches) -> Parts | None:
    """The parts of the matches: those of every operand.

    Raises:
        IntegrityError: A site has parts of some operands of a match only.
    """
    parts = [s.parts for s in matches.sources]
    first = parts[0]
    if first is None:
        return None
    if all(p is not None and p.present is None for p in parts):
        return first
    masks = [
        p.mask(s.blocks.count)[matches.rows[:, n]]
        for n, (p, s) in enumerate(zip(parts, matches.sources, strict=True))
        if p is not None
    ]
    if any(not np.array_equal(m, masks[0]) for m in masks):
        raise _missing("A site has a part of one operand only.")
    return Parts.of(first.reduction, masks[0])


def _missing(reason: str) -> IntegrityError:
    return IntegrityError(
        f"A local join would miss matches. {reason}",
        hint="Broadcast an operand, or shuffle both on the join keys.",
    )
