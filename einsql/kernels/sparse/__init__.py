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
"""

from einsql.kernels.sparse.elements import over_elements
from einsql.kernels.sparse.run import compile_sparse
from einsql.kernels.sparse.stored import narrowed, over_parts

__all__ = ["compile_sparse", "narrowed", "over_elements", "over_parts"]
