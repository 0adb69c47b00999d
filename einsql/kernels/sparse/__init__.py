"""Sums of products of operands with absent elements.

`sides.py` recognises them, and reads each operand as matrices of values and flags. Dense arrays
with flags are divided into tiles (`tiles.py`, `tiled.py`). Absent tiles are skipped. BLAS
multiplies the other tiles, unless few elements are present, which are multiplied one by one.
Sparsely stored operands are multiplied without expansion (`stored.py`). `multiply.py` has the
products of both.

Every other node runs by compiled loops over rows of its operands (`visits.py`, `row_wise.py`,
`route_loops.py`, `row_loops.py`, `structures.py`). Without a compiler it runs over the stored
elements that its operands have in common (`joins.py`, `elements.py`). Most products of two sparse
matrices are SciPy's (`products.py`).

Nodes over operands of which every key exists run over their stored elements, too. The other points
have one value (`filled.py`, `unstored.py`). A tensor with constants added to its keys has the same
elements at other positions (`shifts.py`).
"""

from einsql.kernels.sparse.elements import over_elements
from einsql.kernels.sparse.filled import over_filled
from einsql.kernels.sparse.run import compile_sparse
from einsql.kernels.sparse.shifts import over_shift
from einsql.kernels.sparse.stored import (
    narrowed,
    over_parts,
    with_constant_keys,
    with_free_labels,
    without_constant_keys,
)

__all__ = [
    "compile_sparse",
    "narrowed",
    "over_elements",
    "over_filled",
    "over_parts",
    "over_shift",
    "with_constant_keys",
    "with_free_labels",
    "without_constant_keys",
]
