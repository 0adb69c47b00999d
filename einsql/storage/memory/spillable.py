"""The protocol of stored objects whose arrays count towards the memory limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np


class Spillable(Protocol):
    """The interface of a database object for the memory budget."""

    @property
    def owned_fields(self) -> Mapping[str, np.ndarray]:
        """The arrays that the database owns, which take memory and may go to temporary files."""
