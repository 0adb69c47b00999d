"""Any ⊗ over two sides and any ⊕: packed panels, register tiles, one kernel per expression.

`layout` finds rows, columns and terms; `terms` cuts an expression into what is packed and
what is computed in registers, whose functions are in `functions`; `source` writes the
kernel around the tile that `registers` builds; `run` looks at the data and runs it.
"""

from einsql.kernels.kernel import Kernel
from einsql.kernels.packed.run import compile_packed

PACKED = Kernel(
    "packed", "a reduction over two sides with keys of their own is register tiles", compile_packed
)
