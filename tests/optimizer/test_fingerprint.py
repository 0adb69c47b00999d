"""Fingerprints of graphs: one for each structure, the same in every process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from itertools import count

from einsql.core.schema import Key, Schema
from einsql.ir.einsum.graph import EinSum, Input, Node, Operand, Roots, children, walk
from einsql.ir.einsum.graph_rewriting import map_exprs, relabel
from einsql.ir.einsum.printer import format_graph
from einsql.optimizer import optimize
from einsql.optimizer.plan_files.fingerprint import fingerprint
from tests.optimizer.graphs import random_graph, tensor

GRAPHS = 200


def renamed(root: Node, start: str) -> Node:
    """The graph with other names of tensors, keys and labels, in the same order."""
    new: dict[int, Node] = {}
    numbers = count()
    for node in walk(root):
        if isinstance(node, Input):
            new[id(node)] = _renamed_input(node, f"{start}{next(numbers)}")
            continue
        names = {a.label: f"{start}{next(numbers)}" for a in node.axes}
        new[id(node)] = _renamed_node(node, names, [new[id(c)] for c in children(node)])
    return new[id(root)]


def _renamed_input(node: Input, name: str) -> Input:
    keys = tuple(Key(f"{name}{n}", k.lo, k.hi) for n, k in enumerate(node.schema.keys))
    return replace(node, name=name, schema=Schema(keys, node.schema.fields))


def _renamed_node(node: EinSum, names: Mapping[str, str], sources: list[Node]) -> EinSum:
    node = map_exprs(node, lambda e: relabel(e, names))
    operands = zip(node.operands, sources, strict=True)
    return replace(
        node,
        axes=tuple(replace(a, label=names[a.label]) for a in node.axes),
        operands=tuple(Operand(s, tuple(names[x] for x in o.labels)) for o, s in operands),
        keys=tuple(names[k] for k in node.keys),
        hint=tuple((names[x], parts) for x, parts in node.hint),
    )


def optimized() -> list[Roots]:
    """The optimised forms of random graphs."""
    return [optimize(random_graph(seed)).roots for seed in range(GRAPHS)]


def test_graphs_share_a_fingerprint_if_they_differ_in_names_only() -> None:
    texts: dict[str, set[str]] = {}
    for roots in optimized():
        (root,) = roots
        assert fingerprint(renamed(root, "q")) == fingerprint(root)
        texts.setdefault(fingerprint(root), set()).add(format_graph(renamed(root, "q")))
    assert all(len(alike) == 1 for alike in texts.values())
    assert len(texts) == len(set().union(*texts.values())) > GRAPHS * 0.8


def test_bounds_partitions_hints_and_types_are_part_of_it() -> None:
    (root,) = next(roots for roots in optimized() if isinstance(roots[0], EinSum) and roots[0].axes)
    assert isinstance(root, EinSum)
    source = tensor("t", (0, 4), (0, 4))
    variants: list[Node] = [
        source,
        tensor("t", (0, 4), (0, 5)),
        tensor("t", (1, 4), (0, 4)),
        tensor("t", (0, 4), (0, 4), present=True),
        replace(source, parts=(2, 1)),
        replace(source, parts=(2, 1), order=(1, 0)),
        root,
        replace(root, hint=((root.axes[0].label, 2),)),
        replace(root, axes=(replace(root.axes[0], hi=root.axes[0].hi + 1), *root.axes[1:])),
    ]
    assert len({fingerprint(v) for v in variants}) == len(variants)


def test_the_process_does_not_matter() -> None:
    program = (
        "from tests.optimizer.test_fingerprint import *\n"
        "print([fingerprint(*roots) for roots in optimized()])"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # this process has another one
    ran = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, check=True
    )
    assert ran.stdout.decode() == f"{[fingerprint(*roots) for roots in optimized()]}\n"
