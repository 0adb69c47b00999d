"""Any ⊗ over two sides and any ⊕: packed panels, register tiles, one kernel per expression.

`layout` chooses rows, columns and terms. `terms` splits an expression into a part that is packed
and a part that is computed in registers by `functions`. `source` writes the kernel around a
register tile, which `tile` builds from `registers`. `run` inspects the data, and cuts the work
for threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from einsql.core.lazy_module import LazyModule

if TYPE_CHECKING:
    from einsql.ir.einsum.graph import EinSum
    from einsql.kernels.kernel import Runner
    from einsql.kernels.packed import run as _run
else:  # loaded for large reductions
    _run = LazyModule("einsql.kernels.packed.run")

LEAST = 2**21
"""Points from which packing pays for its longer compilation."""


def compile_packed(node: EinSum) -> Runner | None:
    """Matches nodes that reduce an expression over two sides with different keys.

    Args:
        node: The node; its operands are passed as fields with one axis per key.

    Returns:
        The runner, or None. Its first run compiles. FLOAT sums are added in FLOAT for at most 32
        terms, and the partial sums in DOUBLE; long DOUBLE sums are cut into parts. If integers
        may overflow, it falls back to compiled loops, which raise only for actual overflow.
    """
    if node.points < LEAST or node.is_elementwise:
        return None
    return _run.compile_packed(node)
