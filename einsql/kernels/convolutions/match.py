"""Recognition of products over windows, and the roles of their labels."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from einsql.core.records import dataclass
from einsql.core.schema import DType
from einsql.ir.einsum.affine import Affine
from einsql.ir.einsum.graph import TRUE, Axis, EinSum, Output, Value
from einsql.kernels.convolutions.affine import window_labels
from einsql.kernels.matmul.match import two_values

FEWEST = 4
"""Columns, rows and terms from which register tiles pay."""


@dataclass(frozen=True, slots=True)
class Product:
    """The product Σ scale · rows · columns.

    Attributes:
        rows: The operand that is read element by element, with any strides.
        columns: The packed operand.
        scale: The finite, nonzero factor.
        batch: The keys of both operands.
        m, n: The keys of only the rows, and of only the columns.
        k: The summed labels.
        derived: The labels derived from these.
    """

    rows: Value
    columns: Value
    scale: float
    batch: tuple[str, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    derived: Mapping[str, Affine]


def is_window_product(node: EinSum, output: Output) -> bool:
    """True if an output is a float product over windows that `product_of` accepts."""
    return product_of(node, output) is not None


def product_of(node: EinSum, output: Output) -> Product | None:
    """Matches an output that is a product of two operands, one read through affine labels."""
    if (
        output.reduction != "sum"
        or output.dtype not in (DType.FLOAT, DType.DOUBLE)
        or output.where != TRUE
        or node.guard != TRUE
        or all(a.define is None for a in node.axes)
        or any(a.extent == 0 for a in node.axes)
    ):
        return None
    factors = two_values(output)
    derived = window_labels(node) if factors is not None else None
    if factors is None or derived is None:
        return None
    first, second, scale = factors
    one, two = (_free(node, v, derived) for v in (first, second))
    axes = {a.label: a for a in node.axes}
    free = {a.label for a in node.axes if a.define is None}
    if free - (one | two):
        return None
    keys = node.keys
    if _count(axes, one) < _count(axes, two) or (
        _reads_derived(node, second, derived) and not _reads_derived(node, first, derived)
    ):
        first, second, one, two = second, first, two, one
    batch = tuple(x for x in keys if x in one and x in two)
    m = tuple(x for x in keys if x in one and x not in two)
    n = tuple(x for x in keys if x in two and x not in one)
    k = tuple(x for x in free if x not in keys)
    if not set(k) <= one & two or min(_count(axes, g) for g in (m, n, k)) < FEWEST:
        return None
    in_order = tuple(a.label for a in node.axes if a.label in k)
    return Product(
        rows=first, columns=second, scale=scale, batch=batch, m=m, n=n, k=in_order, derived=derived
    )


def _count(axes: Mapping[str, Axis], labels: set[str] | tuple[str, ...]) -> int:
    return prod(axes[x].extent for x in labels)


def _reads_derived(node: EinSum, v: Value, derived: Mapping[str, Affine]) -> bool:
    return any(x in derived for x in node.operands[v.operand].labels)


def _free(node: EinSum, v: Value, derived: Mapping[str, Affine]) -> set[str]:
    """The free labels on which an operand's index depends."""
    labels = node.operands[v.operand].labels
    return {x for y in labels for x in (derived[y].steps if y in derived else (y,))}
