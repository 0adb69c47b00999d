"""Any ⊗ over two sides and any ⊕: packed panels, register tiles, one kernel per expression.

`layout` chooses rows, columns and terms. `terms` splits an expression into a part that is packed
and a part that is computed in registers by `functions`. `source` writes the kernel around a
register tile, which `tile` builds from `registers`. `run` inspects the data, and cuts the work
for threads.
"""

from einsql.kernels.packed.run import compile_packed

__all__ = ["compile_packed"]
