"""Sums of products of operands with absent elements.

`match.py` recognises them, and `sides.py` reads each operand as matrices of values and flags.
Dense arrays with flags are divided into tiles (`tiles.py`): absent tiles are skipped, the others
multiplied by BLAS (`multiply.py`), or element by element where few elements are present. Operands
that are stored sparsely are multiplied without expansion (`stored.py`). Both use SciPy's kernels
(`rows.py`).
"""

from einsql.kernels.sparse.narrow import narrowed, over_parts
from einsql.kernels.sparse.run import compile_sparse

__all__ = ["compile_sparse", "narrowed", "over_parts"]
