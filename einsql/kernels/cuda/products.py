"""Float sums of products of two operands, by the device's matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from einsql.core.schema import DType
from einsql.ir.einsum.graph import EinSum
from einsql.kernels.cuda.device import Array, Device
from einsql.kernels.cuda.generated import Arrays, Compute
from einsql.kernels.matmul.match import Factor, Product, product_of
from einsql.kernels.vectorized.views import reading


def compile_product(node: EinSum, device: Device, precision: str) -> Compute | None:
    """Matches nodes with a float sum of products over labels of both sides as only output.

    HALF factors are multiplied without conversion and summed in FLOAT.
    """
    if len(node.outputs) != 1 or any(a.extent == 0 for a in node.axes):
        return None
    product_sides = product_of(node, node.outputs[0])
    if product_sides is None or not product_sides.right:
        return None
    product = _Product(node, product_sides, device, precision)
    return product.run if product.k else None


class _Product:
    def __init__(self, node: EinSum, sums: Product, device: Device, precision: str) -> None:
        self.node, self.device, self.precision = node, device, precision
        self.sides = (sums.left, sums.right)
        self.extent = {a.label: a.extent for a in node.axes}
        a, b = (tuple(dict.fromkeys(node.operands[s[0].operand].labels)) for s in self.sides)
        keys = node.keys
        self.batch = tuple(x for x in keys if x in a and x in b)
        self.m = tuple(x for x in keys if x in a and x not in b)
        self.n = tuple(x for x in keys if x in b and x not in a)
        self.k = tuple(x for x in a if x in b and x not in keys)
        self.gone = tuple(
            tuple(x for x in own if x not in other and x not in keys)
            for own, other in ((a, b), (b, a))
        )
        self.labels = a, b
        dtype = node.outputs[0].dtype
        self.work = np.dtype(np.float32) if dtype is DType.HALF else dtype.numpy
        nowhere = [x for x in self.extent if x not in a and x not in b and x not in keys]
        self.scalars = sums.scalars
        self.scale = sums.scale * prod(self.extent[x] for x in nowhere)

    def run(self, operands: Sequence[Arrays]) -> dict[str, Array]:
        left = self.stack(operands, 0, self.m, self.k)
        right = self.stack(operands, 1, self.k, self.n)
        halves = left.dtype == np.float16
        if left.dtype != right.dtype or (halves and self.work != np.float32):
            left, right = left.astype(self.work), right.astype(self.work)
        result = self.device.gemm(left, right, self.work, self.precision)
        labels = (*self.batch, *self.m, *self.n)
        result = result.reshape([self.extent[x] for x in labels])
        kept = [k for k in self.node.keys if k in labels]
        result = result.transpose([labels.index(k) for k in kept])
        for s in self.scalars:
            result = result * operands[s.operand][s.field].astype(self.work)
        if self.scale != 1.0:
            result = result * self.work.type(self.scale) + self.work.type(0)
        output = self.node.outputs[0]
        result = result.astype(output.dtype.numpy, copy=False)
        if len(kept) < len(self.node.keys):
            lift = tuple(slice(None) if k in labels else None for k in self.node.keys)
            result = np.broadcast_to(result[lift], self.node.schema.shape)
        return {output.name: result}

    def stack(
        self, operands: Sequence[Arrays], side: int, rows: Sequence[str], columns: Sequence[str]
    ) -> Array:
        """A side as matrices (batch, rows, columns), merged without a copy if possible."""
        array = self.product(operands, self.sides[side])
        gone, labels = self.gone[side], self.labels[side]
        if gone:
            total = array.sum(axis=tuple(labels.index(x) for x in gone), dtype=np.float64)
            array = total.astype(self.work)
            labels = tuple(x for x in labels if x not in gone)
        array = array.transpose([labels.index(x) for x in (*self.batch, *rows, *columns)])
        size = [prod(self.extent[x] for x in group) for group in (self.batch, rows, columns)]
        return array.reshape(size)

    def product(self, operands: Sequence[Arrays], side: Sequence[Factor]) -> Array:
        operand = self.node.operands[side[0].operand]
        view = reading(self.node, operand, tuple(dict.fromkeys(operand.labels)))
        arrays = [operands[f.operand][f.field] for f in side]
        arrays = [a if view is None else view(a) for a in arrays]
        if len(arrays) == 1 and arrays[0].dtype == np.float16:
            return arrays[0]
        first, *rest = (a.astype(self.work, copy=False) for a in arrays)
        for factor in rest:
            first = first * factor
        return first
