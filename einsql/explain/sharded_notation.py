"""Operations on sites in sharded index notation: `b s e_model, e_model d -> b s_model d`.

A label carries the mesh axes that shard it, the outer one first. A collective moves these axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter

from einsql.core.boxes import enclosing, extents
from einsql.explain.operations import CollectiveReport, NotationReport
from einsql.ir.layout import Entry, Layout, Mesh, Partial, Shard, Single, on_mesh
from einsql.ir.spmd.program import Complete, Exchange, Local, Program, tuple_bytes
from einsql.optimizer.placement.collectives import MOST_CHANGED, refined
from einsql.optimizer.placement.communication import solve


def sharded_notation(
    local: Local,
    before: Sequence[int],
    after: Sequence[Exchange | Complete],
    placed: Program,
    mesh: Mesh,
) -> list[NotationReport]:
    """Returns the exchanges of an operation's operands, and the operation with its completion.

    The axes of placements that do not follow the mesh are r0, r1, …. The list is empty if some
    tiles of the operation follow no placement.

    Args:
        local: The operation.
        before: The steps that bring operands for this operation first.
        after: The steps that merge its partial results.
        placed: The steps of every site.
        mesh: The mesh of the sites.
    """
    steps = [placed.steps[n] for n in local.operands]
    tiles = [*(s.tiles for s in steps), local.tiles, *(s.tiles for s in after[-1:])]
    layouts = _together([t.layout for t in tiles], mesh)
    if layouts is None or local.tiles.layout is None:
        return []
    operands = local.node.operands
    labels = {step: o.labels for o, step in zip(operands, local.operands, strict=True)}
    lines = [
        x for step in before if step in labels for x in _moved(step, labels[step], placed, mesh)
    ]
    terms = [_term(o.labels, x) for o, x in zip(operands, layouts, strict=False)]
    cells, target = layouts[len(operands)], layouts[-1]
    text = f"{', '.join(terms)} -> {_term(local.node.keys, target)}".strip()
    merges = []
    if after:
        name = "all-reduce" if len(after) > 1 else after[0].collectives[0].name
        partial = tuple(a for a, e in _entries(cells) if isinstance(e, Partial))
        nbytes = sum(s.nbytes for s in after)
        merges = [CollectiveReport(collective=name, along=partial, bytes_sent=nbytes)]
    return [*lines, NotationReport(text=text, collectives=merges)]


def _moved(
    step: int, labels: Sequence[str], placed: Program, mesh: Mesh
) -> Iterator[NotationReport]:
    """Yields the exchange that brings an operand, if it sends something."""
    exchange = placed.steps[step]
    if not isinstance(exchange, Exchange) or not exchange.nbytes or exchange.completes:
        return
    before, after = placed.steps[exchange.sources[0]].tiles, exchange.tiles
    both = _together([before.layout, after.layout], mesh)
    if both is None:
        return
    source, target = both
    shape = extents(enclosing(before.boxes)).tolist()
    width = round(tuple_bytes(placed.relation(step)))
    collectives: list[CollectiveReport] = []
    if sum(a != b for a, b in zip(source.placed, target.placed, strict=True)) <= MOST_CHANGED:
        collectives = [
            CollectiveReport(collective=m.collective, along=m.along, bytes_sent=m.nbytes)
            for m in solve(source.mesh, source.placed, target.placed, shape, width)
            if m.nbytes
        ]
    if sum(c.bytes_sent for c in collectives) != exchange.nbytes:  # copies at hand save bytes
        collectives = [
            CollectiveReport(collective=c.name, along=(), bytes_sent=c.nbytes)
            for c in exchange.collectives
        ]
    text = f"{_term(labels, source)} -> {_term(labels, target)}"
    yield NotationReport(text=text, collectives=collectives)


def _together(layouts: Sequence[Layout | None], mesh: Mesh) -> list[Layout] | None:
    """Returns layouts on one mesh: the given one, else one with axes r0, r1, …; None if none is."""
    known = [x for x in layouts if x is not None]
    if len(known) < len(layouts):
        return None
    meshes = [mesh, *(_numbered(x.mesh) for x in known)]
    if len(known) == 2 and (both := refined(*known)) is not None:
        meshes.append(_numbered(both[0]))
    for candidate in meshes:
        moved = [on_mesh(x, candidate) for x in known]
        if None not in moved:
            return [x for x in moved if x is not None]
    return None


def _numbered(mesh: Mesh) -> Mesh:
    return Mesh(tuple((f"r{n}", size) for n, size in enumerate(mesh.shape)))


def _entries(layout: Layout) -> Iterator[tuple[str, Entry]]:
    """Yields the name and the entry of each axis of several sites."""
    for (name, size), entry in zip(layout.mesh.axes, layout.placed, strict=True):
        if size > 1:
            yield name, entry


def _term(labels: Sequence[str], layout: Layout) -> str:
    """Formats a tensor's labels with their mesh axes, and axes of partial values or of one site."""
    written = []
    for n, label in enumerate(labels):
        own = [(e.depth, x) for x, e in _entries(layout) if isinstance(e, Shard) and e.axis == n]
        names = [name for _, name in sorted(own, key=itemgetter(0))]
        plain = label if label.isalnum() else f'"{label}"'
        written.append("_".join((plain, *names)))
    text = " ".join(written)
    for kind, remark in ((Partial, "partial over"), (Single, "at the first of")):
        names = [name for name, e in _entries(layout) if isinstance(e, kind)]
        text += f" ({remark} {', '.join(names)})" * bool(names)
    return text.strip()
