"""Sums of products of operands of which elements are absent.

`match.py` finds them and `sides.py` reads each operand as matrices beside their presence.
Dense arrays with flags are seen by tiles (`tiles.py`): absent ones are skipped, the others
multiplied by BLAS (`multiply.py`), or element by element where few of them are present.
Operands that are stored sparsely are multiplied as they are (`stored.py`), both by SciPy's
kernels (`rows.py`).
"""

from einsql.kernels.sparse.narrow import narrowed, over_parts
from einsql.kernels.sparse.run import compile_sparse

__all__ = ["compile_sparse", "narrowed", "over_parts"]
