"""The width of a row of a register tile, which is that of a panel of a packed right side."""

from __future__ import annotations

from einsql.kernels.compiler.cpu_features import machine

WIDE = 2
"""Vectors in a row of a tile."""
BYTES = machine().width
"""Bytes of a vector register."""


def width(itemsize: int, columns: int) -> int:
    """Elements in a row of a tile, for right sides of the given number of columns."""
    return BYTES // itemsize * (1 if is_narrow(itemsize, columns) else WIDE)


def is_narrow(itemsize: int, columns: int) -> bool:
    """True if one vector holds a row of the right side."""
    return columns * itemsize <= BYTES
