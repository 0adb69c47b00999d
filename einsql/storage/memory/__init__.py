"""A session's memory: what statements may take of it, and where the rest goes."""

from einsql.storage.memory.budget import Memory
from einsql.storage.memory.spill_files import sweep

__all__ = ["Memory", "sweep"]
