"""Tensor relations for tests: every plan is run twice and held against its schema.

Data are small dyadic rationals, so results are exact in any order.
"""

from __future__ import annotations

import numpy as np

from einsql import tra
from einsql.ir.tra.interpreter import Blocks, evaluate_blocks
from einsql.ir.tra.kernels import VALUE


def by_reference(relation: tra.Relation) -> Blocks:
    """The records of a relation by definition."""
    return evaluate_blocks(relation.plan, {n: {VALUE: a} for n, a in relation.arrays.items()})


def checked(relation: tra.Relation) -> dict[tuple[int, ...], np.ndarray]:
    """The blocks, the same by kernels and by definition, and as the schema says."""
    schema = relation.schema
    got, wanted = relation.blocks(), by_reference(relation)
    assert list(got) == list(schema.each_key()) == sorted(wanted)
    for k, array in got.items():
        assert (array.shape, array.dtype) == (schema.shape(k), schema.dtype.numpy)
        np.testing.assert_array_equal(array, wanted[k][VALUE])
    return got
