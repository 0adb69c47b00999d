"""SPMD programs as deterministic text, for EXPLAIN and golden plans."""

from __future__ import annotations

from collections.abc import Sequence

from einsql.ir.einsum.printer import format_node
from einsql.ir.layout import counted, layout_of, named_entries
from einsql.ir.spmd.program import (
    COPIES,
    Collective,
    Complete,
    Exchange,
    Load,
    Local,
    Program,
    Step,
    View,
    reads,
)


def format_steps(program: Program) -> list[list[str]]:
    """Formats the steps of a program, each as lines.

    The first line is `s2 r0[i:8, k:8] at 2x2 Shard(i), Replicate`: the name of the step, its
    relation, and the placement of its tiles on a mesh. The second line has the operation, the
    steps that it reads, and the bytes that cross sites. An exchange that is posted before another
    step is started there, and completed in its place.
    """
    posts = {p.exchange: p.before for p in program.posts}
    return [
        [format_tiles(program, n, name), *_format_operation(program.steps[n], name, posts.get(n))]
        for n, name in enumerate(relation_names(program))
    ]


def format_groups(program: Program) -> list[str]:
    """Formats the groups of steps that every site runs together, each as a line."""
    lines = []
    for t in program.together:
        steps = ", ".join(f"s{n}" for n in t.steps)
        if t.routed is None:
            lines.append(f"together {steps}")
            continue
        blocks = t.routed.blocks
        at = ", ".join(map(str, blocks.sites.tolist()))
        sent = f"about {t.routed.nbytes:,} bytes"
        lines.append(f"routed {steps} by {blocks.routing.label} to the sites {at}, {sent}")
    return lines


def relation_names(program: Program) -> list[str]:
    """Returns for each step the name of its relation: a stored tensor, or r0, r1, … as printed."""
    names: list[str] = []
    computed = 0
    for step in program.steps:
        if isinstance(step, Load):
            names.append(step.source.name)
        elif isinstance(step, Local) or (isinstance(step, View) and step.relation is not None):
            names.append(f"r{computed}")
            computed += 1
        else:
            names.append(names[reads(step)[0]])
    return names


def format_tiles(program: Program, number: int, relation: str) -> str:
    """Formats the name of a step, its relation and the placement of its tiles."""
    keys = program.relation(number).schema.keys
    shown = ", ".join(f"{k.name}:{k.hi if k.lo == 0 else f'{k.lo}..{k.hi}'}" for k in keys)
    step = program.steps[number]
    if step.tiles.boxes.shape[1] != len(keys):  # blocks under keys, which have axes of their own
        return f"s{number} {relation} in {counted(step.tiles)}"
    if isinstance(step, Local) and step.partial:  # no placement has several parts of a tile
        return f"s{number} {relation}[{shown}] in parts, {counted(step.tiles)}"
    tiles, extents = step.tiles, [k.extent for k in keys]
    layout = tiles.layout or layout_of(tiles, program.sites, extents)
    if layout is None:
        return f"s{number} {relation}[{shown}] in {counted(tiles)}"
    entries = named_entries(layout, [k.name for k in keys])
    mesh = "x".join(str(size) for size, _ in entries)
    at = f"{mesh} {', '.join(name for _, name in entries)}" if entries else "site 0"
    return f"s{number} {relation}[{shown}] at {at}"


def _format_operation(step: Step, relation: str, post: int | None) -> list[str]:
    sources = [f"s{n}" for n in reads(step)]
    match step:
        case Load():
            return [f"  load         {step.source.name}"]
        case View():
            return [f"  view         {sources[0]}"]
        case Exchange():
            moved = _format_collectives(step.collectives) or "moves nothing"
            early = "" if post is None else f", posted before s{post}"
            return [f"  exchange     {', '.join(sources)}  {moved}{early}"]
        case Complete():
            return [
                f"  complete     {sources[0]}  {_format_collectives(step.collectives)}".rstrip()
            ]
        case Local():
            kernel = format_node(step.node, relation, tuple(sources))[1:]
            if step.is_template:  # the tiles determine the extents
                kernel = [line for line in kernel if not line.startswith("  over")]
            cut = " ".join(f"{_axis(x)}:{n}" for x, n in step.grid) or "whole"
            return [f"  local        {cut}", *(f"  {line}" for line in kernel)]


def _format_collectives(collectives: Sequence[Collective]) -> str:
    return ", ".join(
        f"{c.name} along {' '.join(map(_axis, c.along))} {c.nbytes:,} bytes"
        if c.along
        else f"{c.name} {c.nbytes:,} bytes"
        for c in collectives
    )


def _axis(label: str) -> str:
    return "copies" if label == COPIES else label
