"""The version of einsql."""

from __future__ import annotations

__version__ = "0.2.0"
