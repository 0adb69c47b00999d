"""Merges labels that are always adjacent, so that rows have the greatest length.

A node over (i, j) that reads its operands in memory order, and keeps both labels or reduces both,
is a node over one label with i·j values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache as cached
from itertools import pairwise
from math import prod

import numpy as np

from einsql.core.schema import Key, Schema
from einsql.ir.einsum.graph import Axis, EinSum, Input, Label, Operand, exprs, subexpressions
from einsql.ir.einsum.states import has_order
from einsql.kernels.kernel import Arrays, Runner, Tick

Runs = tuple[tuple[str, ...], ...]
"""Labels in order, grouped in runs; the labels of a run are merged."""


def flattened(node: EinSum, compile_node: Callable[[EinSum], Runner]) -> Runner:
    """Compiles a node with its adjacent labels merged, for contiguous operands.

    Args:
        node: Any node.
        compile_node: Compiles a node; the original one only for operands that need it.
    """
    pairs = _pairs(node)
    if not pairs:
        return compile_node(node)
    runs = [_runs(o.labels, pairs) for o in node.operands]
    keys = _runs(node.keys, pairs)
    long = (r for of in (*runs, keys) for r in of if len(r) > 1)
    extent = {r[0]: prod(node.axis(x).extent for x in r) for r in long}
    followers = {second for _, second in pairs}
    axes = [
        Axis(a.label, 0, extent[a.label]) if a.label in extent else a
        for a in node.axes
        if a.label not in followers
    ]
    operands = [_operand(node, o, r) for o, r in zip(node.operands, runs, strict=True)]
    flat = replace(
        node,
        axes=tuple(axes),
        operands=tuple(operands),
        keys=tuple(r[0] for r in keys),
    )
    shapes = [
        (n, o.source.schema.shape)
        for n, (o, r) in enumerate(zip(operands, runs, strict=True))
        if any(len(run) > 1 for run in r)
    ]
    otherwise = cached(lambda: compile_node(node))
    return _either(node.schema.shape, shapes, compile_node(flat), otherwise)


def _pairs(node: EinSum) -> set[tuple[str, str]]:
    """Pairs of labels of which the second follows the first at every occurrence of either.

    The labels index complete keys, and no expression reads their values.
    """
    read = {e.name for x in exprs(node) for e in subexpressions(x) if isinstance(e, Label)}
    free = {a.label for a in node.axes if a.define is None and a.extent} - read
    for o in node.operands:
        for label, key in zip(o.labels, o.source.schema.keys, strict=True):
            a = node.axis(label)
            if (a.lo, a.hi) != (key.lo, key.hi) or o.labels.count(label) > 1:
                free.discard(label)
    places = [o.labels for o in node.operands] + [node.keys]
    if has_order(node):  # the order of the points stays
        places.append(node.reduced)
    beside = [set(pairwise(labels)) for labels in places]
    return {
        pair
        for pair in set().union(*beside)
        if free.issuperset(pair)
        and all(
            pair in near or not set(pair) & set(labels)
            for near, labels in zip(beside, places, strict=True)
        )
    }


def _runs(labels: Sequence[str], pairs: set[tuple[str, str]]) -> Runs:
    runs: list[tuple[str, ...]] = []
    for label in labels:
        if runs and (runs[-1][-1], label) in pairs:
            runs[-1] = (*runs[-1], label)
        else:
            runs.append((label,))
    return tuple(runs)


def _operand(node: EinSum, o: Operand, runs: Runs) -> Operand:
    keys, place = [], 0
    for run in runs:
        old = o.source.schema.keys[place]
        size = prod(node.axis(x).extent for x in run)
        keys.append(old if len(run) == 1 else Key(old.name, 0, size))
        place += len(run)
    schema = Schema(tuple(keys), o.source.schema.fields)
    return Operand(Input("flat", schema), tuple(run[0] for run in runs))


def _either(
    shape: tuple[int, ...],
    shapes: list[tuple[int, tuple[int, ...]]],
    new: Runner,
    old: Callable[[], Runner],
) -> Runner:
    def run(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        flattened = list(operands)
        for n, flat in shapes:
            fields = flattened[n]
            if not all(a.flags.c_contiguous for a in fields.values()):
                return old()(operands, tick)
            flattened[n] = {name: a.reshape(flat) for name, a in fields.items()}
        return {name: a.reshape(shape) for name, a in new(flattened, tick).items()}

    return run
