"""Any ⊗ over two sides and any ⊕: packed panels, register tiles, one kernel per expression.

`layout` finds rows, columns and terms; `terms` cuts an expression into what is packed and
what is computed in registers, whose functions are in `functions`; `source` writes the
kernel around a register tile, which `tile` builds from `registers`; `run` looks at the data,
and `pieces` cuts the work.
"""

from einsql.kernels.packed.run import compile_packed

__all__ = ["compile_packed"]
