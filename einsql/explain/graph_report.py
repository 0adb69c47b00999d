"""What a plan's operations are and read: the part of EXPLAIN's report that is the graph."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from einsql.engine.step import Step as KernelStep
from einsql.engine.step import StepMeasure
from einsql.ir.einsum.graph import EinSum, Input, Node, Roots, walk
from einsql.ir.einsum.printer import format_node
from einsql.ir.spmd.program import Exchange, Local, Program, tuple_bytes
from einsql.optimizer.rewrite.rules import Step

MOST_CELLS = 64
"""Of operations of more cells the report does not say where each of them runs."""

MOST_LINES = 400
"""Longer stretches of a graph that a rule changed are shown before and after, not compared."""


def with_graph(report: dict[str, Any], root: Node, placed: Program) -> dict[str, Any]:
    """A report with what the graph says, beside how it is cut and placed.

    Args:
        report: What `report.as_json` gives.
        root: The optimized graph.
        placed: What each site does.

    Returns:
        The report with `inputs`, the stored tensors, and `result`, and in each node its
        `text` as EXPLAIN prints it, `keys`, `reads` (the operands, and what bringing them
        here moves; "shared" is what another operation has brought here), `bytes` (of the
        result) and `cells` (the site of each, if they are few).
    """
    names = names_of((root,))
    nodes = [n for n in walk(root) if isinstance(n, EinSum)]
    locals_ = [s for s in placed.steps if isinstance(s, Local)]
    seen: set[int] = set()
    return {
        **report,
        "inputs": [_input(n) for n in walk(root) if isinstance(n, Input)],
        "nodes": [
            entry | _node(node, local, placed, names, seen)
            for entry, node, local in zip(report["nodes"], nodes, locals_, strict=True)
        ],
        "result": names[id(root)],
    }


def with_kernels(
    report: dict[str, Any],
    steps: Sequence[KernelStep],
    measures: Sequence[StepMeasure] | None,
) -> dict[str, Any]:
    """The report of a plan for one site, with the kernel of each node and what it took.

    Of nodes that run together, a `group`, the last one has what all of them took.
    """
    nodes = list(report["nodes"])
    for at, step in enumerate(steps):
        *_, (last, _) = step.nodes
        for number, node in step.nodes:
            more: dict[str, Any] = {"kernel": step.kernel, "points": node.points}
            if len(step.nodes) > 1:
                ids = [nodes[n]["id"] for n, _ in step.nodes]
                more["group"] = {"nodes": ids, "detail": step.detail}
            if measures is not None:
                took = measures[at] if number == last else StepMeasure()
                more["measured"] = {
                    "seconds": took.seconds,
                    "bytes": took.nbytes,
                    "spilled": took.spilled,
                    "boxes": took.boxes,
                }
            nodes[number] = nodes[number] | more
    return {**report, "nodes": nodes}


def rewrites(trace: Sequence[Step]) -> list[dict[str, Any]]:
    """What each rewrite rule changed, as lines that begin with "-", "+" or a blank."""
    return [
        {
            "rule": s.rule.name,
            "law": s.rule.law,
            "fired": s.fired,
            "seconds": s.seconds,
            "changes": changes(s.old, s.new),
        }
        for s in trace
    ]


def names_of(roots: Roots) -> dict[int, str]:
    """The name of each node, by id, as the printer gives it."""
    names: dict[int, str] = {}
    count = 0
    for node in walk(*roots):
        if isinstance(node, Input):
            names[id(node)] = node.name
        else:
            names[id(node)], count = f"r{count}", count + 1
    return names


def _input(node: Input) -> dict[str, Any]:
    return {
        "id": node.name,
        "keys": {k.name: [k.lo, k.hi] for k in node.schema.keys},
        "values": {f.name: f.dtype.value for f in node.schema.values},
        "bytes": node.schema.size * tuple_bytes(node),
    }


def _node(
    node: EinSum, local: Local, placed: Program, names: dict[int, str], seen: set[int]
) -> dict[str, Any]:
    reads = []
    for o, step in zip(node.operands, local.operands, strict=True):
        brought = placed.steps[step]
        collective, nbytes = "none", 0
        if isinstance(brought, Exchange):
            collective = " + ".join(c.name for c in brought.collectives) or "none"
            nbytes = brought.nbytes
            if nbytes and (step in seen or brought.completes):
                collective, nbytes = "shared", 0
        seen.add(step)
        reads.append(
            {
                "id": names[id(o.source)],
                "stored": isinstance(o.source, Input),
                "labels": list(o.labels),
                "collective": collective,
                "bytes_sent": nbytes,
            }
        )
    text = format_node(node, names[id(node)], tuple(names[id(o.source)] for o in node.operands))
    entry = {
        "text": text,
        "keys": list(node.keys),
        "reads": reads,
        "bytes": node.schema.size * tuple_bytes(node),
    }
    if len(local.sites) <= MOST_CELLS:
        entry["cells"] = [int(s) for s in local.sites]
    return entry


# ---- what a rule changed


def changes(old: Roots, new: Roots) -> list[str]:
    """The nodes in which two graphs differ, those of the old one first.

    Nodes are compared without their numbers, which shift whenever one is added or goes.
    """
    before, after = _blocks(old), _blocks(new)
    lines: list[str] = []
    matcher = SequenceMatcher(None, [b[0] for b in before], [b[0] for b in after], autojunk=False)
    for tag, i0, i1, j0, j1 in matcher.get_opcodes():
        if tag == "equal":
            continue
        gone = [text for _, text in before[i0:i1]]
        come = [text for _, text in after[j0:j1]]
        lines += [" …"] * bool(lines)
        if len(gone) == len(come):
            lines += [line for a, b in zip(gone, come, strict=True) for line in _differing(a, b)]
        else:
            lines += _differing(*([x for text in side for x in text] for side in (gone, come)))
    return lines


def _blocks(roots: Roots) -> list[tuple[tuple[str, ...], list[str]]]:
    """For each operation its lines, first with operands and itself nameless, then as printed."""
    names = names_of(roots)
    blocks = []
    for node in walk(*roots):
        if isinstance(node, EinSum):
            numbered = tuple(f"#{n}" for n in range(len(node.operands)))
            operands = tuple(names[id(o.source)] for o in node.operands)
            plain = tuple(format_node(node, "", numbered))
            blocks.append((plain, format_node(node, names[id(node)], operands)))
    return blocks


def _differing(gone: list[str], come: list[str]) -> list[str]:
    if max(len(gone), len(come)) > MOST_LINES:
        return [*(f"- {line}" for line in gone), *(f"+ {line}" for line in come)]
    lines: list[str] = []
    matcher = SequenceMatcher(None, gone, come, autojunk=False)
    for tag, i0, i1, j0, j1 in matcher.get_opcodes():
        if tag == "equal":
            lines += [f"  {line}" for line in gone[i0:i1]]
        else:
            lines += [f"- {line}" for line in gone[i0:i1]]
            lines += [f"+ {line}" for line in come[j0:j1]]
    return lines
