"""Operands whose flags are values: every point exists, and expressions read the flag.

Such an operand equals one of which every key exists, with the flag as a further field: it is true
for the stored elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from einsql.core.schema import PRESENT, DType, Field, Schema
from einsql.core.sparse.arrays import Elements
from einsql.core.sparse.matrix import Sparse
from einsql.ir.einsum.graph import EinSum, Expr, Input, Operand, Value, rewrite
from einsql.ir.einsum.graph_rewriting import map_exprs

WAS = ".was"
"""The field with the flag of an operand."""


def with_every_key(node: EinSum, numbers: Sequence[int]) -> EinSum:
    """The node with operands of which every key exists, their flags as fields.

    Args:
        node: The node.
        numbers: The operands; their flags are read by expressions only.
    """
    optional = {n for n in numbers if node.operands[n].source.schema.has(PRESENT)}
    if not optional:
        return node

    def renamed(e: Expr) -> Expr:
        if isinstance(e, Value) and e.operand in optional and e.field == PRESENT:
            return replace(e, field=WAS)
        return e

    operands = list(node.operands)
    for n in optional:
        schema = operands[n].source.schema
        fields = (f if f.name != PRESENT else Field(WAS, DType.BOOLEAN) for f in schema.fields)
        source = Input(f"optional {n}", Schema(schema.keys, tuple(fields)), sparse=True)
        operands[n] = Operand(source, operands[n].labels)
    node = map_exprs(node, lambda e: rewrite(e, renamed))
    return replace(node, operands=tuple(operands))


def as_filled(fields: Sparse) -> Elements:
    """The fields of such an operand; those of absent keys have any value."""
    values = {name: fields.taken(name).values for name in fields.names if name != PRESENT}
    values[WAS] = np.ones(fields.taken().stored, np.bool_)
    fills = {name: np.zeros((), array.dtype) for name, array in values.items()}
    return Elements(fields.taken(), values, fills, fields.turned, fields.is_constant)
