"""Functions of SQL over tiles."""

from __future__ import annotations

from einsql.ir.functions import INTERNAL, REDUCTIONS, SCALARS

PREFIX = "tensor_"

TABLE_FUNCTIONS = ("tiles", "tile", "elements")
"""TILES cuts a tensor, TILE cuts arrays further, ELEMENTS reads tiles as one tensor."""

SELECTING = ("tiles", "tile")
"""The functions whose results are relations of tiles."""

POINTWISE = {name: name for name in SCALARS if name not in INTERNAL}
"""tensor_<name> of one array for each argument: element by element."""

AGGREGATES = {r.name.removeprefix("bool_"): r.name for r in REDUCTIONS.values() if r.monoid}
"""tensor_<name>(tile): the arrays of a group, merged element by element."""

SHAPED = ("einsum", "transpose", "diag")
"""tensor_<name>: arrays of other shapes."""

FUNCTIONS = sorted(
    PREFIX + name for name in {*POINTWISE, *AGGREGATES, *SHAPED, "relu", "sigmoid", "stack"}
)


def suffix(name: str) -> str | None:
    """The name of a function of tiles without `tensor_`, or None."""
    low = name.lower()
    return low[len(PREFIX) :] if low in FUNCTIONS else None
