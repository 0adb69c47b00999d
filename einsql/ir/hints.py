"""Requests of a statement about the cut of a node over sites."""

from __future__ import annotations

from einsql.core.records import dataclass


class Ring(int):
    """A number of parts, in a hint, that pass from site to site around a ring."""


@dataclass(frozen=True, slots=True)
class GridAxis:
    """An axis of a requested grid of sites.

    Attributes:
        label: The label that it cuts; another text, such as "*", repeats the calls along it.
        size: The number of sites along it.
        depth: The order of axes that cut the same label, as in `Shard`.
    """

    label: str
    size: int
    depth: int = 0
