"""Writes the plan of a statement as a plan file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from einsql.core.version import __version__
from einsql.ir.einsum.graph import EinSum, Input, Roots, walk
from einsql.ir.einsum.printer import format_node
from einsql.ir.spmd.program import COPIES, Local, Program
from einsql.optimizer.decomposition import Cut, Decomposition, Pinned
from einsql.optimizer.placement.layouts import pinned_cells
from einsql.optimizer.plan_files.fingerprint import fingerprint
from einsql.optimizer.plan_files.plan_file import FORMAT

WIDTH = 100
"""Most characters of a line that has a whole list or object."""

Json: TypeAlias = "int | str | Sequence[Json] | Mapping[str, Json] | None"
Entry = dict[str, Json]


def file_text(sites: int, strategy: str, cost: str, graphs: Sequence[Entry]) -> str:
    """The text of a plan file; equal plans give equal texts.

    Args:
        sites: The number of sites that the plan is for.
        strategy: The strategy that chose the cuts, for readers of the file.
        cost: The cost that it minimised, for readers of the file.
        graphs: The entries of the graphs; of entries with equal fingerprints the first is written.
    """
    distinct = {str(g["fingerprint"]): g for g in reversed(graphs)}
    content: Entry = {
        "format": FORMAT,
        "einsql": __version__,
        "sites": sites,
        "strategy": strategy,
        "cost": cost,
        "graphs": [*reversed(distinct.values())],
    }
    return _lines(content, 0) + "\n"


def graph_entry(
    statement: str, roots: Roots, cut: Decomposition | None, placed: Program | None
) -> Entry:
    """The entry of a graph in a plan file.

    Args:
        statement: The statement that the graph computes, such as `SELECT` or `UPDATE w`.
        roots: The graph; one root if it is cut.
        cut: The cuts; None at one site.
        placed: The program of the sites; None at one site.
    """
    names: dict[int, str] = {}
    inputs: list[Entry] = []
    nodes: list[Entry] = []
    cuts = () if cut is None else cut.cuts
    steps = () if placed is None else placed.steps
    step_of = {id(s.node): s for s in steps if isinstance(s, Local)}
    for node in walk(*roots):
        if isinstance(node, Input):
            names[id(node)] = node.name
            inputs += _input_entry(node)
            continue
        name = names[id(node)] = f"r{len(nodes)}"
        operands = tuple(names[id(o.source)] for o in node.operands)
        entry: Entry = {
            "name": name,
            "expression": format_node(node, name, operands),
            "labels": {a.label: a.extent for a in node.axes if a.define is None},
        }
        if placed is None:
            uncut = {a.label: 1 for a in node.axes if a.define is None}
            entry |= {"parts": uncut, "copies": 1}
        else:
            entry |= _cut_entry(node, cuts[len(nodes)], step_of[id(node)], placed.sites)
        nodes.append(entry)
    return {
        "statement": statement,
        "fingerprint": fingerprint(*roots),
        "inputs": inputs,
        "nodes": nodes,
    }


def _input_entry(node: Input) -> list[Entry]:
    """The entry of a tensor with a declared partition."""
    if node.parts is None:
        return []
    keys = node.schema.keys
    cut: Entry = {k.name: parts for k, parts in zip(keys, node.parts, strict=True)}
    return [{"name": node.name, "keys": {k.name: k.hi - k.lo for k in keys}, "partition": cut}]


def _cut_entry(node: EinSum, cut: Cut, step: Local, sites: int) -> Entry:
    """The cut of an operation, and its grid if a plan file can give it.

    A map that runs on partial results, or in the cut of an operand, has no grid of its own.
    """
    entry: Entry = {"parts": cut.parts, "copies": cut.copies, "mesh": None}
    mesh = tuple(label for label, _ in step.grid)
    parts = {**cut.parts, COPIES: cut.copies}
    if sorted(step.grid) != sorted((x, n) for x, n in parts.items() if n > 1):
        return entry
    if step.partial and node.is_elementwise:
        return entry
    listed = tuple(step.sites.tolist())
    for places in (None, listed) if len(set(listed)) == len(listed) else (None,):
        pinned = Pinned(cut.parts, cut.copies, mesh, places)
        cells = pinned_cells(node, Cut("", cut.parts, 0, 0.0, 0.0, 0.0, cut.copies, pinned), sites)
        assert cells is not None, "the pinned cut has a mesh"
        if np.array_equal(cells.sites, step.sites) and np.array_equal(cells.boxes, step.cells):
            entry["mesh"] = mesh
            return entry if places is None else entry | {"sites": places}
    return entry


def _lines(value: Json, indent: int) -> str:
    """JSON with a list or an object on one line if it fits, else with one member on a line."""
    text = json.dumps(value, ensure_ascii=False)
    if indent > 2 and len(text) + indent <= WIDTH:
        return text
    inside = " " * (indent + 2)
    if isinstance(value, Mapping) and value:
        named = ((json.dumps(n, ensure_ascii=False), v) for n, v in value.items())
        rows = [f"{name}: {_lines(v, indent + 2)}" for name, v in named]
        return "{\n" + ",\n".join(inside + row for row in rows) + "\n" + " " * indent + "}"
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        rows = [_lines(v, indent + 2) for v in value]
        return "[\n" + ",\n".join(inside + row for row in rows) + "\n" + " " * indent + "]"
    return text
