"""Convolutions, pooling and splits: operands read through affine labels as windows.

`affine` reads such operands as strided views; `match` recognises products over them, which
`multiply` computes by register tiles.
"""

from einsql.kernels.convolutions.affine import as_windows
from einsql.kernels.convolutions.match import is_window_product
from einsql.kernels.convolutions.multiply import compile_windows

__all__ = ["as_windows", "compile_windows", "is_window_product"]
