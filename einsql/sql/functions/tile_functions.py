"""Functions of SQL over tiles."""

from __future__ import annotations

from einsql.ir.functions import INTERNAL, REDUCTIONS, SCALARS

PREFIX = "tensor_"

TABLE_FUNCTIONS = ("tiles", "tile", "elements")
"""TILES cuts a tensor into tiles, TILE cuts tiles further, ELEMENTS joins tiles to a tensor."""

SELECTING = ("tiles", "tile")
"""The functions whose results are relations of tiles."""

POINTWISE = {name: name for name in SCALARS if name not in INTERNAL}
"""Functions tensor_<name> that apply a scalar function element by element to arrays."""

AGGREGATES = {r.name.removeprefix("bool_"): r.name for r in REDUCTIONS.values() if r.monoid}
"""Functions tensor_<name>(tile) that merge the arrays of a group element by element."""

SHAPED = ("einsum", "transpose", "diag")
"""Functions tensor_<name> whose result has another shape than the arguments."""

FUNCTIONS = sorted(
    PREFIX + name for name in {*POINTWISE, *AGGREGATES, *SHAPED, "relu", "sigmoid", "stack"}
)


def suffix(name: str) -> str | None:
    """The name of a function of tiles without `tensor_`, or None."""
    low = name.lower()
    return low[len(PREFIX) :] if low in FUNCTIONS else None
