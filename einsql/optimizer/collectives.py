"""What an exchange is called: the collective that brings tiles where they are needed."""

from __future__ import annotations

import numpy as np

from einsql.supersteps import Tiles


def named(need: Tiles, have: Tiles, nbytes: int) -> str:
    """The name of what brings tiles from where they are to where they are needed."""
    once = have.volumes[: have.once].sum()
    if nbytes == 0:
        return "none" if need.volumes.sum() == have.volumes.sum() else "slice"
    senders, readers = np.unique(have.sites), np.unique(need.sites)
    copies = need.volumes.sum() > once
    if len(senders) == 1:
        return "broadcast" if copies else "scatter"
    if len(readers) == 1:
        return "gather"
    return "all-gather" if copies else "all-to-all"
