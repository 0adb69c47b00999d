"""How tiles get from site to site: one protocol, spoken by virtual sites and by ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

Fields = dict[str, np.ndarray]


@dataclass(slots=True)
class Parcel:
    """Part of a tile on its way.

    Attributes:
        source: The site it leaves.
        target: The site it is for.
        tile: The number of the tile it becomes part of.
        box: int64 (keys, 2), the keys it covers.
        fields: Its arrays.
    """

    source: int
    target: int
    tile: int
    box: np.ndarray
    fields: Fields


class Transport(Protocol):
    """Moves parcels between sites; a process speaks for the sites it owns."""

    @property
    def owned(self) -> Sequence[int]:
        """The sites whose work is done in this process."""

    def exchange(self, parcels: list[Parcel]) -> list[Parcel]:
        """Sends parcels that leave owned sites; gives those that arrive at owned ones."""


class LocalTransport:
    """Virtual sites in one process: nothing is copied, every byte that would be is counted.

    Attributes:
        sent: Bytes that left each site for another one.
        received: Bytes that reached each site from another one.
    """

    def __init__(self, sites: int) -> None:
        self.owned: Sequence[int] = range(sites)
        self.sent = [0] * sites
        self.received = [0] * sites

    def exchange(self, parcels: list[Parcel]) -> list[Parcel]:
        """Hands the parcels over."""
        for p in parcels:
            if p.source != p.target:
                nbytes = sum(a.nbytes for a in p.fields.values())
                self.sent[p.source] += nbytes
                self.received[p.target] += nbytes
        return parcels
