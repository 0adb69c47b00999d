"""Nodes that read a part of a matrix stored sparsely: only that part is made dense."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einsql.core.schema import Key, Schema
from einsql.core.sparse_matrix import Sparse
from einsql.ir.einsum.graph import EinSum, Input, Operand
from einsql.kernels.kernel import Arrays, Runner, Tick


def narrowed(node: EinSum) -> EinSum | None:
    """The node over the parts that it reads of sparse matrices; None if it reads all of them."""
    operands = tuple(_narrowed(node, o) for o in node.operands)
    if all(a is b for a, b in zip(operands, node.operands, strict=True)):
        return None
    return replace(node, operands=operands)


def over_parts(node: EinSum, run: Runner) -> Runner:
    """Runs a narrowed node on the operands of the node it was made of."""
    parts = {
        n: spans_of(node, o) for n, o in enumerate(node.operands) if _narrowed(node, o) is not o
    }

    def over(operands: Sequence[Arrays], tick: Tick) -> dict[str, np.ndarray]:
        narrowed_operands = list(operands)
        for n, spans in parts.items():
            fields = narrowed_operands[n]
            if isinstance(fields, Sparse):
                narrowed_operands[n] = fields.narrowed(spans)
            else:
                narrowed_operands[n] = {name: array[spans] for name, array in fields.items()}
        return run(narrowed_operands, tick)

    return over


def spans_of(node: EinSum, operand: Operand) -> tuple[slice, slice]:
    """The positions of a matrix's keys that a node's domain covers."""
    first, second = (
        slice((a := node.axis(x)).lo - k.lo, max(a.lo, a.hi) - k.lo)
        for x, k in zip(operand.labels, operand.source.schema.keys, strict=True)
    )
    return first, second


def _narrowed(node: EinSum, operand: Operand) -> Operand:
    source = operand.source
    if not (isinstance(source, Input) and source.sparse) or len(operand.labels) != 2:
        return operand
    axes = [node.axis(x) for x in operand.labels]
    keys = tuple(
        Key(k.name, a.lo, max(a.lo, a.hi)) for k, a in zip(source.schema.keys, axes, strict=True)
    )
    if keys == source.schema.keys:
        return operand
    schema = Schema(keys, source.schema.fields)
    return Operand(Input(source.name, schema, sparse=True), operand.labels)
