"""The fraction of a sparse operand's elements that a condition keeps, from a sample of them."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from einsql import kernels
from einsql.core.schema import PRESENT, DType, Field, Key, Schema
from einsql.errors import Error
from einsql.ir.einsum.graph import (
    TRUE,
    Axis,
    EinSum,
    Expr,
    Input,
    Label,
    Operand,
    Output,
    Value,
    conj,
    conjuncts,
    operands_of,
    rewrite,
    subexpressions,
)
from einsql.ir.einsum.graph_rewriting import renumber
from einsql.kernels.kernel import no_progress
from einsql.storage.fields import Fields
from einsql.storage.sparse_fields import SparseFields, sparse_fields_of

SAMPLE = 4096
"""The elements of a sample, evenly distributed in key order: a fraction of 1/2 has a standard error
of 0.8 %, and the sample takes 0.2 ms."""


def kept_share(node: EinSum, number: int, inputs: Mapping[str, Fields]) -> float:
    """The expected fraction of an operand's elements in its bounds that the guard keeps, 0 to 1.

    Conditions that read other operands keep all, and so do conditions on results, on tensors in
    files, whose elements EXPLAIN does not read, and conditions that fail for an element.

    Args:
        node: The node.
        number: The number of the operand.
        inputs: The fields of the graph's inputs.
    """
    operand = node.operands[number]
    guard = _own_condition(node, number)
    if guard == TRUE or not isinstance(operand.source, Input):
        return 1.0
    few = sparse_fields_of(inputs.get(operand.source.name, {}))
    if few is None or few.layout is not None or not few.stored:
        return 1.0
    try:
        kept = _evaluated(guard, operand, _sampled(few, operand))
    except Error:
        return 1.0
    return float(np.count_nonzero(kept)) / kept.size


def bounds_share(node: EinSum, number: int) -> float:
    """The fraction of an operand's keys that are within the bounds of a node's labels, 0 to 1."""
    operand = node.operands[number]
    axes = [node.axis(x).extent for x in dict.fromkeys(operand.labels)]
    return min(1.0, prod(axes) / max(1, operand.source.schema.size))


def _own_condition(node: EinSum, number: int) -> Expr:
    """The conditions of a guard that read the values of only one operand."""
    asked = Value(number, PRESENT, DType.BOOLEAN)
    labels = set(node.operands[number].labels)
    return conj(
        *(
            term
            for term in conjuncts(node.guard)
            if term != asked
            and operands_of(term) == {number}
            and {e.name for e in subexpressions(term) if isinstance(e, Label)} <= labels
        )
    )


def _sampled(few: SparseFields, operand: Operand) -> dict[str, np.ndarray]:
    """The values and keys of some elements; keys have the names of the labels after a dot."""
    matrix = few.taken()
    at = np.linspace(0, matrix.stored - 1, min(SAMPLE, matrix.stored)).astype(np.int64)
    sample = {name: few.taken(name).values[at] for name in few.names}
    if len(matrix.extents) == 1:
        places: tuple[np.ndarray, ...] = (matrix.columns[at],)
    else:
        rows = np.searchsorted(matrix.starts, at, side="right") - 1
        places = (rows, *np.unravel_index(matrix.columns[at], matrix.extents[1:]))
    if few.turned:
        places = places[::-1]
    keys = operand.source.schema.keys
    for label, key, place in zip(operand.labels, keys, places, strict=True):
        sample[f".{label}"] = place.astype(np.int64) + key.lo
    sample[PRESENT] = np.ones(len(at), np.bool_)
    return sample


def _evaluated(guard: Expr, operand: Operand, sample: Mapping[str, np.ndarray]) -> np.ndarray:
    """The flags of the elements of a sample that satisfy a condition on their operand."""

    def replaced(e: Expr) -> Expr:
        return Value(0, f".{e.name}", DType.BIGINT) if isinstance(e, Label) else e

    (number,) = operands_of(guard)
    condition = rewrite(renumber(guard, {number: 0}), replaced)
    labels = tuple(Field(f".{x}", DType.BIGINT) for x in operand.labels)
    fields = (*operand.source.schema.fields, *labels)
    count = len(sample[PRESENT])
    source = Input("sample", Schema((Key("n", 0, count),), fields))
    kept = Output("kept", (condition,), DType.BOOLEAN)
    node = EinSum((Axis("n", 0, count),), (Operand(source, ("n",)),), TRUE, ("n",), (kept,))
    return kernels.compile_node(node, "never").run([sample], no_progress)["kept"]
