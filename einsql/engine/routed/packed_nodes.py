"""Operations over packed rows: one label takes the place of all labels of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einsql.core.schema import Key, Schema
from einsql.engine.step import Arrays
from einsql.ir.einsum.graph import Axis, EinSum, Input, Operand
from einsql.ir.einsum.graph_rewriting import fresh

FEWEST = 8
"""The least number of rows of a kernel."""
PER_DOUBLING = 8
"""Numbers of rows for which kernels are compiled, in each doubling. A kernel runs on up to an
eighth more rows than there are, which repeat a row. Else each number of rows needs a kernel."""


def compiled_rows(count: int) -> int:
    """The number of rows of the kernel for a number of rows, which is at most an eighth greater."""
    if count <= FEWEST:
        return FEWEST
    step: int = max(1, 2 ** ((count - 1).bit_length() - 1) // PER_DOUBLING)
    return -(-count // step) * step


def repeated(fields: Arrays, more: int) -> Arrays:
    """Rows followed by copies of the first one."""
    if not more:
        return fields
    return {k: np.concatenate([a, np.repeat(a[:1], more, axis=0)]) for k, a in fields.items()}


def packed_node(
    node: EinSum,
    rows: Sequence[str],
    count: int,
    areas: Sequence[np.ndarray | None],
    chosen: tuple[str, int, int] | None,
) -> EinSum:
    """Returns an operation over packed rows.

    Args:
        node: The operation.
        rows: The labels of its rows.
        count: The number of rows.
        areas: For each operand int64 (axes, 2), the keys of its tile; None for a packed result.
        chosen: The label that the rows choose, with the bounds of the block.
    """
    row = fresh("row", [a.label for a in node.axes])
    operands = []
    for n, (o, area) in enumerate(zip(node.operands, areas, strict=True)):
        keys = list(o.source.schema.keys)
        if area is not None:
            bounds = area.tolist()
            keys = [Key(k.name, lo, hi) for k, (lo, hi) in zip(keys, bounds, strict=True)]
        kept = [(k, x) for k, x in zip(keys, o.labels, strict=True) if x not in rows]
        if len(kept) < len(keys):
            kept.insert(0, (Key(row, 0, count), row))
        schema = Schema(tuple(k for k, _ in kept), o.source.schema.fields)
        operands.append(Operand(Input(f"#{n}", schema), tuple(x for _, x in kept)))
    axes = [Axis(row, 0, count)]
    for a in node.axes:
        if chosen is not None and a.label == chosen[0]:
            _, lo, hi = chosen
            axes.append(replace(a, lo=max(a.lo, lo), hi=max(a.lo, lo, min(a.hi, hi))))
        elif a.label not in rows:
            axes.append(a)
    keys_of = (row, *(x for x in node.keys if x not in rows))
    return replace(node, axes=tuple(axes), operands=tuple(operands), keys=keys_of, hint=(), grid=())
