"""The protocol of stored objects whose arrays count towards the memory limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np


class Spillable(Protocol):
    """An object of a database, as far as the memory budget needs to know it."""

    @property
    def owned_fields(self) -> Mapping[str, np.ndarray]:
        """Arrays of the database: they take memory, and may go to temporary files."""
