"""Copies of tiles at sites that read them."""

from __future__ import annotations

SMALL = 2**22
"""Greatest number of elements of a relation that may have a copy at every site."""


def keepable(size: int) -> int:
    """The greatest number of elements of tiles that sites keep besides a tensor's own.

    Args:
        size: The number of keys of the tensor.
    """
    return max(size, SMALL)
