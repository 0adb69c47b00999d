"""Windows: operands read through affine labels, as in convolutions, pooling and splits.

`affine` reads such operands as strided views; `match` finds products over them, which
`multiply` computes by register tiles.
"""

from einsql.kernels.windows.affine import as_windows
from einsql.kernels.windows.match import is_window_product
from einsql.kernels.windows.multiply import compile_windows

__all__ = ["as_windows", "compile_windows", "is_window_product"]
